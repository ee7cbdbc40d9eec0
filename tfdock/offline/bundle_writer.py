"""Write a bundle: the index, then a blob for each collected file, then the images."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import BinaryIO

from tfdock import __version__, events
from tfdock.builder.build_run import returned_repository
from tfdock.engine.protocol import ImageInfo
from tfdock.errors import EngineLost, TfdockError
from tfdock.host.files import check_space, file_sha256, gib
from tfdock.host.supervise import Output
from tfdock.oci.plain_tar import END
from tfdock.offline import bundle_format
from tfdock.offline.bundle_file import BundleWriter, file_chunks
from tfdock.offline.bundle_format import BundledBuild, BundledImage, BundledRuntime, Index, ProfileTexts, Wheels
from tfdock.plan.build_plan import DOWNLOADS
from tfdock.plan.prepare import PreparedBuild
from tfdock.run.results import copy_from_folder
from tfdock.run.supervisor import Supervisor
from tfdock.types import BuildId

REPOSITORY = "repository"  #: The name of the folder for a bundle's downloads. Containers write to this folder.
NAME = BuildId("bundle")  #: Stands for a build id, in events and in the journal, while a bundle is made.
_GIB = 1 << 30
_REPORT_EVERY = 1 << 28  #: How many bytes are written between two progress messages.
_UNWRITTEN = "0" * 64  #: A placeholder for the sha256 of contents that are not written yet.


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenBundle:
    """A written bundle: its path, size in bytes, sha256, and index."""

    path: Path
    size: int
    sha256: str
    index: Index


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedInputs:
    """The inputs of one build, before they become blobs."""

    prepared: PreparedBuild
    lock: str | None
    image: ImageInfo
    base_digest: str | None
    source_ref: str | None
    runtime: ImageInfo | None
    requirements: Sequence[str] | None
    limits: Sequence[str] = ()
    wheels: Path | None = None
    external: Path | None = None


@dataclass(frozen=True, slots=True)
class BundleWorkFolder:
    """The work folder of a bundle: a folder in the cache, and the file that becomes the bundle."""

    supervisor: Supervisor
    folder: Path
    file: Path


@dataclass
class BundlePacker:
    """Writes one bundle to `target`. `knowledge` is the version of the knowledge base used for the plans."""

    target: Path
    work: BundleWorkFolder
    packed: Sequence[PackedInputs]
    knowledge: str

    def write(self) -> WrittenBundle:
        """Write the bundle under another name. Move it to `target` when it is complete."""
        work = self.work
        images = _images(self.packed)
        # List the files only once, because index and blobs must agree.
        cached = _cached_files(_downloads_folder(work.folder))
        self._check_room(images, cached)
        with events.announced_phase(work.supervisor.listen, work.supervisor.clock, NAME, "bundle"):
            with self._named(images), work.file.open("w+b") as file:
                index = self._fill(file, images, cached)
            # The sum of the whole file is for people, who compare two copies by `sha256sum`.
            made = WrittenBundle(
                path=self.target, size=work.file.stat().st_size, sha256=file_sha256(work.file), index=index
            )
            # The last chance to stop: the next line makes the bundle visible.
            work.supervisor.check("bundle")
            work.file.replace(self.target)
            return made

    def _fill(self, file: BinaryIO, images: Mapping[str, ImageInfo], cached: Mapping[str, Path]) -> Index:
        """Write all contents, the images last, then the index into the space of its draft."""
        writer = BundleWriter(file, self._index(lambda _: _UNWRITTEN, cached))
        index = self._index(writer.add, cached)
        return writer.finish(replace(index, images=self._saved(writer, list(images))))

    def _saved(self, writer: BundleWriter, names: Sequence[str]) -> str:
        engine = self.work.supervisor.engine
        return self.work.supervisor.watch_cancellable(
            f"saving {len(names)} images",
            "bundle",
            lambda output, cancel: writer.add(_checked_archive(_with_progress(engine.save(names, cancel), output))),
        )

    def _index(self, add: Callable[[Iterable[bytes]], str], cached: Mapping[str, Path]) -> Index:
        """Return the index of all contents except the images. `add` takes contents and returns their sha256."""
        check = partial(self.work.supervisor.check, "bundle")

        def add_file(path: Path) -> str:
            # Each file is opened when it is written: thousands of open files would need too many descriptors.
            return add(file_chunks(path, check))

        return Index(
            tfdock=__version__,
            knowledge=self.knowledge,
            builds=tuple(_bundled_build(build, add, add_file) for build in self.packed),
            images=_UNWRITTEN,
            repository={name: add_file(path) for name, path in cached.items()},
        )

    @contextmanager
    def _named(self, images: Mapping[str, ImageInfo]) -> Iterator[None]:
        """Give the images their names in the bundle while the bundle is written."""
        engine = self.work.supervisor.engine
        # Names that exist already stay: a build from another bundle may use them.
        new = [name for name in images if (image := engine.image(name)) is None or image.id != images[name].id]
        try:
            for name in new:
                engine.tag(images[name].id, name)
            yield
        finally:
            # A leftover name is harmless. Report the error that ended the writing instead.
            with suppress(TfdockError):
                for name in new:
                    engine.remove_image(name)

    def _check_room(self, images: Mapping[str, ImageInfo], cached: Mapping[str, Path]) -> None:
        """Raise DiskFull if the bundle cannot fit. Images share layers: only the largest counts completely."""
        files = [
            *cached.values(),
            *(path for build in self.packed for path in (*_wheels(build), build.external) if path),
        ]
        need = max(image.size for image in images.values()) + sum(path.stat().st_size for path in files)
        folder = self.target.absolute().parent
        check_space(
            self.work.file.parent,
            need,
            lambda free: f"{folder} has {gib(free)} left, but the bundle needs {gib(need)} or more",
            "free space on that disk, or write the bundle elsewhere: `-o /elsewhere/bundle.tar`",
        )


# --- small parts ----------------------------------------------------------------------------------------------------


def _images(packed: Iterable[PackedInputs]) -> dict[str, ImageInfo]:
    """Return all images of a bundle, each once, by their names in the bundle."""
    images = [image for build in packed for image in (build.image, build.runtime) if image]
    return {bundle_format.image_name(image.id): image for image in images}


def _image(image: ImageInfo) -> BundledImage:
    return BundledImage(name=bundle_format.image_name(image.id), id=image.id, size=image.size)


def _downloads_folder(folder: Path) -> Path:
    """Return the folder with copies of the downloads. No container has had access to this folder."""
    repository = folder / REPOSITORY
    back, copies = returned_repository(repository), folder / "downloads"
    if not back.is_dir():
        copy_from_folder(repository, (DOWNLOADS,), copies)
    return back if back.is_dir() else copies


def _cached_files(folder: Path) -> dict[str, Path]:
    """Return the files of a repository cache by their paths in the cache, sorted."""
    # Sorted: folders list files in any order, and equal contents must give equal bundles.
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {name: path for name, path in files.items() if bundle_format.cached_sha256(name) is not None}


def _wheels(packed: PackedInputs) -> list[Path]:
    return sorted(packed.wheels.glob("*.whl")) if packed.wheels else []


def _bundled_build(
    packed: PackedInputs, add: Callable[[Iterable[bytes]], str], add_file: Callable[[Path], str]
) -> BundledBuild:
    plan, written = packed.prepared.plan, packed.prepared.written
    runtime = plan.resolution.runtime
    return BundledBuild(
        build_id=plan.build_id,
        fingerprint=plan.fingerprint,
        profile=ProfileTexts(
            file=written.name,
            text=add([written.text.encode()]),
            extended={name: add([text.encode()]) for name, text in written.extended.items()},
            patches={name: add([patch]) for name, patch in written.local.patches.items()},
            tree=written.local.tree,
        ),
        lock=add([packed.lock.encode()]) if packed.lock else None,
        image=_image(packed.image),
        base_digest=packed.base_digest,
        source_ref=packed.source_ref,
        runtime=BundledRuntime(reference=str(runtime), image=_image(packed.runtime))
        if packed.runtime and runtime
        else None,
        wheels=Wheels(
            python_tag=f"cp{plan.resolution.python.replace('.', '')}",
            requirements=tuple(packed.requirements),
            limits=tuple(packed.limits),
            files={path.name: add_file(path) for path in _wheels(packed)},
        )
        if packed.requirements is not None
        else None,
        external=add_file(packed.external) if packed.external else None,
    )


def _with_progress(chunks: Iterable[bytes], output: Output) -> Iterator[bytes]:
    """Yield the chunks, and report progress after every `_REPORT_EVERY` bytes."""
    done = reported = 0
    for chunk in chunks:
        # Yield first: only written chunks count.
        yield chunk
        done += len(chunk)
        if done - reported >= _REPORT_EVERY:
            reported = done
            output(f"{done / _GIB:.2f} GiB of images\n".encode())


def _checked_archive(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the chunks; raise EngineLost if they do not end like a tar archive.

    An engine that fails in the middle ends its answer normally, or writes its error into the archive.
    """
    end = b""
    for chunk in chunks:
        yield chunk
        # The end mark may be split between chunks, whose sizes the engine chooses.
        end = (end + chunk)[-len(END) :]
    # POSIX: a tar archive ends with two blocks of zeros.
    if len(end) < len(END) or end.strip(b"\0"):
        raise EngineLost.of(
            "engine-lost",
            "the engine stopped before all images were saved",
            "check the engine's disk and its log, then run the same command again",
        )
