"""Folders of this machine for the containers of an engine elsewhere: volumes there, files carried to them and back.

What comes back is what somebody else's code has left: only regular files of the names that are expected are written
here, each by us, and no archive is ever unpacked.
"""

from __future__ import annotations

import fnmatch
import hashlib
import io
import itertools
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import IO

from tfdock.decide.plan import EPOCH
from tfdock.do.engine import RUN_LABEL, ContainerSpec, Engine
from tfdock.do.engine.archives import Body
from tfdock.do.failures import make_folder
from tfdock.errors import EngineError, Problem
from tfdock.model import Mount

CACHE_LABEL = "io.tfdock.cache"
"""Label of the volumes that all runs share; its value is what they hold."""
_PIECE = 1 << 20
_MOST = 100_000
"""Members of an archive that comes back."""


@dataclass
class Carrier:
    """Creates the containers of a run, with what they need from here, and brings back what they leave.

    `local`: the engine sees this machine's folders, so that there is nothing to carry.
    """

    engine: Engine
    run: str
    local: bool
    _count: Iterator[int] = field(default_factory=itertools.count)

    def create(self, spec: ContainerSpec) -> str:
        """Create a container; its folders are there and belong to its user."""
        if self.local:
            return self.engine.create(spec)
        volumes = {mount.target: self._volume(mount, spec) for mount in spec.mounts}
        self._fill(spec, volumes)
        mounts = (_there(mount, volumes[mount.target]) for mount in spec.mounts)
        return self.engine.create(replace(spec, mounts=tuple(mounts)))

    def collect(self, container: str, spec: ContainerSpec) -> None:
        """Bring back what a container has left that has ended."""
        if self.local:
            return
        for mount in spec.mounts:
            if mount.results:
                keep(self.engine.get(container, mount.target), Path(mount.source), mount.results)

    # --- there ---

    def _volume(self, mount: Mount, spec: ContainerSpec) -> str:
        """The volume that a folder is there: of all runs, of this one, or of this container alone."""
        if mount.volume:
            # Another user could not write to it.
            owner = (spec.user or "0").partition(":")[0]
            name, labels = f"tfdock-{owner}-{mount.volume}", {CACHE_LABEL: mount.volume}
        else:
            labels = {RUN_LABEL: self.run}
            kept = hashlib.sha256(mount.source.encode()).hexdigest()[:12]
            which = str(next(self._count)) if mount.given else kept
            name = f"tfdock-{self.run}-{which}"
        self.engine.create_volume(name, labels)
        return name

    def _fill(self, spec: ContainerSpec, volumes: dict[str, str]) -> None:
        """Give the volumes to the user and put what is here into them, through a container that is never started."""
        places = [(f"tfdock-{number}", mount) for number, mount in enumerate(spec.mounts)]
        mounts = (Mount(source=volumes[one.target], target=f"/{place}", kind="volume") for place, one in places)
        carrier = ContainerSpec(
            name=f"{spec.name}-carry",
            image=spec.image,
            command=("true",),
            mounts=tuple(mounts),
            labels={RUN_LABEL: self.run},
            network="none",
        )
        container = self.engine.create(carrier)
        self.engine.put(container, "/", _archive(places, spec.user or "0:0"))
        self.engine.remove(container)


def _there(mount: Mount, volume: str) -> Mount:
    """The mount of the volume. Of a file it is the folder that the file is in."""
    target = str(PurePosixPath(mount.target).parent) if Path(mount.source).is_file() else mount.target
    return Mount(source=volume, target=target, read_only=mount.read_only, kind="volume")


# --- to there -------------------------------------------------------------------------------------------------------


def _archive(places: Iterable[tuple[str, Mount]], user: str) -> Iterator[bytes]:
    """A tar archive with a folder for each place, which belongs to the user, and in it what a mount has here."""
    uid, _, gid = user.partition(":")
    for place, mount in places:
        yield _entry(place, int(uid), int(gid or 0), 0o755, None)
        if not mount.given:
            continue
        source = Path(mount.source)
        if source.is_file():  # it may have another name there
            yield from _file(f"{place}/{PurePosixPath(mount.target).name}", source, int(uid), int(gid or 0))
        for path in sorted(source.rglob("*")) if source.is_dir() else ():
            name = f"{place}/{path.relative_to(source).as_posix()}"
            if path.is_dir():
                yield _entry(name, int(uid), int(gid or 0), 0o755, None)
            elif path.is_file():
                yield from _file(name, path, int(uid), int(gid or 0))
    yield bytes(1024)


def _entry(name: str, uid: int, gid: int, mode: int, size: int | None) -> bytes:
    info = tarfile.TarInfo(name)
    info.type = tarfile.DIRTYPE if size is None else tarfile.REGTYPE
    info.size, info.mode, info.uid, info.gid, info.mtime = size or 0, mode, uid, gid, EPOCH
    return info.tobuf(tarfile.PAX_FORMAT)


def _file(name: str, path: Path, uid: int, gid: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        size = path.stat().st_size
        yield _entry(name, uid, gid, 0o755 if path.stat().st_mode & 0o100 else 0o644, size)
        left = size
        while left:
            piece = file.read(min(_PIECE, left))
            if not piece:
                raise OSError(f"{path} changed while it was read")
            left -= len(piece)
            yield piece
    yield bytes(-size % 512)


# --- and back -------------------------------------------------------------------------------------------------------


def keep(archive: Iterable[bytes], folder: Path, patterns: Iterable[str]) -> None:
    """Write an archive's files that have an expected name; raises EngineError for one that is no archive of ours.

    A name is expected if it fits a pattern, part by part. Links, devices and all else are left where they are.
    """
    patterns = tuple(patterns)
    try:
        with tarfile.open(fileobj=io.BufferedReader(Body(iter(archive)), _PIECE), mode="r|") as tar:
            for number, member in enumerate(tar):
                if number >= _MOST:
                    raise _refused(f"it has more than {_MOST:,} members")
                name = _expected(member.name, patterns) if member.isreg() else None
                content = tar.extractfile(member) if name else None
                if name and content:
                    _write(folder / name, content)
    except tarfile.TarError as error:
        raise _refused(str(error)) from error


def _expected(name: str, patterns: Iterable[str]) -> str | None:
    """The name within the folder, if it is one of those that are expected."""
    parts = PurePosixPath(name).parts[1:]
    if not parts or any(part in ("..", "/") or not part.isprintable() for part in parts) or name.startswith("/"):
        return None
    for pattern in patterns:
        wanted = pattern.split("/")
        if len(wanted) == len(parts) and all(map(fnmatch.fnmatchcase, parts, wanted)):
            return "/".join(parts)
    return None


def _write(path: Path, content: IO[bytes]) -> None:
    make_folder(path.parent)
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as file:
            while piece := content.read(_PIECE):
                file.write(piece)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _refused(why: str) -> EngineError:
    return EngineError(
        Problem(
            code="container-file-refused",
            message=f"what the container left is not taken from the engine: {why}",
            fix="run the same command again; if it stays, look at the engine's log",
        )
    )
