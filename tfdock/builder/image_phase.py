"""The image phase: find, build or load the image of a build, and read what the image says of itself."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial

from tfdock.bazel.cache.cache_folder import DiskCache, check_writable
from tfdock.bazel.cache.domain_cache import take_over
from tfdock.builder import cache_overlay
from tfdock.builder.build_run import BuildRun, ImageResult
from tfdock.builder.session import BundledInputs
from tfdock.engine.engine_errors import own_words
from tfdock.engine.protocol import (
    BASE_LABEL,
    RUN_LABEL,
    TOOLCHAIN_LABEL,
    ContainerSpec,
    ImageBuild,
    ImageInfo,
)
from tfdock.errors import BuildFailed, Incompatible, Locked
from tfdock.host.files import held
from tfdock.host.hardware import free_disk
from tfdock.knowledge.contract import bazel_options
from tfdock.plan import lock_file as locks
from tfdock.plan.build_plan import DISK_CACHE, described_toolchain, toolchain_key
from tfdock.plan.local_source import context_archive
from tfdock.plan.trust_domain import as_json as trust_json
from tfdock.run import journal
from tfdock.run.results import RunFolders

_MOST_REASONS = 8  #: Reasons of a trust domain that are noted beside its cache.
#: How many times the size of a cache must be free on its disk before it is copied: a build wants room as well.
_ROOM = 3
#: What the builder says before a step; whatever else says it names no container of ours.
_RUNNING = re.compile(rb" ---> Running in ([0-9a-f]{12})\s*\Z")
_TOOLCHAIN, _PINS = "/opt/tfdock/toolchain", "/opt/tfdock/pins"
_COMMIT = re.compile(rb"\s*([0-9a-f]{40,64})\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Image:
    """An image that is there. `name` is for people; what is looked into and what compiles is the id."""

    id: str
    name: str
    base_digest: str | None
    toolchain_digest: str  #: The digest of what its toolchain stage wrote down.


def make_image(
    run: BuildRun, source_ref: str | None = None, number: int = 1, *, compiles: bool = False
) -> ImageResult:
    """Run the image phase for a source ref, the `number`-th that the build tries; return the image.

    For a run that `compiles`, an empty disk cache begins with what the same build had without its last patches.
    """

    with run.phase("image"):
        image = _locked_image(run, source_ref, number)
        # Without the lock of the image: a cache may be waited for, or be copied for minutes.
        kept = _hold_output_base(run, image) if compiles else None
        return replace(image, overlay=_hold_disk_cache(run, image, compiles=compiles), kept=kept)


def _locked_image(run: BuildRun, source_ref: str | None, number: int) -> ImageResult:
    """Have the image. Builds on the same base wait for each other: layers that both need are made once."""
    base = run.plan.resolution.base
    # A file's name cannot hold the `/` of an image's name.
    key = hashlib.sha256(str(base).encode()).hexdigest()[:16]
    lock = run.session.settings.state_dir.absolute() / "locks" / f"image-{key}"
    waiting = run.supervisor.waiting("image", f"builds an image on {base} too")
    with held(lock, "the image", alone=True, waiting=waiting):
        inputs, lock_file = run.request.inputs, run.request.prepared.lock
        image = _bundled_image(run, inputs) if inputs else _built_image(run, source_ref, number)
        result = _read_image(run, image, source_ref, number)
        problem = None
        if lock_file:
            problem = locks.moved(lock_file.lock.of(*locks.INSTALLED), result.installed, lock_file.path)
        if problem:
            raise Incompatible(problem)
        return result


def _bundled_image(run: BuildRun, inputs: BundledInputs) -> _Image:
    """Return the image out of a bundle, after all that the bundle has was provided.

    Its toolchain is the word of whoever made the bundle: there is no toolchain stage to ask.
    """
    inputs.provide(run.supervisor, run.session.settings)
    info = run.engine.image(inputs.image)
    return _Image(
        id=inputs.image,
        name=inputs.image_name,
        base_digest=inputs.base_digest,
        toolchain_digest=info.labels.get(TOOLCHAIN_LABEL, "") if info else "",
    )


def _built_image(run: BuildRun, source_ref: str | None, number: int) -> _Image:
    """Return the image, built unless it is there.

    Its stages are built one by one, because each has other rights: the toolchain stage knows nothing of the source,
    and once the source may run there is no network.
    """
    plan, settings = run.plan, run.session.settings
    # The run's id is a word that no earlier image has.
    fresh = run.request.run if run.request.force else ""
    base, digest = _pull_base(run)
    # By its id, not by its name, an image is looked into and compiles: another run may move the name.
    name = plan.image_name if number == 1 else f"{plan.image_name}-{number}"
    built = run.engine.image(name)
    # A name proves nothing: the image must be of this very base, and say what its toolchain stage wrote.
    if built and not fresh and built.labels.get(BASE_LABEL) == base.id and built.labels.get(TOOLCHAIN_LABEL):
        return _Image(id=built.id, name=name, base_digest=digest, toolchain_digest=built.labels[TOOLCHAIN_LABEL])
    local = plan.resolution.source.kind == "path"
    of_base, of_source = {"BASE_IMAGE": base.id}, {"SOURCE_REF": source_ref} if source_ref else {}
    of_source |= {"SOURCE_LOCKED": "yes"} if plan.resolution.source.locked else {}
    # A changed argument makes the builder's cache miss. A checkout needs none: its files are compared.
    of_source |= {"SOURCE_FRESH": fresh} if fresh and not local else {}
    proxies = dict(run.proxies.variables)
    stage = ImageBuild(
        # Without the checkout, which only the last request copies: it is sent once.
        context=lambda: context_archive(plan.context, None),
        target="toolchain",
        # The engine has these arguments defined: they are in no layer, no history and no key of its cache.
        build_args=of_base | proxies,
        network=settings.network,
        memory=plan.resources.memory,
    )
    # The container stays until the image is whole: clean-ups of others keep an image that a container uses.
    with _image_files(run, _build_stage(run, stage), "toolchain") as read:
        toolchain = _digest(_toolchain_file(read, name), read(_PINS) or b"")
        of_source |= {"TOOLCHAIN": toolchain}
        stage = replace(stage, target="source", build_args=of_base | of_source | proxies)
        # A checkout comes with the last request, so that there is nothing to download.
        if not local:
            _build_stage(run, stage)
        tree = run.request.prepared.tree
        last = replace(
            stage,
            context=lambda: context_archive(plan.context, tree),
            target=None,
            build_args=of_base | of_source,
            network="none",
        )
        image = _build_stage(run, last)
    # Last: under this name later runs take the image for a whole one.
    run.engine.tag(image, name)
    return _Image(id=image, name=name, base_digest=digest, toolchain_digest=toolchain)


def _pull_base(run: BuildRun) -> tuple[ImageInfo, str | None]:
    """Return the base image, pulled if it is not here, and its digest."""
    base = run.session.settings.mirrored(run.plan.resolution.base)
    info = run.supervisor.image(str(base), "image", run.title("image"))
    # A registry's digest holds on every machine. An image's id depends on how the engine stores images.
    return info, base.digest or next((digest.rpartition("@")[2] for digest in info.digests), None)


def _build_stage(run: BuildRun, request: ImageBuild) -> str:
    """Build an image; return its id."""
    return run.supervisor.watch_cancellable(
        run.title("image"),
        "image",
        lambda output, cancel: run.engine.build(request, output, cancel),
        tap=_StepJournal(run),
        hidden=run.proxies.logins,
    )


@dataclass(frozen=True, slots=True)
class _StepJournal:
    """Notes each step's container as it begins: when we and the engine die, nobody else knows whose it is."""

    run: BuildRun

    def feed(self, data: bytes) -> None:
        """Take what the builder says, message by message."""
        step = _RUNNING.match(data)
        if not step:
            return
        with suppress(OSError):  # a note that cannot be taken is no reason to end a build
            journal.note_step(self.run.session.settings.state_dir, self.run.name, step[1].decode())

    def shown_line(self, line: str) -> str:
        """Return the whole line: all of it is shown."""
        return line


