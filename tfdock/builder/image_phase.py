"""The image phase: find, build or load the image of a build, and read the image's facts about itself."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from tfdock.builder.build_run import BuildRun, ImageResult
from tfdock.builder.held_caches import hold_caches
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
from tfdock.errors import BuildFailed, Incompatible
from tfdock.host.files import held
from tfdock.plan import lock_file as locks
from tfdock.plan.build_plan import toolchain_key
from tfdock.plan.local_source import context_archive
from tfdock.run import journal

#: The builder's text before a step. A step may print the same text, but then the id is not one of our containers.
_RUNNING = re.compile(rb" ---> Running in ([0-9a-f]{12})\s*\Z")
_TOOLCHAIN, _PINS = "/opt/tfdock/toolchain", "/opt/tfdock/pins"
_COMMIT = re.compile(rb"\s*([0-9a-f]{40,64})\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Image:
    """An image on the engine. `name` is for people; the image is inspected and run by its id."""

    id: str
    name: str
    base_digest: str | None
    toolchain_digest: str  #: The digest of the files that the image's toolchain stage wrote.


def make_image(
    run: BuildRun, source_ref: str | None = None, number: int = 1, *, compiles: bool = False
) -> ImageResult:
    """Run the image phase for a source ref (the `number`-th that the build tries). Return the image.

    With `compiles`, an empty disk cache is filled from the cache of the same build without its last patches.
    """
    with run.phase("image"):
        image = _locked_image(run, source_ref, number)
        # The image's lock is free now: waiting for a cache, or copying a cache, may take minutes.
        return hold_caches(run, image, compiles=compiles)


def _locked_image(run: BuildRun, source_ref: str | None, number: int) -> ImageResult:
    """Find, build or load the image. Builds on the same base wait for each other, to make shared layers only once."""
    base = run.plan.resolution.base
    # A file's name cannot hold the `/` of an image's name.
    key = hashlib.sha256(str(base).encode()).hexdigest()[:16]
    lock = run.session.settings.state_dir.absolute() / "locks" / f"image-{key}"
    waiting = run.supervisor.waiting("image", f"also builds an image on {base}")
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
    """Provide everything that a bundle has; return the bundle's image.

    Its toolchain is the claim of the bundle's author: there is no toolchain stage to compare.
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
    """Return the image; build it if it is missing.

    Its stages are built one by one, because each has other permissions. The toolchain stage cannot see the source.
    Stages that may run the source have no network.
    """
    plan, settings = run.plan, run.session.settings
    # No earlier image was built with this run's id.
    fresh = run.request.run if run.request.force else ""
    base, digest = _pull_base(run)
    # Inspect and run the image by its id, not its name: another run may move the name.
    name = plan.image_name if number == 1 else f"{plan.image_name}-{number}"
    built = run.engine.image(name)
    # A name proves nothing: the image must have this exact base and the files of its toolchain stage.
    if built and not fresh and built.labels.get(BASE_LABEL) == base.id and built.labels.get(TOOLCHAIN_LABEL):
        return _Image(id=built.id, name=name, base_digest=digest, toolchain_digest=built.labels[TOOLCHAIN_LABEL])
    local = plan.resolution.source.kind == "path"
    of_base, of_source = {"BASE_IMAGE": base.id}, {"SOURCE_REF": source_ref} if source_ref else {}
    of_source |= {"SOURCE_LOCKED": "yes"} if plan.resolution.source.locked else {}
    # A changed argument makes the builder's cache miss. A checkout needs no argument: its files are compared.
    of_source |= {"SOURCE_FRESH": fresh} if fresh and not local else {}
    proxies = dict(run.proxies.variables)
    stage = ImageBuild(
        # Sent without the checkout: only the last request copies the checkout.
        context=lambda: context_archive(plan.context, None),
        target="toolchain",
        # Engines predefine the proxy arguments: they are in no layer, no history and no key of the cache.
        build_args=of_base | proxies,
        network=settings.network,
        memory=plan.resources.memory,
    )
    # The container stays until the image is complete: cleanups by other runs skip an image in use.
    with _image_files(run, _build_stage(run, stage), "toolchain") as read:
        toolchain = _digest(_toolchain_file(read, name), read(_PINS) or b"")
        of_source |= {"TOOLCHAIN": toolchain}
        stage = replace(stage, target="source", build_args=of_base | of_source | proxies)
        # The last request sends the checkout, so there is nothing to download.
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
    # Tag last: later runs treat an image with this name as complete.
    run.engine.tag(image, name)
    return _Image(id=image, name=name, base_digest=digest, toolchain_digest=toolchain)


def _pull_base(run: BuildRun) -> tuple[ImageInfo, str | None]:
    """Return the base image and its digest; pull the image if it is missing."""
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
    """Records each step's container at its start, so that it can be removed even if tfdock and the engine die."""

    run: BuildRun

    def feed(self, data: bytes) -> None:
        """Read the builder's next message."""
        step = _RUNNING.match(data)
        if not step:
            return
        with suppress(OSError):  # a failed note must not end the build
            journal.note_step(self.run.session.settings.state_dir, self.run.name, step[1].decode())

    def shown_line(self, line: str) -> str:
        """Return the line unchanged: nothing is hidden."""
        return line


@contextmanager
def _image_files(run: BuildRun, image: str, name: str) -> Iterator[Callable[[str], bytes | None]]:
    """Yield a function that reads a file of an image, from a container that is never started.

    After an error the run's own cleanup removes the container, unless the engine is lost.
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
            "image-incomplete", f"the image {image} has no {_TOOLCHAIN}", "remove the image and build again"
        )
    return toolchain


# The length separates the files: no byte can move unnoticed from one file to the next.
def _digest(toolchain: bytes, pins: bytes) -> str:
    return hashlib.sha256(f"{len(toolchain)} ".encode() + toolchain + pins).hexdigest()


def _read_image(run: BuildRun, image: _Image, source_ref: str | None, number: int) -> ImageResult:
    """Read the image's files about its toolchain and source.

    Raises BuildFailed (`image-incomplete`), and (`toolchain-changed`) if the image's own files are not those that the
    toolchain stage wrote, before any source was there.
    """
    # In this file, some releases keep a list of Python packages with hashes.
    requirements_name = f"requirements_lock_{run.plan.resolution.python.replace('.', '_')}.txt"
    with _image_files(run, image.id, "look") as read:
        toolchain, pins = _toolchain_file(read, image.name), read(_PINS) or b""
        source, requirements = read("/opt/tfdock/source"), read(f"/tf/tensorflow/{requirements_name}")
    if _digest(toolchain, pins) != image.toolchain_digest:
        raise BuildFailed.of(
            "toolchain-changed",
            f"the toolchain files in the image {image.name} are not those that its toolchain stage wrote: "
            "a later image step changed the files",
            own_words(
                f"read the source's ./configure and the patches, remove the image (`docker rmi {image.name}`), "
                "and build again",
                run.session.engine_info.name,
            ),
        )
    # The image wrote the file, so the content is untrusted: accept only the form of a commit.
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
