"""Explain why a build was cold: the differences between two builds that make actions miss the cache. Pure.

What is compared are two records with what is kept beside them (`kept_inputs`), and, where both have one, their
reduced execution logs. Nothing is claimed of what was not compared: an older record may lack some, and that is said.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tfdock.bazel.execution_log import Spawn, Spawns, short_hash

INPUTS_SCHEMA = "tfdock.inputs/1"
_NAMED = 3
"""Things of a kind that are named one by one."""
_SOURCE_WORDS = re.compile(r"\.src[0-9a-f]{8}|-p[0-9a-f]{8}(?=-)")
_PATCHES = "tfdock/patches/"
_WITHOUT_EFFECT = {"tfdock/phase.sh", "tfdock/pins.py"}
"""Files of the context that run Bazel, or look at what is there: no action is made from them."""
_ENVIRONMENT = "tfdock/environment"


@dataclass(frozen=True, slots=True, kw_only=True)
class InputDifference:
    """One thing that differs, in words; `reaches`: it can make compiled actions miss the cache."""

    kind: str
    text: str
    reaches: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What a build was made from. None: its record does not say.

    `toolchain` are the lines of the image's toolchain file, `context` and `files` (a local checkout's) paths with the
    hashes of their contents.
    """

    build_id: str = ""
    toolchain_key: str = ""
    base: str = ""
    base_digest: str | None = None
    flags: tuple[str, ...] = ()
    startup: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    source: Mapping[str, str] = field(default_factory=dict)
    toolchain: tuple[str, ...] | None = None
    context: Mapping[str, str] | None = None
    files: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheMissReport:
    """The account of a build beside the last one.

    `since` names the build that it was compared with; `sentences` are what to tell; `misses` says for each mnemonic
    how many executed actions missed for which reason, where both builds were explained.
    """

    since: Mapping[str, str] | None = None
    sentences: tuple[str, ...] = ()
    differences: tuple[InputDifference, ...] = ()
    not_compared: tuple[str, ...] = ()
    misses: Mapping[str, Mapping[str, int]] | None = None


def as_json(why: CacheMissReport) -> dict[str, object]:
    """As it stands in a record."""
    return asdict(why)


# --- what is compared ---------------------------------------------------------------------------------------------


def kept_inputs(toolchain: bytes, context: Mapping[str, bytes], files: Mapping[str, str] | None) -> dict[str, object]:
    """What is kept beside a record, to be compared with the next build.

    `files` are the local checkout's, by path, with what identifies each.
    """
    return {
        "schema": INPUTS_SCHEMA,
        "toolchain": toolchain.decode("utf-8", "replace").splitlines(),
        "context": {path: short_hash(data) for path, data in context.items()},
        "files": None if files is None else {path: short_hash(one) for path, one in files.items()},
    }


def inputs_of(record: Mapping[str, Any], kept: object) -> Inputs:
    """Read a record and what was kept beside it, as far as they can be read."""
    plan = _map(record.get("plan"))
    image = _map(plan.get("image"))
    document = _map(kept)
    if document.get("schema") != INPUTS_SCHEMA:
        document = {}
    source = {**_map(image.get("source")), **_map(record.get("source"))}
    toolchain = document.get("toolchain")
    return Inputs(
        build_id=str(record.get("build_id")),
        toolchain_key=str(record.get("toolchain_key")),
        base=str(image.get("base")),
        base_digest=str(record["base_digest"]) if record.get("base_digest") else None,
        flags=_texts(plan.get("bazel_flags")),
        startup=_texts(plan.get("startup_options")),
        environment={name: str(value) for name, value in _map(plan.get("environment")).items()},
        source={name: str(source[name]) for name in ("kind", "location", "ref", "found") if source.get(name)},
        toolchain=_texts(toolchain) if isinstance(toolchain, list) else None,
        context=_map(document["context"]) if document.get("context") else None,
        files=_map(document["files"]) if document.get("files") else None,
    )


