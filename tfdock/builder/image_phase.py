"""The image of a build: found, built, or given by a bundle; then what it says of itself."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from tfdock.bazel.cache.cache_folder import check_writable
from tfdock.builder import cache_overlay
from tfdock.builder.build_run import Run
from tfdock.builder.session import BundledInputs
from tfdock.engine.protocol import (
    BASE_LABEL,
    RUN_LABEL,
    TOOLCHAIN_LABEL,
    Cancel,
    ContainerSpec,
    ImageBuild,
    ImageInfo,
)
from tfdock.errors import BuildFailed, Incompatible, Interrupted, Problem
from tfdock.host.files import held
from tfdock.plan import lock_file as locks
from tfdock.plan.build_plan import described_toolchain, toolchain_key
from tfdock.plan.local_source import context_archive
from tfdock.plan.trust_domain import as_json as trust_json
from tfdock.run import journal

_REASONS = 8
"""Reasons of a trust domain that are noted beside its cache."""
_RUNNING = re.compile(rb" ---> Running in ([0-9a-f]{12})\s*\Z")
"""What the builder says before a step; whatever else says it names no container of ours."""


def have(run: Run) -> None:
    """Have the image. Who builds on the same base waits: layers that both need are made once."""
    wanted = run.plan.resolution.base
    base = hashlib.sha256(str(wanted).encode()).hexdigest()[:16]
    lock = run.session.settings.state_dir.absolute() / "locks" / f"image-{base}"
    waiting = run.steps.waiting("image", f"builds an image on {wanted} too")
    with held(lock, "the image", alone=True, waiting=waiting):
        inputs, lock_file = run.request.inputs, run.request.prepared.lock
        found = _given(run, inputs) if inputs else _made(run)
        _read(run, found)
        problem = None
        if lock_file:
            problem = locks.moved(lock_file.lock.of(*locks.INSTALLED), run.installed, lock_file.path)
        if problem:
            raise Incompatible(problem)


@dataclass(frozen=True, slots=True)
class _Found:
    """An image: its name, for people, and the sum of what its toolchain stage wrote down."""

    name: str
    toolchain: str


def _given(run: Run, inputs: BundledInputs) -> _Found:
    """Return the image out of a bundle, after all that the bundle has was provided.

    Its toolchain is the word of whoever made the bundle: there is no toolchain stage to ask.
    """
    inputs.provide(run.steps, run.session.settings)
    run.image, run.base_digest = inputs.image, inputs.base_digest
    image = run.engine.image(run.image)
    return _Found(inputs.image_name, image.labels.get(TOOLCHAIN_LABEL, "") if image else "")


def _made(run: Run) -> _Found:
    """Return the image, built unless it is there.

    Its stages are built one by one, because each has other rights: the toolchain stage knows nothing of the source,
    and once the source may run there is no network.
    """
    plan, settings, fresh, base = run.plan, run.session.settings, run.request.fresh, _base(run)
    # The name is for people. What is looked into and what compiles is the id: another run may move the name.
    name = plan.image_name if run.attempts == 1 else f"{plan.image_name}-{run.attempts}"
    built = run.engine.image(name)
    if built and not fresh and built.labels.get(BASE_LABEL) == base.id and built.labels.get(TOOLCHAIN_LABEL):
        run.image = built.id
        return _Found(name, built.labels[TOOLCHAIN_LABEL])
    local = plan.resolution.source.kind == "path"
    of_base, of_source = {"BASE_IMAGE": base.id}, {"SOURCE_REF": run.source_ref} if run.source_ref else {}
    of_source |= {"SOURCE_FRESH": fresh} if fresh and not local else {}
    stage = ImageBuild(
        # Without the checkout, which only the last request copies: it is sent once.
        context=lambda: context_archive(plan.context, None),
        target="toolchain",
        build_args=of_base,
        network=settings.network,
        memory=plan.resources.memory,
    )
    # The container stays until the image is whole: clean-ups of others keep an image that a container uses.
    with _opened(run, _built(run, stage), "toolchain") as read:
        toolchain = _sum(_toolchain(read, name), read(_PINS) or b"")
        stage = replace(stage, target="source", build_args=of_base | {"TOOLCHAIN": toolchain} | of_source)
        if not local:
            _built(run, stage)
        tree = run.request.prepared.tree
        whole = replace(stage, context=lambda: context_archive(plan.context, tree), target=None, network="none")
        run.image = _built(run, whole)
    run.engine.tag(run.image, name)
    return _Found(name, toolchain)


def _base(run: Run) -> ImageInfo:
    """The base image, pulled if it is not here."""
    base = run.session.settings.mirrored(run.plan.resolution.base)
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
            journal.stepped(self.run.session.settings.state_dir, self.run.name, found[1].decode())

    def told(self, line: str) -> str:
        """What is shown of a line: all of it."""
        return line


_TOOLCHAIN, _PINS = "/opt/tfdock/toolchain", "/opt/tfdock/pins"
_COMMIT = re.compile(rb"\s*([0-9a-f]{40,64})\s*")


@contextmanager
def _opened(run: Run, image: str, name: str) -> Iterator[Callable[[str], bytes | None]]:
    """Give a function that reads a file of an image, out of a container that is never started.

    After an error the container stays for the run's own clean-up, which asks no engine that is lost.
    """
    engine = run.engine
    container = engine.create(
        ContainerSpec(name=f"tfdock-{run.name}-{name}", image=image, command=("true",), labels={RUN_LABEL: run.name})
    )
    yield lambda path: engine.read_file(container, path)
    engine.remove(container)


def _toolchain(read: Callable[[str], bytes | None], image: str) -> bytes:
    """Return the toolchain file of an image. Raises BuildFailed (`image-incomplete`) if there is none."""
    toolchain = read(_TOOLCHAIN)
    if toolchain is None:
        raise BuildFailed(
            Problem(
                code="image-incomplete",
                message=f"the image {image} holds no {_TOOLCHAIN}",
                fix="remove the image and build again",
            )
        )
    return toolchain


def _sum(toolchain: bytes, pins: bytes) -> str:
    return hashlib.sha256(f"{len(toolchain)} ".encode() + toolchain + pins).hexdigest()


def _read(run: Run, image: _Found) -> None:
    """Read what the image wrote down of its toolchain, and which source was found.

    Raises BuildFailed (`image-incomplete`), and (`toolchain-changed`) if the image's own files are not those that the
    toolchain stage wrote, before any source was there.
    """
    name = locks.requirements_file(run.plan.resolution.python)
    with _opened(run, run.image, "look") as read:
        toolchain, pins = _toolchain(read, image.name), read(_PINS) or b""
        found, requirements = read("/opt/tfdock/source"), read(f"/tf/tensorflow/{name}")
    if _sum(toolchain, pins) != image.toolchain:
        raise BuildFailed(
            Problem(
                code="toolchain-changed",
                message=f"the image {image.name} does not hold the toolchain files that its toolchain stage wrote: "
                "a later image step changed the files",
                fix=f"read the source's ./configure and patches, remove the image (`docker rmi {image.name}`), "
                "and build again",
            )
        )
    run.toolchain, run.toolchain_file = toolchain_key(toolchain), toolchain
    _take_disk_cache(run)
    commit = _COMMIT.fullmatch(found or b"")
    run.source_found = commit[1].decode() if commit else ""
    run.installed = locks.installed(toolchain, pins, {name: requirements} if requirements else {})


def _take_disk_cache(run: Run) -> None:
    """Hold the build's disk cache with others, until the run ends, so that nobody takes things out of it."""
    trust = run.plan.trust
    disk, release = run.disk, run.session.cache.disk(run.toolchain)
    waiting = run.steps.waiting("image", f"has the disk cache {release.key} for itself")
    run.locks.enter_context(release.held(alone=False, waiting=waiting))
    if not trust.is_release:
        run.locks.enter_context(cache_overlay.over_release(run, disk, release))
    if run.session.engine_info.local:
        check_writable(disk.folder, 2)
    about = {**described_toolchain(run.toolchain_file), "base": str(run.plan.resolution.base)}
    before = disk.description().get("trust", {}).get("reasons", [])
    # Who shared `release` once has shared it for good.
    told = replace(trust, reasons=tuple(dict.fromkeys([*map(str, before), *trust.reasons]))[-_REASONS:])
    disk.describe({**about, "trust": trust_json(told)})
