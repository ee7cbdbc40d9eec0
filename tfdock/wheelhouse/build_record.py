"""Check a build record of unknown origin before other code reads it, and return its claims. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, TypedDict

from tfdock.host.foreign_json import Malformed, Sha256, Text, below, matching, parse

SCHEMA = "tfdock.record/1"
LARGEST_RECORD = 8 << 20  #: The most bytes of a record; the record of a TensorFlow build has several 100,000.

# 128 characters: the OCI distribution specification's limit for a tag.
#: A build id names a folder of the wheelhouse and a tag.
#:
#: A name begins with a letter or digit, so it is never `..` and never one of tfdock's own file names.
BUILD_ID = re.compile(r"tf[0-9][A-Za-z0-9._-]{0,125}")
FINGERPRINT = re.compile(r"[0-9a-f]{64}")
# 255 characters, the longest name that Linux gives a file.
WHEEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]{0,250}\.whl")
WheelName = Annotated[str, matching(WHEEL)]
RecordedBuildId = Annotated[str, matching(BUILD_ID)]
Fingerprint = Annotated[str, matching(FINGERPRINT)]
_Log = Annotated[str, matching(r"[0-9A-Za-z][0-9A-Za-z-]{0,100}\.log")]
# Only UTC, so that times sort correctly as texts.
_Moment = Annotated[str, matching(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\+00:00")]
# RFC 8259, section 6: beyond this, other programs may read another number.
_Count = Annotated[int, below(1 << 53)]
_Number = Annotated[float, below(1 << 53)]

#: `tried`: installed and imported in a clean container. `files`: only its files and GPU code were checked. `failed`:
#: a check failed. `no`: not checked.
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
    """The record's values that the program uses without another check. Other keys may hold anything."""

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
    """Return a record whose fields have the expected types; raise Malformed.

    Unknown keys may have any value: a newer tfdock writes more keys.
    """
    if len(data) > LARGEST_RECORD:
        raise Malformed(f"a record has more than {LARGEST_RECORD} bytes")
    try:
        record: dict[str, Any] = parse(_Record, data)
    except Malformed as error:
        raise Malformed(f"a record: {error}") from None
    try:
        json.dumps(record, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # half a surrogate pair: JSON can express it, UTF-8 cannot
        raise Malformed("a record has text that is not valid") from None
    files = [wheel["file"] for wheel in record["wheels"]]
    # Two wheels with the same name would replace each other in the wheelhouse.
    if len(set(files)) < len(files):
        raise Malformed("a record lists a wheel twice")
    return record


def verified(record: Mapping[str, Any]) -> Verified:
    """Return how the wheels of a build were verified. A record may come from anybody: malformed parts are ignored."""
    rows = [row for row in _list(_map(record.get("verification")).get("checks")) if isinstance(row, dict)]
    statuses = {str(row.get("name")): row.get("status") for row in rows}
    # This comes first: a wheel may pass the import and fail another check.
    if "failed" in statuses.values():
        return "failed"
    if statuses.get("import") == "passed":
        return "tried"
    return "files" if "passed" in statuses.values() else "no"


# --- what is claimed of a wheel ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelClaims:
    """The claims about a wheel. `accelerator` is None if unknown; `toolkit` is the toolkit's version (`12.5.1`).

    `gpu_code` holds targets, SASS before PTX (`sm_86`, `compute_90`), None if not inspected. `finished` is in seconds
    since 1970, None if unknown.
    """

    tensorflow: str | None = None
    python: str | None = None
    accelerator: str | None = None
    toolkit: str | None = None
    gpu_code: tuple[str, ...] | None = None
    verified: Verified = "no"
    finished: float | None = None


def claims_of_record(record: Mapping[str, Any]) -> WheelClaims:
    """Return the claims in the record of a build. A record may come from anybody: malformed parts are ignored."""
    plan = _map(record.get("plan"))
    rows = [_map(row) for row in _list(plan.get("choices"))]
    chosen = {str(row.get("field")): str(row.get("value")) for row in rows}
    accelerator = chosen.get("accelerator")
    verification = _map(record.get("verification"))
    return WheelClaims(
        tensorflow=chosen.get("tensorflow"),
        python=chosen.get("python"),
        accelerator=accelerator,
        toolkit=chosen.get(accelerator or ""),
        gpu_code=_gpu_code(verification),
        verified=verified(record),
        finished=_unix_seconds(record.get("finished")),
    )


def claims_of_build_info(info: Mapping[str, object], accelerators: Iterable[str]) -> WheelClaims:
    """Return the claims in a wheel's own build info, for a wheel without a record. Its targets are claims, too."""
    names = list(accelerators)
    family = next((name for name in names if info.get(f"is_{name}_build") is True), None)
    if family is None:
        # A CPU wheel says `is_cuda_build: False`. A wheel without this field may be for any GPU.
        return WheelClaims(accelerator="cpu" if any(f"is_{name}_build" in info for name in names) else None)
    version, listed = info.get(f"{family}_version"), info.get(f"{family}_compute_capabilities")
    return WheelClaims(
        accelerator=family,
        toolkit=str(version) if version else None,
        gpu_code=tuple(map(str, listed)) if isinstance(listed, list) else None,
    )


def _gpu_code(verification: Mapping[str, Any]) -> tuple[str, ...] | None:
    code = verification.get("gpu_code")
    if not isinstance(code, dict):
        return None
    return tuple(str(target) for kind in ("sass", "ptx", "amdgpu") for target in _list(code.get(kind)))


def _unix_seconds(text: object) -> float | None:
    try:
        # Convert through UTC: near the limits of the calendar, other time zones may fail.
        return datetime.fromisoformat(str(text)).astimezone(UTC).replace(microsecond=0).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def _map(node: object) -> Mapping[str, Any]:
    return node if isinstance(node, dict) else {}


def _list(node: object) -> Sequence[Any]:
    return node if isinstance(node, list) else ()
