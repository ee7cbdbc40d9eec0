"""Pull wheels from a registry into the wheelhouse (`pull`). A wheel is used only after it was verified.

A wheel is written beside its record, where no installer looks. Meanwhile the digest of its layer is computed. Then
the wheel is checked against its RECORD, and moved into the wheelhouse like a built wheel. If a pull is interrupted,
the received bytes stay, and the next pull fetches only the rest.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from io import FileIO
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from tfdock.errors import NetworkError, Problem, VerificationFailed
from tfdock.host.files import check_space, file_error, gib, make_folder
from tfdock.host.foreign_json import Malformed
from tfdock.host.untrusted_folders import UntrustedPath
from tfdock.images.lookup import StoredImage
from tfdock.images.wheel_image_read import FoundBuild
from tfdock.images.wheel_layer import FoundWheel, frame, unpacked, wheel_bytes
from tfdock.oci.artifact import from_blob
from tfdock.plan.trust_domain import recorded
from tfdock.types import BuildId
from tfdock.wheel.facts import WheelError
from tfdock.wheel.wheel import WheelFacts, read_wheel
from tfdock.wheelhouse.publication import publish
from tfdock.wheelhouse.store import PULLED, WheelFile, Wheelhouse

_BLOCK = 1 << 20
_ROOM = 64 << 20  #: How many bytes must stay free on the wheelhouse's disk.

#: Reads every member of a wheel, and checks the member against RECORD; raises WheelError.
Read = Callable[[BinaryIO, str], WheelFacts]


def _ignore(_: object) -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PulledImage:
    """A build in the wheelhouse, and the image that it comes from. `status` is `pulled` or `up-to-date`.

    `received`: bytes of wheels that this pull received. `kept`: bytes that an interrupted pull had left here.
    """

    status: str
    origin: str
    build: FoundBuild
    record_path: Path
    wheels: tuple[Path, ...]
    received: int = 0
    kept: int = 0


@dataclass
class ImagePull:
    """Pulls builds from images into a wheelhouse.

    `check` is called now and then and raises to stop. `say` is called with messages, `progress` with the number of
    new bytes. `read` replaces the usual check of a wheel's members. Every method raises the errors of `Repository`,
    WheelRefused, DiskFull, and errors of files.
    """

    wheelhouse: Wheelhouse
    check: Callable[[], None]
    say: Callable[[str], object] = _ignore
    progress: Callable[[int], object] = _ignore
    read: Read | None = None
    received: int = field(default=0, init=False)
    kept: int = field(default=0, init=False)

    def pull_all(self, image: StoredImage) -> list[PulledImage]:
        """Pull every build of an image. Raises Locked if another run uses a build."""
        make_folder(self.wheelhouse.root)
        pulled = []
        for build in image.builds:
            with self._wheelhouse_errors(), self.wheelhouse.locked(BuildId(build.build_id)):
                pulled.append(self.pull_build(image, build))
        return pulled

    def pull_build(self, image: StoredImage, build: FoundBuild) -> PulledImage:
        """Pull one build of an image. The caller holds the lock of the build id."""
        build_id = BuildId(build.build_id)
        folder = self.wheelhouse.record_folder(build_id, build.fingerprint)
        result = PulledImage(
            status="up-to-date",
            origin=image.origin,
            build=build,
            record_path=(folder / "record.json").path,
            wheels=tuple(self.wheelhouse.root / wheel.file for wheel in build.wheels),
        )
        with self._wheelhouse_errors():
            record = self.wheelhouse.complete_record(build_id, build.fingerprint)
            # Two builds with one fingerprint may differ in their bytes; then the image's files replace the present
            # files.
            if record and record["wheels"] == build.record["wheels"]:
                return result
            self.received = self.kept = 0
            arrived = self._fetch_wheels(image, build, folder)
            self.check()
            origin = {"reference": str(image.image), "digest": image.digest}
            beside = {PULLED: json.dumps(origin, indent=1, sort_keys=True).encode() + b"\n"}
            publish(self.wheelhouse, build_id, build.record, arrived, beside)
        return replace(result, status="pulled", received=self.received, kept=self.kept)

    @contextmanager
    def _wheelhouse_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise file_error(error, {"the wheelhouse": self.wheelhouse.root}) from error

    def _fetch_wheels(self, image: StoredImage, build: FoundBuild, folder: UntrustedPath) -> dict[Path, WheelFile]:
        """Return all wheels of a build, on the wheelhouse's disk and verified."""
        # Sixteen digits behind `sha256:` tell the wheels of a build apart.
        parts = [folder / f"pull-{wheel.layer.digest[7:23]}.part" for wheel in build.wheels]
        # Remove parts of other wheels, which interrupted pulls of this build id left.
        for stale in folder.entries():
            if stale.name.startswith("pull-") and stale.name.endswith(".part") and stale not in parts:
                stale.remove()
        wheels: dict[Path, WheelFile] = {}
        for wheel, part in zip(build.wheels, parts, strict=True):
            file = WheelFile(file=wheel.file, sha256=wheel.sha256, size=wheel.size)
            target = self.wheelhouse.at(wheel.file)
            if target.is_file() and target.size == wheel.size and target.sha256() == wheel.sha256:
                # `publish` will move this file onto itself.
                wheels[target.path] = file
                continue
            # Check the name before fetching hundreds of megabytes: it may be taken.
            self.wheelhouse.check_replaceable(BuildId(build.build_id), file, recorded(build.record))
            self._fetch(image, wheel, part)
            wheels[part.path] = file
        return wheels

    # --- one wheel ----------------------------------------------------------------------------------------------

    def _fetch(self, image: StoredImage, wheel: FoundWheel, part: UntrustedPath) -> None:
        """Fetch a wheel into a file of its own. A file that turns out to be different is removed."""
        # Use no more bytes than the wheel has: another pull may have written the part.
        # A packed layer cannot be continued in its middle.
        begun = min(part.size, wheel.size) if not wheel.packed else 0
        self._check_room(wheel.size - begun)
        try:
            # Unbuffered: received bytes must be in the file if this process is killed.
            with part.update() as file:
                file.truncate(begun)
                self._take(image, wheel, file, begun)
        except VerificationFailed:
            part.remove()
            # All bytes came from the registry just now, so the registry is at fault.
            if not begun:
                raise
            # A crash may have damaged the earlier bytes, so a second try decides whether the registry is at fault.
            self.say(f"the partial download of {wheel.file} is damaged: the wheel is downloaded again")
            self._fetch(image, wheel, part)
        else:
            self.kept += begun
            self.received += wheel.size - begun

    def _take(self, image: StoredImage, wheel: FoundWheel, file: FileIO, begun: int) -> None:
        """Complete a file that has `begun` bytes of the wheel, and check it against image and RECORD."""
        self._download(image, wheel, file, begun)
        self.check()
        self._verify(image, wheel, file)

    def _check_room(self, size: int) -> None:
        root = self.wheelhouse.root
        check_space(
            root,
            size + _ROOM,
            lambda free: f"the wheelhouse {root} has {gib(free)} free, but the pull needs {gib(size)}",
            "free space on that disk, or give another `--wheelhouse`",
        )

    def _download(self, image: StoredImage, wheel: FoundWheel, file: FileIO, begun: int) -> None:
        """Write the missing bytes."""
        # The layer's digest covers the bytes that are here, so they are hashed again.
        before = chain([frame(wheel.file, wheel.size)[0]], _read_blocks(file, begun)) if begun else ()
        blob = image.named.repository.blob(wheel.packed or wheel.layer, before)
        pieces = unpacked(blob, wheel.layer.digest, wheel.layer.size) if wheel.packed else blob
        self.progress(begun)
        try:
            for piece in from_blob(blob, wheel_bytes(wheel, pieces, begun)):
                _write(file, piece)
                self.progress(len(piece))
        except Malformed as error:
            raise image.named.malformed(image.digest, str(error)) from error
        except NetworkError as error:
            if file.tell():
                error.problems = tuple(_with_hint(problem) for problem in error.problems)
            raise

    def _verify(self, image: StoredImage, wheel: FoundWheel, file: FileIO) -> None:
        """Check the file on the disk against the image, and against its own RECORD."""
        try:
            facts = (self.read or read_wheel)(file, wheel.file)
        except WheelError as error:
            raise self._refusal(image, wheel, error.code, error.message) from error
        if facts.sha256 != wheel.sha256:
            text = f"{wheel.file} has the sha256 {facts.sha256}; labels, SHA256SUMS and record say {wheel.sha256}"
            raise image.named.malformed(image.digest, text)
        if facts.tag_problem:  # a caller's own `read` may accept renamed wheels
            raise self._refusal(image, wheel, "wheel-tag-mismatch", facts.tag_problem)
        if not facts.record_ok:
            first = facts.record_problems[0]
            raise self._refusal(image, wheel, first.code, f"{first.path}: {first.message}")

    def _refusal(self, image: StoredImage, wheel: FoundWheel, code: str, reason: str) -> VerificationFailed:
        return VerificationFailed.of(
            code,
            f"{wheel.file} of the image `{image.image}` is refused: {reason}",
            "check who can push to this registry, and use another image",
            why=f"the content matches the digest {image.digest}, so it was pushed like this",
        )


def _read_blocks(file: FileIO, size: int) -> Iterator[bytes]:
    """Yield the first `size` bytes of a file, and leave its position after them."""
    file.seek(0)
    while size and (block := file.read(min(size, _BLOCK))):
        size -= len(block)
        yield block


def _write(file: FileIO, data: bytes) -> None:
    """Write all bytes. On a disk that is nearly full, one write may write less without an error."""
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


def _with_hint(problem: Problem) -> Problem:
    *others, last = problem.fixes or ("",)
    hint = f"{last}; finished downloads are kept, and the same command continues"
    return replace(problem, fixes=(*others, hint))