@contextmanager
def _image_files(run: BuildRun, image: str, name: str) -> Iterator[Callable[[str], bytes | None]]:
    """Give a function that reads a file of an image, out of a container that is never started.

    After an error the container stays for the run's own clean-up, which asks no engine that is lost.
    """
    engine = run.engine
    # No engine creates a container without a command. This one never runs.
    container = engine.create(
        ContainerSpec(name=f"tfdock-{run.name}-{name}", image=image, command=("true",), labels={RUN_LABEL: run.name})
    )
    yield lambda path: engine.read_file(container, path)
    engine.remove(container)


def _toolchain_file(read: Callable[[str], bytes | None], image: str) -> bytes:
    """Return the toolchain file of an image. Raises BuildFailed (`image-incomplete`) if there is none."""
    toolchain = read(_TOOLCHAIN)
    if toolchain is None:
        raise BuildFailed.of(
            "image-incomplete", f"the image {image} holds no {_TOOLCHAIN}", "remove the image and build again"
        )
    return toolchain


# The length keeps the files apart: no byte can move from one to the other unnoticed.
def _digest(toolchain: bytes, pins: bytes) -> str:
    return hashlib.sha256(f"{len(toolchain)} ".encode() + toolchain + pins).hexdigest()


def _read_image(run: BuildRun, image: _Image, source_ref: str | None, number: int) -> ImageResult:
    """Read what the image wrote down of its toolchain and its source.

    Raises BuildFailed (`image-incomplete`), and (`toolchain-changed`) if the image's own files are not those that the
    toolchain stage wrote, before any source was there.
    """
    # Where a release keeps its own list of Python packages with hashes.
    requirements_name = f"requirements_lock_{run.plan.resolution.python.replace('.', '_')}.txt"
    with _image_files(run, image.id, "look") as read:
        toolchain, pins = _toolchain_file(read, image.name), read(_PINS) or b""
        source, requirements = read("/opt/tfdock/source"), read(f"/tf/tensorflow/{requirements_name}")
    if _digest(toolchain, pins) != image.toolchain_digest:
        raise BuildFailed.of(
            "toolchain-changed",
            f"the image {image.name} does not hold the toolchain files that its toolchain stage wrote: "
            "a later image step changed the files",
            own_words(
                f"read the source's ./configure and patches, remove the image (`docker rmi {image.name}`), "
                "and build again",
                run.session.engine_info.name,
            ),
        )
    # The image wrote the file, and it may hold anything: only what looks like a commit is one.
    commit = _COMMIT.fullmatch(source or b"")
    return ImageResult(
        id=image.id,
        base_digest=image.base_digest,
        source_ref=source_ref,
        source_number=number,
        source_commit=commit[1].decode() if commit else "",
        toolchain=toolchain_key(toolchain),
        toolchain_file=toolchain,
        installed=locks.installed(toolchain, pins, {requirements_name: requirements} if requirements else {}),
    )


