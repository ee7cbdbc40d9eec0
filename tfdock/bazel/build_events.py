"""Read a build's counts and times from Bazel's event file (`--build_event_json_file`) and output. Pure: no I/O.

Each line of the file is a JSON object. A value that this Bazel version does not report is None or empty. Incomplete
lines, and lines with other JSON, are skipped.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from tfdock.bazel import output
from tfdock.host.foreign_json import Malformed, parse

# Bounded digits: a container can print a number of any length.
_SECONDS = r"(\d{1,9}(?:\.\d{1,9})?)s"
_CRITICAL = re.compile(rf"^[ \t]+{_SECONDS}\b.*?\baction '(.*)'", re.MULTILINE)
_CRITICAL_SECONDS = re.compile(rf"Critical Path: {_SECONDS}")
_ELAPSED = re.compile(rf"INFO: Elapsed time: {_SECONDS}")
# An empty value switches a cache off, so it does not count.
_REMOTE = re.compile(r"--remote_(?:cache|executor)=(?!$)")
_DISK = re.compile(r"--disk_cache=(?!$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Bazel's counts for one build: actions served by a cache, and actions executed."""

    hits: int = 0
    executed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """An action with the seconds it took."""

    name: str  #: What the action makes.
    seconds: float  #: How long the action took.


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildEvents:
    """What Bazel reports of one build.

    `sources` counts the hits of each cache: `disk`, `remote`, or `cache` if this Bazel does not say which cache.
    `runners` counts executed actions by runner, with Bazel's names. `actions` counts all actions, including Bazel's
    own. `critical` is the critical path, first action first. `cpu_seconds` is the CPU time of Bazel's own process,
    `output_bytes` the size of the built files.
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


#: How many of the last texts are kept, and how many characters of each text. A container can write any number.
_MOST_TEXTS, _LONGEST = 2_000, 1 << 15
_RUNNERS = 100  #: How many runners are kept, and how many characters of each name.


def read_events(lines: Iterable[str]) -> BuildEvents:
    """Read a build event file.

    Some Bazels count actions by runner in `buildMetrics`; the others only print `INFO: 13 processes: …`.
    """
    build = BuildEvents()
    metrics: Mapping[str, int] = {}
    texts: deque[str] = deque(maxlen=_MOST_TEXTS)
    options: list[str] = []
    for event in parsed_lines(lines):
        if version := _value_at(event, "started", "buildToolVersion"):
            build = replace(build, version=str(version))
        # A container may write any number of options.
        added = islice(_as_list(_value_at(event, "optionsParsed", "cmdLine")), _MOST_TEXTS - len(options))
        options += (str(option)[:_LONGEST] for option in added)
        metrics = _runner_counts(event) or metrics
        build = _with_metrics(build, event)
        # Only the end of the text is read, because the figures are there.
        texts.extend(text[-_LONGEST:] for text in _output_texts(event))
    counts = metrics or _last_process_counts(texts)
    return _with_output(_with_counts(build, counts, options), texts)


def read_output(lines: Iterable[str]) -> BuildEvents:
    """Read the same values from Bazel's output, for a Bazel that writes no event file."""
    texts = deque((line[-_LONGEST:] for line in lines if line.startswith("INFO: ")), _MOST_TEXTS)
    return _with_output(_with_counts(BuildEvents(), _last_process_counts(texts), ()), texts)


# --- counts -------------------------------------------------------------------------------------------------------


def _with_counts(build: BuildEvents, counts: Mapping[str, int], options: Iterable[str]) -> BuildEvents:
    # `total` counts all actions and `internal` Bazel's own actions, so neither is a runner.
    totals = {"total", "internal"}
    # Bazel versions differ in the kinds of hits that they report, such as `disk cache hit` and `remote cache hit`.
    hits = {name: count for name, count in counts.items() if "cache hit" in name}
    runners = {name: count for name, count in counts.items() if name not in {*hits, *totals}}
    if not hits and not runners and not counts:
        return build
    figures = Figures(hits=sum(hits.values()), executed=sum(runners.values()))
    return replace(build, figures=figures, runners=runners, sources=_sources(hits, list(options)))


