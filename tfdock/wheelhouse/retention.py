"""Decide which builds of a wheelhouse to keep; describe each build by its record. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tfdock.wheelhouse.build_record import Verified, verified


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelClaims:
    """What is told of a wheel. `accelerator` is None where nobody says; `toolkit` is its version (`12.5.1`).

    `gpu_code` are targets, SASS before PTX (`sm_86`, `compute_90`), None where nobody looked. `finished` is in
    seconds since 1970, None where that is not known.
    """

    tensorflow: str | None = None
    python: str | None = None
    accelerator: str | None = None
    toolkit: str | None = None
    gpu_code: tuple[str, ...] | None = None
    verified: Verified = "no"
    finished: float | None = None


def told_by_record(record: Mapping[str, Any]) -> WheelClaims:
    """What a build's record says. A record may be anybody's: what is not as it should be is not told."""
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
        gpu_code=_code(verification),
        verified=verified(record),
        finished=_moment(record.get("finished")),
    )


def told_by_build_info(info: Mapping[str, object], accelerators: Iterable[str]) -> WheelClaims:
    """What a wheel's own account of its build says, for one that has no record. What it lists is not measured."""
    names = list(accelerators)
    own = next((name for name in names if info.get(f"is_{name}_build") is True), None)
    if own is None:
        return WheelClaims(accelerator="cpu" if any(f"is_{name}_build" in info for name in names) else None)
    version, listed = info.get(f"{own}_version"), info.get(f"{own}_compute_capabilities")
    return WheelClaims(
        accelerator=own,
        toolkit=str(version) if version else None,
        gpu_code=tuple(map(str, listed)) if isinstance(listed, list) else None,
    )


def _code(verification: Mapping[str, Any]) -> tuple[str, ...] | None:
    code = verification.get("gpu_code")
    if not isinstance(code, dict):
        return None
    return tuple(str(target) for kind in ("sass", "ptx", "amdgpu") for target in _list(code.get(kind)))


def _moment(text: object) -> float | None:
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
    """A wheel that a build of ours made: its size in bytes, and when, in seconds since 1970. `busy`: it stays."""

    file: str
    size: int
    build_id: str
    fingerprint: str
    finished: float
    busy: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionChoice:
    """The wheels that go, the oldest first. `left` bytes stay; `reached` is False where they are too many."""

    gone: tuple[RetainableWheel, ...] = ()
    left: int = 0
    reached: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What goes: wheels made before that moment; the oldest until all take no more than `max_size` bytes.

    `keep`: so many of the newest builds of each build id stay in any case; alone it lets all others go. A rule that
    is None asks for nothing.
    """

    before: float | None = None
    max_size: int | None = None
    keep: int | None = None

    def drops(self, finished: float) -> bool:
        """Whether a wheel goes that was made then and is none of the newest, whatever room it takes."""
        if self.before is None:
            return self.keep is not None and self.max_size is None
        return finished < self.before


def choose(stock: Iterable[RetainableWheel], rules: Rules, *, others: int = 0) -> RetentionChoice:
    """Decide. `others` are bytes of wheels that are not ours to remove; they count for the size."""
    oldest_first = sorted(stock, key=lambda one: (one.finished, one.file))
    newest = _newest(oldest_first, rules.keep or 0)
    free = [one for one in oldest_first if not one.busy and (one.build_id, one.fingerprint) not in newest]
    gone = {one.file: one for one in free if rules.drops(one.finished)}
    left = others + sum(one.size for one in oldest_first if one.file not in gone)
    for one in free if rules.max_size is not None else ():
        if left > (rules.max_size or 0) and one.file not in gone:
            gone[one.file] = one
            left -= one.size
    reached = rules.max_size is None or left <= rules.max_size
    return RetentionChoice(gone=tuple(one for one in free if one.file in gone), left=left, reached=reached)


def _newest(oldest_first: Iterable[RetainableWheel], count: int) -> set[tuple[str, str]]:
    """The newest builds of each build id: build id and fingerprint."""
    builds: dict[str, dict[str, None]] = defaultdict(dict)
    for one in oldest_first:
        builds[one.build_id].pop(one.fingerprint, None)
        builds[one.build_id][one.fingerprint] = None
    return {(name, one) for name, made in builds.items() for one in list(made)[max(len(made) - count, 0) :]}
