"""Check a build record that comes from elsewhere, before any other code reads it. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

from tfdock.oci.manifest import MalformedManifest, canonical_json, parse_json

SCHEMA = "tfdock.record/1"
LARGEST_RECORD = 8 << 20
"""Bytes of a record; the record of a TensorFlow build has some hundred thousand."""

# 128 characters, the most that the OCI distribution specification allows a tag.
BUILD_ID = re.compile(r"tf[0-9][A-Za-z0-9._-]{0,125}")
"""A build id names a folder of the wheelhouse and a tag.

It begins with letters and digits, so it is never `..` and never a name of our own.
"""
FINGERPRINT = re.compile(r"[0-9a-f]{64}")
# 255 characters, the longest name that Linux gives a file.
WHEEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]{0,250}\.whl")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_LOG = re.compile(r"[0-9A-Za-z][0-9A-Za-z-]{0,100}\.log")
# UTC alone, so that moments are in order as texts.
_MOMENT = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\+00:00")
# RFC 8259, section 6: beyond this, other programs may read another number.
_LARGEST = 1 << 53
_LONGEST = 1 << 16
"""Characters of a text."""
DEEPEST = 40
"""Levels of a document; a record has about ten."""

Verified = Literal["tried", "files", "failed", "no"]
"""`tried`: installed and imported in a clean container. `files`: only its files and GPU code were checked. `failed`:
a check failed. `no`: we did not check it.
"""

_Check = Callable[[object], bool]


def read_record(data: bytes) -> dict[str, Any]:
    """Return a record whose fields have the types that the program expects; raise MalformedManifest.

    Unknown keys may hold anything: a newer tfdock writes more.
    """
    if len(data) > LARGEST_RECORD:
        raise MalformedManifest(f"a record has more than {LARGEST_RECORD} bytes")
    record = parse_json(data)
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        raise MalformedManifest(f"a record is not `{SCHEMA}`")
    if not is_shallow(record, DEEPEST):
        raise MalformedManifest("a record is deeper than anything that tfdock writes")
    try:
        canonical_json(record)
    except UnicodeEncodeError as error:  # half a character, which JSON can name and nobody can write
        raise MalformedManifest("a record has text that is none") from error
    for name, check in _SHAPE.items():
        if not check(record.get(name)):
            raise MalformedManifest(f"`{name}` of a record is not what stands there: {str(record.get(name))[:60]!a}")
    files = [wheel["file"] for wheel in record["wheels"]]
    # Two wheels of one name would replace each other in the wheelhouse.
    if len(set(files)) < len(files):
        raise MalformedManifest("a record lists a wheel twice")
    return record


def verified(record: Mapping[str, Any]) -> Verified:
    """Return how the wheels of a build were verified. A record may come from anybody: malformed parts are ignored."""
    verification = record.get("verification")
    checks = verification.get("checks") if isinstance(verification, dict) else None
    rows = [row for row in checks if isinstance(row, dict)] if isinstance(checks, list) else []
    statuses = {str(row.get("name")): row.get("status") for row in rows}
    # First: a wheel may be imported well, and fail another check.
    if "failed" in statuses.values():
        return "failed"
    if statuses.get("import") == "passed":
        return "tried"
    return "files" if "passed" in statuses.values() else "no"


def is_shallow(node: object, levels: int) -> bool:
    """Return whether a document has at most `levels` levels. Deeper ones would stop code that walks through them."""
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return levels > 0 and all(is_shallow(child, levels - 1) for child in children)


# --- kinds of values ------------------------------------------------------------------------------------------------


def _is_text(node: object) -> bool:
    return isinstance(node, str) and len(node) <= _LONGEST


def _matches(expression: re.Pattern[str]) -> _Check:
    return lambda node: isinstance(node, str) and expression.fullmatch(node) is not None


def _is_count(node: object) -> bool:
    # Not `isinstance`: to Python, `true` is an int.
    return type(node) is int and 0 <= node < _LARGEST


def _is_number(node: object) -> bool:
    return type(node) in (int, float) and 0 <= node < _LARGEST  # type: ignore[operator]  # NaN is not less either


def _is_map(node: object) -> bool:
    return isinstance(node, dict)


def _or_none(check: _Check) -> _Check:
    return lambda node: node is None or check(node)


def _list_of(check: _Check) -> _Check:
    return lambda node: isinstance(node, list) and all(map(check, node))


def _map_of(check: _Check) -> _Check:
    return lambda node: isinstance(node, dict) and all(map(check, node.values()))


def _map_with(shape: Mapping[str, _Check]) -> _Check:
    return lambda node: isinstance(node, dict) and all(check(node.get(name)) for name, check in shape.items())


_CHOICES = _or_none(_list_of(_map_with({"field": _is_text})))
_VERIFICATION = {
    "checks": _or_none(_list_of(_map_with({"name": _is_text, "status": _is_text}))),
    "gpu_code": _or_none(_map_of(_list_of(_is_text))),
}

_SHAPE: Mapping[str, _Check] = {
    "build_id": _matches(BUILD_ID),
    "fingerprint": _matches(FINGERPRINT),
    "tfdock": _is_text,
    "log": _matches(_LOG),
    "wheels": lambda node: (
        bool(node)
        and _list_of(_map_with({"file": _matches(WHEEL), "sha256": _matches(_SHA256), "size": _is_count}))(node)
    ),
    "plan": _map_with(
        {
            "environment": _map_of(_is_text),
            "bazel_flags": _list_of(_is_text),
            "image": _or_none(_is_map),
            "choices": _CHOICES,
        }
    ),
    "toolchain_key": _is_text,
    "base_digest": _or_none(_is_text),
    "source": _or_none(_is_map),
    "lock": _or_none(_matches(_SHA256)),
    "seconds": _map_of(_is_number),
    "attempts": _is_count,
    "resources": _or_none(_list_of(_is_map)),
    "machine": _map_with({"cpus": _is_count, "memory": _is_count}),
    "estimate": _or_none(_map_with({"weight": _or_none(_is_number)})),
    "untested": _list_of(_is_text),
    "verification": _or_none(_map_with(_VERIFICATION)),
    "started": _matches(_MOMENT),
    "finished": _matches(_MOMENT),
    "bazel": _or_none(_map_with({"hits": _is_count, "executed": _is_count})),
    "kept": _or_none(_map_of(_is_text)),
}
