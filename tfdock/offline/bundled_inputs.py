"""Building from a bundle, without a network: its profiles planned, and what it has put where a build looks for it."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from tfdock import __version__
from tfdock.bazel.cache.cache_folder import opened as opened_part
from tfdock.engine.engine_archives import image_names
from tfdock.engine.engine_host import engine_data
from tfdock.engine.protocol import Cancel, Engine
from tfdock.errors import EngineError, Incompatible, Problem, ProfileError, VerificationFailed
from tfdock.host.files import check_space, gib, make_folder, write_atomically
from tfdock.host.settings import Settings
from tfdock.host.untrusted_folders import remove_folder
from tfdock.offline.bundle_file import Bundle, open_bundle
from tfdock.offline.bundle_format import BundledBuild, BundledImage
from tfdock.plan import lock_file as locks
from tfdock.plan.build_plan import in_domain
from tfdock.plan.lock_file import LockFile
from tfdock.plan.prepare import PreparedBuild, Preparer, WrittenProfile
from tfdock.plan.trust_domain import of_bundle
from tfdock.profile import profile as profiles
from tfdock.resolve.question import LocalSource
from tfdock.run.phases import PhaseRunner
from tfdock.verify.trial_container import dependencies_folder


@dataclass
class SharedInputs:
    """What several builds take out of one bundle: all of it once, when the first of them needs it."""

    bundle: Bundle
    builds: tuple[BundledBuild, ...]
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _done: bool = False
    ids: Mapping[str, str] = field(default_factory=dict)
    """The images' ids on the engine, by the bundle's names for them: another bundle may take a name later."""

    def provide(self, runner: PhaseRunner, settings: Settings) -> None:
        """Load the images, and fill the repository cache and the wheels' folders. What is there already stays.

        Raises VerificationFailed (`bundle-damaged`), DiskFull, and the engine's errors.
        """
        with self._lock:
            if not self._done:
                self._load(runner)
                self.ids = {image.name: _image_id(runner.engine, image.name) for image in self._images}
                self._fill(settings, runner)
                self._unpack_wheels(settings, runner)
                self._done = True

    # --- images ---

    @property
    def _images(self) -> tuple[BundledImage, ...]:
        """Those that are needed."""
        return tuple({image.name: image for build in self.builds for image in build.images}.values())

    def _load(self, runner: PhaseRunner) -> None:
        missing = [image for image in self._images if not self._is_there(runner.engine, image)]
        if not missing:
            return
        self._check_room(runner, sum(image.size for image in missing))
        runner.check("image")
        self._check_names()
        cancel = Cancel()
        stopper = runner.stopper(gently=cancel.set, by_force=lambda: runner.give_up("image"))
        size = self.bundle.index.blob(self.bundle.index.images).size
        runner.watch(
            f"images of {self.bundle.path.name}, {size:,} bytes",
            lambda _: runner.engine.load(self.bundle.chunks(self.bundle.index.images), cancel),
            stopper,
        )
        for image in missing:
            if runner.engine.image(image.name) is None:
                raise EngineError(
                    Problem(
                        code="image-archive-refused",
                        message=f"the engine took the bundle's images, but {image.name} is not there",
                        fix="make the bundle anew with an engine like the one that is to build from it",
                    )
                )

    def _is_there(self, engine: Engine, image: BundledImage) -> bool:
        """Whether it is the very image; engines that name images otherwise than who saved it take it once more."""
        found = engine.image(image.name)
        return found is not None and found.id == image.id

    def _check_names(self) -> None:
        """Refuse images that would take the name of another one on this engine, such as of a base image."""
        own = {image.name for build in self.bundle.index.builds for image in build.images}
        try:
            strange = sorted(set(image_names(self.bundle.chunks(self.bundle.index.images))) - own)
            told = f"its images would also be called {', '.join(strange[:3])}" if strange else ""
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            told = f"its images are no archive of images: {error}"
        if told:
            raise VerificationFailed(
                Problem(
                    code="bundle-damaged",
                    message=f"{self.bundle.path.name} is no bundle of tfdock's: {told}",
                    fix="make the bundle anew with `tfdock fetch -o`, and take bundles only from whom you trust",
                )
            )

    def _check_room(self, runner: PhaseRunner, size: int) -> None:
        """Images are unpacked twice: as the archive's files, and as layers."""
        root = engine_data(runner.engine.info())
        if root:
            check_space(
                root,
                2 * size,
                lambda free: (
                    f"the engine's data ({root}) has {gib(free)} left, and loading the bundle's "
                    f"images takes {gib(2 * size)}"
                ),
                "make room there, such as by `docker system prune`",
            )

    # --- files ---

    def _fill(self, settings: Settings, runner: PhaseRunner) -> None:
        """Put downloads into Bazel's repository cache. Raises NotPlain for a link that a container left there."""
        path = settings.cache_dir.absolute() / "repository"
        make_folder(path)
        with opened_part(path) as folder:
            for name, blob in self.bundle.index.repository.items():
                try:
                    folder.status(name)
                except FileNotFoundError:
                    runner.check("image")
                    folder.write(name, self.bundle.chunks(blob))

    def _unpack_wheels(self, settings: Settings, runner: PhaseRunner) -> None:
        """What finished wheels require, for the image that they are tried in."""
        for build in self.builds:
            image = runner.engine.image(self.ids[build.runtime.image.name]) if build.runtime else None
            if image is None or build.wheels is None or not build.wheels.requirements:
                continue
            wanted = build.wheels
            folder = dependencies_folder(
                settings, image, wanted.python_tag, wanted.requirements, wanted.limits, of=self.bundle.index.images
            )
            if folder.is_dir():
                continue
            part = folder.with_name(f"{folder.name}.{runner.run}")
            make_folder(part)
            try:
                for name, blob in build.wheels.files.items():
                    runner.check("image")
                    self._write(blob, part / name)
                part.rename(folder)
            finally:
                remove_folder(part)

    def _write(self, blob: str, target: Path) -> None:
        make_folder(target.parent)
        write_atomically(target, self.bundle.chunks(blob), durable=False)


