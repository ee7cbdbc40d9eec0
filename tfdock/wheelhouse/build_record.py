"""Check a build record that comes from elsewhere, before any other code reads it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypedDict

from tfdock.host.foreign_json import Malformed, Sha256, Text, below, matching, parse
from tfdock.oci.manifest import canonical_json

SCHEMA = "tfdock.record/1"
LARGEST_RECORD = 8 << 20  #: Bytes of a record; the record of a TensorFlow build has some hundred thousand.

# 128 characters, the most that the OCI distribution specification allows a tag.
#: A build id names a folder of the wheelhouse and a tag.
#:
#: It begins with letters and digits, so it is never `..` and never a name of our own.
BUILD_ID = re.compile(r"tf[0-9][A-Za-z0-9._-]{0,125}")
FINGERPRINT = re.compile(r"[0-9a-f]{64}")
# 255 characters, the longest name that Linux gives a file.
WHEEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]{0,250}\.whl")
WheelName = Annotated[str, matching(WHEEL)]
RecordedBuildId = Annotated[str, matching(BUILD_ID)]
Fingerprint = Annotated[str, matching(FINGERPRINT)]
_Log = Annotated[str, matching(r"[0-9A-Za-z][0-9A-Za-z-]{0,100}\.log")]
# UTC alone, so that moments are in order as texts.
_Moment = Annotated[str, matching(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\+00:00")]
# RFC 8259, section 6: beyond this, other programs may read another number.
_Count = Annotated[int, below(1 << 53)]
_Number = Annotated[float, below(1 << 53)]

#: `tried`: installed and imported in a clean container. `files`: only its files and GPU code were checked. `failed`:
#: a check failed. `no`: we did not check it.
Verified = Literal["tried", "files", "failed", "no"]


_Wheel = TypedDict("_Wheel", {"file": WheelName, "sha256": Sha256, "size": _Count})
_Choice = TypedDict("_Choice", {"field": Text})
_Plan = TypedDict("_Plan", {
    "environment": Mapping[str, Text], "bazel_flags": list[Text], "image": Mapping[str, Any] | None,
    "choices": list[_Choice] | None,
})  # fmt: skip
_Machine = TypedDict("_Machine", {"cpus": _Count, "memory": _Count})
_Estimate = TypedDict("_Estimate", {"weight": _Number | None})
_Check = TypedDict("_Check", {"name": Text, "status": Text})
_Verification = TypedDict("_Verification", {
    "checks": list[_Check] | None, "gpu_code": Mapping[str, list[Text]] | None,
})  # fmt: skip
_Bazel = TypedDict("_Bazel", {"hits": _Count, "executed": _Count})


class _Record(TypedDict):
    """What the program takes from a record without another look. Other keys may hold anything."""

    schema: Annotated[str, SCHEMA.__eq__]
    build_id: RecordedBuildId
    fingerprint: Fingerprint
    tfdock: Text
    log: _Log
    wheels: Annotated[list[_Wheel], bool]
    plan: _Plan
    toolchain_key: Text
    base_digest: Text | None
    source: Mapping[str, Any] | None
    lock: Sha256 | None
    seconds: Mapping[str, _Number]
    attempts: _Count
    resources: list[Mapping[str, Any]] | None
    machine: _Machine
    estimate: _Estimate | None
    untested: list[Text]
    verification: _Verification | None
    started: _Moment
    finished: _Moment
    bazel: _Bazel | None
    kept: Mapping[str, Text] | None


def read_record(data: bytes) -> dict[str, Any]:
    """Return a record whose fields have the types that the program expects; raise Malformed.

    Unknown keys may hold anything: a newer tfdock writes more.
    """
    if len(data) > LARGEST_RECORD:
        raise Malformed(f"a record has more than {LARGEST_RECORD} bytes")
    try:
        record: dict[str, Any] = parse(_Record, data)
    except Malformed as error:
        raise Malformed(f"a record: {error}") from None
    try:
        canonical_json(record)
    except UnicodeEncodeError:  # half a character, which JSON can name and nobody can write
        raise Malformed("a record has text that is none") from None
    files = [wheel["file"] for wheel in record["wheels"]]
    # Two wheels of one name would replace each other in the wheelhouse.
    if len(set(files)) < len(files):
        raise Malformed("a record lists a wheel twice")
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
