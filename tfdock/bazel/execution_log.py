"""Read Bazel's execution log (`--execution_log_json_file`), reduced to the causes of cache misses. Pure.

The log is JSON objects one after another. Each is an action with every argument, variable and input: gigabytes for a
TensorFlow. It is read in pieces and never held whole; long values are kept as hashes.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

SCHEMA = "tfdock.spawns/1"
_HASH = 16
"""Hexadecimal digits kept of a hash: enough to tell two values apart, not to prove anything."""
_LARGEST = 1 << 28
"""Characters of one object; a log with a larger one is damaged."""
_MOST = 1_000_000
"""Actions, environments and source files that are kept.

A container may have written the log, and memory is limited.
"""
_GENERATED = "bazel-out/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spawn:
    """A process that an action ran, or that a cache saved.

    `output` is the first of its outputs. `arguments`, `sources` (source files) and `generated` (outputs of other
    actions) are hashes. `environment` is an index of `Spawns.environments`.
    """

    output: str
    mnemonic: str
    arguments: str
    environment: int
    sources: str
    generated: str
    cached: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Spawns:
    """All spawns of a build.

    Environments map names to hashes of values, `files` maps source paths to hashes of contents.
    """

    spawns: tuple[Spawn, ...] = ()
    environments: tuple[Mapping[str, str], ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)


def read_log(pieces: Iterable[str]) -> Spawns:
    """Reduce a log that comes in pieces of any size. A broken or cut object, and too many entries, end it."""
    environments: dict[tuple[tuple[str, str], ...], int] = {}
    files: dict[str, str] = {}
    spawns: list[Spawn] = []
    for entry in _objects(pieces):
        if max(len(spawns), len(environments), len(files)) >= _MOST:
            break
        if entry.get("listedOutputs"):
            spawns.append(_spawn(entry, environments, files))
    return Spawns(spawns=tuple(spawns), environments=tuple(map(dict, environments)), files=files)


def as_json(spawns: Spawns) -> dict[str, object]:
    """Return the compact form that is kept."""
    names = ("output", "mnemonic", "arguments", "environment", "sources", "generated", "cached")
    return {
        "schema": SCHEMA,
        "columns": list(names),
        "spawns": [[getattr(spawn, name) for name in names] for spawn in spawns.spawns],
        "environments": [dict(environment) for environment in spawns.environments],
        "files": dict(spawns.files),
    }


def from_json(document: object) -> Spawns | None:
    """Return spawns from the compact form; None for anything else."""
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        return None
    try:
        spawns = Spawns(
            spawns=tuple(Spawn(**dict(zip(document["columns"], row, strict=True))) for row in document["spawns"]),
            environments=tuple(map(dict, document["environments"])),
            files=dict(document["files"]),
        )
    except (KeyError, TypeError, ValueError):
        return None
    return spawns if _is_well_formed(spawns) else None


def _is_well_formed(spawns: Spawns) -> bool:
    """Return whether all values have their types and all environments exist: a damaged file may still be JSON."""
    texts = [name for mapping in (*spawns.environments, spawns.files) for name in mapping]
    for spawn in spawns.spawns:
        if type(spawn.environment) is not int or not 0 <= spawn.environment < len(spawns.environments):
            return False
        texts += [spawn.output, spawn.mnemonic, spawn.arguments, spawn.sources, spawn.generated]
    return all(isinstance(text, str) for text in texts)


def _spawn(
    entry: Mapping[str, Any], environments: dict[tuple[tuple[str, str], ...], int], files: dict[str, str]
) -> Spawn:
    # Values may be secrets: only hashes of them are kept.
    variables = (
        (str(variable.get("name")), short_hash(str(variable.get("value"))))
        for variable in _rows(entry, "environmentVariables")
    )
    sources, generated = hashlib.sha256(), hashlib.sha256()
    for path, digest in _inputs(entry):
        is_generated = path.startswith(_GENERATED)
        (generated if is_generated else sources).update(f"{path}\0{digest}\n".encode("utf-8", "surrogatepass"))
        if not is_generated:
            files[path] = digest[:_HASH]
    arguments = entry.get("commandArgs")
    return Spawn(
        output=str(_first(entry.get("listedOutputs"))),
        mnemonic=str(entry.get("mnemonic") or ""),
        # No argument of a process can hold a NUL, so different lists never give the same text.
        arguments=short_hash("\0".join(map(str, arguments)) if isinstance(arguments, list) else ""),
        environment=environments.setdefault(tuple(sorted(variables)), len(environments)),
        sources=sources.hexdigest()[:_HASH],
        generated=generated.hexdigest()[:_HASH],
        # Its name until Bazel 5, and since.
        cached=bool(entry.get("remoteCacheHit") or entry.get("cacheHit")),
    )


def _inputs(entry: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for row in _rows(entry, "inputs"):
        digest = row.get("digest")
        yield (
            str(row.get("path")),
            # A link has no digest: its target identifies it.
            str(digest.get("hash") if isinstance(digest, dict) else row.get("symlinkTargetPath")),
        )


def _rows(entry: Mapping[str, Any], name: str) -> Iterator[Mapping[str, Any]]:
    rows = entry.get(name)
    yield from (row for row in (rows if isinstance(rows, list) else ()) if isinstance(row, dict))


def _first(value: object) -> object:
    return value[0] if isinstance(value, list) and value else ""


def short_hash(content: str | bytes) -> str:
    """Return enough of a sha256 to tell two contents apart."""
    # JSON can hold half a character, and so can a file's name.
    data = content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")
    return hashlib.sha256(data).hexdigest()[:_HASH]


def _objects(pieces: Iterable[str]) -> Iterator[Mapping[str, Any]]:
    """Yield the JSON objects of text that is cut anywhere."""
    decoder, rest, retry_size = json.JSONDecoder(), "", 0
    for piece in itertools.chain(pieces, (None,)):
        rest += piece or ""
        # Not tried again before there is twice as much: an object of megabytes would be read over and over.
        if piece is not None and len(rest) < retry_size:
            continue
        begin = _begin(rest, 0)
        while begin < len(rest):
            try:
                value, end = decoder.raw_decode(rest, begin)
            # Cut off in the middle: more text is needed.
            except (ValueError, RecursionError):
                break
            if isinstance(value, dict):
                yield value
            begin = _begin(rest, end)
        rest = rest[begin:]
        retry_size = 2 * len(rest)
        if retry_size > _LARGEST:
            return


def _begin(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n,":
        at += 1
    return at
