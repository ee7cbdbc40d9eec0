"""The engine protocol in memory: for tests of what is built on it, and of the protocol itself.

What containers and builds do is scripted (`on_run`, `on_build`), failures are queued (`fail_next`), and every call is
kept in `calls`. It passes the same contract tests as the real engine; what only a kernel can do (capabilities,
limits, networks) it merely records in the spec.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tarfile
import tempfile
import threading
import traceback
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path

from tfdock.engine.protocol import (
    LARGEST_FILE,
    RUN_LABEL,
    Cancel,
    ContainerSpec,
    ContainerState,
    ImageBuild,
    ImageInfo,
)
from tfdock.errors import (
    BuildFailed,
    EngineError,
    EngineLost,
    EngineUnavailable,
    Interrupted,
    NetworkError,
    Problem,
    TfdockError,
)
from tfdock.host.supervise import Output
from tfdock.types import Digest, EngineInfo

_SIGNALS = {"INT": 130, "TERM": 143, "KILL": 137}


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeRun:
    """What a container does: its output, `pause` seconds between the pieces, then its effect, then its exit code.

    An `endless` one stays until a signal that `signals` lists; others are ignored, except KILL.
    """

    output: Iterable[bytes] = ()
    pause: float = 0.0
    effect: Callable[[ContainerSpec], None] | None = None
    exit_code: int = 0
    endless: bool = False
    signals: Mapping[str, int] = field(default_factory=lambda: dict(_SIGNALS))
    oom_killed: bool = False
    files: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeBuild:
    """What an image build does; an `endless` one stays until it is cancelled."""

    output: Iterable[bytes] = (b"Step 1/1 : FROM scratch\n",)
    labels: Mapping[str, str] = field(default_factory=dict)
    error: TfdockError | None = None
    endless: bool = False


class _Container:
    """A container and the thread that is its process."""

    def __init__(self, spec: ContainerSpec, number: int) -> None:
        self.spec, self.seen, self.id = spec, spec, hashlib.sha256(str(number).encode()).hexdigest()
        self.output = bytearray()
        self.changed = threading.Condition()
        self.status, self.exit_code = "created", 0
        self.run = FakeRun()
        self._killed: int | None = None

    def start(self, run: FakeRun, seen: ContainerSpec) -> None:
        """Begin; `seen` is the spec with the folders that its volumes are."""
        self.run, self.seen, self.status = run, seen, "running"
        threading.Thread(target=self._live, name=self.spec.name, daemon=True).start()

    def kill(self, signal: str) -> None:
        with self.changed:
            if self.status == "running" and (signal in self.run.signals or signal == "KILL"):
                self._killed = self.run.signals.get(signal, _SIGNALS["KILL"])
                self.changed.notify_all()

    def read(self) -> Iterator[bytes]:
        start = 0
        while piece := self._next(start):
            start += len(piece)
            yield piece

    def _next(self, start: int) -> bytes:
        """The output from there on, as soon as there is some; empty at its end."""
        with self.changed:
            self.changed.wait_for(lambda: len(self.output) > start or self.status == "exited")
            return bytes(self.output[start:])

    def wait(self) -> int:
        with self.changed:
            self.changed.wait_for(lambda: self.status == "exited")
            return self.exit_code

    @property
    def state(self) -> ContainerState:
        with self.changed:
            ended = self.status == "exited"
            return ContainerState(
                id=self.id,
                name=self.spec.name,
                running=self.status == "running",
                exit_code=self.exit_code if ended else None,
                oom_killed=ended and self.run.oom_killed,
                labels=dict(self.spec.labels),
            )

    def _live(self) -> None:
        try:
            code = self._work()
        except Exception:  # a failing assertion in an effect shows in the log instead of vanishing with its thread
            self._print(traceback.format_exc().encode())
            code = 1
        with self.changed:
            self.status, self.exit_code = "exited", code
            self.changed.notify_all()

    def _work(self) -> int:
        for piece in self.run.output:
            self._print(piece)
            if self._signalled(self.run.pause):
                break
        if self.run.endless:
            self._signalled(None)
        if self._killed is not None:
            return self._killed
        if self.run.effect:
            self.run.effect(self.seen)
        return self.run.exit_code

    def _print(self, piece: bytes) -> None:
        with self.changed:
            self.output += piece
            self.changed.notify_all()

    def _signalled(self, seconds: float | None) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: self._killed is not None, seconds)


class FakeEngine:
    """An engine whose containers are threads. Set `alive` to False to have it die."""

    def __init__(self) -> None:
        self.images: dict[str, ImageInfo] = {}
        """What the engine has, by name."""
        self.registry: dict[str, ImageInfo] = {}
        """What `pull` finds, by name."""
        self.on_run: Callable[[ContainerSpec], FakeRun] = lambda _: FakeRun()
        self.on_build: Callable[[ImageBuild], FakeBuild] = lambda _: FakeBuild()
        self.calls: list[tuple[object, ...]] = []
        """Every call: its name and arguments."""
        self.alive = True
        self.engine_info = EngineInfo(
            name="fake", version="0", api_version="1.41", cpus=4, memory=16 << 30, data_root="/var/lib/fake"
        )
        self.volume_labels: dict[str, Mapping[str, str]] = {}
        """The volumes that there are, by name. What is in one lies in a folder, which runs are given instead."""
        self._unmountable: set[str] = set()
        self._containers: dict[str, _Container] = {}
        self._killed: set[str] = set()
        self._failures: dict[str, list[tuple[TfdockError, int]]] = {}

    def fail_next(self, method: str, error: TfdockError, *, after: int = 0) -> None:
        """Have the next call of that method raise; `follow` may hand out `after` bytes before."""
        self._failures.setdefault(method, []).append((error, after))

    def called(self, method: str) -> list[tuple[object, ...]]:
        """The arguments of every call of that method."""
        return [arguments for name, *arguments in self.calls if name == method]  # type: ignore[misc]

    # The protocol -------------------------------------------------------------------------------------------

    def info(self) -> EngineInfo:
        self._called("info")
        return self.engine_info

    def ping(self, timeout: float = 5.0) -> bool:
        self.calls.append(("ping", timeout))
        return self.alive

    def image(self, reference: str) -> ImageInfo | None:
        self._called("image", reference)
        return self._image(reference)

    def pull(self, reference: str, output: Output | None = None) -> ImageInfo:
        self._called("pull", reference)
        image = self.registry.get(reference)
        if image is None:
            raise NetworkError(Problem(code="image-not-found", message=f"the registry has no image `{reference}`"))
        if output:
            output(f"{reference}: Pull complete\n".encode())
        self.images[reference] = image
        return image

    def build(self, request: ImageBuild, output: Output, cancel: Cancel) -> str:
        self._called("build", request)
        content = b"".join(request.context())
        _check_context(content)
        build = self.on_build(request)
        for piece in build.output:
            _check_cancel(cancel)
            output(piece)
        _wait_for_cancel(cancel, build.endless)
        if build.error is not None:
            raise build.error
        return self._built(content, request, build)

    def tag(self, image: str, name: str) -> None:
        self._called("tag", image, name)
        found = self._existing_image(image)
        for other, info in self.images.items():
            self.images[other] = replace(info, tags=tuple(tag for tag in info.tags if tag != _tagged(name)))
        self.images[_tagged(name)] = replace(found, tags=(*found.tags, _tagged(name)))

    def push(self, name: str, output: Output) -> Digest:
        self._called("push", name)
        found = self._existing_image(name)
        self.registry[name] = replace(found, tags=(), digests=())
        output(f"{name}: Pushed\n".encode())
        return Digest(f"sha256:{hashlib.sha256(found.id.encode()).hexdigest()}")

    def remove_image(self, reference: str) -> None:
        self._called("remove_image", reference)
        for name in [
            name for name, info in self.images.items() if _tagged(reference) == name or info.id == reference
        ]:
            del self.images[name]

    def dangling(self, label: str) -> list[ImageInfo]:
        self._called("dangling", label)
        named = {info.id for info in self.images.values() if info.tags}
        return [info for info in self.images.values() if label in info.labels and info.id not in named]

    def save(self, images: Sequence[str], cancel: Cancel) -> Iterator[bytes]:
        self._called("save", tuple(images))
        rows = [{"RepoTags": [name], "image": asdict(self._existing_image(name))} for name in images]
        content = json.dumps(rows).encode()
        entry = tarfile.TarInfo("manifest.json")
        entry.size = len(content)
        archive = entry.tobuf() + content + bytes(-len(content) % 512) + bytes(1024)
        for start in range(0, len(archive), 512):
            _check_cancel(cancel)
            yield archive[start : start + 512]

    def load(self, archive: Iterable[bytes], cancel: Cancel) -> None:
        self._called("load")
        content = io.BytesIO()
        for piece in archive:
            _check_cancel(cancel)
            content.write(piece)
        content.seek(0)
        try:
            with tarfile.open(fileobj=content) as tar:
                file = tar.extractfile("manifest.json")
                rows = json.load(file) if file else []
        except (tarfile.TarError, ValueError, KeyError) as error:
            raise _error("image-archive-refused", f"this is no archive of images: {error}") from error
        for row in rows:
            tags = tuple(row["RepoTags"])
            self.images[tags[0]] = ImageInfo(**row["image"] | {"tags": tags, "digests": ()})

    def create(self, spec: ContainerSpec) -> str:
        self._called("create", spec)
        self._existing_image(spec.image)
        for mount in spec.mounts:
            if mount.kind == "bind" and not Path(mount.source).exists():
                raise _error("mount-source-missing", f"the folder {mount.source} does not exist")
        self._free_name(spec.name)
        container = _Container(spec, len(self.calls))
        self._containers[container.id] = container
        return container.id

    def start(self, container: str) -> None:
        self._called("start", container)
        found = self._existing(container)
        if found.spec.gpus and not set(self.engine_info.runtimes) - {"runc"}:
            raise _error("gpu-runtime-missing", "the engine has no container runtime for GPUs")
        if any(mount.source in self._unmountable for mount in found.spec.mounts):
            raise _error("volume-mount-refused", "the engine cannot mount a volume: it is made of memory")
        seen = self._resolved(found.spec)
        found.start(self.on_run(seen), seen)
        if found.run.oom_killed:
            self._killed.add(found.id)

    def follow(self, container: str) -> Iterator[bytes]:
        failure = self._failure("follow")
        self._called("follow", container)
        pieces = self._existing(container).read()
        if failure is None:
            yield from pieces
            return
        error, after = failure
        for piece in pieces:
            if len(piece) >= after:
                yield piece[:after]
                break
            after -= len(piece)
            yield piece
        raise error

    def state(self, container: str) -> ContainerState | None:
        self._called("state", container)
        found = self._container(container)
        return found.state if found else None

    def signal(self, container: str, name: str) -> None:
        self._called("signal", container, name)
        if found := self._container(container):
            found.kill(name)

    def remove(self, container: str) -> None:
        self._called("remove", container)
        if found := self._container(container):
            found.kill("KILL")
            del self._containers[found.id]

    def containers(self, label: str, value: str | None = None) -> list[ContainerState]:
        self._called("containers", label, value)
        states = [container.state for container in self._containers.values()]
        return [
            state for state in states if label in state.labels and (value is None or state.labels[label] == value)
        ]

    def read_file(self, container: str, path: str) -> bytes | None:
        self._called("read_file", container, path)
        found = self._container(container)
        content = found.run.files.get(path) if found else None
        if content is not None and len(content) > LARGEST_FILE:
            raise _error("container-file-refused", f"{path} is over the limit of {LARGEST_FILE} bytes")
        return content

    def put(self, container: str, folder: str, archive: Iterable[bytes]) -> None:
        self._called("put", container, folder)
        spec = self._resolved(self._existing(container).spec)
        with tarfile.open(fileobj=io.BytesIO(b"".join(archive))) as tar:
            for member in tar:
                path = self._place(spec, f"{folder.rstrip('/')}/{member.name}")
                content = tar.extractfile(member)
                (path if content is None else path.parent).mkdir(parents=True, exist_ok=True)
                if content is not None:
                    path.write_bytes(content.read())

    def get(self, container: str, path: str) -> Iterator[bytes]:
        self._called("get", container, path)
        folder = self._place(self._resolved(self._existing(container).spec), path)
        content = io.BytesIO()
        with tarfile.open(fileobj=content, mode="w") as tar:
            tar.add(folder, Path(path).name)
        yield content.getvalue()

    def create_volume(self, name: str, labels: Mapping[str, str], options: Mapping[str, str] | None = None) -> None:
        self._called("create_volume", name)
        self.volume_labels.setdefault(name, labels)
        if options:
            self._unmountable.add(name)

    def volumes(self, label: str, value: str | None = None) -> list[str]:
        self._called("volumes", label, value)
        return sorted(
            name
            for name, labels in self.volume_labels.items()
            if label in labels and (value is None or labels[label] == value)
        )

    def remove_volume(self, name: str) -> None:
        self._called("remove_volume", name)
        if self.volume_labels.pop(name, None) is not None:
            shutil.rmtree(self._volume(name))

    def memory_killed(self, container: str) -> bool:
        self._called("memory_killed", container)
        return container in self._killed

    def attach(self, container: str) -> int:
        self._called("attach", container)
        self.start(container)
        return self._existing(container).wait()

    # Volumes ------------------------------------------------------------------------------------------------

    @cached_property
    def _volumes(self) -> Path:
        folder = tempfile.mkdtemp(prefix="tfdock-fake-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        return Path(folder)

    def _volume(self, name: str) -> Path:
        folder = self._volumes / name
        folder.mkdir(exist_ok=True)
        return folder

    def _resolved(self, spec: ContainerSpec) -> ContainerSpec:
        """The container with the folders that its volumes are."""
        mounts = (
            replace(mount, source=str(self._volume(mount.source))) if mount.kind == "volume" else mount
            for mount in spec.mounts
        )
        return replace(spec, mounts=tuple(mounts))

    @staticmethod
    def _place(spec: ContainerSpec, path: str) -> Path:
        """Where a path in a container lies; only mounts have files."""
        for mount in spec.mounts:
            if Path(path).is_relative_to(mount.target):
                return Path(mount.source) / Path(path).relative_to(mount.target)
        raise _error("container-gone", f"nothing is mounted at {path}")

    # Behind it ----------------------------------------------------------------------------------------------

    def _called(self, method: str, *arguments: object) -> None:
        self.calls.append((method, *arguments))
        if not self.alive:
            unavailable = EngineUnavailable if method == "info" else EngineLost
            raise unavailable(Problem(code="engine-lost", message="the fake engine is dead"))
        if failure := self._failure(method):
            raise failure[0]

    def _failure(self, method: str) -> tuple[TfdockError, int] | None:
        queue = self._failures.get(method)
        return queue.pop(0) if queue else None

    def _image(self, reference: str) -> ImageInfo | None:
        if reference in self.images or _tagged(reference) in self.images:
            return self.images.get(reference) or self.images[_tagged(reference)]
        known = self.images.values()
        return next((info for info in known if reference == info.id or reference in info.digests), None)

    def _existing_image(self, reference: str) -> ImageInfo:
        found = self._image(reference)
        if found is None:
            raise _error("image-missing", f"the engine does not have the image {reference}")
        return found

    def _built(self, content: bytes, request: ImageBuild, build: FakeBuild) -> str:
        identity = f"{request.target} {sorted(request.build_args.items())}".encode()
        image = f"sha256:{hashlib.sha256(content + identity).hexdigest()}"
        self.images[image] = ImageInfo(id=image, labels=dict(build.labels), size=len(content))
        return image

    def _container(self, container: str) -> _Container | None:
        # By name, or by the short id that the builder prints.
        found = (one for one in self._containers.values() if one.spec.name == container or one.id[:12] == container)
        return self._containers.get(container) or next(found, None)

    def _existing(self, container: str) -> _Container:
        found = self._container(container)
        if found is None:
            raise _error("container-gone", f"no container {container}")
        return found

    def _free_name(self, name: str) -> None:
        taken = self._container(name)
        if taken is None:
            return
        if RUN_LABEL not in taken.spec.labels:
            raise _error("container-name-taken", f"a container named {name} exists, but tfdock did not create it")
        self.remove(taken.id)


def _tagged(name: str) -> str:
    return name if ":" in name.rpartition("/")[2] or "@" in name else f"{name}:latest"


def _error(code: str, message: str) -> EngineError:
    return EngineError(Problem(code=code, message=message))


def _check_context(content: bytes) -> None:
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        if "Dockerfile" not in tar.getnames():
            raise BuildFailed(Problem(code="dockerfile-refused", message="there is no Dockerfile in the context"))


def _check_cancel(cancel: Cancel) -> None:
    if cancel:
        raise Interrupted(Problem(code="interrupted", message="the engine's work was stopped on request"))


def _wait_for_cancel(cancel: Cancel, endless: bool) -> None:
    stopped = threading.Event()
    forget = cancel.on_set(stopped.set)
    if endless:
        stopped.wait()
    forget()
    _check_cancel(cancel)
