"""A lock: pins of all inputs that a build downloads. This module reads, writes and compares locks.

Pure: `tfdock.builder.locking` queries registries and images.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tfdock.errors import BuildFailed, Problem, ProfileError, Severity
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.plan.build_plan import BuildPlan
from tfdock.profile import yaml_nodes
from tfdock.types import NATIVE, Choice, ImageRef

if TYPE_CHECKING:
    from tfdock.resolve.resolution import Resolution

SCHEMA = 1
#: The kinds of pins, in the order of a lock's rows.
KINDS = ("base", "runtime", "source", "bazel", "package", "requirement", "redistributable", "toolchain")
INSTALLED = ("bazel", "package", "requirement", "toolchain")  #: Pins that only the built image shows.
_ALWAYS = ("bazel", "package", "toolchain")  #: Kinds of pins that every image has at least once.
#: The first line of every lock.
MARK = "# Written by `tfdock lock`."
_HEAD = f"""\
{MARK} `tfdock build --locked` builds exactly this, or refuses.
# Not to be edited: when the profile changes, lock it again.
"""
_LISTED = 20  #: The most differences shown; a new distribution release changes hundreds of packages at once.

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
# Git names a commit by its SHA-1, or by its SHA-256 in a repository with that format.
COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """One row: kind, name, value, and the origin of the value (`origin`; `from` in the file).

    | kind | name | value |
    |---|---|---|
    | base | image name as the profile has it | manifest digest |
    | runtime | name of the image in which the wheel is tried | manifest digest |
    | source | git ref | commit |
    | source | archive's address, checkout's path, patch's name | `sha256:…` |
    | bazel | `bazel` | version and sha256 of its program |
    | package | `name:architecture` | version |
    | requirement | Python distribution; the source's own lock file | version and sum over its files; sum |
    | redistributable | component and version | sha256 of the list that names its archives |
    | toolchain | a compiler's path in the image | sha256 |
    """

    kind: str
    name: str
    value: str
    origin: str

    @property
    def key(self) -> tuple[int, str]:
        """The sort key of a pin; each row of a lock has another key."""
        return KINDS.index(self.kind), self.name

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """A profile's lock.

    `choices` are the resolved values of the profile, for messages about changes; `knowledge` is the digest of the
    knowledge base.
    """

    profile: str
    build_id: str
    fingerprint: str
    knowledge: str
    choices: Mapping[str, str]
    pins: tuple[Pin, ...]

    def of(self, *kinds: str) -> tuple[Pin, ...]:
        """Return the rows of some kinds."""
        return tuple(pin for pin in self.pins if pin.kind in kinds)


@dataclass(frozen=True, slots=True, kw_only=True)
class LockFile:
    """A lock, read from a file. `sha256` is the hash of its bytes: build records name their lock by it."""

    path: str
    sha256: str
    lock: Lock


@dataclass(frozen=True, slots=True, kw_only=True)
class LockDifference:
    """A pin whose value differs from its value in the last lock."""

    pin: str  #: Kind and name.
    locked: str | None  #: The value in the last lock; null for a new pin.
    found: str | None  #: The value now; null for a pin that is gone.


# --- text -----------------------------------------------------------------------------------------------------------


def to_text(lock: Lock) -> str:
    """Return the lock as YAML: sorted, one line per row, so two locks can be compared line by line."""
    lines = [
        f"schema: {SCHEMA}",
        *(f"{name}: {_word(getattr(lock, name))}" for name in ("profile", "build_id", "fingerprint", "knowledge")),
        "choices:",
        *(f"  {name}: {_word(value)}" for name, value in sorted(lock.choices.items())),
        "pins:",
        *(
            f"  - {{pin: {pin.kind}, name: {_word(pin.name)}, value: {_word(pin.value)}, from: {_word(pin.origin)}}}"
            for pin in sorted(lock.pins, key=lambda pin: pin.key)
        ),
    ]
    return _HEAD + "".join(f"{line}\n" for line in lines)


def _word(text: str) -> str:
    """Return a YAML string on one line, written as JSON."""
    # JSON strings are valid YAML. U+2028 and similar characters would end a line in YAML, so they are escaped.
    return json.dumps(text, ensure_ascii=not text.isprintable())


def from_text(text: str, file: str) -> Lock:
    """Read a lock; raises ProfileError (`lock-malformed`, or YAML's own codes) at the wrong line."""
    node = yaml_nodes.parse(text, file)
    if node.kind != "map":
        raise _malformed(node, "a lock must be a map with `schema: 1`")
    schema = node.entries.get("schema")
    if schema is None or schema.raw != str(SCHEMA):
        raise _malformed(schema or node, f"`schema` must be {SCHEMA}")
    choices = _child(node, "choices", "map")
    pins = tuple(_pin(row) for row in _child(node, "pins", "list").items)
    seen: set[tuple[int, str]] = set()
    # Two rows for one pin would be ambiguous.
    for pin, row in zip(pins, node.entries["pins"].items, strict=True):
        if pin.key in seen:
            raise _malformed(row, f"{pin} is pinned twice")
        seen.add(pin.key)
    return Lock(
        profile=_text(node, "profile"),
        build_id=_text(node, "build_id"),
        fingerprint=_text(node, "fingerprint"),
        knowledge=_text(node, "knowledge"),
        choices={name: _text(choices, name) for name in choices.entries},
        pins=tuple(sorted(pins, key=lambda pin: pin.key)),
    )


def _pin(row: yaml_nodes.Node) -> Pin:
    if row.kind != "map" or set(row.entries) != {"pin", "name", "value", "from"}:
        raise _malformed(row, "a row must have `pin`, `name`, `value` and `from`")
    pin = Pin(kind=_text(row, "pin"), name=_text(row, "name"), value=_text(row, "value"), origin=_text(row, "from"))
    if pin.kind not in KINDS:
        raise _malformed(row, f"unknown kind of pin `{yaml_nodes.shown(pin.kind)}`; there are {', '.join(KINDS)}")
    # Image names and the Dockerfile use these values, so they are checked.
    if pin.kind in ("base", "runtime") and not _DIGEST.fullmatch(pin.value):
        raise _malformed(row, f"{pin} must be pinned by `sha256:` and 64 hexadecimal digits")
    if pin.kind == "source" and not (_DIGEST.fullmatch(pin.value) or COMMIT.fullmatch(pin.value)):
        raise _malformed(row, f"{pin} must be pinned by a whole commit, or by `sha256:` and 64 hexadecimal digits")
    return pin


def _child(node: yaml_nodes.Node, name: str, kind: str) -> yaml_nodes.Node:
    child = node.entries.get(name)
    if child is None or child.kind != kind:
        raise _malformed(child or node, f"`{name}` must be a {kind}")
    return child


def _text(node: yaml_nodes.Node, name: str) -> str:
    child = node.entries.get(name)
    if child is None or child.kind in ("map", "list", "null") or not child.raw.isprintable() or not child.raw:
        raise _malformed(child or node, f"`{name}` must be text on one line")
    return child.raw


def _malformed(node: yaml_nodes.Node, message: str) -> ProfileError:
    fix = "lock the profile again: `tfdock lock PROFILE` writes the file again"
    return ProfileError(node.problem(node.file, "lock-malformed", f"not a lock: {message}", fix))


# --- rows -----------------------------------------------------------------------------------------------------------


def stated(resolution: Resolution, knowledge: KnowledgeBase) -> tuple[Pin, ...]:
    """Return the pins that the profile, its files or the knowledge already determine."""
    source, base = resolution.source, resolution.base
    pins = [
        Pin(kind="source", name=name, value=f"sha256:{hashlib.sha256(patch).hexdigest()}", origin="profile")
        for name, patch in source.patches.items()
    ]
    if source.kind != "git":
        origin = "profile" if source.kind == "archive" else "checkout"
        pins.append(Pin(kind="source", name=source.location, value=f"sha256:{source.sha256}", origin=origin))
    if base.digest:
        pins.append(Pin(kind="base", name=str(base), value=base.digest, origin="profile"))
    runtime = resolution.runtime if resolution.verify.run else None
    if runtime is not None and runtime.digest:
        pins.append(Pin(kind="runtime", name=str(runtime), value=runtime.digest, origin="profile"))
    for component, version in resolution.components.items():
        row = knowledge.redistributables.get((component, version))
        support = resolution.release.components.get(component)
        # On other systems the Python comes with the base image.
        if row is not None and support is not None and support.closed:
            name = f"{component} {version}"
            pins.append(Pin(kind="redistributable", name=name, value=f"sha256:{row.sha256}", origin=row.url))
    return tuple(pins)


def installed(toolchain: bytes, pins: bytes, requirements: Mapping[str, bytes]) -> tuple[Pin, ...]:
    """Return the pins that an image recorded about itself.

    `toolchain` and `pins` are the files of toolchain.sh and pins.py; `requirements` the source's own lists of Python
    packages with their hashes, by file name. Raises BuildFailed (`pin-unprintable`) for unprintable pins.
    """
    lines = [line.split() for line in (toolchain + pins).decode("utf-8", "replace").splitlines()]
    by_key: dict[tuple[int, str], Pin] = {}
    bazel: list[str] = []
    for words in lines:
        match words:
            case ["bazel", value]:
                # Bazel has two lines: its version, which has a dot, and the sha256 of its program.
                bazel.append(value if "." in value else f"sha256:{value}")
                continue
            case ["package", name, version, architecture]:
                pin = Pin(kind="package", name=f"{name}:{architecture}", value=version, origin="dpkg")
            case ["tool", path, value]:
                pin = Pin(kind="toolchain", name=path, value=f"sha256:{value}", origin="image")
            case ["requirement", name, version, value]:
                pin = Pin(kind="requirement", name=name, value=f"{version} sha256:{value}", origin="image")
            case _:
                continue
        # A container wrote these lines, so refuse unprintable characters: a lock cannot contain them.
        if not (pin.name + pin.value).isprintable():
            message = (
                f"the image contains a {pin.kind} whose name or version cannot be printed: {ascii(pin.name)[:80]}"
            )
            fix = "use another base image: package managers do not write such names"
            raise BuildFailed.of("pin-unprintable", message, fix)
        by_key[pin.key] = pin
    rows = [
        *by_key.values(),
        *(
            Pin(kind="requirement", name=name, value=f"sha256:{hashlib.sha256(content).hexdigest()}", origin="source")
            for name, content in requirements.items()
        ),
    ]
    if bazel:
        rows.append(Pin(kind="bazel", name="bazel", value=" ".join(bazel), origin="image"))
    return tuple(sorted(rows, key=lambda pin: pin.key))


def make_lock(profile: str, plan: BuildPlan, knowledge: str, pins: Iterable[Pin]) -> Lock:
    """Return the lock of a plan that was made with these pins (`pinned`)."""
    return Lock(
        profile=profile,
        build_id=plan.build_id,
        fingerprint=plan.fingerprint,
        knowledge=knowledge,
        choices=_choices(plan.resolution.choices),
        pins=tuple(sorted(pins, key=lambda pin: pin.key)),
    )


def _choices(choices: Iterable[Choice]) -> dict[str, str]:
    """Return the choices that explain a change.

    Base and source are pins of their own, and show in the wheel's own local version.
    """
    pins = ("base", "source", "evidence")  # reports about a build do not change the build
    return {
        choice.field: choice.value
        for choice in choices
        if choice.value
        and choice.field not in pins
        and (choice.field, choice.source) != ("wheel.local_version", "default")
    }


def pinned(resolution: Resolution, pins: Iterable[Pin]) -> Resolution:
    """Return the resolution with pinned images as digests, and with the source at the pinned commit.

    The build id names the request, so it does not change. The fingerprint is computed from the pins.
    """
    rows = {(pin.kind, pin.name): pin for pin in pins}
    base, source, runtime = resolution.base, resolution.source, resolution.runtime
    choices = {choice.field: choice for choice in resolution.choices}
    row = rows.get(("base", str(base)))
    if row is not None and not base.digest:
        # Use only the digest, because the tag may name another image by now.
        base = ImageRef(base.repository, base.registry, digest=row.value)
        choices["base"] = Choice(
            field="base", value=str(base), source="lock", reason=f"the digest of {row.name} in the lock file"
        )
    # Use the ref that was found when the profile was locked. The other refs are not tried again.
    ref = next((ref for ref in source.refs if ("source", ref) in rows), None)
    if ref is not None:
        commit = rows["source", ref].value
        source = replace(source, refs=(ref,), commit=commit, locked=True)
        reason = f"commit {commit[:12]}, as locked"
        choices["source"] = Choice(field="source", value=f"{source.location} {ref}", source="lock", reason=reason)
    row = rows.get(("runtime", str(runtime)))
    if row is not None and runtime is not None and not runtime.digest:
        # `runtime_asked`: otherwise a trial would choose an image by the wheel's tags.
        runtime = ImageRef(runtime.repository, runtime.registry, digest=row.value)
        resolution = replace(resolution, runtime_asked=True)
    return replace(resolution, base=base, source=source, runtime=runtime, choices=tuple(choices.values()))


# --- comparing ------------------------------------------------------------------------------------------------------


def compare(locked: Iterable[Pin], now: Iterable[Pin]) -> tuple[LockDifference, ...]:
    """Return the differences between two sets of rows, in the lock's order."""
    before, after = ({pin.key: pin for pin in pins} for pins in (locked, now))
    return tuple(
        LockDifference(
            pin=str(before.get(key) or after[key]),
            locked=before[key].value if key in before else None,
            found=after[key].value if key in after else None,
        )
        for key in sorted(before | after)
        if key not in before or key not in after or before[key].value != after[key].value
    )


def moved(
    locked: Iterable[Pin], now: Iterable[Pin], file: str, *, severity: Severity = "error", why: str = ""
) -> Problem | None:
    """Return the refusal, or a warning, for changed pins. `now` are the current pins of the inputs in `locked`."""
    differences = compare(locked, now)
    if not differences:
        return None
    lines = [line for difference in differences[:_LISTED] for line in _lines(difference)]
    if len(differences) > _LISTED:
        lines.append(f"  and {len(differences) - _LISTED} more")
    changed = any(difference.locked is not None for difference in differences)
    count = f"{len(differences)} pin{'s have' if len(differences) > 1 else ' has'} moved"
    summary = f"{count} since the profile was locked" if changed else "not everything is pinned"
    return Problem(
        "pin-moved" if changed else "pin-missing",
        "\n".join([summary, *lines]),
        "to accept the change, lock again: `tfdock lock PROFILE`; to undo it, use a mirror that still has the locked "
        "version",
        why=why,
        severity=severity,
        file=file,
    )


def _lines(difference: LockDifference) -> Iterator[str]:
    yield f"  {difference.pin}"
    yield f"    locked  {difference.locked or 'not at all'}"
    yield f"    now     {difference.found or 'no longer there'}"


def unpinned(lock: Lock, resolution: Resolution) -> Problem | None:
    """Return the refusal if an input that is known before the build has no row in the lock."""
    source = resolution.source
    rows = {(pin.kind, pin.name) for pin in lock.pins}
    lacking = [] if ("base", str(resolution.base)) in rows else [f"base {resolution.base}"]
    # An archive or a checkout has no refs, so its location is its name.
    sources = source.refs or (source.location,)
    if not any(("source", name) in rows for name in sources):
        lacking.append(f"source {' or '.join(sources)}")
    lacking += [f"source {name}" for name in source.patches if ("source", name) not in rows]
    kinds = {pin.kind for pin in lock.pins}
    # A user's own base image may have a distribution without dpkg.
    own = {"package"} if resolution.image.template == "own" else set()
    lacking += [kind for kind in _ALWAYS if kind not in kinds | own]
    if not lacking:
        return None
    return Problem(
        "pin-missing",
        f"not everything is pinned: {', '.join(lacking)}",
        "lock the profile again: `tfdock lock PROFILE`",
    )


def outdated(lock: Lock, plan: BuildPlan, file: str) -> Problem | None:
    """Return the refusal for a lock whose choices differ from the profile's current resolution.

    `plan` was made with the lock's pins. Choices that do not decide the wheel's bytes may change.
    """
    now = _choices(plan.resolution.choices)
    changed = [
        f"`{name}` was {lock.choices.get(name, 'absent')}, now it is {now.get(name, 'absent')}"
        for name in sorted({**lock.choices, **now})
        if lock.choices.get(name) != now.get(name)
    ]
    # A choice may change without changing the wheel: then the fingerprint is the same.
    return _outdated(file, "; ".join(changed)) if changed and lock.fingerprint != plan.fingerprint else None


def altered(lock: Lock, plan: BuildPlan, knowledge: str, file: str) -> Problem | None:
    """Return the refusal for a plan that has changed in anything except choices and pins."""
    if lock.fingerprint == plan.fingerprint:
        return None
    changed = "its flags, its environment or its Dockerfile have changed"
    as_well = f", and the knowledge base from {lock.knowledge} to {knowledge}" if lock.knowledge != knowledge else ""
    return _outdated(file, changed + as_well)


def _outdated(file: str, changed: str) -> Problem:
    return Problem(
        "lock-outdated",
        f"the build has changed since the lock: {changed}",
        "lock the profile again: `tfdock lock PROFILE`, or undo the change",
        file=file,
    )


def native(resolution: Resolution, file: str) -> Problem | None:
    """Return the refusal for a build with code for this machine's CPU: a lock must work on every machine."""
    # Flags that the profile writes itself count like `optimize: native`.
    flags = [f"`{flag}`" for flag in resolution.flags if NATIVE.search(flag)]
    if not flags and not any(NATIVE.search(option) for option in resolution.optimize):
        return None
    fix = "name the instruction sets (`optimize: [avx2, fma]`), or set `optimize: portable`"
    return Problem(
        "native-in-lock",
        "`native` code depends on the machine that builds it, so a lock cannot promise it",
        f"{fix}, and remove {' and '.join(flags)}" if flags else fix,
        file=file,
        field="optimize",
    )
