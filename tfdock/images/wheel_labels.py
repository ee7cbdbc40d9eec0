"""Make the labels of a wheel image. The manifest has the same texts as annotations. Pure: no I/O.

Some labels are standard (`org.opencontainers.image.title`), others are tfdock's own (`io.tfdock.build-id`). If
several builds have different values, all values are listed, with spaces between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from packaging.metadata import parse_email
from packaging.utils import parse_wheel_filename

from tfdock.images.wheel_layer import ImageWheel
from tfdock.oci.manifest import canonical_json
from tfdock.wheel.zip_archive import EARLIEST_EPOCH
from tfdock.wheelhouse.build_record import verified

STANDARD, OWN = "org.opencontainers.image", "io.tfdock"  #: Prefixes of labels.
# 1980, where zip's calendar starts: the same as the times in the wheels.
#: The creation time in every image. It is fixed, so that the same contents always give the same image.
CREATED = datetime.fromtimestamp(EARLIEST_EPOCH, UTC).isoformat().replace("+00:00", "Z")


def labels(records: Sequence[Mapping[str, Any]], wheels: Sequence[ImageWheel]) -> dict[str, str]:
    """Return the labels of an image. `records` are the records of its builds, `wheels` all its wheels."""
    names = [parse_wheel_filename(wheel.file) for wheel in wheels]
    built = [record for record in records if not is_foreign(record)]
    standard = {
        "title": ", ".join(f"{name} {version}" for name, version, *_ in names),
        "description": _description(records),
        "version": _join_unique(str(version) for _, version, *_ in names),
        "created": CREATED,
        # Give only a value that all builds share: a program could not use a list of addresses.
        "source": _common_value(_source(record)["location"] for record in records),
        "revision": _common_value(_source(record)["revision"] for record in records),
        "licenses": _common_value(_license(wheel.metadata) for wheel in wheels),
    }
    own = {
        "build-id": _join_unique(str(record["build_id"]) for record in built),
        "fingerprint": _join_unique(str(record["fingerprint"]) for record in built),
        "wheels": canonical_json(
            [{"file": wheel.file, "sha256": wheel.sha256, "size": wheel.size} for wheel in wheels]
        ).decode(),
        "python": _join_unique(plan_choice(record, "python") for record in records),
        "platform": _join_unique(wheel.file.removesuffix(".whl").rpartition("-")[2] for wheel in wheels),
        "gpu-code": canonical_json(_gpu_code(records)).decode(),
        "verified": _join_unique(verified(record) for record in records),
    }
    prefixed = {f"{STANDARD}.{name}": value for name, value in standard.items()}
    prefixed |= {f"{OWN}.{name}": value for name, value in own.items()}
    return {name: value for name, value in prefixed.items() if value}


def _description(records: Sequence[Mapping[str, Any]]) -> str:
    parts = []
    for record in records:
        code = _map(_map(record.get("verification")).get("gpu_code"))
        targets = [str(target) for kind in ("sass", "ptx", "amdgpu") for target in code.get(kind) or ()]
        gpus = f", GPU code for {', '.join(targets)}" if targets else ""
        release, python = plan_choice(record, "tensorflow"), plan_choice(record, "python")
        parts.append(f"TensorFlow {release} for Python {python}{gpus}")
    return "; ".join(parts) + ("." if any(map(is_foreign, records)) else ". Built by tfdock.")


def foreign_record(name: str, wheel: ImageWheel, version: str, python: str, verification: Any) -> Mapping[str, Any]:
    """Return a substitute for the record of a wheel from elsewhere. It has only facts from the wheel itself.

    `name` is used as the build id. `python` is the version for the wheel, `verification` the document of the passed
    checks.
    """
    choices = {"tensorflow": version, "python": python}
    return {
        "build_id": name,
        "fingerprint": wheel.sha256,
        "foreign": True,
        "plan": {"choices": [{"field": field, "value": value} for field, value in choices.items()]},
        "verification": verification,
        "wheels": [{"file": wheel.file, "sha256": wheel.sha256, "size": wheel.size}],
    }


def is_foreign(record: Mapping[str, Any]) -> bool:
    """Return whether `foreign_record` made this record."""
    return record.get("foreign") is True


def _gpu_code(records: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the GPU code of all records by kind, as records have it, each target once."""
    codes = [_map(_map(record.get("verification")).get("gpu_code")) for record in records]
    return {
        kind: list(dict.fromkeys(str(target) for code in codes for target in code.get(kind) or ()))
        for kind in ("sass", "ptx", "amdgpu")
    }


def _source(record: Mapping[str, Any]) -> dict[str, str]:
    """Return address and commit of the source; empty for a checkout of this machine, which others do not have."""
    planned = _map(_map(_map(record.get("plan")).get("image")).get("source"))
    if planned.get("kind") not in ("git", "archive"):
        return {"location": "", "revision": ""}
    commit = _map(record.get("source")).get("found") if planned["kind"] == "git" else None
    return {"location": str(planned.get("location") or ""), "revision": str(commit or planned.get("commit") or "")}


def _license(metadata: bytes) -> str:
    """Return the SPDX expression of a wheel's license, if METADATA has one. `Apache 2.0` is read as `Apache-2.0`."""
    raw = parse_email(metadata)[0]
    text = raw.get("license_expression") or raw.get("license", "").strip().replace(" ", "-")
    try:
        # The OCI image specification asks for an SPDX expression.
        return canonicalize_license_expression(text)
    except InvalidLicenseExpression:
        return ""


def plan_choices(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the choices of a build's plan. In an untrusted record, their values may be anything."""
    choices = _map(record.get("plan")).get("choices")
    return [choice for choice in choices if isinstance(choice, Mapping)] if isinstance(choices, list) else []


def plan_choice(record: Mapping[str, Any], name: str) -> str:
    """Return the plan's choice for a field; empty if the record has no such choice."""
    choices = (choice for choice in plan_choices(record) if choice.get("field") == name and "value" in choice)
    return next((str(choice["value"]) for choice in choices), "")


def _map(node: object) -> Mapping[str, Any]:
    return node if isinstance(node, Mapping) else {}


def _join_unique(values: Iterable[str]) -> str:
    return " ".join(dict.fromkeys(filter(None, values)))


def _common_value(values: Iterable[str]) -> str:
    """Return the common value; empty if the values differ."""
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else ""
