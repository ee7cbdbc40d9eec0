"""What happened in a build: what Bazel wrote down -> figures for the record, files beside it, why it was cold."""

from __future__ import annotations

import gzip
import io
import json
import os
import stat
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from tfdock.bazel import cache_misses, execution_log
from tfdock.bazel.build_events import BuildEvents, Figures, read_events, read_output
from tfdock.bazel.execution_log import Spawns
from tfdock.bazel.trace_profile import TraceProfile, read_profile
from tfdock.plan.build_plan import TOLD
from tfdock.run.phases import step_heading
from tfdock.types import BuildId
from tfdock.wheelhouse.store import Wheelhouse, kept_files

_SLOWEST = 10
_PIECE = 1 << 20
"""Characters read at a time, and the longest line that is looked at."""
_MOST_TEXT = 1 << 33
"""Characters that are read of a file: a packed one may hold any number. Some 1,000 times what a TensorFlow has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTraces:
    """What a run left: the copies of its results and its log, and what it was made from.

    `compiling` is the line of the log where compiling begins. `files` list a local checkout as `tree_listing` does.
    `cache_was_empty`: the disk cache, before.
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
class Account:
    """What is known of a build: for the record under `bazel` and `kept`, and the files it names."""

    bazel: Mapping[str, Any] | None
    kept: Mapping[str, str]
    files: Mapping[str, bytes]


def account(record: Mapping[str, Any], traces: RunTraces, wheelhouse: Wheelhouse) -> Account:
    """Read what Bazel wrote, compare with the last build, and choose what is kept beside the record."""
    build = _build(traces)
    profile = kept_profile(traces.results / TOLD["profile"])
    spawns = _spawns(traces.results / TOLD["execution_log"])
    inputs = cache_misses.kept_inputs(traces.toolchain, traces.context, traces.files)
    files = {"inputs": _packed(inputs)}
    files |= {"profile": _repacked(traces.results / TOLD["profile"])} if profile.actions else {}
    files |= {"spawns": _packed(execution_log.as_json(spawns))} if spawns else {}
    kept = {what: f"{traces.run}.{what}.gz" for what in files}
    figures = None
    if build.figures:
        why = _why(record, inputs, spawns, build.figures.executed, traces, wheelhouse)
        figures = _figures(build, profile) | {"why": cache_misses.as_json(why)}
    return Account(bazel=figures, kept=kept, files={kept[what]: data for what, data in files.items()})


# --- figures ------------------------------------------------------------------------------------------------------


def _build(traces: RunTraces) -> BuildEvents:
    """What Bazel says of the build: in its event file, or for one that writes none in its output."""
    with _lines(traces.results / TOLD["events"]) as lines:
        found = read_events(lines)
    if found.figures:
        return found
    with _lines(traces.log) as lines:
        return read_output(_after(lines, traces.compiling))


def figures_of(log: Path, build_id: str) -> Figures | None:
    """What Bazel said of its actions in the log of a build that has no record; None where it did not come so far."""
    with _lines(log) as lines:
        return read_output(_after(lines, step_heading(f"compile of {build_id}"))).figures


def _after(lines: Iterator[str], first: str) -> Iterator[str]:
    began = False
    for line in lines:
        if began:
            yield line
        began = began or line.rstrip("\n") == first


def _figures(build: BuildEvents, profile: TraceProfile) -> dict[str, Any]:
    """The account as it stands in a record; seconds are rounded to what was measured."""
    assert build.figures is not None
    critical = profile.critical or build.critical
    seconds = sum(one.seconds for one in critical) if build.critical_seconds is None else build.critical_seconds
    return {
        **asdict(build.figures),
        "sources": dict(build.sources),
        "runners": dict(build.runners),
        "actions": build.actions,
        "executed_by_mnemonic": profile.by_mnemonic if profile.actions else None,
        "critical_path": {
            "seconds": round(seconds, 3),
            "actions": [{"name": one.name, "seconds": round(one.seconds, 3)} for one in critical],
        }
        if critical or build.critical_seconds is not None
        else None,
        "slowest": [
            {"name": one.name, "mnemonic": one.mnemonic, "how": one.how, "seconds": round(one.seconds, 3)}
            for one in profile.slowest(_SLOWEST)
        ],
        "wall_seconds": build.wall_seconds,
        "bazel_cpu_seconds": build.cpu_seconds,
        "output_bytes": build.output_bytes,
    }


