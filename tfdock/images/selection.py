"""Select finished builds for images: by profile, by wheel or by build id. The wheels stay open during the context.

Only builds with a record are used: they were built or pulled, and verified. Each wheel is hashed once for the image.
The hash shows whether the wheel still matches its record.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NoReturn

from tfdock.errors import ProfileError, WheelRefused
from tfdock.host.foreign_json import Malformed
from tfdock.images.image_tags import moving_tag
from tfdock.images.wheel_image import WheelBuild
from tfdock.images.wheel_layer import LAYER_TYPE, ImageWheel, frame
from tfdock.oci.manifest import Descriptor
from tfdock.plan.build_plan import BuildPlan
from tfdock.plan.trust_domain import RELEASE, recorded
from tfdock.types import BuildId, Digest
from tfdock.wheel.facts import WheelError
from tfdock.wheel.wheel_file import refused
from tfdock.wheelhouse import simple_index
from tfdock.wheelhouse.build_record import BUILD_ID, LARGEST_RECORD, read_record, verified
from tfdock.wheelhouse.store import Wheelhouse, changed_wheel_error

_BLOCK = 1 << 20


@dataclass
class WheelSelection:
    """Selects builds in a wheelhouse. At the end of the context, the wheels of the builds are closed.

    `plan` plans a profile; `check` is called now and then and raises to stop.
    """

    wheelhouse: Wheelhouse
    plan: Callable[[str], BuildPlan]
    check: Callable[[], None]
    _layers: dict[Path, WheelLayer] = field(default_factory=dict)
    _wheels: dict[Path, ImageWheel] = field(default_factory=dict)
    _unreadable: str = ""  #: Why a found record cannot be used; empty if there is no such record.

    def __enter__(self) -> WheelSelection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for layer in self._layers.values():
            layer.close()

    def stream(self, layer: Descriptor) -> BinaryIO:
        """Return a seekable stream of a wheel's layer. Read only one stream of a wheel at a time."""
        path = next(path for path, wheel in self._wheels.items() if wheel.layer.digest == layer.digest)
        return self._layers[path].stream()

    def path(self, wheel: ImageWheel) -> Path:
        """Return the path of a selected wheel."""
        return next(path for path, image_wheel in self._wheels.items() if image_wheel.sha256 == wheel.sha256)

    def builds(self, names: Iterable[str]) -> tuple[WheelBuild, ...]:
        """Return the builds with these names, each build once.

        Raises ProfileError (`build-not-here`, `wheel-not-found`), WheelRefused (`wheel-without-record`,
        `wheel-changed`, and problems of a wheel), OSError, and the errors of planning a profile.
        """
        builds = [self._build(name) for name in names]
        return tuple({(build.build_id, build.fingerprint): build for build in builds}.values())

    def _build(self, name: str) -> WheelBuild:
        if name.endswith(".whl"):
            return self._build_of_wheel(Path(name))
        if BUILD_ID.fullmatch(name) and (records := self._records(self.wheelhouse, BuildId(name))):
            return self._complete_build(self.wheelhouse, records) or self._raise_gone(records)
        # A moving tag looks like a build id. The error of a missing profile would not explain this mistake.
        if moving_tag(name) and not Path(name).exists():
            raise self._not_built_error("PROFILE", BuildId(name), others=False)
        plan = self.plan(name)
        records = self._records(self.wheelhouse, plan.build_id)
        same = [entry for entry in records if entry.record["fingerprint"] == plan.fingerprint]
        trusted = [entry for entry in same if self.wheelhouse.stands_for(entry.record, plan.trust.name)]
        if same and not trusted:
            self._unreadable = f"its trust domain is {recorded(same[0].record)}, the profile's is {plan.trust.name}"
        if not trusted:
            raise self._not_built_error(name, plan.build_id, others=bool(records))
        return self._complete_build(self.wheelhouse, trusted) or self._raise_gone(trusted)

    def _build_of_wheel(self, path: Path) -> WheelBuild:
        """Return the build of a wheel: in the wheel's own wheelhouse, or the build of which the wheel is a copy."""
        if not path.is_file():
            fix = "check the path; `tfdock build` prints the path of each wheel"
            raise ProfileError.of("wheel-not-found", f"wheel not found: {path}", fix)
        wheel = self.wheel(path)
        # The folder of the wheel may be a wheelhouse too.
        for house in (Wheelhouse(path.parent.absolute()), self.wheelhouse):
            records = [entry for entry in self._records(house, naming=wheel.sha256) if wheel.file in entry.wheels]
            if build := self._complete_build(house, records):
                return build
        raise WheelRefused.of(
            "wheel-without-record",
            f"{path} has no build record here",
            "build or pull the wheel, and give its path in the wheelhouse",
            why=self._unreadable,
        )

    # --- what is there ------------------------------------------------------------------------------------------

    def _records(
        self, house: Wheelhouse, build_id: BuildId | None = None, *, naming: str = ""
    ) -> list[_StoredDocument]:
        """Return records of verified builds that match a build id or word: `release` first, then the newest."""
        documents = []
        for file in house.record_files(build_id):
            try:
                data = file.read(LARGEST_RECORD)
                # This is cheaper than parsing every record: a sha256 is in the record as text.
                if naming.encode() not in data:
                    continue
                record = read_record(data)
            except FileNotFoundError:  # a prune has removed it meanwhile
                continue
            except (Malformed, OSError) as error:
                self._unreadable = f"{file} cannot be used: {error}"
                continue
            if verified(record) in ("no", "failed"):
                self._unreadable = f"{file} does not say that the wheel passed its checks"
            else:
                documents.append(_StoredDocument(record=record, document=data))
        return sorted(documents, key=_preference, reverse=True)

    def _complete_build(self, house: Wheelhouse, records: Sequence[_StoredDocument]) -> WheelBuild | None:
        """Return the newest of these builds whose wheels are all in the wheelhouse, byte for byte."""
        for entry in records:
            paths = {house.root / file: size for file, (_, size) in entry.wheels.items()}
            # Sizes first: hashing takes seconds for each wheel.
            if not all(path.is_file() and path.stat().st_size == size for path, size in paths.items()):
                continue
            wheels = tuple(map(self.wheel, paths))
            if [wheel.sha256 for wheel in wheels] == [sha256 for sha256, _ in entry.wheels.values()]:
                return WheelBuild(record=entry.record, document=entry.document, wheels=wheels)
        return None

    def wheel(self, path: Path) -> ImageWheel:
        """Return a wheel, also without a record. The wheel is opened and hashed at the first call."""
        path = path.absolute()
        if path not in self._wheels:
            self._layers[path] = WheelLayer(path)
            try:
                self._wheels[path] = self._layers[path].hashed(self.check)
            except WheelError as error:
                raise refused(path, error) from error
        return self._wheels[path]

    # --- what is not --------------------------------------------------------------------------------------------

    def _raise_gone(self, records: Sequence[_StoredDocument]) -> NoReturn:
        """Raise the error for records without matching wheels."""
        newest = records[0]
        paths = [self.wheelhouse.root / file for file in newest.wheels]
        changed = next((path for path in paths if path.is_file()), None)
        if changed:
            raise changed_wheel_error(changed, "remove the wheel, and build or pull it again")
        raise ProfileError.of(
            "build-not-here",
            f"the wheel of {newest.record['build_id']} is no longer in {self.wheelhouse.root}",
            "build the wheel again: the compiled objects are in the cache",
        )

    def _not_built_error(self, name: str, build_id: BuildId, *, others: bool) -> ProfileError:
        here = f"a build of {build_id}, but not of this profile's plan" if others else f"no build of {build_id}"
        fix = f"build it first: `tfdock build {name}`"
        return ProfileError.of(
            "build-not-here",
            f"the wheelhouse {self.wheelhouse.root} has {here}",
            why=self._unreadable,
            fixes=[fix, f"name the finished build by its build id: `{build_id}`"] if others else [fix],
        )


