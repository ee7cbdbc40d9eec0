"""Define the engine protocol: everything that tfdock needs from a container engine, in tfdock's own types.

The implementation is `tfdock.engine.docker_engine`, on the Docker SDK. The tests have another one, in memory
(`tests/fake_engine.py`). Both pass the same contract tests. Every method raises only `TfdockError`s:
`EngineUnavailable`, `EngineLost`, `NetworkError` (registry), `BuildFailed`, `DiskFull`, or plain `EngineError`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tfdock.host.supervise import Output
from tfdock.types import Digest, EngineInfo, Mount

RUN_LABEL = "io.tfdock.run"  #: Label of every container of a run; its value is the run id.

#: Label that our Dockerfiles set right after FROM, so that the classic builder's step containers have it too.
IMAGE_LABEL = "io.tfdock.image"


BASE_LABEL = "io.tfdock.base"  #: Label of our images: the engine's id of the base image.

#: Label of our images: the hash of the toolchain file, which an image step wrote before any source was in the image.
TOOLCHAIN_LABEL = "io.tfdock.toolchain"

LARGEST_FILE = (
    1 << 20
)  #: The most bytes of a file that is read from a container. A program in the container chooses the size.


class Cancel:
    """A request to stop. A signal handler or another thread sets it once. Then hooks run."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._hooks: list[Callable[[], None]] = []

    def __bool__(self) -> bool:
        return self._event.is_set()

    def set(self) -> None:
        """Request a stop, and run the hooks. A second call does nothing."""
        if not self._event.is_set():
            self._event.set()
            # Loop over a copy: a hook may remove itself.
            for hook in list(self._hooks):
                hook()

    def on_set(self, hook: Callable[[], None]) -> Callable[[], None]:
        """Call `hook` when a stop is requested (at once if it was). Return a function that removes the hook."""
        # Add the hook before the check: a `set` in between may run the hook twice, but cannot miss it.
        self._hooks.append(hook)
        if self._event.is_set():
            hook()
        return lambda: self._hooks.remove(hook) if hook in self._hooks else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageInfo:
    """An image on the engine."""

    id: str  #: The image's id, valid in this engine only.
    tags: tuple[str, ...] = ()  #: The image's tags.
    digests: tuple[str, ...] = ()  #: The image's digests in registries, such as `name@sha256:…`.
    labels: Mapping[str, str] = field(default_factory=dict)  #: The image's labels.
    size: int = 0  #: Bytes of the image.


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSpec:
    """A container to create. `memory` in bytes, `cpus` in cores (None: no limit), `user` as `uid:gid`."""

    name: str
    image: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    workdir: str | None = None
    network: str | None = None
    memory: int | None = None
    cpus: float | None = None
    pids: int | None = None
    tmpfs: Mapping[str, str] = field(default_factory=dict)
    #: Allow ptrace, which a debugger needs: without this, the engine's seccomp profile may forbid ptrace.
    debugger: bool = False
    read_only: bool = False  #: The image's own files cannot be changed: only mounts and `tmpfs` can be written to.
    gpus: bool = False  #: All GPUs of the engine's GPU runtime, with their driver. Without a GPU, the start fails.
    devices: tuple[str, ...] = ()  #: Device files of the engine's machine (or folders of them), with the same paths.
    groups: tuple[int, ...] = ()  #: Further groups of the user, by number: the groups that may open the devices.
    #: Allocate a terminal and keep standard input open (for `tfdock shell` only: a terminal garbles logs).
    terminal: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerState:
    """The state of a container. `exit_code` is None while it runs."""

    id: str
    name: str
    running: bool
    exit_code: int | None = None
    oom_killed: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageBuild:
    """A classic build: `context` is a whole tar archive with a file `Dockerfile`.

    `target` is the last stage to build; None builds all.
    """

    context: Callable[[], Iterator[bytes]]
    target: str | None = None
    build_args: Mapping[str, str] = field(default_factory=dict)
    network: str | None = None
    memory: int | None = None


