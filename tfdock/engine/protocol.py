"""Define the engine protocol: everything that tfdock needs from a container engine, in our own types.

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

#: Label that our Dockerfiles set right after FROM, so that the classic builder's step containers carry it too.
IMAGE_LABEL = "io.tfdock.image"


BASE_LABEL = "io.tfdock.base"  #: Label of our images: the engine's id of their base.

#: Label of our images: the hash of the toolchain file, which an image step wrote before any source was in the image.
TOOLCHAIN_LABEL = "io.tfdock.toolchain"

LARGEST_FILE = (
    1 << 20
)  #: The most bytes of a file that is read from a container, because a program in it chooses the size.


class Cancel:
    """A request to stop, set once from a signal handler or another thread, with hooks that act on it."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._hooks: list[Callable[[], None]] = []

    def __bool__(self) -> bool:
        return self._event.is_set()

    def set(self) -> None:
        """Ask to stop: run the hooks. Setting it twice does nothing more."""
        if not self._event.is_set():
            self._event.set()
            # Loop over a copy: a hook may remove itself.
            for hook in list(self._hooks):
                hook()

    def on_set(self, hook: Callable[[], None]) -> Callable[[], None]:
        """Call `hook` at the request, or at once if it was made already. Return a function that removes the hook."""
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
    """A container to create. `memory` in bytes, `cpus` in cores, `user` as `uid:gid`; None means no limit."""

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
    #: Allow ptrace, which a debugger needs: the engine's seccomp profile may forbid it without the capability.
    debugger: bool = False
    read_only: bool = False  #: The image's own files cannot be changed: only mounts and `tmpfs` can be written to.
    gpus: bool = False  #: All GPUs of the engine's GPU runtime, with their driver. Starting fails without any.
    devices: tuple[str, ...] = ()  #: Device files, or folders of them, of the engine's machine, under the same paths.
    groups: tuple[int, ...] = ()  #: Further groups of the user, by number: those that may open the devices.
    #: Allocate a terminal and keep standard input open (for `tfdock shell` only: it mangles logs).
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
        """Return the local image of that name, id or digest, or None."""

    def pull(self, reference: str, output: Output | None = None) -> ImageInfo:
        """Pull an image from its registry; raise NetworkError (`image-not-found`, `registry-…`)."""

    def build(self, request: ImageBuild, output: Output, cancel: Cancel) -> str:
        """Build an image, forward the output as it arrives, and return the image's id.

        A failing step raises BuildFailed (`image-step-failed`), a full disk DiskFull. Intermediate containers are
        always removed. When `cancel` is set the engine is told to stop and Interrupted is raised.
        """

    def tag(self, image: str, name: str) -> None:
        """Give an image a name (`repository:tag`); another image with this name loses it."""

    def push(self, name: str, output: Output) -> Digest:
        """Push the image with this name to the registry in the name; return the manifest's digest.

        Raises NetworkError (`registry-…`), and EngineError (`image-missing`) if there is no such image.
        """

    def remove_image(self, reference: str) -> None:
        """Remove an image's name, and the image if this was its last name. Do nothing if it is absent."""

    def dangling(self, label: str) -> list[ImageInfo]:
        """Return unnamed images with this label that are not the base of another image."""

    def save(self, images: Sequence[str], cancel: Cancel) -> Iterator[bytes]:
        """Stream an archive of the named images; shared layers are stored once.

        A stream that ends without an error may still be incomplete: the caller checks the last bytes of the archive.
        """

    def load(self, archive: Iterable[bytes], cancel: Cancel) -> None:
        """Load the images of an archive that `save` made, with their names.

        Raises the errors of `archive`, and EngineError (`image-archive-refused`); then no image was loaded.
        """

    def create(self, spec: ContainerSpec) -> str:
        """Create a container and return its id. A container of that name from an earlier try is replaced."""

    def start(self, container: str) -> None:
        """Start a container."""

    def follow(self, container: str) -> Iterator[bytes]:
        """Yield the container's output from the start, until it has ended or is gone; `state` then tells which."""

    def state(self, container: str) -> ContainerState | None:
        """Return the container's state, or None if it is gone."""

    def signal(self, container: str, name: str) -> None:
        """Send a signal (`INT`, `TERM`, `KILL`) to its first process; silent if it no longer runs."""

    def remove(self, container: str) -> None:
        """Kill and remove a container; silent if it is gone."""

    def containers(self, label: str, value: str | None = None) -> list[ContainerState]:
        """Return all containers, running or not, with the label (and this value)."""

    def read_file(self, container: str, path: str) -> bytes | None:
        """Return the bytes of a container's regular file, at most `LARGEST_FILE`; None if it is absent.

        The container may run, or may only have been created.
        """

    def put(self, container: str, folder: str, archive: Iterable[bytes]) -> None:
        """Unpack a tar archive into a folder of a stopped container, with the archive's owners."""

    def get(self, container: str, path: str) -> Iterator[bytes]:
        """Yield a folder of a container, running or not, as a tar archive.

        Its members begin with the folder's name.
        """

    def create_volume(self, name: str, labels: Mapping[str, str], options: Mapping[str, str] | None = None) -> None:
        """Create a volume, unless one with this name exists.

        `options` go to the engine's `local` driver, which mounts them when a container starts. Starting raises
        EngineError (`volume-mount-refused`) if they cannot be mounted.
        """

    def volumes(self, label: str, value: str | None = None) -> list[str]:
        """Return the sorted names of all volumes with the label (and this value)."""

    def remove_volume(self, name: str) -> None:
        """Remove a volume that no container uses; silent if it is absent."""

    def memory_killed(self, container: str) -> bool:
        """Return whether the container with this id had an out-of-memory event, even if it is gone."""

    def attach(self, container: str) -> int:
        """Start a container with this process's terminal attached; return its exit code (`tfdock shell`)."""
