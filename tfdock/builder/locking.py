"""Collect the pins of a profile in a lock file, and compare a profile with its lock.

Only this module queries registries and git servers for pins. The contents of an image are read from the image. A lock
is written completely or not at all.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tfdock import events
from tfdock.builder import build
from tfdock.builder import pins as registry
from tfdock.builder.session import BuildRequest, BuildSession
from tfdock.errors import BuildFailed, DiskFull, Incompatible, NetworkError, Problem, ProfileError
from tfdock.host.files import file_error, write_atomically
from tfdock.host.project_files import lock_text
from tfdock.host.settings import Settings
from tfdock.plan import lock_file as locks
from tfdock.plan.build_plan import BuildPlan
from tfdock.plan.lock_file import Lock, LockDifference, LockFile, Pin
from tfdock.plan.prepare import PreparedBuild, Preparer, WrittenProfile, find_profile, lock_path, placed
from tfdock.profile import endpoint
from tfdock.resolve.resolution import Resolution
from tfdock.types import ImageRef

#: Codes of failures that may not occur with the profile's next ref. Network failures are not included: the first ref
#: may exist, and must not be skipped.
_OTHER_REF = {"source-ref-missing", "image-step-failed"}


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenLock:
    """A lock that was written, and its differences from the earlier lock."""

    path: Path
    lock: Lock
    differences: tuple[LockDifference, ...]


def check_names(names: Iterable[str]) -> None:
    """Refuse two profiles with the same lock, and a profile whose name is that of another profile's lock."""
    owners: dict[Path, Path] = {}
    for name in names:
        try:
            profile, lock = find_profile(name), lock_path(name)
        except ProfileError:
            continue  # a missing profile is reported when it is locked
        for place in (profile, lock):
            owner = owners.setdefault(place.absolute(), profile)
            if owner.absolute() != profile.absolute():
                raise _name_taken(place, f"belongs to {owner} and to {profile}")


def _name_taken(path: Path, why: str) -> ProfileError:
    fix = "rename one of the two"
    return ProfileError.of("lock-name-taken", f"`{path.name}` {why}", fix, file=str(path))


def _check_place(path: Path) -> None:
    """Refuse early a lock that cannot be written, or would replace a file that is no lock."""
    # `lexists`: a link that leads nowhere is in the way, too.
    if os.path.lexists(path) and not lock_text(path).startswith(locks.MARK):
        raise _name_taken(path, "exists already, but `tfdock lock` did not write it")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise _unwritable(path, "the folder is not writable")


# --- write a lock ---------------------------------------------------------------------------------------------------


def write_lock(name: str, preparer: Preparer, session: BuildSession, listen: events.Listener) -> WrittenLock:
    """Collect the pins of a profile, and write its lock. Raises TfdockError for inputs that cannot be pinned.

    The image is built from the base with this digest and the source at this commit. A locked build uses this image.
    """
    path = preparer.lock_path(name)
    other = path.with_suffix(".yaml")
    # Options are part of a lock's name, and a profile may have the same name.
    if other.is_file() and (name.startswith("--") or path != lock_path(name)):
        raise _name_taken(path, f"belongs to {other}")
    lock = gather_pins(name, preparer, session, listen, before=lambda: _check_place(path))
    before = _earlier_lock(path)
    _write(path, locks.to_text(lock))
    return WrittenLock(path=path, lock=lock, differences=locks.compare(before.pins, lock.pins) if before else ())


def gather_pins(
    name: str,
    preparer: Preparer,
    session: BuildSession,
    listen: events.Listener,
    before: Callable[[], None] = lambda: None,
) -> Lock:
    """Return the lock of a profile. Raises TfdockError for inputs that cannot be pinned. `before` is called first."""
    prepared = preparer.prepare(name)
    resolution = prepared.plan.resolution
    # No lock can pin this machine's CPU, so no server is queried.
    _refuse(locks.native(resolution, prepared.file))
    _check_servers(prepared, session.settings)
    # Do this before the network and the image are used: a lock that cannot be written is refused at once.
    before()
    image_pins = tuple(_image_pins(resolution, session, listen))
    known = (*locks.stated(resolution, preparer.knowledge), *image_pins)
    pins, plan = _pins_of_first_ref(prepared.written, preparer, session, resolution, known, listen)
    lock = locks.make_lock(prepared.written.name, plan, preparer.knowledge.version, pins)
    _refuse(locks.unpinned(lock, resolution))
    return lock