def _preference(entry: _StoredDocument) -> tuple[bool, str, str]:
    # Moments are texts in UTC, which sort as times. `read_record` has checked that.
    return recorded(entry.record) == RELEASE, entry.record["finished"], entry.record["fingerprint"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredDocument:
    """A record and the bytes of its file."""

    record: dict[str, Any]
    document: bytes

    @property
    def wheels(self) -> dict[str, tuple[str, int]]:
        """The wheels in the record: file -> sha256 and size."""
        return {wheel["file"]: (wheel["sha256"], wheel["size"]) for wheel in self.record["wheels"]}


# --- the layer of a wheel -------------------------------------------------------------------------------------------


class WheelLayer:
    """An open wheel. Its bytes stay the same even if another file gets its name.

    The wheel is read once for the hash, and after that it is streamed. Raises OSError.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("rb")
        # Use the size of the open file: the name may stand for another file by now.
        self.size = os.fstat(self._file.fileno()).st_size
        self._head, self._tail = frame(path.name, self.size)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def hashed(self, check: Callable[[], None]) -> ImageWheel:
        """Return the wheel with its layer. Raises WheelError if the file is not a wheel. `check` raises to stop."""
        wheel, layer = hashlib.sha256(), hashlib.sha256(self._head)
        self._file.seek(0)
        # Compute both hashes at the same time: hashing releases Python's lock.
        with ThreadPoolExecutor(1, "tfdock-layer") as executor:
            while block := self._file.read(_BLOCK):
                check()
                layer_job = executor.submit(layer.update, block)
                wheel.update(block)
                layer_job.result()
        layer.update(self._tail)
        listed, metadata = simple_index.read_indexed_wheel(self._file, self.path.name, wheel.hexdigest())
        descriptor = Descriptor(
            media_type=LAYER_TYPE,
            digest=Digest(f"sha256:{layer.hexdigest()}"),
            size=len(self._head) + self.size + len(self._tail),
        )
        return ImageWheel(listed=listed, metadata=metadata, size=self.size, layer=descriptor)

    def stream(self) -> BinaryIO:
        """Return a seekable stream of the layer. Only one such stream may be read at a time."""
        return io.BufferedReader(_Joined(self._head, self._file, self.size, self._tail), _BLOCK)


class _Joined(io.RawIOBase):
    """Bytes, a file of a known size, and bytes, as one file."""

    def __init__(self, head: bytes, file: BinaryIO, size: int, tail: bytes) -> None:
        self._head, self._file, self._tail = head, file, tail
        self._begin, self._end = len(head), len(head) + size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._end + len(self._tail)}[whence]
        self._at = start + offset
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        space = memoryview(buffer).cast("B")
        if self._begin <= self._at < self._end:
            # Seek each time, because `hashed` and other streams move the same position.
            self._file.seek(self._at - self._begin)
            data = self._file.read(min(len(space), self._end - self._at))
        elif self._at < self._begin:
            data = self._head[self._at : self._at + len(space)]
        else:
            data = self._tail[self._at - self._end :][: len(space)]
        space[: len(data)] = data
        self._at += len(data)
        return len(data)
