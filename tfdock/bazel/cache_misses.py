"""Explain a cold cache: the differences between two builds that make actions miss the cache. Pure: no I/O.

Two records are compared, together with the files stored beside them (`kept_inputs`). An older record may lack some of
these files. The report lists the parts that were not compared.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tfdock.errors import joined

INPUTS_SCHEMA = "tfdock.inputs/1"
_NAMED = 3  #: How many names of each kind are listed at most.
# The parts of a build id that name a source: the hash of a checkout, and the hash of patches.
_SOURCE_WORDS = re.compile(r"\.src[0-9a-f]{8}|-p[0-9a-f]{8}(?=-)")
_PATCHES = "tfdock/patches/"
#: Files of the context that run Bazel or read its results. No action depends on these files.
_WITHOUT_EFFECT = {"tfdock/phase.sh", "tfdock/pins.py"}
_ENVIRONMENT = "tfdock/environment"
_HASH = 16  #: How many hexadecimal digits of a hash are kept: enough to distinguish contents, but not for security.


@dataclass(frozen=True, slots=True, kw_only=True)
class InputDifference:
    """One difference from the last build."""

    kind: str  #: The kind of the input.
    text: str  #: The difference in words.
    reaches: bool = True  #: Whether the difference can make compiled actions miss the cache.


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """The inputs of a build. A field is None if its record lacks the value.

    `toolchain` are the lines of the image's toolchain file. `context` and `files` (of a local checkout) map paths to
    the hashes of their contents.
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
    """The comparison of a build with the build before it."""

    since: Mapping[str, str] | None = None  #: The build used for the comparison; null if there was none.
    sentences: tuple[str, ...] = ()  #: The answer in words.
    differences: tuple[InputDifference, ...] = ()  #: What differs.
    not_compared: tuple[str, ...] = ()  #: The parts that could not be compared.


# --- what is compared ---------------------------------------------------------------------------------------------


def kept_inputs(toolchain: bytes, context: Mapping[str, bytes], files: Mapping[str, str] | None) -> dict[str, object]:
    """Return the document that is stored beside a record. The next build is compared with this document.

    `files` maps each path of the local checkout to a text that identifies the file's content.
    """
    return {
        "schema": INPUTS_SCHEMA,
        "toolchain": toolchain.decode("utf-8", "replace").splitlines(),
        "context": {path: _short_hash(data) for path, data in context.items()},
        "files": None if files is None else {path: _short_hash(content) for path, content in files.items()},
    }


def _short_hash(content: str | bytes) -> str:
    # A file's name can hold half a character.
    data = content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")
    return hashlib.sha256(data).hexdigest()[:_HASH]


def inputs_of(record: Mapping[str, Any], kept: object) -> Inputs:
    """Read a record and the files stored beside it. Unreadable values are left out."""
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
    """Return the newest build of that build id. If there is none: the newest build that differs only in its source.

    A changed local checkout has another build id, but its objects are in the same cache.
    """
    stem = _SOURCE_WORDS.sub("", build_id)
    similar = [record for record in records if _SOURCE_WORDS.sub("", str(record.get("build_id"))) == stem]
    return max(
        similar, key=lambda record: (record.get("build_id") == build_id, str(record.get("finished"))), default=None
    )


# --- differences --------------------------------------------------------------------------------------------------


def differences(before: Inputs, after: Inputs) -> Iterator[InputDifference]:
    """Yield all differences, those with the widest effect first."""
    if before.base != after.base or (before.base_digest != after.base_digest):
        old, new = (_short(inputs.base_digest) or inputs.base for inputs in (before, after))
        name = f"{before.base} -> {after.base}, " if before.base != after.base else ""
        # An image that was built anew with the same content has another digest, and the same toolchain.
        reaches = before.toolchain_key != after.toolchain_key
        yield InputDifference(kind="base", text=f"base image {name}{old} -> {new}", reaches=reaches)
    if before.toolchain is not None and after.toolchain is not None:
        yield from _toolchain_differences(before.toolchain, after.toolchain)
    yield from _source_differences(before, after)
    yield from _option_differences("flag", before.flags, after.flags)
    yield from _option_differences("startup option", before.startup, after.startup)
    yield from _variable_differences(before.environment, after.environment)
    if before.context is not None and after.context is not None:
        yield from _context_differences(before, after, before.context, after.context)
    # This comes last, because it results from the differences above and explains their effect.
    if before.toolchain_key != after.toolchain_key:
        text = f"toolchain key {before.toolchain_key} -> {after.toolchain_key}: the build uses another disk cache"
        yield InputDifference(kind="toolchain", text=text)


