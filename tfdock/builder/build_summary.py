"""Summarise a build from Bazel's files: counts and times, files to keep, and the causes of cache misses."""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from tfdock.bazel import cache_misses
from tfdock.bazel.build_events import BuildEvents, Figures, read_events, read_output
from tfdock.bazel.trace_profile import TraceProfile, read_profile
from tfdock.host.foreign_json import Malformed, parse
from tfdock.host.untrusted_folders import UntrustedPath, open_plain_file
from tfdock.plan.build_plan import TOLD
from tfdock.run.supervisor import step_heading
from tfdock.types import BuildId
from tfdock.wheelhouse.store import Wheelhouse, kept_files

_SLOWEST = 10
_PIECE = 1 << 20  #: How many characters are read at a time, and the length of the longest line.
#: The most characters to read of a log, and of an uncompressed profile: TensorFlow's profile has a thirtieth.
_MOST_TEXT, _MOST_PROFILE = 1 << 33, 1 << 28


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTraces:
    """The files and facts of a run: copies of the run's results, its log, and its inputs.

    `compiling` is the log line that begins the compiling. `files` lists a local checkout (see `tree_listing`).
    `cache_was_empty`: whether the disk cache was empty before the build.
    """

    run: str
    results: Path
    log: Path
    compiling: str
    toolchain: bytes
    context: Mapping[str, bytes]
    files: Mapping[str, str] | None
    cache_was_empty: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildSummary:
    """The summary of a build: the record's entries `bazel` and `kept`, and the files that `kept` names."""

    bazel: Mapping[str, Any] | None
    kept: Mapping[str, str]
    files: Mapping[str, bytes]


def summarize(record: Mapping[str, Any], traces: RunTraces, wheelhouse: Wheelhouse) -> BuildSummary:
    """Return the summary: read Bazel's files, compare with the last build, and choose the files to keep."""
    build = _build_events(traces)
    profile = load_profile(traces.results / TOLD["profile"])
    # The next build compares its own inputs with these, to say why its cache was cold.
    inputs = cache_misses.kept_inputs(traces.toolchain, traces.context, traces.files)
    files = {"inputs": _compress(inputs)}
    files |= {"profile": _compress_file(traces.results / TOLD["profile"])} if profile.actions else {}
    # Named after the run, so that a replaced record removes exactly its own files.
    kept = {kind: f"{traces.run}.{kind}.gz" for kind in files}
    figures = None
    if build.figures:
        why = _explain_misses(record, inputs, build.figures.executed, traces, wheelhouse)
        # Earlier versions counted misses by action. No key of a document is removed within its version.
        figures = _figures(build, profile) | {"why": asdict(why) | {"misses": None}}
    return BuildSummary(bazel=figures, kept=kept, files={kept[kind]: data for kind, data in files.items()})


# --- figures ------------------------------------------------------------------------------------------------------


def _build_events(traces: RunTraces) -> BuildEvents:
    """Return Bazel's events: from its event file, or from its output if it wrote no file."""
    with _open_lines(traces.results / TOLD["events"]) as lines:
        events = read_events(lines)
    if events.figures:
        return events
    with _open_lines(traces.log) as lines:
        return read_output(_lines_after(lines, traces.compiling))


def figures_of(log: Path, build_id: str) -> Figures | None:
    """Return Bazel's counts from the log of a build without a record; None if Bazel printed no counts."""
    with _open_lines(log) as lines:
        return read_output(_lines_after(lines, step_heading(f"compile of {build_id}"))).figures


def _lines_after(lines: Iterator[str], first: str) -> Iterator[str]:
    began = False
    for line in lines:
        if began:
            yield line
        began = began or line.rstrip("\n") == first


