"""Describe a build in words: the lines at its end, and the tables of its report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tfdock.cli import console

_REASONS = 3  #: The most reasons on a line. The record and the report list all reasons.
_KINDS = 5  #: The most kinds of actions on a line. TensorFlow has dozens of kinds.
_PHASES = ("image", "fetch", "compile", "seal", "verify")
_PLACES = {"disk": "the disk cache", "remote": "the remote cache", "cache": "a cache"}


def most_first(counts: Mapping[str, int] | None) -> list[tuple[str, int]]:
    """Return the counts with the highest first. A record sorts the counts by name instead."""
    return sorted((counts or {}).items(), key=lambda entry: (-entry[1], entry[0]))


def phases(record: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Return the phases with their seconds, in the order in which they ran."""
    seconds: Mapping[str, float] = record.get("seconds") or {}
    known = [name for name in _PHASES if name in seconds]
    return [(name, seconds[name]) for name in (*known, *(name for name in seconds if name not in known))]


def lines(bazel: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield title and text of the lines at the end of a build: actions, longest actions, cold cache."""
    yield "actions", actions(bazel)
    if text := longest(bazel):
        yield "longest", text
    if text := why(bazel):
        yield "why", text


def actions(bazel: Mapping[str, Any]) -> str:
    """Return a text such as `5 from the disk cache, 13 executed: 9 CppCompile, 4 CppLink`."""
    hits = [f"{count} from {_PLACES.get(source, source)}" for source, count in (bazel.get("sources") or {}).items()]
    sources = ", ".join(hits or ["no action from a cache"])
    counts = most_first(bazel.get("executed_by_mnemonic"))
    named = [f"{count} {mnemonic or 'of unknown kind'}" for mnemonic, count in counts[:_KINDS]]
    others = counts[_KINDS:]
    named += [f"{sum(count for _, count in others)} of {len(others)} other kinds"] if others else []
    kinds = ", ".join(named)
    executed = bazel.get("executed") or "none"
    return console.clean(f"{sources}, {executed} executed{f': {kinds}' if kinds else ''}")


def longest(bazel: Mapping[str, Any]) -> str:
    """Return a text such as `critical path 12.3 s; slowest 4.2 s Compiling a.cc`. It is empty if nothing is known."""
    path, slowest = bazel.get("critical_path") or {}, bazel.get("slowest") or []
    parts = [f"critical path {console.duration(path['seconds'])}"] if path else []
    parts += [f"slowest {console.duration(slowest[0]['seconds'])} {slowest[0]['name']}"] if slowest else []
    return console.clean("; ".join(parts))


def why(bazel: Mapping[str, Any]) -> str:
    """Return why actions were executed again after an earlier build. The text is empty if no reason is known."""
    account = bazel.get("why") or {}
    sentences: Sequence[str] = account.get("sentences") or []
    if not sentences:
        return ""
    more = len(sentences) - _REASONS
    reasons = "; ".join(sentences[:_REASONS]) + (f"; and {more} more" if more > 0 else "")
    return console.clean(f"{reasons} ({compared_with(account)})" if account.get("since") else reasons)


def compared_with(account: Mapping[str, Any]) -> str:
    """Return a text such as `compared with the build of 2026-11-21 22:34`."""
    return f"compared with the build of {when(account['since'].get('finished'))}"


def when(time: object) -> str:
    """Return the time of a record, to the minute."""
    return str(time)[:16].replace("T", " ")


def tables(record: Mapping[str, Any]) -> Iterator[tuple[str, list[tuple[str, ...]]]]:
    """Yield title and rows of each table of the report, for a terminal."""
    bazel = record.get("bazel") or {}
    yield "build", _facts(record)
    yield "phases", [(name, console.duration(value)) for name, value in phases(record)]
    if bazel:
        yield "actions", _counts(bazel)
    yield ("executed", [(kind or "-", f"{count:,}") for kind, count in most_first(bazel.get("executed_by_mnemonic"))])
    path = bazel.get("critical_path") or {}
    yield (
        f"critical path, {console.duration(path['seconds'])}" if path else "critical path",
        _steps(path.get("actions")),
    )
    yield "slowest", _steps(bazel.get("slowest"))
    account = bazel.get("why") or {}
    title = f"why actions ran again, {compared_with(account)}" if account.get("since") else "why actions ran again"
    yield title, [(text,) for text in account.get("sentences") or ()]
    yield "resources", [(name, value) for name, value in _resources(record)]


def _facts(record: Mapping[str, Any]) -> list[tuple[str, ...]]:
    facts = {
        "build id": record.get("build_id"),
        "finished": when(record.get("finished") or ""),
        "wheels": ", ".join(str(wheel.get("file")) for wheel in record.get("wheels") or ()),
        "toolchain": record.get("toolchain_key"),
    }
    return [(name, str(value)) for name, value in facts.items() if value]


def _counts(bazel: Mapping[str, Any]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [
        (f"from {_PLACES.get(source, source)}", f"{count:,}")
        for source, count in (bazel.get("sources") or {}).items()
    ]
    rows.append(("executed", f"{bazel.get('executed', 0):,}"))
    seconds = {"Bazel's wall time": "wall_seconds", "CPU time of Bazel itself": "bazel_cpu_seconds"}
    rows += [(title, console.duration(bazel[key])) for title, key in seconds.items() if bazel.get(key) is not None]
    rows += [("bytes built", console.size(bazel["output_bytes"]))] if bazel.get("output_bytes") is not None else []
    return rows


def _steps(rows: Iterable[Mapping[str, Any]] | None) -> list[tuple[str, ...]]:
    return [(console.duration(step["seconds"]), step["name"]) for step in rows or ()]


def _resources(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    plan: Mapping[str, Any] = record.get("plan") or {}
    limits: Mapping[str, Any] = plan.get("resources") or {}
    for name in ("jobs", "cpus"):
        if limits.get(name) is not None:
            yield name, str(limits[name])
    if limits.get("memory") is not None:
        yield "memory", console.size(limits["memory"])
    if (record.get("attempts") or 1) > 1:
        yield "attempts", str(record["attempts"])
