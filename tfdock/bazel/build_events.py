"""Read Bazel's build event file (`--build_event_json_file`) and its output lines: figures of a build. Pure.

The file is one JSON object a line. What a version does not say is None or empty; lines that are torn or of another
shape are passed over.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from tfdock.bazel import output

_SECONDS = r"(\d{1,9}(?:\.\d{1,9})?)s"
_CRITICAL = re.compile(rf"^[ \t]+{_SECONDS}\b.*?\baction '(.*)'", re.MULTILINE)
_CRITICAL_SECONDS = re.compile(rf"Critical Path: {_SECONDS}")
_ELAPSED = re.compile(rf"INFO: Elapsed time: {_SECONDS}")
_OTHERS = re.compile(r"--remote_(?:cache|executor)=(?!$)")
_DISK = re.compile(r"--disk_cache=(?!$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Bazel's figures of one build: actions served by a cache, and actions executed."""

    hits: int = 0
    executed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """An action with the seconds it took."""

    name: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildEvents:
    """What Bazel says of one build.

    `sources` says where hits came from: `disk`, `remote`, or `cache` where this Bazel does not tell which. `runners`
    are those who executed, as Bazel calls them. `actions` counts all, Bazel's own among them. `critical` is the
    critical path, first action first. `cpu_seconds` are those of Bazel's own process, `output_bytes` those of what
    was built.
    """

    version: str | None = None
    figures: Figures | None = None
    sources: Mapping[str, int] = field(default_factory=dict)
    runners: Mapping[str, int] = field(default_factory=dict)
    actions: int | None = None
    wall_seconds: float | None = None
    cpu_seconds: float | None = None
    critical_seconds: float | None = None
    critical: tuple[Step, ...] = ()
    output_bytes: int | None = None


_TEXTS, _LONGEST = 2_000, 1 << 15
"""Texts that are kept, the last ones, and characters of each: a container can write as many as it likes."""
_RUNNERS = 100
"""Runners that are kept, and characters of their names."""


def read_events(lines: Iterable[str]) -> BuildEvents:
    """Read a build event file.

    Some Bazels count actions by runner in `buildMetrics`; the others only print `INFO: 13 processes: …`.
    """
    found = BuildEvents()
    metrics: Mapping[str, int] = {}
    said: deque[str] = deque(maxlen=_TEXTS)
    options: list[str] = []
    for event in _events(lines):
        if version := _at(event, "started", "buildToolVersion"):
            found = replace(found, version=str(version))
        more = islice(_list(_at(event, "optionsParsed", "cmdLine")), _TEXTS - len(options))
        options += (str(option)[:_LONGEST] for option in more)
        metrics = _runners(event) or metrics
        found = _with_metrics(found, event)
        said.extend(text[-_LONGEST:] for text in _outputs(event))
    counted = metrics or _processes(said)
    return _with_output(_with_counts(found, counted, options), said)


def read_output(lines: Iterable[str]) -> BuildEvents:
    """The same from what Bazel printed, for one that writes no event file."""
    said = deque((line[-_LONGEST:] for line in lines if line.startswith("INFO: ")), _TEXTS)
    return _with_output(_with_counts(BuildEvents(), _processes(said), ()), said)


# --- counts -------------------------------------------------------------------------------------------------------


def _with_counts(found: BuildEvents, counted: Mapping[str, int], options: Iterable[str]) -> BuildEvents:
    own = {"total", "internal"}
    hits = {name: count for name, count in counted.items() if "cache hit" in name}
    runners = {name: count for name, count in counted.items() if name not in {*hits, *own}}
    if not hits and not runners and not counted:
        return found
    figures = Figures(hits=sum(hits.values()), executed=sum(runners.values()))
    return replace(found, figures=figures, runners=runners, sources=_sources(hits, list(options)))


def _sources(hits: Mapping[str, int], options: list[str]) -> dict[str, int]:
    """Hits by where they came from.

    Older Bazels call a hit in the disk cache a `remote cache hit` too. Where both caches were in use, and no hit was
    called one of the disk cache, nobody can tell which it was.
    """
    disk, other = any(map(_DISK.match, options)), any(map(_OTHERS.match, options))
    told = any("disk" in name for name in hits)
    sources: dict[str, int] = {}
    for name, count in hits.items():
        ours = "disk" in name or (disk and not other)
        source = "disk" if ours else "remote" if told or (other and not disk) else "cache"
        sources[source] = sources.get(source, 0) + count
    return sources


def _runners(event: Mapping[str, Any]) -> dict[str, int]:
    rows = islice(_list(_at(event, "buildMetrics", "actionSummary", "runnerCount")), _RUNNERS)
    return {str(_at(one, "name"))[:_RUNNERS]: _whole(_at(one, "count")) or 0 for one in rows if _at(one, "name")}


def _processes(said: Iterable[str]) -> dict[str, int]:
    """The last summary counts."""
    counted: dict[str, int] = {}
    for text in said:
        counted = output.processes(text) or counted
    return counted


# --- metrics and output -------------------------------------------------------------------------------------------


def _with_metrics(found: BuildEvents, event: Mapping[str, Any]) -> BuildEvents:
    metrics = _at(event, "buildMetrics")
    if metrics is None:
        return found
    wall, cpu = (_whole(_at(metrics, "timingMetrics", name)) for name in ("wallTimeInMs", "cpuTimeInMs"))
    return replace(
        found,
        actions=_whole(_at(metrics, "actionSummary", "actionsExecuted")),
        wall_seconds=None if wall is None else wall / 1000,
        cpu_seconds=None if cpu is None else cpu / 1000,
        output_bytes=_whole(_at(metrics, "artifactMetrics", "outputArtifactsSeen", "sizeInBytes")),
    )


def _outputs(event: Mapping[str, Any]) -> Iterator[str]:
    """What the event repeats of Bazel's output, and its closing logs as they would have been printed."""
    if text := _at(event, "progress", "stderr"):
        yield str(text)
    for log in _list(_at(event, "buildToolLogs", "log")):
        name, content = _at(log, "name"), _text(_at(log, "contents"))
        if name == "process stats":
            yield f"INFO: {content}"
        elif name == "elapsed time":
            yield f"INFO: Elapsed time: {content}s"
        elif name == "critical path":
            yield content


def _with_output(found: BuildEvents, said: Iterable[str]) -> BuildEvents:
    for text in said:
        for elapsed in _ELAPSED.finditer(text) if found.wall_seconds is None else ():
            found = replace(found, wall_seconds=float(elapsed[1]))
        for critical in _CRITICAL_SECONDS.finditer(text):
            found = replace(found, critical_seconds=float(critical[1]))
        if path := _CRITICAL.findall(text):
            # Bazel begins with the last one.
            steps = (Step(name=name, seconds=float(seconds)) for seconds, name in reversed(path))
            found = replace(found, critical=tuple(steps))
    return found


# --- JSON that may be of any shape --------------------------------------------------------------------------------


def _events(lines: Iterable[str]) -> Iterator[Mapping[str, Any]]:
    for line in lines:
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict):
            yield event


def _at(value: object, *names: str) -> Any:
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _whole(value: object) -> int | None:
    """A count, as large as 63 bits hold; Bazel writes those of 64 bits as text."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value < 1 << 63 else None


def _text(value: object) -> str:
    try:
        return base64.b64decode(value if isinstance(value, str) else "").decode("utf-8", "replace")
    except (binascii.Error, ValueError):
        return ""