def _figures(build: BuildEvents, profile: TraceProfile) -> dict[str, Any]:
    """Return the figures as a record has them, with seconds rounded to milliseconds."""
    assert build.figures is not None
    critical = profile.critical or build.critical
    seconds = sum(step.seconds for step in critical) if build.critical_seconds is None else build.critical_seconds
    return {
        **asdict(build.figures),
        "sources": dict(build.sources),
        "runners": dict(build.runners),
        "actions": build.actions,
        # Without a trace profile the kinds are unknown, which is different from no kinds.
        "executed_by_mnemonic": profile.by_mnemonic if profile.actions else None,
        "critical_path": {
            "seconds": round(seconds, 3),
            "actions": [{"name": step.name, "seconds": round(step.seconds, 3)} for step in critical],
        }
        if critical or build.critical_seconds is not None
        else None,
        "slowest": [
            {"name": action.name, "mnemonic": action.mnemonic, "how": action.how, "seconds": round(action.seconds, 3)}
            for action in profile.slowest(_SLOWEST)
        ],
        "wall_seconds": build.wall_seconds,
        "bazel_cpu_seconds": build.cpu_seconds,
        "output_bytes": build.output_bytes,
    }


# --- why it was cold ----------------------------------------------------------------------------------------------


def _explain_misses(
    record: Mapping[str, Any],
    inputs: Mapping[str, object],
    executed: int,
    traces: RunTraces,
    wheelhouse: Wheelhouse,
) -> cache_misses.CacheMissReport:
    # A pulled build has no entries in this machine's cache.
    own = (record for record in wheelhouse.records() if not wheelhouse.pulled_from(record))
    last = cache_misses.last_build(own, record["build_id"])
    before = None
    if last is not None:
        # `str`, because a record may be damaged: a value of another type must not end a build that succeeded.
        folder = wheelhouse.record_folder(BuildId(str(last["build_id"])), str(last.get("fingerprint")))
        before = (last, cache_misses.inputs_of(last, load_inputs(folder, last)))
    return cache_misses.explain(
        cache_misses.inputs_of(record, inputs),
        before,
        executed=executed,
        cache_was_empty=traces.cache_was_empty,
    )


#: The most bytes of unpacked inputs: as Python values they need 30 times as much memory. TensorFlow has far fewer.
_MOST_KEPT = 16 << 20

# --- files --------------------------------------------------------------------------------------------------------


def load_inputs(folder: UntrustedPath, record: Mapping[str, Any]) -> object:
    """Return the inputs stored beside a record; None if they are missing, damaged or too large."""
    name = kept_files(record).get("inputs")
    try:
        if not name:
            return None
        with (folder / name).open() as file:
            data = gzip.GzipFile(fileobj=file).read(_MOST_KEPT + 1)
        return parse(Any, data) if len(data) <= _MOST_KEPT else None
    # Damaged inputs only lose an explanation: reading them must never fail a build after hours of work.
    except (OSError, EOFError, zlib.error, Malformed):
        return None


def load_profile(path: Path | UntrustedPath) -> TraceProfile:
    """Return the trace profile in a file (compressed or not); an empty profile if the file has another content."""
    with _open_lines(path, _MOST_PROFILE) as lines:
        return read_profile(lines)


def _compress(document: object) -> bytes:
    # Sorted keys and no time: equal contents give equal bytes. In RFC 1952, an `mtime` of 0 means no time.
    return gzip.compress(json.dumps(document, sort_keys=True, separators=(",", ":")).encode(), mtime=0)


def _compress_file(path: Path) -> bytes:
    """Return a file's content in compressed form."""
    data = path.read_bytes()
    return data if data[:2] == _GZIP else gzip.compress(data, mtime=0)


# RFC 1952: ID1 and ID2 of a gzip member.
_GZIP = b"\x1f\x8b"


@contextmanager
def _open_lines(path: Path | UntrustedPath, most: int = _MOST_TEXT) -> Iterator[Iterator[str]]:
    """Give the lines of a text file that may be compressed, missing or cut off. A long line comes in pieces.

    Characters after the first `most` are left out.
    """
    with open_plain_file(path) as file:
        if file is None:
            yield iter(())
            return
        # Look at the content: whether Bazel compresses its profile depends on version and flags.
        packed = file.read(2) == _GZIP
        file.seek(0)
        source: Any = gzip.GzipFile(fileobj=file) if packed else file
        with io.TextIOWrapper(source, "utf-8", "replace") as text:
            yield _read_lines(text, most)


def _read_lines(text: TextIO, left: int) -> Iterator[str]:
    try:
        while left > 0 and (line := text.readline(_PIECE)):
            left -= len(line)
            yield line
    except (OSError, EOFError, zlib.error):
        return  # cut off
