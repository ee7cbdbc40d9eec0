"""Decide which builds of a wheelhouse to keep, and describe each build by its record. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tfdock.wheelhouse.build_record import Verified, verified


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelClaims:
    """The claims about a wheel. `accelerator` is None if nobody says; `toolkit` is its version (`12.5.1`).

    `gpu_code` holds targets, SASS before PTX (`sm_86`, `compute_90`), None if nobody looked. `finished` is in seconds
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
    """Return the claims of a build's record. A record may come from anybody: malformed parts are ignored."""
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
    """Return the claims of a wheel's own build info, for a wheel without a record. What it lists is not measured."""
    names = list(accelerators)
    family = next((name for name in names if info.get(f"is_{name}_build") is True), None)
    if family is None:
        # A CPU wheel says `is_cuda_build: False`. A wheel that says nothing may be for any GPU.
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
        # Through UTC: at the ends of the calendar a moment is told there, or not at all.
        return datetime.fromisoformat(str(text)).astimezone(UTC).replace(microsecond=0).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def _map(node: object) -> Mapping[str, Any]:
    return node if isinstance(node, dict) else {}


def _list(node: object) -> Sequence[Any]:
    return node if isinstance(node, list) else ()


# --- which may go ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainableWheel:
    """A wheel of one of our builds: its size in bytes, and when it was made, in seconds since 1970. If `busy`, it
    stays.
    """

    file: str
    size: int
    build_id: str
    fingerprint: str
    finished: float
    busy: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionChoice:
    """The wheels that go, the oldest first. `left` bytes stay."""

    gone: tuple[RetainableWheel, ...] = ()
    left: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules of retention. A wheel goes if every rule that is given says so.

    `before`: it was made before that moment. `max_size`: with it, the wheels that are left
    take more bytes. `keep`: it is not among that number of newest builds of its build id. A rule that is None is not
    given.
    """

    before: float | None = None
    max_size: int | None = None
    keep: int | None = None


def choose(stock: Iterable[RetainableWheel], rules: Rules, *, others: int = 0) -> RetentionChoice:
    """Choose the wheels that go; none without any rule.

    `others` are bytes of wheels that are not ours to remove; they count for the size.
    """
    # By name where times are equal: a dry run and the real run choose the same wheels.
    oldest_first = sorted(stock, key=lambda wheel: (wheel.finished, wheel.file))
    newest = _newest(oldest_first, rules.keep or 0)
    left = others + sum(wheel.size for wheel in oldest_first)
    gone = []
    for wheel in oldest_first if rules != Rules() else ():
        too_large = rules.max_size is None or left > rules.max_size
        old = rules.before is None or wheel.finished < rules.before
        if too_large and old and not wheel.busy and (wheel.build_id, wheel.fingerprint) not in newest:
            gone.append(wheel)
            left -= wheel.size
    return RetentionChoice(gone=tuple(gone), left=left)


def _newest(oldest_first: Iterable[RetainableWheel], count: int) -> set[tuple[str, str]]:
    """Return the newest builds of each build id: build id and fingerprint."""
    builds: dict[str, dict[str, None]] = defaultdict(dict)
    for wheel in oldest_first:
        # A dict keeps a key's first place, but the build counts by its latest wheel.
        builds[wheel.build_id].pop(wheel.fingerprint, None)
        builds[wheel.build_id][wheel.fingerprint] = None
    return {
        (build_id, fingerprint)
        for build_id, fingerprints in builds.items()
        for fingerprint in list(fingerprints)[max(len(fingerprints) - count, 0) :]
    }
