"""Run a container, from its description to its results: check folders, copy in, create, follow, copy out.

An engine on this machine mounts the folders. For an engine on another machine, files are copied into volumes, and
results are copied back.
"""

from __future__ import annotations

import hashlib
import os
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from tfdock import events
from tfdock.engine.protocol import RUN_LABEL, ContainerSpec, ContainerState
from tfdock.errors import EngineError, EngineLost
from tfdock.host.supervise import Output
from tfdock.plan.build_plan import EPOCH
from tfdock.run import results
from tfdock.run.supervisor import OutputTap, Supervisor
from tfdock.types import Mount

CACHE_LABEL = "io.tfdock.cache"  #: Label of the volumes that all runs share; its value names their content.
_PIECE = 1 << 20


def run(
    supervisor: Supervisor,
    spec: ContainerSpec,
    phase: str,
    title: str,
    *,
    tap: OutputTap | None = None,
    hidden: Sequence[str] = (),
    stop_signal: str = "INT",
) -> tuple[ContainerState, bool]:
    """Run a container; return how it ended, and whether a process in it was killed because memory ran out.

    The texts in `hidden` are removed from the output. A stop or the time limit sends `stop_signal`, then
    KILL if needed, and raises. The container is not removed.
    """
    engine = supervisor.engine
    container = engine.create(copy_in(supervisor, spec))
    engine.start(container)

    def follow(output: Output) -> ContainerState:
        for chunk in engine.follow(container):
            output(chunk)
        state = engine.state(container)
        if state is None:
            fix = "run the same command again: the cache is kept"
            raise EngineLost.of("container-gone", "the container was removed while it ran", fix)
        return state

    stopper = supervisor.stopper(
        # INT is Ctrl-C: Bazel stops cleanly, and its cache keeps what is done.
        gently=lambda: engine.signal(container, stop_signal),
        by_force=lambda: engine.signal(container, "KILL"),
    )
    state = supervisor.watch(title, follow, stopper, tap=tap, hidden=hidden)
    # OOMKilled may not show that a compiler was killed while the container went on. An event shows this.
    memory = state.oom_killed or engine.memory_killed(container)
    # Results of a container that failed, or lost a process, are not used.
    if state.exit_code == 0 and not memory:
        _copy_out(supervisor, container, spec)
    else:
        # A stop ends the container with an error: the stop is the reason, not the error.
        supervisor.stop.check()
        if stopper.late:
            supervisor.give_up(phase)
    return state, memory


def copy_in(supervisor: Supervisor, spec: ContainerSpec) -> ContainerSpec:
    """Return the container to create: its mounts are checked; for a remote engine, its files are copied there.

    Raises EngineError (`mount-refused`) for a folder that another program may have replaced.
    """
    _check_mounts(supervisor, spec)
    if supervisor.local:
        return spec
    # Targets are the keys: one folder may be mounted at two places.
    volumes = {mount.target: _make_volume(supervisor, mount, spec) for mount in spec.mounts}
    _fill_volumes(supervisor, spec, volumes)
    return replace(spec, mounts=tuple(_volume_mount(mount, volumes[mount.target]) for mount in spec.mounts))


def _check_mounts(supervisor: Supervisor, spec: ContainerSpec) -> None:
    """Refuse a mount whose source is reached through a link, or is in a folder that a container could write to."""
    bound = [mount for mount in spec.mounts if mount.kind == "bind"]
    # Check all mounts first: one mount of a container may be inside another.
    supervisor.writable.update(Path(mount.source) for mount in bound if not mount.read_only)
    for mount in bound:
        source = Path(mount.source)
        # A container can put a link to `/`, or to the engine's socket, in the place of a folder.
        if os.path.realpath(source) != mount.source:
            raise _refused_mount(mount, f"its real path is {os.path.realpath(source)}")
        if not supervisor.writable.isdisjoint(source.parents):
            raise _refused_mount(mount, "a container could write to its parent folder")


def _copy_out(supervisor: Supervisor, container: str, spec: ContainerSpec) -> None:
    """Copy the results of a container that has ended; report what is left out."""
    for mount in spec.mounts:
        if not mount.results:
            continue
        if supervisor.local:
            left_out = results.copy_from_folder(Path(mount.source), mount.results, Path(mount.results_folder))
        else:
            archive = supervisor.engine.get(container, mount.target)
            left_out = results.copy_from_archive(archive, mount.results, Path(mount.results_folder))
        for text in left_out:
            supervisor.listen(events.Notice(text=text))


