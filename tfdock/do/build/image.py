"""The image of a build: found, built, or given by a bundle; then what it says of itself."""

from __future__ import annotations

import hashlib
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tfdock.decide import lock as locks
from tfdock.decide.plan import described_toolchain, toolchain_key
from tfdock.do import journal
from tfdock.do.build.run import Run
from tfdock.do.cache import check_writable
from tfdock.do.engine import BASE_LABEL, RUN_LABEL, Cancel, ContainerSpec, ImageBuild, ImageInfo
from tfdock.do.locking import held
from tfdock.do.source import context_archive
from tfdock.errors import BuildFailed, Incompatible, Interrupted, Problem

if TYPE_CHECKING:
    from tfdock.do.offline import Given

_RUNNING = re.compile(rb" ---> Running in ([0-9a-f]{12})\s*\Z")
"""What the builder says before a step; whatever else says it names no container of ours."""


def have(run: Run) -> None:
    """Have the image. Who builds on the same base waits: layers that both need are made once."""
    wanted = run.plan.resolution.base
    base = hashlib.sha256(str(wanted).encode()).hexdigest()[:16]
    lock = run.builder.settings.state_dir.absolute() / "locks" / f"image-{base}"
    waiting = run.steps.waiting("image", f"builds an image on {wanted} too")
    with held(lock, "the image", alone=True, waiting=waiting):
        name = _given(run, run.given) if run.given else _made(run)
        _read(run, name)
        problem = locks.moved(run.lock.lock.of(*locks.INSTALLED), run.installed, run.lock.path) if run.lock else None
        if problem:
            raise Incompatible(problem)


def _given(run: Run, given: Given) -> str:
    """The image out of a bundle, with all else that the bundle has; its name."""
    given.supply.provide(run.steps, run.builder.settings)
    run.image, run.base_digest = given.image(run.engine), given.build.base_digest
    return given.build.image.name


def _made(run: Run) -> str:
    """The image built, unless it is there; its name."""
    plan, settings, base = run.plan, run.builder.settings, _base(run)
    # The name is for people. What is looked into and what compiles is the id: another run may move the name.
    name = plan.image_name if run.attempts == 1 else f"{plan.image_name}-{run.attempts}"
    built = run.engine.image(name)
    if built and not run.fresh and built.labels.get(BASE_LABEL) == base.id:
        run.image = built.id
        return name
    arguments = {"BASE_IMAGE": base.id}
    arguments |= {"SOURCE_REF": run.source_ref} if run.source_ref else {}
    arguments |= {"SOURCE_FRESH": run.fresh} if run.fresh and plan.resolution.source.kind != "path" else {}
    request = ImageBuild(
        context=lambda: context_archive(plan.context, run.tree),
        build_args=arguments,
        network=settings.network,
        memory=plan.resources.memory,
    )
    run.image = _built(run, request)
    run.engine.tag(run.image, name)
    return name


def _base(run: Run) -> ImageInfo:
    """The base image, pulled if it is not here."""
    base = run.builder.settings.mirrored(run.plan.resolution.base)
    info = run.steps.image(str(base), "image", run.title("image"))
    run.base_digest = base.digest or next((digest.rpartition("@")[2] for digest in info.digests), None)
    return info


def _built(run: Run, request: ImageBuild) -> str:
    """Build the image; its id."""
    cancel = Cancel()
    stopper = run.steps.stopper(gently=cancel.set, by_force=lambda: run.steps.give_up("image"))
    try:
        return run.steps.watch(
            run.title("image"), lambda output: run.engine.build(request, output, cancel), stopper, tap=_Noted(run)
        )
    except Interrupted:  # the engine's own, which knows only that it was told to stop
        if stopper.late:
            run.steps.give_up("image")
        raise


@dataclass(frozen=True, slots=True)
class _Noted:
    """Writes down each step's container as it begins: when we and the engine die, nobody else knows whose it is."""

    run: Run

    def feed(self, data: bytes) -> None:
        """Take what the builder says, message by message."""
        found = _RUNNING.match(data)
        if not found:
            return
        with suppress(OSError):  # a note that cannot be taken is no reason to end a build
            journal.stepped(self.run.builder.settings.state_dir, self.run.name, found[1].decode())

    def told(self, line: str) -> str:
        """What is shown of a line: all of it."""
        return line


def _read(run: Run, image: str) -> None:
    """The toolchain's identity and all else that the image wrote down; the container is never started."""
    engine, labels = run.engine, {RUN_LABEL: run.name}
    container = engine.create(
        ContainerSpec(name=f"tfdock-{run.name}-look", image=run.image, command=("true",), labels=labels)
    )
    try:
        toolchain = engine.read_file(container, "/opt/tfdock/toolchain")
        found = engine.read_file(container, "/opt/tfdock/source")
        pins = engine.read_file(container, "/opt/tfdock/pins")
        name = locks.requirements_file(run.plan.resolution.python)
        requirements = engine.read_file(container, f"/tf/tensorflow/{name}")
    finally:
        engine.remove(container)
    if toolchain is None:
        raise BuildFailed(
            Problem(
                code="image-incomplete",
                message=f"the image {image} holds no /opt/tfdock/toolchain",
                fix="remove the image and build again",
            )
        )
    run.toolchain, run.toolchain_file = toolchain_key(toolchain), toolchain
    _take_disk_cache(run)
    run.source_found = (found or b"").decode("ascii", "replace").strip()
    run.installed = locks.installed(toolchain, pins or b"", {name: requirements} if requirements else {})


def _take_disk_cache(run: Run) -> None:
    """Hold the toolchain's disk cache with others, until the run ends, so that nobody takes things out of it."""
    disk = run.builder.cache.disk(run.toolchain)
    waiting = run.steps.waiting("image", f"has the disk cache {disk.key} for itself")
    run.locks.enter_context(disk.held(alone=False, waiting=waiting))
    if run.builder.engine_info.local:
        check_writable(disk.folder, 2)
    disk.describe({**described_toolchain(run.toolchain_file), "base": str(run.plan.resolution.base)})