def _hold_output_base(run: BuildRun, image: ImageResult) -> RunFolders | None:
    """Hold and tell the output base in which a Bazel without a disk cache goes on where this build was interrupted.

    Only the same plan finds it, with the same commit and the same toolchain. None for other Bazels, and for an engine
    that is elsewhere.
    """
    bazel, cache = run.plan.resolution.bazel, run.session.cache
    if bazel_options(run.session.knowledge, bazel, "disk_cache", {"path": DISK_CACHE}):
        return None
    if not run.session.engine_info.local:
        return None
    made_of = f"{run.plan.fingerprint} {image.source_ref} {image.source_commit}"
    name = f"{run.disk_cache(image.toolchain).key}-{hashlib.sha256(made_of.encode()).hexdigest()[:16]}"
    waiting = run.supervisor.waiting("image", f"has the output base {name}")
    run.locks.enter_context(held(cache.output_lock(name), f"the output base {name}", alone=True, waiting=waiting))
    folders = RunFolders.create(cache.output(name), run.folders.staged)
    run.kept.append(folders)
    does = "goes on in" if folders.output.has_folder("base") else "begins"
    run.tell(
        f"Bazel {bazel} has no disk cache, so this build {does} an output base that stays until the wheel is there: "
        f"{folders.own}; `tfdock cache prune` removes it"
    )
    return folders


def _hold_disk_cache(run: BuildRun, image: ImageResult, *, compiles: bool) -> str:
    """Hold the build's disk cache with others, until the run ends, so that nobody takes things out of it.

    Return the volume that shows it over the cache of `release`; empty where there is none.
    """
    trust, key = run.plan.trust, image.toolchain
    disk, release = run.disk_cache(key), run.session.cache.disk(key)
    waiting = run.supervisor.waiting("image", f"has the disk cache {release.key} for itself")
    # A domain reads the cache of `release` below its own, so that neither may be emptied meanwhile.
    run.locks.enter_context(release.held(alone=False, waiting=waiting))
    overlay = ""
    if not trust.is_release:
        if compiles:
            _start_from_fewer_patches(run, disk)
        overlay = run.locks.enter_context(cache_overlay.over_release(run, image.id, disk, release))
    if run.session.engine_info.local:
        # Bazel would keep nothing in a folder of another user, and compile everything again. Two levels: `ac/00`.
        check_writable(disk.folder, 2)
    description = {**described_toolchain(image.toolchain_file), "base": str(run.plan.resolution.base)}
    before = disk.description().get("trust", {}).get("reasons", [])
    # Who shared `release` once has shared it for good.
    reasons = tuple(dict.fromkeys([*map(str, before), *trust.reasons]))[-_MOST_REASONS:]
    disk.describe({**description, "trust": trust_json(replace(trust, reasons=reasons))})
    return overlay


def _start_from_fewer_patches(run: BuildRun, disk: DiskCache) -> None:
    """Fill the empty cache of a domain from the cache of the same build with fewer patches, if there is one.

    Nothing is filled where the cache is not on the engine's machine, where another run has it, or without the room.
    """
    # A cache that is a link lies on another disk: a copy cannot take its place.
    if not run.session.engine_info.local or disk.folder.is_symlink():
        return
    for name in run.plan.trust.with_fewer_patches:
        earlier = run.session.cache.disk(f"{disk.toolchain}-{name}")
        # What cannot be had costs time, and no build.
        with suppress(Locked, OSError), disk.held(alone=True), earlier.held(alone=False):
            if not disk.is_empty():
                return
            size = sum(entry.size for entry in earlier.entries() if not earlier.is_hollow(entry))
            free = free_disk(disk.cache)
            if free is not None and free < size * _ROOM:
                run.tell(
                    f"the disk cache {earlier.key} is not copied: {size / 1e6:,.1f} MB, {free / 1e6:,.1f} MB are free"
                )
            elif size:
                run.tell(f"copying the disk cache of the same build with fewer patches, {size / 1e6:,.1f} MB")
                take_over(disk, earlier, partial(run.supervisor.check, "image"))
                return