def _pins_of_first_ref(
    written: WrittenProfile,
    preparer: Preparer,
    session: BuildSession,
    resolution: Resolution,
    known: tuple[Pin, ...],
    listen: events.Listener,
) -> tuple[tuple[Pin, ...], BuildPlan]:
    """Return all pins, and the plan with them, for the first source ref that exists and can be configured."""
    # Archives and checkouts have no refs, and are tried once.
    refs: tuple[str | None, ...] = resolution.source.refs or (None,)
    for number, ref in enumerate(refs, start=1):
        try:
            pins = (*known, *([_source_pin(resolution, ref, session.stop.check)] if ref else []))
            prepared = preparer.prepare_written(written, partial(locks.pinned, pins=pins))
            return (*pins, *build.pins(session, BuildRequest(prepared=prepared), listen)), prepared.plan
        except (BuildFailed, NetworkError) as error:
            if number == len(refs) or error.problems[0].code not in _OTHER_REF:
                raise
            reason = error.problems[0].message.partition("\n")[0]
            listen(events.Notice(text=f"source {ref} does not work ({reason}); trying {refs[number]}"))
    raise AssertionError("there is at least one ref")


def _check_servers(prepared: PreparedBuild, settings: Settings) -> None:
    """Refuse servers that a profile names but no setting allows: the profile may be untrusted.

    The server of a release's own repository is allowed, and so are the images of the knowledge.
    """
    resolution, problems = prepared.plan.resolution, []
    source = resolution.source
    chosen = {choice.field for choice in resolution.choices if choice.source == "profile"}
    for field, image in _tagged_images(resolution).items():
        if field in chosen and not settings.allows_registry(image.registry):
            fix = f"name the digest: `{field}: NAME@sha256:…`"
            problems.append(_not_allowed(field, "registry", f"https://{image.registry}", fix))
    by_web = source.location.startswith(("https://", "http://", "git://"))  # other addresses cannot be queried
    asks = by_web and not all(map(locks.COMMIT.fullmatch, source.refs))
    known = endpoint.server(resolution.release.repository)
    if asks and endpoint.server(source.location) != known and not settings.allows_server(source.location):
        fix = "name the commit: `ref: <40 hexadecimal digits>`"
        problems.append(_not_allowed("tensorflow.git", "git server", endpoint.server(source.location), fix))
    if problems:
        document = prepared.written.document
        raise ProfileError(*(placed(problem, document, prepared.file) for problem in problems))


def _not_allowed(field: str, kind: str, address: str, fix: str) -> Problem:
    return Problem(
        "endpoint-not-allowed",
        f"no setting allows connections to the {kind} {address} for a lock",
        why="a profile may come from a stranger, and this machine would connect to the address",
        fixes=[
            f"if you trust the profile, allow the address: `--allow-endpoint {address}`, "
            f"`TFDOCK_ALLOW_ENDPOINTS={address}`, or `allow_endpoints: [{address}]` in the configuration file",
            fix,
        ],
        field=field,
    )


def _tagged_images(resolution: Resolution) -> dict[str, ImageRef]:
    """Return the images without a digest by the kind of their pin: the base, and the image of the trial."""
    images = {"base": resolution.base, "runtime": resolution.runtime if resolution.verify.run else None}
    return {kind: image for kind, image in images.items() if image and not image.digest}


def _image_pins(resolution: Resolution, session: BuildSession, listen: events.Listener) -> Iterator[Pin]:
    """Yield the pins of images that have only a tag."""
    for kind, image in _tagged_images(resolution).items():
        try:
            value = registry.digest(session.settings.mirrored(image), session.stop.check)
        except NetworkError as error:
            # The trial's image changes no byte of the wheel, and may exist only on this machine.
            if kind == "base":
                raise
            text = f"the image {image} (for the wheel's trial) is not pinned: {error.problems[0].message}"
            listen(events.Notice(text=text))
            continue
        yield Pin(kind=kind, name=str(image), value=value, origin="registry")


def _source_pin(resolution: Resolution, ref: str, check: Callable[[], None]) -> Pin:
    """Return the pin of a ref's commit.

    Raises an error if the ref does not exist, or the knowledge base has another commit.
    """
    source = resolution.source
    if locks.COMMIT.fullmatch(ref):
        return Pin(kind="source", name=ref, value=ref, origin="profile")
    commit = registry.commit(source.location, ref, check)
    if commit is None:
        raise NetworkError.of(
            "source-ref-missing",
            f"{source.location} has neither a tag nor a branch `{ref}`",
            "name an existing tag or branch, or a full commit",
        )
    # The knowledge has the commit of every release: a tag that moved must not pass for the release.
    if source.commit and commit != source.commit:
        raise Incompatible.of(
            "pin-moved",
            f"{ref} at {source.location} is not the known commit of this release\n"
            f"    known  {source.commit}\n    now    {commit}",
            "find out who moved it; to build the new commit anyway, name this commit: "
            f"`tensorflow: {{release: …, ref: {commit}}}`",
        )
    return Pin(kind="source", name=ref, value=commit, origin=f"git {source.location}")