def _sources(hits: Mapping[str, int], options: list[str]) -> dict[str, int]:
    """Return the number of hits by cache.

    Older Bazels call a hit in the disk cache a `remote cache hit` too. If both caches were in use and no hit names
    the disk cache, the cache is unknown.
    """
    disk, remote = any(map(_DISK.match, options)), any(map(_REMOTE.match, options))
    disk_is_named = any("disk" in name for name in hits)
    sources: dict[str, int] = {}
    for name, count in hits.items():
        is_disk = "disk" in name or (disk and not remote)
        source = "disk" if is_disk else "remote" if disk_is_named or (remote and not disk) else "cache"
        sources[source] = sources.get(source, 0) + count
    return sources


def _runner_counts(event: Mapping[str, Any]) -> dict[str, int]:
    rows = islice(_as_list(_value_at(event, "buildMetrics", "actionSummary", "runnerCount")), _RUNNERS)
    return {
        str(_value_at(row, "name"))[:_RUNNERS]: _count_of(_value_at(row, "count")) or 0
        for row in rows
        if _value_at(row, "name")
    }


def _last_process_counts(texts: Iterable[str]) -> dict[str, int]:
    """Return the counts of the last summary line: it counts the whole build."""
    counts: dict[str, int] = {}
    for text in texts:
        counts = output.processes(text) or counts
    return counts


# --- metrics and output -------------------------------------------------------------------------------------------


def _with_metrics(build: BuildEvents, event: Mapping[str, Any]) -> BuildEvents:
    metrics = _value_at(event, "buildMetrics")
    if metrics is None:
        return build
    wall, cpu = (_count_of(_value_at(metrics, "timingMetrics", name)) for name in ("wallTimeInMs", "cpuTimeInMs"))
    return replace(
        build,
        actions=_count_of(_value_at(metrics, "actionSummary", "actionsExecuted")),
        wall_seconds=None if wall is None else wall / 1000,
        cpu_seconds=None if cpu is None else cpu / 1000,
        output_bytes=_count_of(_value_at(metrics, "artifactMetrics", "outputArtifactsSeen", "sizeInBytes")),
    )


def _output_texts(event: Mapping[str, Any]) -> Iterator[str]:
    """Yield Bazel's output from the event, and the closing logs in the format of Bazel's own output."""
    if text := _value_at(event, "progress", "stderr"):
        yield str(text)
    for log in _as_list(_value_at(event, "buildToolLogs", "log")):
        name, content = _value_at(log, "name"), _decoded(_value_at(log, "contents"))
        if name == "process stats":
            yield f"INFO: {content}"
        elif name == "elapsed time":
            yield f"INFO: Elapsed time: {content}s"
        elif name == "critical path":
            yield content


def _with_output(build: BuildEvents, texts: Iterable[str]) -> BuildEvents:
    for text in texts:
        # The metrics have milliseconds. The text is for a Bazel that has no metrics.
        for elapsed in _ELAPSED.finditer(text) if build.wall_seconds is None else ():
            build = replace(build, wall_seconds=float(elapsed[1]))
        for critical in _CRITICAL_SECONDS.finditer(text):
            build = replace(build, critical_seconds=float(critical[1]))
        if path := _CRITICAL.findall(text):
            # Bazel prints the last action of the path first.
            steps = (Step(name=name, seconds=float(seconds)) for seconds, name in reversed(path))
            build = replace(build, critical=tuple(steps))
    return build


# --- JSON that may be of any shape --------------------------------------------------------------------------------


def parsed_lines(lines: Iterable[str]) -> Iterator[Mapping[str, Any]]:
    """Yield the JSON object of each line; skip incomplete lines and other values."""
    for line in lines:
        with suppress(Malformed):
            yield parse(dict[str, Any], line)


def _value_at(value: object, *names: str) -> Any:
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _count_of(value: object) -> int | None:
    """Return a count of at most 63 bits; None for anything else. Bazel writes counts of 64 bits as text."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value < 1 << 63 else None


def _decoded(value: object) -> str:
    try:
        return base64.b64decode(value if isinstance(value, str) else "").decode("utf-8", "replace")
    except (binascii.Error, ValueError):
        return ""