def _toolchain_differences(before: Sequence[str], after: Sequence[str]) -> Iterator[InputDifference]:
    old, new = _tools(before), _tools(after)
    for kind in ("bazel", "tool", "package", "cachebuster", "files"):
        texts = [
            _describe_tool(kind, name, old.get((kind, name)), new.get((kind, name)))
            for name in sorted({name for row_kind, name in (*old, *new) if row_kind == kind})
            if old.get((kind, name)) != new.get((kind, name))
        ]
        for text in texts[:_NAMED]:
            yield InputDifference(kind=kind, text=text)
        if len(texts) > _NAMED:
            yield InputDifference(kind=kind, text=f"{len(texts) - _NAMED} more {kind}s differ")


def _tools(lines: Iterable[str]) -> dict[tuple[str, str], str]:
    """Read lines `package NAME VERSION ARCHITECTURE`, `tool PATH SHA256`, `bazel VERSION`: (kind, name) -> rest."""
    tools = {}
    for line in lines:
        kind, _, rest = line.partition(" ")
        name, _, value = ("", "", rest) if kind in ("bazel", "files") else rest.partition(" ")
        tools[kind, name] = value
    return tools


def _describe_tool(kind: str, name: str, old: str | None, new: str | None) -> str:
    if kind == "files":
        return "files of the image that belong to no package changed"
    if kind == "tool":
        old, new = (value and f"{value[:12]}…" for value in (old, new))
    else:  # show the architecture only if nothing else differs
        versions = [value and value.partition(" ")[0] for value in (old, new)]
        old, new = versions if versions[0] != versions[1] else (old, new)
    return _describe_change(f"{'Bazel' if kind == 'bazel' else kind} {name}".rstrip(), old, new)


def _describe_change(name: str, old: str | None, new: str | None) -> str:
    if old is None:
        return f"{name} {new or ''}".rstrip() + " was added"
    return f"{name} {old}".rstrip() + " was removed" if new is None else f"{name} {old} -> {new}"


def _source_differences(before: Inputs, after: Inputs) -> Iterator[InputDifference]:
    for key, title in (("kind", "source"), ("location", "source"), ("ref", "source ref"), ("found", "source")):
        old, new = before.source.get(key), after.source.get(key)
        if old != new:
            yield InputDifference(kind="source", text=_describe_change(title, old and old[:40], new and new[:40]))
    text = _describe_files(before.files, after.files) if before.files is not None and after.files is not None else ""
    if text:
        yield InputDifference(kind="source", text=f"source: {text}")


