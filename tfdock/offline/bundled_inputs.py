"""Build from a bundle, without a network: plan its profiles, and put its contents where builds expect them."""

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
from tfdock.engine.engine_machine import engine_data
from tfdock.engine.protocol import Engine
from tfdock.errors import EngineError, Incompatible, ProfileError, VerificationFailed
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
from tfdock.run.supervisor import Supervisor
from tfdock.verify.trial_container import dependencies_folder


@dataclass
class SharedInputs:
    """The inputs of several builds from one bundle. All inputs are unpacked once, when the first build needs them."""

    bundle: Bundle
    builds: tuple[BundledBuild, ...]
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _done: bool = False
    #: Name of an image in the bundle -> its id on the engine. Another bundle may later take over the name.
    ids: Mapping[str, str] = field(default_factory=dict)

    def provide(self, supervisor: Supervisor, settings: Settings) -> None:
        """Load the images. Put files into the repository cache and the wheels' folders; existing files stay.

        Raises VerificationFailed (`bundle-damaged`), DiskFull, and the engine's errors.
        """
        # Builds run side by side: the first one unpacks, and the others wait for it.
        with self._lock:
            if not self._done:
                self._load(supervisor)
                self.ids = self._image_ids(supervisor.engine)
                self._fill(settings, supervisor)
                self._unpack_wheels(settings, supervisor)
                self._done = True

    # --- images ---

    @property
    def _images(self) -> tuple[BundledImage, ...]:
        """The images that the builds need, each once."""
        return tuple({image.name: image for build in self.builds for image in build.images}.values())

    def _load(self, supervisor: Supervisor) -> None:
        missing = [image for image in self._images if not self._is_there(supervisor.engine, image)]
        if not missing:
            return
        self._check_room(supervisor, sum(image.size for image in missing))
        supervisor.check("image")
        # Check the names before loading: an engine gives images all names that the archive states.
        self._check_names()
        size = self.bundle.index.blob(self.bundle.index.images).size
        supervisor.watch_cancellable(
            f"images of {self.bundle.path.name}, {size:,} bytes",
            "image",
            lambda _, cancel: supervisor.engine.load(self.bundle.chunks(self.bundle.index.images), cancel),
        )

    def _image_ids(self, engine: Engine) -> dict[str, str]:
        """Return the images' ids by their names. The engine may lack an image although it accepted the archive."""
        ids = {}
        for image in self._images:
            # Only the name is checked: different kinds of engines give the same image different ids.
            info = engine.image(image.name)
            if info is None:
                raise EngineError.of(
                    "image-archive-refused",
                    f"the engine loaded the bundle's images, but {image.name} is missing",
                    "make the bundle again, with the same kind of engine (Docker, podman) as here",
                )
            ids[image.name] = info.id
        return ids

    def _is_there(self, engine: Engine, image: BundledImage) -> bool:
        """Return whether the engine has exactly this image. An engine with another kind of ids loads it again."""
        info = engine.image(image.name)
        return info is not None and info.id == image.id

    def _check_names(self) -> None:
        """Refuse images that would take the name of another image on this engine, such as a base image's name."""
        own = {image.name for build in self.bundle.index.builds for image in build.images}
        try:
            strange = sorted(set(image_names(self.bundle.chunks(self.bundle.index.images))) - own)
            trouble = f"the images would get further names: {', '.join(strange[:3])}" if strange else ""
        # A stranger may have made the archive: any value in its documents may have any type.
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            trouble = f"the images are not a valid archive: {error}"
        if trouble:
            raise VerificationFailed.of(
                "bundle-damaged",
                f"{self.bundle.path.name} is not a bundle that tfdock made: {trouble}",
                "make the bundle again with `tfdock fetch -o`, and use only bundles from people that you trust",
            )

    def _check_room(self, supervisor: Supervisor, size: int) -> None:
        """Raise DiskFull unless twice the size is free: the engine stores images as files and as layers."""
        root = engine_data(supervisor.engine.info())
        if root:
            check_space(
                root,
                2 * size,
                lambda free: (
                    f"the disk of the engine's data ({root}) has {gib(free)} left, but loading the bundle's "
                    f"images needs {gib(2 * size)}"
                ),
                "free space on that disk, for example with `docker system prune`",
            )

    # --- files ---

    def _fill(self, settings: Settings, supervisor: Supervisor) -> None:
        """Put downloads into Bazel's repository cache. Raises NotPlain for a link that a container left there."""
        path = settings.cache_dir.absolute() / "repository"
        make_folder(path)
        with opened_part(path) as folder:
            for name, blob in self.bundle.index.repository.items():
                # `folder` uses descriptors, not paths: a container may have left links in the cache.
                try:
                    folder.status(name)
                except FileNotFoundError:
                    supervisor.check("image")
                    folder.write(name, self.bundle.chunks(blob))

    def _unpack_wheels(self, settings: Settings, supervisor: Supervisor) -> None:
        """Unpack the wheels that finished wheels require, for the image of their trial."""
        for build in self.builds:
            image = supervisor.engine.image(self.ids[build.runtime.image.name]) if build.runtime else None
            if image is None or build.wheels is None or not build.wheels.requirements:
                continue
            wheels = build.wheels
            folder = dependencies_folder(
                settings, image, wheels.python_tag, wheels.requirements, wheels.limits, of=self.bundle.index.images
            )
            # The name depends on the bundle, the image and the requirements: an existing folder is the right one.
            if folder.is_dir():
                continue
            # Filled under another name, so that a kill leaves no folder that looks complete.
            part = folder.with_name(f"{folder.name}.{supervisor.run_id}")
            make_folder(part)
            try:
                for name, blob in build.wheels.files.items():
                    supervisor.check("image")
                    self._write(blob, part / name)
                part.rename(folder)
            finally:
                remove_folder(part)

    def _write(self, blob: str, target: Path) -> None:
        make_folder(target.parent)
        # Not synced: this takes a thousandth of the time, and the bundle still has the wheel.
        write_atomically(target, self.bundle.chunks(blob), durable=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildInputs:
    """The inputs of one build, read from a bundle."""

    shared: SharedInputs
    build: BundledBuild
    identity: str  #: The sha256 of the bundle's image archive. The sum is checked when the archive is read.
    image_name: str  #: The name of the image that builds, for people.
    base_digest: str | None  #: The digest of the base image (of the image that builds).
    source_ref: str | None  #: The ref of the source in the image.

    @property
    def images(self) -> Mapping[str, str]:
        """Reference of an image in the profile -> the image's id on the engine."""
        runtime = self.build.runtime
        return {runtime.reference: self.shared.ids[runtime.image.name]} if runtime else {}

    def provide(self, supervisor: Supervisor, settings: Settings) -> None:
        """Put the bundle's contents where builds expect them. Do this once for all builds of the bundle."""
        self.shared.provide(supervisor, settings)

    @property
    def image(self) -> str:
        """The id of the image that builds."""
        return self.shared.ids[self.build.image.name]

    def external(self) -> Iterator[bytes] | None:
        """Return the archive of files of repository rules that are not in Bazel's cache; None if there is none."""
        return self.shared.bundle.chunks(self.build.external) if self.build.external else None


# --- plans ----------------------------------------------------------------------------------------------------------


def prepare(path: Path, names: Sequence[str], preparer: Preparer) -> list[tuple[PreparedBuild, BuildInputs]]:
    """Plan the builds of a bundle: all builds, or the builds that `names` select. Return them with their inputs.

    A name is a build id or a profile. Raises Incompatible (`bundle-outdated`) for a profile that changed since the
    bundle was made.
    """
    bundle = open_bundle(path)
    selected = [_find_build(bundle, name, preparer) for name in dict.fromkeys(names)]
    written: Sequence[tuple[BundledBuild, WrittenProfile | None]] = selected or [
        (build, None) for build in bundle.index.builds
    ]
    shared = SharedInputs(bundle, tuple(build for build, _ in written))
    return [_prepare_build(bundle, build, own_profile, shared, preparer) for build, own_profile in written]


def _find_build(bundle: Bundle, name: str, preparer: Preparer) -> tuple[BundledBuild, WrittenProfile | None]:
    """Return the build that a name means, with the caller's own profile if the name is a profile."""
    builds = {build.build_id: build for build in bundle.index.builds}
    if name in builds:
        return builds[name], None
    prepared = preparer.prepare(name)
    if prepared.plan.build_id not in builds:
        raise ProfileError.of(
            "bundle-lacks-build",
            f"{bundle.path} has no build {prepared.plan.build_id}; it has {', '.join(builds) or 'none'}",
            "leave the profile out to build everything in the bundle, name a build of the bundle, or make another "
            "bundle: "
            f"`tfdock fetch {name} -o bundle.tar`",
            file=prepared.file,
        )
    return builds[prepared.plan.build_id], prepared.written


def _prepare_build(
    bundle: Bundle, build: BundledBuild, own_profile: WrittenProfile | None, shared: SharedInputs, preparer: Preparer
) -> tuple[PreparedBuild, BuildInputs]:
    lock = _read_lock(bundle, build)
    written = own_profile or _bundled_profile(bundle, build)
    prepared = preparer.prepare_written(written, partial(locks.pinned, pins=lock.lock.pins if lock else ()))
    # The bundle was tried only with its own plan: another plan may need other downloads.
    if prepared.plan.fingerprint != build.fingerprint:
        raise _outdated_error(bundle, build, prepared, preparer.knowledge.version)
    plan = prepared.plan
    # A stranger may have chosen the bundle's image: its build must not write to the cache of `release`.
    if not preparer.trusted:
        plan = in_domain(plan, of_bundle(bundle.index.images), preparer.knowledge)
    inputs = BuildInputs(
        shared=shared,
        build=build,
        identity=bundle.index.images,
        image_name=build.image.name,
        base_digest=build.base_digest,
        source_ref=build.source_ref,
    )
    return replace(prepared, plan=plan, lock=lock), inputs


def _read_lock(bundle: Bundle, build: BundledBuild) -> LockFile | None:
    if build.lock is None:
        return None
    text = bundle.read(build.lock)
    path = f"{bundle.path}: the lock of {build.build_id}"
    lock = locks.from_text(text.decode("utf-8", "replace"), path)
    return LockFile(path=path, sha256=hashlib.sha256(text).hexdigest(), lock=lock)


def _bundled_profile(bundle: Bundle, build: BundledBuild) -> WrittenProfile:
    """Return the profile as it was when the bundle was made."""
    texts = build.profile
    file, text = f"{bundle.path}: {texts.file}", bundle.read(texts.text).decode("utf-8", "replace")
    extended = {name: bundle.read(blob).decode("utf-8", "replace") for name, blob in texts.extended.items()}
    profile, document = profiles.read(text, file, extended)
    patches = {name: bundle.read(blob) for name, blob in texts.patches.items()}
    return WrittenProfile(
        file=file,
        text=text,
        extended=extended,
        profile=profile,
        document=document,
        local=LocalSource(tree=texts.tree, patches=patches),
        tree=None,
    )


def _outdated_error(bundle: Bundle, build: BundledBuild, prepared: PreparedBuild, knowledge: str) -> Incompatible:
    """Return the error for a changed plan, with the cause: tfdock, the knowledge base or the profile changed."""
    index = bundle.index
    # The widest cause first: another tfdock also has another knowledge base, and both change plans.
    if index.tfdock != __version__:
        why = f"tfdock {index.tfdock} made the bundle, and this is tfdock {__version__}"
    elif index.knowledge != knowledge:
        why = f"the bundle was made with the knowledge {index.knowledge}, but this is {knowledge}"
    else:
        why = "the profile, its source or its patches have changed since the bundle was made"
    return Incompatible.of(
        "bundle-outdated",
        f"{bundle.path} is out of date for {build.build_id}: {why}",
        (
            "make the bundle again on a machine with a network",
            f"build the bundled profile, `tfdock build --from {bundle.path} {build.build_id}`, with the tfdock "
            "and the knowledge that made the bundle",
        ),
        file=prepared.file,
    )
