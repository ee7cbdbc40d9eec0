"""Read Bazel's execution log (`--execution_log_json_file`), reduced to the causes of cache misses. Pure.

The log is JSON objects one after another, each an action with every argument, variable and input: gigabytes for a
TensorFlow. It is read in pieces and never held whole; of what is long only hashes are kept.
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
"""Hexadecimal digits kept of a hash: enough to tell two apart, not to prove anything."""
_LARGEST = 1 << 28
"""Characters of one object above which the log is taken to be damaged."""
_MOST = 1_000_000
"""Actions, environments and source files that are kept: the log may be a stranger's, and memory is not."""
_GENERATED = "bazel-out/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spawn:
    """A process that an action is, or was served for from a cache.

    `output` is the first of its outputs. The rest are hashes: of the arguments, of the inputs that are source
    (`sources`) and of those that other actions made (`generated`); `environment` counts in `Spawns.environments`.
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
    """All of a build: environments as name -> hash of the value, source files as path -> hash of the content."""

    spawns: tuple[Spawn, ...] = ()
    environments: tuple[Mapping[str, str], ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)


def read_log(pieces: Iterable[str]) -> Spawns:
    """Reduce a log that comes in pieces of any size; what is broken, cut off or too much ends it."""
    environments: dict[tuple[tuple[str, str], ...], int] = {}
    files: dict[str, str] = {}
    spawns: list[Spawn] = []
    for one in _objects(pieces):
        if max(len(spawns), len(environments), len(files)) >= _MOST:
            break
        if one.get("listedOutputs"):
            spawns.append(_spawn(one, environments, files))
    return Spawns(spawns=tuple(spawns), environments=tuple(map(dict, environments)), files=files)


def as_json(spawns: Spawns) -> dict[str, object]:
    """The compact form that is kept."""
    names = ("output", "mnemonic", "arguments", "environment", "sources", "generated", "cached")
    return {
        "schema": SCHEMA,
        "columns": list(names),
        "spawns": [[getattr(one, name) for name in names] for one in spawns.spawns],
        "environments": [dict(one) for one in spawns.environments],
        "files": dict(spawns.files),
    }


def from_json(document: object) -> Spawns | None:
    """Read the compact form; None for anything else."""
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        return None
    try:
        found = Spawns(
            spawns=tuple(Spawn(**dict(zip(document["columns"], row, strict=True))) for row in document["spawns"]),
            environments=tuple(map(dict, document["environments"])),
            files=dict(document["files"]),
        )
    except (KeyError, TypeError, ValueError):
        return None
    return found if _is_whole(found) else None


def _is_whole(found: Spawns) -> bool:
    """Whether all is of its type, and each environment there: a file may be damaged, and JSON still."""
    texts = [name for held in (*found.environments, found.files) for name in held]
    for one in found.spawns:
        if type(one.environment) is not int or not 0 <= one.environment < len(found.environments):
            return False
        texts += [one.output, one.mnemonic, one.arguments, one.sources, one.generated]
    return all(isinstance(text, str) for text in texts)


def _spawn(
    entry: Mapping[str, Any], environments: dict[tuple[tuple[str, str], ...], int], files: dict[str, str]
) -> Spawn:
    variables = (
        (str(one.get("name")), short_hash(str(one.get("value")))) for one in _rows(entry, "environmentVariables")
    )
    sources, generated = hashlib.sha256(), hashlib.sha256()
    for path, digest in _inputs(entry):
        made = path.startswith(_GENERATED)
        (generated if made else sources).update(f"{path}\0{digest}\n".encode("utf-8", "surrogatepass"))
        if not made:
            files[path] = digest[:_HASH]
    arguments = entry.get("commandArgs")
    return Spawn(
        output=str(_first(entry.get("listedOutputs"))),
        mnemonic=str(entry.get("mnemonic") or ""),
        arguments=short_hash("\0".join(map(str, arguments)) if isinstance(arguments, list) else ""),
        environment=environments.setdefault(tuple(sorted(variables)), len(environments)),
        sources=sources.hexdigest()[:_HASH],
        generated=generated.hexdigest()[:_HASH],
        # Its name until Bazel 5, and since.
        cached=bool(entry.get("remoteCacheHit") or entry.get("cacheHit")),
    )


def _inputs(entry: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for one in _rows(entry, "inputs"):
        digest = one.get("digest")
        yield (
            str(one.get("path")),
            str(digest.get("hash") if isinstance(digest, dict) else one.get("symlinkTargetPath")),
        )


def _rows(entry: Mapping[str, Any], name: str) -> Iterator[Mapping[str, Any]]:
    rows = entry.get(name)
    yield from (one for one in (rows if isinstance(rows, list) else ()) if isinstance(one, dict))


def _first(value: object) -> object:
    return value[0] if isinstance(value, list) and value else ""


def short_hash(what: str | bytes) -> str:
    """Enough of a sha256 to tell two contents apart."""
    # JSON can hold half a character, and so can a file's name.
    data = what if isinstance(what, bytes) else what.encode("utf-8", "surrogatepass")
    return hashlib.sha256(data).hexdigest()[:_HASH]


def _objects(pieces: Iterable[str]) -> Iterator[Mapping[str, Any]]:
    """JSON objects one after another, out of text that is cut anywhere."""
    decoder, rest, wanted = json.JSONDecoder(), "", 0
    for piece in itertools.chain(pieces, (None,)):
        rest += piece or ""
        # Not tried again before there is twice as much: an object of megabytes would be read over and over.
        if piece is not None and len(rest) < wanted:
            continue
        begin = _begin(rest, 0)
        while begin < len(rest):
            try:
                found, end = decoder.raw_decode(rest, begin)
            except (ValueError, RecursionError):
                break
            if isinstance(found, dict):
                yield found
            begin = _begin(rest, end)
        rest = rest[begin:]
        wanted = 2 * len(rest)
        if wanted > _LARGEST:
            return


def _begin(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n,":
        at += 1
    return at