@dataclass(frozen=True, slots=True)
class BuildInputs:
    """What a bundle has for one build."""

    supply: SharedInputs
    build: BundledBuild

    @property
    def path(self) -> Path:
        """The bundle."""
        return self.supply.bundle.path

    @property
    def identity(self) -> str:
        """The sha256 of its images, which is held against their bytes when they are read."""
        return self.supply.bundle.index.images

    @property
    def images(self) -> Mapping[str, str]:
        """The images' ids on the engine, by what they are asked for as."""
        runtime = self.build.runtime
        return {runtime.reference: self.supply.ids[runtime.image.name]} if runtime else {}

    def provide(self, runner: PhaseRunner, settings: Settings) -> None:
        """Put what the bundle has where builds look for it, once for all of its builds."""
        self.supply.provide(runner, settings)

    @property
    def image_name(self) -> str:
        """The name of the image that builds, for people."""
        return self.build.image.name

    @property
    def base_digest(self) -> str | None:
        """The digest of that image's base."""
        return self.build.base_digest

    @property
    def source_ref(self) -> str | None:
        """The ref of the source that the image holds."""
        return self.build.source_ref

    @property
    def image(self) -> str:
        """The id of the image that builds."""
        return self.supply.ids[self.build.image.name]

    def external(self) -> Iterator[bytes] | None:
        """The archive of what repository rules fetched past Bazel's cache, if there is one."""
        return self.supply.bundle.chunks(self.build.external) if self.build.external else None


def _image_id(engine: Engine, name: str) -> str:
    found = engine.image(name)
    assert found is not None, "it was provided"
    return found.id


# --- plans ----------------------------------------------------------------------------------------------------------