def _write(path: Path, text: str) -> None:
    try:
        write_atomically(path, text.encode())
    except OSError as error:
        problem = file_error(error, {"the profile's folder": path.parent})
        raise (problem if isinstance(problem, DiskFull) else _unwritable(path, error.strerror)) from error


def _unwritable(path: Path, why: str | None) -> ProfileError:
    return ProfileError.of(
        "file-error",
        f"the lock cannot be written: {why}",
        "check the folder's owner and mode, or copy the profile to a folder that you can write to",
        file=str(path),
    )


def _earlier_lock(path: Path) -> Lock | None:
    """Return the existing lock, or None if there is no readable lock."""
    try:
        return read_lock(path).lock
    # An unreadable lock is replaced too, without a comparison.
    except (ProfileError, Incompatible):
        return None


# --- compare a profile with its lock --------------------------------------------------------------------------------


def read_lock(path: Path) -> LockFile:
    """Read a lock. Raises Incompatible (`lock-missing`) or ProfileError (`lock-malformed`)."""
    try:
        text = lock_text(path)
    except FileNotFoundError as error:
        raise Incompatible.of(
            "lock-missing",
            f"lock not found: there is no {path.name} beside the profile",
            "write the lock first, with the same options: `tfdock lock PROFILE`",
            file=str(path),
        ) from error
    sha256 = hashlib.sha256(text.encode()).hexdigest()
    return LockFile(path=str(path), sha256=sha256, lock=locks.from_text(text, str(path)))


def prepare_locked(
    name: str, preparer: Preparer, settings: Settings, warn: Callable[[Sequence[Problem]], None]
) -> PreparedBuild:
    """Plan a profile with the pins of its lock. Raises Incompatible for pins that no longer match.

    `warn` is called for a tag or branch that has moved: the build uses the locked digest or commit while a server has
    it. Pins of the image's contents are compared when the image exists (`build.build`).
    """
    unlocked = preparer.prepare(name)
    _check_servers(unlocked, settings)
    file = read_lock(preparer.lock_path(name))
    lock, resolution = file.lock, unlocked.plan.resolution
    prepared = replace(preparer.prepare_written(unlocked.written, partial(locks.pinned, pins=lock.pins)), lock=file)
    # Causes before effects: a changed profile also moves pins, and moved pins change the fingerprint.
    _refuse(locks.outdated(lock, prepared.plan, file.path))
    _refuse(locks.unpinned(lock, resolution), file.path)
    followed = {("source", ref) for ref in resolution.source.refs}
    followed |= {(kind, str(image)) for kind, image in _tagged_images(resolution).items()}
    pins = lock.of("base", "runtime", "source", "redistributable")
    stated = [pin for pin in pins if (pin.kind, pin.name) not in followed]
    _refuse(locks.moved(stated, locks.stated(resolution, preparer.knowledge), file.path))
    _refuse(locks.altered(lock, prepared.plan, preparer.knowledge.version, file.path))
    tagged = [pin for pin in pins if (pin.kind, pin.name) in followed]
    why = "the build uses the locked values"
    warning = locks.moved(tagged, _found_now(tagged, resolution, settings), file.path, severity="warning", why=why)
    if warning:
        warn([warning])
    return prepared


def check_lock(name: str, preparer: Preparer, settings: Settings) -> LockFile:
    """Return a profile's lock if the lock is up to date. Raises Incompatible with a problem for each pin that has
    moved.

    The image is not built, so its contents are not compared.
    """
    problems: list[Problem] = []
    prepared = prepare_locked(name, preparer, settings, problems.extend)
    if problems:
        raise Incompatible(*(replace(problem, severity="error", why="") for problem in problems))
    assert prepared.lock is not None
    return prepared.lock


def _found_now(pins: Iterable[Pin], resolution: Resolution, settings: Settings) -> list[Pin]:
    """Return the present digests and commits of tags and branches; missing ones are left out."""
    images = _tagged_images(resolution)
    found = []
    for pin in pins:
        if pin.kind in images:
            value = _digest_now(images[pin.kind], settings)
        else:
            is_commit = locks.COMMIT.fullmatch(pin.name)
            value = pin.name if is_commit else registry.commit(resolution.source.location, pin.name)
        found += [replace(pin, value=value)] if value else []
    return found


def _digest_now(image: ImageRef, settings: Settings) -> str | None:
    try:
        return registry.digest(settings.mirrored(image))
    except NetworkError as error:
        # A tag can be deleted while its digest can still be pulled.
        if error.problems[0].code != "image-not-found":
            raise
        return None


def _refuse(problem: Problem | None, file: str | None = None) -> None:
    if problem:
        raise Incompatible(replace(problem, file=problem.file or file))