# --- to an engine elsewhere -----------------------------------------------------------------------------------------


def _make_volume(supervisor: Supervisor, mount: Mount, spec: ContainerSpec) -> str:
    """Make the volume for a folder and return its name: for all runs, for this run, or for this container."""
    # Caches outlive the run. Every other volume has the run's label, so that the cleanup finds it.
    if mount.volume:
        # The name has the owner's number: another user could not write to the volume.
        owner = (spec.user or "0").partition(":")[0]
        name, labels = f"tfdock-{owner}-{mount.volume}", {CACHE_LABEL: mount.volume}
    else:
        labels = {RUN_LABEL: supervisor.run_id}
        kept = hashlib.sha256(mount.source.encode()).hexdigest()[:12]
        # A given folder gets a new volume for each container. Other folders need the same volume in every phase.
        which = str(next(supervisor.numbers)) if mount.given else kept
        name = f"tfdock-{supervisor.run_id}-{which}"
    supervisor.engine.create_volume(name, labels)
    return name


def _fill_volumes(supervisor: Supervisor, spec: ContainerSpec, volumes: dict[str, str]) -> None:
    """Copy files into the volumes and give them to the user, through a container that is never started."""
    places = [(f"tfdock-{number}", mount) for number, mount in enumerate(spec.mounts)]
    mounts = (Mount(source=volumes[mount.target], target=f"/{place}", kind="volume") for place, mount in places)
    carrier = ContainerSpec(
        name=f"{spec.name}-carry",
        image=spec.image,
        # The engine requires a command. It unpacks files into a created container without running anything.
        command=("true",),
        mounts=tuple(mounts),
        labels={RUN_LABEL: supervisor.run_id},
        network="none",
    )
    container = supervisor.engine.create(carrier)
    supervisor.engine.put(container, "/", _tar_archive(places, spec.user or "0:0"))
    supervisor.engine.remove(container)


def _volume_mount(mount: Mount, volume: str) -> Mount:
    """Return the mount of the volume. For a file, the folder of the file is mounted."""
    # An engine mounts a volume as a folder only.
    target = str(PurePosixPath(mount.target).parent) if Path(mount.source).is_file() else mount.target
    return Mount(source=volume, target=target, read_only=mount.read_only, kind="volume")


def _tar_archive(places: Iterable[tuple[str, Mount]], user: str) -> Iterator[bytes]:
    """Yield a tar archive: a folder for each place, owned by the user, with the files of its mount."""
    uid, _, gid = user.partition(":")
    for place, mount in places:
        yield _tar_entry(place, int(uid), int(gid or 0), 0o755, None)
        if not mount.given:
            continue
        source = Path(mount.source)
        if source.is_file():  # the file may have another name in the container
            yield from _tar_file(f"{place}/{PurePosixPath(mount.target).name}", source, int(uid), int(gid or 0))
        for path in sorted(source.rglob("*")) if source.is_dir() else ():
            name = f"{place}/{path.relative_to(source).as_posix()}"
            if path.is_dir():
                yield _tar_entry(name, int(uid), int(gid or 0), 0o755, None)
            elif path.is_file():
                yield from _tar_file(name, path, int(uid), int(gid or 0))
    # POSIX ends a tar with two blocks of zeros.
    yield bytes(1024)


def _tar_entry(name: str, uid: int, gid: int, mode: int, size: int | None) -> bytes:
    info = tarfile.TarInfo(name)
    info.type = tarfile.DIRTYPE if size is None else tarfile.REGTYPE
    info.size, info.mode, info.uid, info.gid, info.mtime = size or 0, mode, uid, gid, EPOCH
    return info.tobuf(tarfile.PAX_FORMAT)


def _tar_file(name: str, path: Path, uid: int, gid: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        size = path.stat().st_size
        yield _tar_entry(name, uid, gid, 0o755 if path.stat().st_mode & 0o100 else 0o644, size)
        left = size
        while left:
            piece = file.read(min(_PIECE, left))
            # The header has stated the size: fewer bytes would shift all that follows.
            if not piece:
                raise OSError(f"{path} changed while it was read")
            left -= len(piece)
            yield piece
    yield bytes(-size % 512)


def _refused_mount(mount: Mount, why: str) -> EngineError:
    return EngineError.of(
        "mount-refused",
        f"{mount.source} is not mounted at {mount.target}: {why}",
        "give the real paths of the wheelhouse and the cache; if the error stays, report it with the log",
        why="a container gets only folders that this run made, by their real paths",
    )