# --- why it was cold ----------------------------------------------------------------------------------------------


def _why(
    record: Mapping[str, Any],
    inputs: Mapping[str, object],
    spawns: Spawns | None,
    executed: int,
    traces: RunTraces,
    wheelhouse: Wheelhouse,
) -> cache_misses.CacheMissReport:
    # What was pulled has left nothing in the cache here.
    own = (one for one in wheelhouse.records() if not wheelhouse.pulled_from(one))
    last = cache_misses.last_build(own, record["build_id"])
    before = None
    theirs: Spawns | None = None
    if last is not None:
        folder = wheelhouse.record_folder(BuildId(str(last["build_id"])), str(last.get("fingerprint")))
        before = (last, cache_misses.inputs_of(last, kept_document(folder, last, "inputs")))
        theirs = execution_log.from_json(kept_document(folder, last, "spawns")) if spawns else None
    return cache_misses.explain(
        cache_misses.inputs_of(record, inputs),
        before,
        executed=executed,
        cache_was_empty=traces.cache_was_empty,
        spawns=(theirs, spawns),
    )


# --- files --------------------------------------------------------------------------------------------------------


def kept_document(folder: Path, record: Mapping[str, Any], what: str) -> object:
    """A JSON document that is kept beside a record; None where it is not there or broken."""
    name = kept_files(record).get(what)
    try:
        return json.loads(gzip.decompress((folder / name).read_bytes())) if name else None
    except (OSError, EOFError, zlib.error, ValueError, RecursionError):
        return None


def kept_profile(path: Path) -> TraceProfile:
    """Read a profile, compressed or not; what is none is empty."""
    with _lines(path) as lines:
        return read_profile(lines)


def _spawns(path: Path) -> Spawns | None:
    """The execution log, reduced; None without one."""
    with plain_file(path) as file:
        if file is None:
            return None
        with io.TextIOWrapper(file, "utf-8", "replace") as text:
            return execution_log.read_log(iter(lambda: text.read(_PIECE), ""))


def _packed(document: object) -> bytes:
    return gzip.compress(json.dumps(document, sort_keys=True, separators=(",", ":")).encode(), mtime=0)


def _repacked(path: Path) -> bytes:
    """A file's content, compressed if it is not."""
    data = path.read_bytes()
    return data if data[:2] == _GZIP else gzip.compress(data, mtime=0)


_GZIP = b"\x1f\x8b"


@contextmanager
def _lines(path: Path) -> Iterator[Iterator[str]]:
    """The lines of a text file that may be compressed, missing, or cut off; a longer line comes in pieces.

    What comes after `_MOST_TEXT` characters is left out.
    """
    with plain_file(path) as file:
        if file is None:
            yield iter(())
            return
        packed = file.read(2) == _GZIP
        file.seek(0)
        source: Any = gzip.GzipFile(fileobj=file) if packed else file
        with io.TextIOWrapper(source, "utf-8", "replace") as text:
            yield _read(text)


def _read(text: TextIO) -> Iterator[str]:
    left = _MOST_TEXT
    try:
        while left > 0 and (line := text.readline(_PIECE)):
            left -= len(line)
            yield line
    except (OSError, EOFError, zlib.error):
        return  # cut off


@contextmanager
def plain_file(path: Path) -> Iterator[BinaryIO | None]:
    """A file that a container may have left in many shapes: only a plain one is opened, and no link followed."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        yield None
        return
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        yield None
        return
    with os.fdopen(descriptor, "rb") as file:
        yield file