class Engine(Protocol):
    """A container engine."""

    def info(self) -> EngineInfo:
        """Return the facts about the engine; raise EngineUnavailable with a fix."""

    def ping(self, timeout: float = 5.0) -> bool:
        """Return whether the engine answers within `timeout` seconds; never raises."""

    def image(self, reference: str) -> ImageInfo | None:
        """Return the local image with this name, id or digest; None if there is no such image."""

    def pull(self, reference: str, output: Output | None = None) -> ImageInfo:
        """Pull an image from its registry. Raises NetworkError (`image-not-found`, `registry-…`)."""

    def build(self, request: ImageBuild, output: Output, cancel: Cancel) -> str:
        """Build an image, forward the output as it arrives, and return the image's id.

        Raises BuildFailed (`image-step-failed`) if a step fails, DiskFull for a full disk. Intermediate containers
        are always removed. If `cancel` is set, stop the engine's work and raise Interrupted.
        """

    def tag(self, image: str, name: str) -> None:
        """Give an image a name (`repository:tag`). Another image that has this name loses the name."""

    def push(self, name: str, output: Output) -> Digest:
        """Push the image with this name to the registry in the name; return the manifest's digest.

        Raises NetworkError (`registry-…`), and EngineError (`image-missing`) if there is no such image.
        """

    def remove_image(self, reference: str) -> None:
        """Remove an image's name, and the image if this was its last name. Do nothing if the name does not exist."""

    def dangling(self, label: str) -> list[ImageInfo]:
        """Return unnamed images with this label that are not the base of another image."""

    def save(self, images: Sequence[str], cancel: Cancel) -> Iterator[bytes]:
        """Stream an archive of the named images; shared layers are stored once.

        A stream that ends without an error may still be incomplete: the caller checks the last bytes of the archive.
        """

    def load(self, archive: Iterable[bytes], cancel: Cancel) -> None:
        """Load the images of an archive that `save` made, with their names.

        If an error is raised, no image was loaded: the errors of `archive`, or EngineError (`image-archive-refused`).
        """

    def create(self, spec: ContainerSpec) -> str:
        """Create a container and return its id. If an earlier try left a container with the same name, replace it."""

    def start(self, container: str) -> None:
        """Start a container."""

    def follow(self, container: str) -> Iterator[bytes]:
        """Yield the container's output from its start until it ends or is removed; then `state` tells which."""

    def state(self, container: str) -> ContainerState | None:
        """Return the container's state; None if the container is gone."""

    def signal(self, container: str, name: str) -> None:
        """Send a signal (`INT`, `TERM`, `KILL`) to the container's first process. Do nothing if it no longer runs."""

    def remove(self, container: str) -> None:
        """Kill and remove a container. Do nothing if the container is gone."""

    def containers(self, label: str, value: str | None = None) -> list[ContainerState]:
        """Return all containers, running or not, with this label (and this value, if given)."""

    def read_file(self, container: str, path: str) -> bytes | None:
        """Return the bytes of a container's regular file (at most `LARGEST_FILE`); None if the file does not exist.

        The container may be running, or may not have started yet.
        """

    def put(self, container: str, folder: str, archive: Iterable[bytes]) -> None:
        """Unpack a tar archive into a folder of a stopped container. Files keep the owners in the archive."""

    def get(self, container: str, path: str) -> Iterator[bytes]:
        """Yield a folder of a container as the bytes of a tar archive. The container may be running or not.

        The names in the archive begin with the folder's name.
        """

    def create_volume(self, name: str, labels: Mapping[str, str], options: Mapping[str, str] | None = None) -> None:
        """Create a volume, unless a volume with this name exists.

        `options` go to the engine's `local` driver, which mounts the volume when a container starts. If this fails,
        `start` raises EngineError (`volume-mount-refused`).
        """

    def volumes(self, label: str, value: str | None = None) -> list[str]:
        """Return the sorted names of all volumes with this label (and this value, if given)."""

    def remove_volume(self, name: str) -> None:
        """Remove a volume that no container uses. Do nothing if it does not exist."""

    def memory_killed(self, container: str) -> bool:
        """Return whether the container with this id had an out-of-memory event, even if the container is gone."""

    def attach(self, container: str) -> int:
        """Start a container with this process's terminal attached; return its exit code (`tfdock shell`)."""
