"""What Bazel did, from its build event file and from its output lines. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

_PROGRESS = re.compile(r"\[([\d,]+) / ([\d,]+)\]")
_PROCESSES = re.compile(r"INFO: [\d,]+ process(?:es)?: (.*?)\.?\s*$", re.MULTILINE)
_NETWORK = re.compile(
    r"UnknownHostException|Unknown host|Connection refused|Connection reset|[Cc]onnect(?:ion)? timed out|"
    r"Network is unreachable|No route to host|GET returned (?:4|5)\d\d|Could not resolve host|"
    r"Temporary failure (?:in name resolution|resolving)"
)
_NO_SPACE = re.compile(r"No space left on device|ENOSPC")
_ERROR = re.compile(r"^(?:ERROR|FATAL|FAILED)\b|\berror:|^tfdock: |Killed\b|\w+(?:Error|Exception): ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Bazel's figures of one build: actions served by a cache, and actions executed."""

    hits: int = 0
    executed: int = 0


def progress(line: str) -> tuple[int, int] | None:
    """(done, total) of a progress line `[1,234 / 5,678] Compiling …`."""
    match = _PROGRESS.match(line)
    return (_number(match[1]), _number(match[2])) if match else None


def figures(events: Iterable[str]) -> Figures | None:
    """Read the lines of a build event file (`--build_event_json_file`); None if it does not say.

    Since Bazel 4 `buildMetrics` counts actions by runner; older ones only print the line `INFO: 13 processes: …`.
    """
    from_output = None
    for line in events:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if not isinstance(event, dict):
            continue
        runners = event.get("buildMetrics", {}).get("actionSummary", {}).get("runnerCount")
        if runners:
            return _sum((one.get("name", ""), int(one.get("count", 0))) for one in runners)
        for match in _PROCESSES.finditer(event.get("progress", {}).get("stderr", "")):
            from_output = _sum(_summary(match[1]))
    return from_output


def _summary(text: str) -> Iterable[tuple[str, int]]:
    """`3 disk cache hit, 10 local` -> (name, count)."""
    for part in text.split(", "):
        count, _, name = part.partition(" ")
        if count.replace(",", "").isdigit():
            yield name, _number(count)


def _sum(runners: Iterable[tuple[str, int]]) -> Figures:
    hits = executed = 0
    for name, count in runners:
        if "cache hit" in name:
            hits += count
        elif name not in ("total", "internal"):
            executed += count
    return Figures(hits=hits, executed=executed)


def _number(text: str) -> int:
    return int(text.replace(",", ""))


def is_error(line: str) -> bool:
    """Whether a line of a build log looks like the report of an error."""
    return _ERROR.search(line) is not None


def speaks_of_network(lines: Iterable[str]) -> bool:
    """Whether the output says that something could not be downloaded."""
    return any(_NETWORK.search(line) for line in lines)


def speaks_of_full_disk(lines: Iterable[str]) -> bool:
    """Whether the output says that a disk is full."""
    return any(_NO_SPACE.search(line) for line in lines)