def last_build(records: Iterable[Mapping[str, Any]], build_id: str) -> Mapping[str, Any] | None:
    """The newest build of that build id, else the newest that differs from it in its source alone.

    A changed local checkout has another build id: its objects are in the cache all the same.
    """
    stem = _SOURCE_WORDS.sub("", build_id)
    near = [one for one in records if _SOURCE_WORDS.sub("", str(one.get("build_id"))) == stem]
    return max(near, key=lambda one: (one.get("build_id") == build_id, str(one.get("finished"))), default=None)


# --- differences --------------------------------------------------------------------------------------------------


def differences(before: Inputs, after: Inputs) -> tuple[InputDifference, ...]:
    """All that differs, what reaches most first."""
    return tuple(_differences(before, after))


def _differences(before: Inputs, after: Inputs) -> Iterator[InputDifference]:
    if before.base != after.base or (before.base_digest != after.base_digest):
        old, new = (_short(one.base_digest) or one.base for one in (before, after))
        name = f"{before.base} -> {after.base}, " if before.base != after.base else ""
        # An image that was built anew with the same content has another digest, and the same toolchain.
        reaches = before.toolchain_key != after.toolchain_key
        yield InputDifference(kind="base", text=f"base image {name}{old} -> {new}", reaches=reaches)
    if before.toolchain is not None and after.toolchain is not None:
        yield from _toolchain(before.toolchain, after.toolchain)
    yield from _source(before, after)
    yield from _lists("flag", before.flags, after.flags)
    yield from _lists("startup option", before.startup, after.startup)
    yield from _variables(before.environment, after.environment)
    if before.context is not None and after.context is not None:
        yield from _context(before, after, before.context, after.context)
    if before.toolchain_key != after.toolchain_key:
        text = (
            f"toolchain key {before.toolchain_key} -> {after.toolchain_key}: another disk cache, which shares nothing"
        )
        yield InputDifference(kind="toolchain", text=text)


def _toolchain(before: Sequence[str], after: Sequence[str]) -> Iterator[InputDifference]:
    old, new = _tools(before), _tools(after)
    for kind in ("bazel", "tool", "package", "cachebuster", "files"):
        told = [
            _tool(kind, name, old.get((kind, name)), new.get((kind, name)))
            for name in sorted({name for which, name in (*old, *new) if which == kind})
            if old.get((kind, name)) != new.get((kind, name))
        ]
        for text in told[:_NAMED]:
            yield InputDifference(kind=kind, text=text)
        if len(told) > _NAMED:
            yield InputDifference(kind=kind, text=f"and {len(told) - _NAMED} more of its {kind}s")


def _tools(lines: Iterable[str]) -> dict[tuple[str, str], str]:
    """`package NAME VERSION ARCHITECTURE`, `tool PATH SHA256`, `bazel VERSION` … -> (kind, name) -> the rest."""
    found = {}
    for line in lines:
        kind, _, rest = line.partition(" ")
        name, _, value = ("", "", rest) if kind in ("bazel", "files") else rest.partition(" ")
        found[kind, name] = value
    return found


def _tool(kind: str, name: str, old: str | None, new: str | None) -> str:
    if kind == "files":
        return "files of the image that are of no package changed"
    if kind == "tool":
        old, new = (value and f"{value[:12]}…" for value in (old, new))
    else:  # the architecture only where it alone differs
        versions = [value and value.partition(" ")[0] for value in (old, new)]
        old, new = versions if versions[0] != versions[1] else (old, new)
    return _moved(f"{'Bazel' if kind == 'bazel' else kind} {name}".rstrip(), old, new)


def _moved(what: str, old: str | None, new: str | None) -> str:
    if old is None:
        return f"{what} {new or ''}".rstrip() + " was added"
    return f"{what} {old}".rstrip() + " was removed" if new is None else f"{what} {old} -> {new}"


