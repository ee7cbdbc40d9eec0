"""Hold the caches of a build until the build ends: its disk cache, or the output base if Bazel has no disk cache.

The cache of a trust domain lies above the cache of `release`, in an overlay that the engine mounts. The domain writes
only to its own cache: before a file changes, the overlay copies the file there.

    <cache>/disk/<toolchain key>                   below: the cache of `release`, which nothing can change
    <cache>/disk/<toolchain key>-<domain>          above: what the domain's builds wrote
    <cache>/disk/<toolchain key>-<domain>.work     the kernel's work folder

All runs of a domain use one volume and so one mount: two mounts would damage the folder above.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial

from tfdock.bazel.cache.cache_folder import DiskCache, check_writable
from tfdock.bazel.cache.domain_cache import clear_work, drop_copies, filesystem_now, take_over
from tfdock.builder.build_run import BuildRun, ImageResult
from tfdock.engine.engine_machine import caller_user
from tfdock.engine.protocol import RUN_LABEL, ContainerSpec, Engine
from tfdock.errors import EngineError, Locked, Problem
from tfdock.host.files import held, make_folder
from tfdock.host.hardware import free_disk
from tfdock.knowledge.contract import bazel_options
from tfdock.plan.build_plan import DISK_CACHE, described_toolchain
from tfdock.plan.trust_domain import as_json as trust_json
from tfdock.run.containers import copy_in
from tfdock.run.results import RunFolders
from tfdock.types import Mount

LABEL = "io.tfdock.overlay"  #: Label of the overlay volumes. The value is the name of the disk cache.
# `,` ends a mount option, `:` a lower folder, and `\` escapes the next character.
_SPECIAL = set(',:\\"')  #: Characters with a special meaning in the options of an overlay.
# With `index=on`, the kernel refuses an upper folder if its lower folder was recreated.
#: Files in the upper layer are complete, so the upper folder also works as a cache without an overlay.
_OPTIONS = "metacopy=off,redirect_dir=off,index=off"


_MOST_REASONS = 8  #: How many reasons of a trust domain are noted beside its cache.
#: A cache is copied only if its disk has this many times the cache's size free. The build needs space too.
_ROOM = 3


def hold_caches(run: BuildRun, image: ImageResult, *, compiles: bool) -> ImageResult:
    """Hold the run's caches for this image until the run ends. Return the image with the volume of the caches.

    With `compiles`, an empty disk cache is filled from the cache of the same build without its last patches.
    """
    resumable = _hold_output_base(run, image) if compiles else None
    return replace(image, overlay=_hold_disk_cache(run, image, compiles=compiles), resumable=resumable)


def _hold_output_base(run: BuildRun, image: ImageResult) -> RunFolders | None:
    """Hold and announce the output base. With it, a Bazel without a disk cache continues an interrupted build.

    Only the same plan with the same commit and toolchain finds the output base. None for other Bazels, and for an
    engine on another machine.
    """
    bazel, cache = run.plan.resolution.bazel, run.session.cache
    if bazel_options(run.session.knowledge, bazel, "disk_cache", {"path": DISK_CACHE}):
        return None
    if not run.session.engine_info.local:
        return None
    made_of = f"{run.plan.fingerprint} {image.source_ref} {image.source_commit}"
    name = f"{run.disk_cache(image.toolchain).key}-{hashlib.sha256(made_of.encode()).hexdigest()[:16]}"
    waiting = run.supervisor.waiting("image", f"uses the output base {name}")
    run.locks.enter_context(held(cache.output_lock(name), f"the output base {name}", alone=True, waiting=waiting))
    folders = RunFolders.create(cache.run_folder(name), run.folders.staged)
    run.resumable.append(folders)
    does = "continues in" if folders.bazel_output.has_folder("base") else "begins"
    run.tell(
        f"Bazel {bazel} has no disk cache, so this build {does} an output base that stays until the wheel is "
        "finished: "
        f"{folders.own}; `tfdock cache prune` removes it"
    )
    return folders


def _hold_disk_cache(run: BuildRun, image: ImageResult, *, compiles: bool) -> str:
    """Hold the build's disk cache with a shared lock until the run ends, so that no entries are removed.

    Return the overlay volume over the cache of `release`; empty if there is none.
    """
    trust, key = run.plan.trust, image.toolchain
    disk, release = run.disk_cache(key), run.session.cache.disk(key)
    waiting = run.supervisor.waiting("image", f"uses the disk cache {release.key} exclusively")
    # A domain also reads the cache of `release`, so neither cache may be emptied meanwhile.
    run.locks.enter_context(release.held(alone=False, waiting=waiting))
    overlay = ""
    if not trust.is_release:
        if compiles:
            _start_from_fewer_patches(run, disk)
        overlay = run.locks.enter_context(_over_release(run, image.id, disk, release))
    if run.session.engine_info.local:
        # Bazel stores nothing in a folder of another user, and would compile everything again. Two levels: `ac/00`.
        check_writable(disk.folder, 2)
    description = {**described_toolchain(image.toolchain_file), "base": str(run.plan.resolution.base)}
    before = disk.description().get("trust", {}).get("reasons", [])
    # Keep the earlier reasons: a build that once shared the cache of `release` has changed it for good.
    reasons = tuple(dict.fromkeys([*map(str, before), *trust.reasons]))[-_MOST_REASONS:]
    disk.describe({**description, "trust": trust_json(replace(trust, reasons=reasons))})
    return overlay


def _start_from_fewer_patches(run: BuildRun, disk: DiskCache) -> None:
    """Fill the empty cache of a domain from the cache of the same build with fewer patches, if there is one.

    Skipped if the cache is not on the engine's machine, another run uses it, or disk space is short.
    """
    # A linked cache is on another disk, so a copy cannot replace it.
    if not run.session.engine_info.local or disk.folder.is_symlink():
        return
    for name in run.plan.trust.with_fewer_patches:
        earlier = run.session.cache.disk(f"{disk.toolchain}-{name}")
        # Without a copy, the build takes longer but does not fail.
        with suppress(Locked, OSError), disk.held(alone=True), earlier.held(alone=False):
            if not disk.is_empty():
                return
            size = sum(entry.size for entry in earlier.entries() if not earlier.is_hollow(entry))
            free = free_disk(disk.cache)
            if free is not None and free < size * _ROOM:
                run.tell(
                    f"disk cache {earlier.key} ({size / 1e6:,.1f} MB) is not copied: {free / 1e6:,.1f} MB are free"
                )
            elif size:
                run.tell(f"copying the disk cache of the same build with fewer patches ({size / 1e6:,.1f} MB)")
                take_over(disk, earlier, partial(run.supervisor.check, "image"))
                return


# --- the overlay ---------------------------------------------------------------------------------------------------


@contextmanager
def _over_release(run: BuildRun, image: str, disk: DiskCache, release: DiskCache) -> Iterator[str]:
    """Hold a domain's disk cache with a shared lock; return its overlay volume over the cache of `release`.

    The volume name is empty if no overlay is possible; the run then prints the cost. The caller
    holds the cache of `release`. A container of the image tries the volume. At the end of the domain's last run the
    volume is removed.
    """
    name, began, why = "", 0, _overlay_obstacle(run, disk)
    try:
        with ExitStack() as locks:
            waiting = run.supervisor.waiting("image", f"uses the disk cache {disk.key} exclusively")
            locks.enter_context(disk.held(alone=False, waiting=waiting))
            if not why:
                locks.enter_context(_on_one_engine(run, disk))
                name = _create_volume(run.engine, disk, release)
                # Use the file system's own clock: at the end, this time is compared with the times of files.
                began = filesystem_now(disk.about)
                why = _mount_refusal(run, image, name)
            if why:
                _tell_cache_alone(run, disk, why)
            yield "" if why else name
    finally:
        # Only now are the locks free, so the removal can hold the domain exclusively. A dead engine would take
        # minutes.
        if name and began and run.engine.ping():
            _remove_volume(run.engine, name, disk, release, began)


def _create_volume(engine: Engine, disk: DiskCache, release: DiskCache) -> str:
    """Create the volume unless another run of the domain has it. Return its name, which depends on its folders."""
    for folder in (release.folder, disk.folder, disk.work, disk.about):
        make_folder(folder)
    layers = f"lowerdir={release.folder},upperdir={disk.folder},workdir={disk.work},{_OPTIONS}"
    name = f"tfdock-overlay-{hashlib.sha256(layers.encode()).hexdigest()[:32]}"
    engine.create_volume(name, {LABEL: disk.key}, {"type": "overlay", "device": "overlay", "o": layers})
    return name


def _overlay_obstacle(run: BuildRun, disk: DiskCache) -> str:
    if not run.session.engine_info.local:
        # The cache folders are on this machine, and an engine can only mount folders of its own machine.
        return "the engine is on another machine"
    if special := sorted(_SPECIAL & set(str(disk.folder))):
        return f"the path of the cache contains `{special[0]}`"
    return ""


def _mount_refusal(run: BuildRun, image: str, volume: str) -> str:
    """Start a container to test whether the engine can mount the volume.

    Return the reason if not, else an empty text.
    """
    spec = ContainerSpec(
        name=f"tfdock-{run.name}-overlay",
        image=image,
        command=("/bin/sh", "-c", ":"),
        # The image is untrusted: its shell can write nothing, and is not root.
        mounts=(Mount(source=volume, target=DISK_CACHE, kind="volume", read_only=True),),
        labels={RUN_LABEL: run.name},
        user=caller_user(run.session.engine_info, os.getuid(), os.getgid()),
        network="none",
        memory=run.plan.resources.memory,
        pids=run.plan.resources.pids,
    )
    try:
        container = run.engine.create(copy_in(run.supervisor, spec))
        run.engine.start(container)
        run.engine.remove(container)
    except EngineError as error:
        # The container is removed with the run's other containers.
        if error.problems[0].code == "volume-mount-refused":
            return error.problems[0].message
        raise
    return ""


def _tell_cache_alone(run: BuildRun, disk: DiskCache, why: str) -> None:
    """Print that the build cannot read the cache of `release`, and the cost."""
    message = f"the disk cache {disk.key} cannot use the cache of `release`"
    cost = "this trust domain must compile everything once"
    fix = "to share the cache on purpose, build with `--trust`: later builds then contain objects of this source"
    run.tell(str(Problem("disk-cache-alone", f"{message} ({why}): {cost}", fix)))


@contextmanager
def _on_one_engine(run: BuildRun, disk: DiskCache) -> Iterator[None]:
    """Share the overlay with runs on this engine.

    Wait for runs on another engine, which would mount it a second time.
    """
    locks = disk.cache / "locks"
    own = hashlib.sha256(run.session.engine_info.id.encode()).hexdigest()[:16]
    waiting = run.supervisor.waiting("image", f"uses the disk cache {disk.key} on another engine")
    with ExitStack() as stack:
        # Only one run at a time looks for runs on other engines, so that two engines never start at once.
        with held(locks / f"overlay-{disk.key}", f"the disk cache {disk.key}", alone=True, waiting=waiting):
            for path in sorted(locks.glob(f"overlay-{disk.key}.*")):
                if path.suffix != f".{own}":
                    # Take and release this lock: this proves that no run holds it. The lock above keeps out new runs.
                    with held(path, f"the disk cache {disk.key}", alone=True, waiting=waiting):
                        pass
            path = locks / f"overlay-{disk.key}.{own}"
            stack.enter_context(held(path, f"the disk cache {disk.key}", alone=False, waiting=waiting))
        yield


def _remove_volume(engine: Engine, name: str, disk: DiskCache, release: DiskCache, began: int) -> None:
    """Remove the volume and the files that Bazel only touched, unless another run uses the domain."""
    # A failed removal only costs disk space. The next run of the domain removes the rest.
    with suppress(Locked, EngineError, OSError), disk.held(alone=True):
        engine.remove_volume(name)
        drop_copies(disk, release, since=began)
        clear_work(disk)
