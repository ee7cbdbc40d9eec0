"""Check a build record that a stranger hands over, before any other code reads it. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

from tfdock.oci.manifest import MalformedManifest, canonical, parsed

SCHEMA = "tfdock.record/1"
MOST = 8 << 20
"""Bytes of a record; one of a TensorFlow build has some hundred thousand."""

BUILD_ID = re.compile(r"tf[0-9][A-Za-z0-9._-]{0,125}")
"""What names a folder of the wheelhouse, and a tag: letters and digits first, so never `..`, and no name of ours."""
FINGERPRINT = re.compile(r"[0-9a-f]{64}")
WHEEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]{0,250}\.whl")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_LOG = re.compile(r"[0-9A-Za-z][0-9A-Za-z-]{0,100}\.log")
_MOMENT = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\+00:00")
_LARGEST = 1 << 53
_LONGEST = 1 << 16
"""Characters of a text."""
DEEPEST = 40
"""Levels of a document; a record has some ten."""

Verified = Literal["tried", "files", "failed", "no"]
"""Installed and imported in a clean container; its files and GPU code checked alone; something failed; not by us."""

_Check = Callable[[object], bool]


def read_record(data: bytes) -> dict[str, Any]:
    """A record whose parts have the types that everything here takes them for; raises Malformed.

    Keys that are not known may hold anything: a newer tfdock writes more.
    """
    if len(data) > MOST:
        raise MalformedManifest(f"a record has more than {MOST} bytes")
    record = parsed(data)
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        raise MalformedManifest(f"a record is not `{SCHEMA}`")
    if not is_shallow(record, DEEPEST):
        raise MalformedManifest("a record is deeper than anything that tfdock writes")
    try:
        canonical(record)
    except UnicodeEncodeError as error:  # half a character, which JSON can name and nobody can write
        raise MalformedManifest("a record has text that is none") from error
    for name, check in _SHAPE.items():
        if not check(record.get(name)):
            raise MalformedManifest(f"`{name}` of a record is not what stands there: {str(record.get(name))[:60]!a}")
    files = [wheel["file"] for wheel in record["wheels"]]
    if len(set(files)) < len(files):
        raise MalformedManifest("a record lists a wheel twice")
    return record


def verified(record: Mapping[str, Any]) -> Verified:
    """How the wheels of a build were verified. A record may be anybody's: what is not as it should be is not told."""
    found = record.get("verification")
    checks = found.get("checks") if isinstance(found, dict) else None
    rows = [row for row in checks if isinstance(row, dict)] if isinstance(checks, list) else []
    statuses = {str(row.get("name")): row.get("status") for row in rows}
    if "failed" in statuses.values():
        return "failed"
    if statuses.get("import") == "passed":
        return "tried"
    return "files" if "passed" in statuses.values() else "no"


def is_shallow(node: object, left: int) -> bool:
    """Whether a document has no more than so many levels: what is deeper stops those who look through it."""
    inner = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return left > 0 and all(is_shallow(one, left - 1) for one in inner)


# --- kinds of values ------------------------------------------------------------------------------------------------


def _text(node: object) -> bool:
    return isinstance(node, str) and len(node) <= _LONGEST


def _like(expression: re.Pattern[str]) -> _Check:
    return lambda node: isinstance(node, str) and expression.fullmatch(node) is not None


def _count(node: object) -> bool:
    return type(node) is int and 0 <= node < _LARGEST


def _number(node: object) -> bool:
    return type(node) in (int, float) and 0 <= node < _LARGEST  # type: ignore[operator]  # NaN is not less either


def _any_map(node: object) -> bool:
    return isinstance(node, dict)


def _or_none(check: _Check) -> _Check:
    return lambda node: node is None or check(node)


def _list_of(check: _Check) -> _Check:
    return lambda node: isinstance(node, list) and all(map(check, node))


def _map_of(check: _Check) -> _Check:
    return lambda node: isinstance(node, dict) and all(map(check, node.values()))


def _map_with(shape: Mapping[str, _Check]) -> _Check:
    return lambda node: isinstance(node, dict) and all(check(node.get(name)) for name, check in shape.items())


_CHOICES = _or_none(_list_of(_map_with({"field": _text})))
_VERIFICATION = {
    "checks": _or_none(_list_of(_map_with({"name": _text, "status": _text}))),
    "gpu_code": _or_none(_map_of(_list_of(_text))),
}

_SHAPE: Mapping[str, _Check] = {
    "build_id": _like(BUILD_ID),
    "fingerprint": _like(FINGERPRINT),
    "tfdock": _text,
    "log": _like(_LOG),
    "wheels": lambda node: (
        bool(node) and _list_of(_map_with({"file": _like(WHEEL), "sha256": _like(_SHA256), "size": _count}))(node)
    ),
    "plan": _map_with(
        {
            "environment": _map_of(_text),
            "bazel_flags": _list_of(_text),
            "image": _or_none(_any_map),
            "choices": _CHOICES,
        }
    ),
    "toolchain_key": _text,
    "base_digest": _or_none(_text),
    "source": _or_none(_any_map),
    "lock": _or_none(_like(_SHA256)),
    "seconds": _map_of(_number),
    "attempts": _count,
    "resources": _or_none(_list_of(_any_map)),
    "machine": _map_with({"cpus": _count, "memory": _count}),
    "estimate": _or_none(_map_with({"weight": _or_none(_number)})),
    "untested": _list_of(_text),
    "verification": _or_none(_map_with(_VERIFICATION)),
    "started": _like(_MOMENT),
    "finished": _like(_MOMENT),
    "bazel": _or_none(_map_with({"hits": _count, "executed": _count})),
    "kept": _or_none(_map_of(_text)),
}