def _source(before: Inputs, after: Inputs) -> Iterator[InputDifference]:
    for key, title in (("kind", "source"), ("location", "source"), ("ref", "source ref"), ("found", "source")):
        old, new = before.source.get(key), after.source.get(key)
        if old != new:
            yield InputDifference(kind="source", text=_moved(title, old and old[:40], new and new[:40]))
    text = _files(before.files, after.files) if before.files is not None and after.files is not None else ""
    if text:
        yield InputDifference(kind="source", text=f"source: {text}")


def _files(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """Which files changed, came or went: `a.cc and 3 more changed; b.cc was added`."""
    changed = sorted(path for path in before if path in after and before[path] != after[path])
    added, removed = sorted(after.keys() - before.keys()), sorted(before.keys() - after.keys())
    told = [
        f"{_some(changed)} changed" if changed else "",
        f"{_some(added)} {'was' if len(added) == 1 else 'were'} added" if added else "",
        f"{_some(removed)} {'was' if len(removed) == 1 else 'were'} removed" if removed else "",
    ]
    return "; ".join(filter(None, told))


def _some(names: Sequence[str]) -> str:
    shown = names[:_NAMED] if len(names) <= _NAMED else names[:1]
    more = len(names) - len(shown)
    return f"{', '.join(shown)} and {more} more" if more else ", ".join(shown)


def _lists(kind: str, before: Sequence[str], after: Sequence[str]) -> Iterator[InputDifference]:
    gone, come = (
        list((Counter(before) - Counter(after)).elements()),
        list((Counter(after) - Counter(before)).elements()),
    )
    for old in gone:
        again = [new for new in come if _option(new) == _option(old)]
        if len(again) == 1 and [_option(one) for one in gone].count(_option(old)) == 1:
            come.remove(again[0])
            yield InputDifference(kind=kind, text=f"`{old}` -> `{again[0]}`")
        else:
            yield InputDifference(kind=kind, text=f"`{old}` was removed")
    for new in come:
        yield InputDifference(kind=kind, text=f"`{new}` was added")
    if tuple(before) != tuple(after) and Counter(before) == Counter(after):
        yield InputDifference(kind=kind, text=f"the {kind}s stand in another order")


def _option(flag: str) -> str:
    """What a flag sets: `--jobs`, or the variable of `--action_env=NAME=VALUE`."""
    name, _, value = flag.partition("=")
    return f"{name}={value.partition('=')[0]}" if name.endswith("_env") or name == "--define" else name


def _variables(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[InputDifference]:
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        if old != new:
            text = _moved(
                f"environment variable {name}", *(value if value is None else f"`{value}`" for value in (old, new))
            )
            yield InputDifference(kind="environment", text=text)


def _context(
    before: Inputs, after: Inputs, old: Mapping[str, str], new: Mapping[str, str]
) -> Iterator[InputDifference]:
    told = {_ENVIRONMENT} if before.environment != after.environment else set()
    # Its first line names the build.
    told |= {"Dockerfile"} if before.build_id != after.build_id else set()
    for path in sorted({*old, *new} - told):
        if old.get(path) == new.get(path):
            continue
        how = "was added" if path not in old else "was removed" if path not in new else "changed"
        patch = path.startswith(_PATCHES)
        text = f"patch {path.removeprefix(_PATCHES)} {how}" if patch else f"context file {path} {how}"
        yield InputDifference(kind="patch" if patch else "context", text=text, reaches=path not in _WITHOUT_EFFECT)


# --- why ----------------------------------------------------------------------------------------------------------


def why(
    inputs: Inputs,
    last: tuple[Mapping[str, Any], Inputs] | None,
    *,
    executed: int,
    cache_was_empty: bool,
    spawns: tuple[Spawns | None, Spawns | None] = (None, None),
) -> CacheMissReport:
    """Compare a build with the last one.

    `cache_was_empty`: its disk cache, when compiling began. `spawns` are the last's and its own.
    """
    if last is None:
        text = "no earlier build of it is in this wheelhouse" if executed else ""
        return CacheMissReport(sentences=tuple(filter(None, [text])))
    before, old = last
    found = differences(old, inputs)
    missing = tuple(_not_compared(old, inputs))
    missed = misses(*spawns) if spawns[0] and spawns[1] else None
    reaching = [one.text for one in found if one.reaches]
    told = []
    if executed:
        told = reaching or [_nothing_differs(missing, cache_was_empty=cache_was_empty)]
        told += list(_told_misses(missed, spawns)) if missed else []
    return CacheMissReport(
        since={"build_id": str(before.get("build_id")), "finished": str(before.get("finished"))},
        sentences=tuple(told),
        differences=found,
        not_compared=missing,
        misses=missed,
    )


def _not_compared(before: Inputs, after: Inputs) -> Iterator[str]:
    if before.toolchain is None or after.toolchain is None:
        yield "system packages and tools"
    if before.context is None or after.context is None:
        yield "the files of the image's context"
    local = "path" in (before.source.get("kind"), after.source.get("kind"))
    if local and (before.files is None or after.files is None):
        yield "the files of the checkout"


def _nothing_differs(missing: Sequence[str], *, cache_was_empty: bool) -> str:
    lacking = f" ({_and(missing)} could not be)" if missing else ""
    what = f"nothing that was compared differs from the last build{lacking}"
    if cache_was_empty:
        return f"{what}, but its disk cache was empty: it was pruned or removed, or the cache folder is another one"
    return f"{what}: part of the cache was pruned, or these actions are not kept in any cache"


def _and(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else words[0]


# --- actions ------------------------------------------------------------------------------------------------------


_GONE = "nothing of theirs differs: the cache no longer had them"


def misses(before: Spawns | None, after: Spawns | None) -> dict[str, dict[str, int]]:
    """For each mnemonic how many executed actions missed for which reason."""
    if before is None or after is None:
        return {}
    known = {(one.mnemonic, one.output): one for one in before.spawns}
    found: dict[str, Counter[str]] = {}
    for one in after.spawns:
        if not one.cached:
            reason = _reason(before, after, known.get((one.mnemonic, one.output)), one)
            found.setdefault(one.mnemonic, Counter())[reason] += 1
    return {mnemonic: dict(counted.most_common()) for mnemonic, counted in sorted(found.items())}


def _reason(before: Spawns, after: Spawns, old: Spawn | None, new: Spawn) -> str:
    if old is None:
        return "not part of the last build"
    theirs, ours = before.environments[old.environment], after.environments[new.environment]
    variables = sorted(name for name in {*theirs, *ours} if theirs.get(name) != ours.get(name))
    reasons = [
        "other arguments" if old.arguments != new.arguments else "",
        f"environment variable {', '.join(variables)}" if variables else "",
        "other source files" if old.sources != new.sources else "",
        "other outputs of actions before" if old.generated != new.generated else "",
    ]
    return _and([one for one in reasons if one] or [_GONE])


def _told_misses(
    missed: Mapping[str, Mapping[str, int]], spawns: tuple[Spawns | None, Spawns | None]
) -> Iterator[str]:
    for mnemonic, reasons in missed.items():
        yield f"{mnemonic}: {', '.join(f'{count} missed ({reason})' for reason, count in reasons.items())}"
    before, after = spawns
    if before and after:
        both = before.files.keys() & after.files.keys()
        text = _files(*({path: one.files[path] for path in both} for one in (before, after)))
        yield from [f"input files of actions: {text}"] if text else []


# --- documents of any shape ---------------------------------------------------------------------------------------


def _map(value: object) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}


def _texts(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list | tuple) else ()


def _short(digest: str | None) -> str | None:
    """`sha256:ab12cd34ef56…`."""
    return f"{digest[:19]}…" if digest else None