def prepare(path: Path, names: Sequence[str], preparer: Preparer) -> list[tuple[PreparedBuild, BuildInputs]]:
    """Plan what a bundle has, with the inputs of each build: all, or those that the names mean.

    A name is a build id or a profile.

    Raises Incompatible (`bundle-outdated`) for a profile that is no longer the one that was put into it.
    """
    found = open_bundle(path)
    asked = [_find_build(found, name, preparer) for name in dict.fromkeys(names)]
    written: Sequence[tuple[BundledBuild, WrittenProfile | None]] = asked or [
        (build, None) for build in found.index.builds
    ]
    supply = SharedInputs(found, tuple(build for build, _ in written))
    return [_prepare_build(found, build, mine, supply, preparer) for build, mine in written]


def _find_build(found: Bundle, name: str, preparer: Preparer) -> tuple[BundledBuild, WrittenProfile | None]:
    """The build that a name means, with the caller's own profile if it is one."""
    builds = {build.build_id: build for build in found.index.builds}
    if name in builds:
        return builds[name], None
    prepared = preparer.prepare(name)
    if prepared.plan.build_id not in builds:
        raise ProfileError(
            Problem(
                code="bundle-lacks-build",
                message=f"{found.path} has no {prepared.plan.build_id}; it has {', '.join(builds) or 'nothing'}",
                fix="leave the profile out to build all that it has, name one of these, or make another bundle: "
                f"`tfdock fetch {name} -o bundle.tar`",
                file=prepared.file,
            )
        )
    return builds[prepared.plan.build_id], prepared.written


def _prepare_build(
    found: Bundle, build: BundledBuild, mine: WrittenProfile | None, supply: SharedInputs, preparer: Preparer
) -> tuple[PreparedBuild, BuildInputs]:
    lock = _read_lock(found, build)
    written = mine or _bundled_profile(found, build)
    prepared = preparer.prepare_written(written, partial(locks.pinned, pins=lock.lock.pins if lock else ()))
    if prepared.plan.fingerprint != build.fingerprint:
        raise _outdated_error(found, build, prepared, preparer.knowledge.version)
    plan = prepared.plan
    if not preparer.trusted:
        plan = in_domain(plan, of_bundle(found.index.images), preparer.knowledge)
    return replace(prepared, plan=plan, lock=lock), BuildInputs(supply, build)


def _read_lock(found: Bundle, build: BundledBuild) -> LockFile | None:
    if build.lock is None:
        return None
    text = found.read(build.lock)
    path = f"{found.path}: the lock of {build.build_id}"
    lock = locks.from_text(text.decode("utf-8", "replace"), path)
    return LockFile(path=path, sha256=hashlib.sha256(text).hexdigest(), lock=lock)


def _bundled_profile(found: Bundle, build: BundledBuild) -> WrittenProfile:
    """The profile as it was when the bundle was made."""
    kept = build.profile
    file, text = f"{found.path}: {kept.file}", found.read(kept.text).decode("utf-8", "replace")
    extended = {name: found.read(blob).decode("utf-8", "replace") for name, blob in kept.extended.items()}
    profile, document = profiles.read(text, file, extended)
    patches = {name: found.read(blob) for name, blob in kept.patches.items()}
    return WrittenProfile(
        file=file,
        text=text,
        extended=extended,
        profile=profile,
        document=document,
        local=LocalSource(tree=kept.tree, patches=patches),
        tree=None,
    )


def _outdated_error(found: Bundle, build: BundledBuild, prepared: PreparedBuild, knowledge: str) -> Incompatible:
    """Whose fault it is that the plan is another one: the tool's, the knowledge's, or the profile's."""
    index = found.index
    if index.tfdock != __version__:
        why = f"it was made by tfdock {index.tfdock}, and this is {__version__}"
    elif index.knowledge != knowledge:
        why = f"it was made with the knowledge {index.knowledge}, and here is {knowledge}"
    else:
        why = "the profile, its source or its patches have changed since it was made"
    return Incompatible(
        Problem(
            code="bundle-outdated",
            message=f"{found.path} has another {build.build_id} than is asked for: {why}",
            fix=(
                "make the bundle anew where there is a network",
                f"build what is in it: `tfdock build --from {found.path} {build.build_id}` with the tfdock and the "
                "knowledge that made it",
            ),
            file=prepared.file,
        )
    )