def _describe_files(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """Return the changed, added and removed files: `a.cc and 3 more changed; b.cc was added`."""
    changed = sorted(path for path in before if path in after and before[path] != after[path])
    added, removed = sorted(after.keys() - before.keys()), sorted(before.keys() - after.keys())
    parts = [
        f"{_list_names(changed)} changed" if changed else "",
        f"{_list_names(added)} {'was' if len(added) == 1 else 'were'} added" if added else "",
        f"{_list_names(removed)} {'was' if len(removed) == 1 else 'were'} removed" if removed else "",
    ]
    return "; ".join(filter(None, parts))


def _list_names(names: Sequence[str]) -> str:
    shown = names[:_NAMED] if len(names) <= _NAMED else names[:1]
    more = len(names) - len(shown)
    return f"{', '.join(shown)} and {more} more" if more else ", ".join(shown)


def _option_differences(kind: str, before: Sequence[str], after: Sequence[str]) -> Iterator[InputDifference]:
    removed, added = (
        # Do not use sets: a flag such as `--copt` may occur twice, and one of the two may be removed.
        list((Counter(before) - Counter(after)).elements()),
        list((Counter(after) - Counter(before)).elements()),
    )
    for old in removed:
        same_option = [new for new in added if _option(new) == _option(old)]
        # Pair two flags only if the match is unique.
        if len(same_option) == 1 and [_option(flag) for flag in removed].count(_option(old)) == 1:
            added.remove(same_option[0])
            yield InputDifference(kind=kind, text=f"`{old}` -> `{same_option[0]}`")
        else:
            yield InputDifference(kind=kind, text=f"`{old}` was removed")
    for new in added:
        yield InputDifference(kind=kind, text=f"`{new}` was added")
    # Order matters: of two values of an option Bazel takes the last.
    if tuple(before) != tuple(after) and Counter(before) == Counter(after):
        yield InputDifference(kind=kind, text=f"the order of the {kind}s changed")


def _option(flag: str) -> str:
    """Return the option that a flag sets: `--jobs`, or the variable of `--action_env=NAME=VALUE`."""
    name, _, value = flag.partition("=")
    return f"{name}={value.partition('=')[0]}" if name.endswith("_env") or name == "--define" else name


def _variable_differences(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[InputDifference]:
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        if old != new:
            text = _describe_change(
                f"environment variable {name}", *(value if value is None else f"`{value}`" for value in (old, new))
            )
            yield InputDifference(kind="environment", text=text)


def _context_differences(
    before: Inputs, after: Inputs, old: Mapping[str, str], new: Mapping[str, str]
) -> Iterator[InputDifference]:
    # Skip the file: it repeats the variables, which are listed one by one.
    skipped = {_ENVIRONMENT} if before.environment != after.environment else set()
    # The first line of the Dockerfile names the build.
    skipped |= {"Dockerfile"} if before.build_id != after.build_id else set()
    for path in sorted({*old, *new} - skipped):
        if old.get(path) == new.get(path):
            continue
        how = "was added" if path not in old else "was removed" if path not in new else "changed"
        patch = path.startswith(_PATCHES)
        text = f"patch {path.removeprefix(_PATCHES)} {how}" if patch else f"context file {path} {how}"
        yield InputDifference(kind="patch" if patch else "context", text=text, reaches=path not in _WITHOUT_EFFECT)


# --- why ----------------------------------------------------------------------------------------------------------


def explain(
    inputs: Inputs,
    last: tuple[Mapping[str, Any], Inputs] | None,
    *,
    executed: int,
    cache_was_empty: bool,
) -> CacheMissReport:
    """Compare a build with the last one. `cache_was_empty`: whether the disk cache was empty when compiling began."""
    if last is None:
        text = "this wheelhouse has no earlier build to compare with" if executed else ""
        return CacheMissReport(sentences=tuple(filter(None, [text])))
    before, old = last
    changes = tuple(differences(old, inputs))
    uncompared = tuple(_not_compared(old, inputs))
    reaching = [change.text for change in changes if change.reaches]
    sentences = reaching or [_nothing_differs(uncompared, cache_was_empty=cache_was_empty)]
    return CacheMissReport(
        since={"build_id": str(before.get("build_id")), "finished": str(before.get("finished"))},
        # A build that executed nothing missed nothing.
        sentences=tuple(sentences) if executed else (),
        differences=changes,
        not_compared=uncompared,
    )


def _not_compared(before: Inputs, after: Inputs) -> Iterator[str]:
    if before.toolchain is None or after.toolchain is None:
        yield "system packages and tools"
    if before.context is None or after.context is None:
        yield "the files of the image's context"
    local = "path" in (before.source.get("kind"), after.source.get("kind"))
    if local and (before.files is None or after.files is None):
        yield "the files of the checkout"


def _nothing_differs(uncompared: Sequence[str], *, cache_was_empty: bool) -> str:
    lacking = f" ({joined(uncompared)} could not be compared)" if uncompared else ""
    text = f"no compared part differs from the last build{lacking}"
    if cache_was_empty:
        return f"{text}, but the disk cache was empty: it was pruned or removed, or this is another cache folder"
    return f"{text}: part of the cache was pruned, or no cache stores these actions"


# --- documents of any shape ---------------------------------------------------------------------------------------


def _map(value: object) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}


def _texts(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list | tuple) else ()


def _short(digest: str | None) -> str | None:
    """Return a digest in its short form: `sha256:ab12cd34ef56…`."""
    return f"{digest[:19]}…" if digest else None
