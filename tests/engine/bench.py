"""What the engine tests share: a bench to run scripts and builds on, and engines that may be killed."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import docker
import pytest
from bed import missing, needs_root
from fake_engine import FakeBuild, FakeEngine, FakeRun
from waits import wait_until

from tfdock.engine.docker_engine import DockerEngine
from tfdock.engine.protocol import (
    IMAGE_LABEL,
    RUN_LABEL,
    Cancel,
    ContainerSpec,
    ContainerState,
    Engine,
    ImageBuild,
    ImageInfo,
)
from tfdock.types import Mount

IMAGE = "tfdock-test/busybox:latest"
APPLETS = "cat chmod echo head id kill ls mkdir printf seq sh sleep stty tail test touch tr true yes"
RUN = f"engine-tests-{os.getpid()}"


def tar(files: Mapping[str, bytes], links: Mapping[str, str] | None = None, folders: Iterable[str] = ()) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for name in folders:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            archive.addfile(entry)
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o755
            archive.addfile(entry, io.BytesIO(data))
        for name, target in (links or {}).items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            archive.addfile(entry)
    return content.getvalue()


def busybox() -> bytes:
    """A root file system of one static program, so that no registry is needed."""
    program = Path(shutil.which("busybox") or "/bin/busybox")
    if not program.exists() or b"ld-linux" in program.read_bytes()[:4096]:
        missing("needs a static busybox (Debian's busybox-static)")
    links = {f"bin/{name}": "busybox" for name in APPLETS.split()}
    # A folder that no entry makes is root's alone, and another user's on a rootless engine.
    folders = ("bin", "etc", "tmp", "proc")
    return tar({"bin/busybox": program.read_bytes(), "etc/passwd": b"root:x:0:0::/:/bin/sh\n"}, links, folders)


def import_busybox(host: str) -> None:
    client: Any = docker.APIClient(host, version="auto", timeout=60)
    with contextlib.closing(client):
        client.import_image_from_data(busybox(), repository="tfdock-test/busybox", tag="latest")


@dataclass
class Bench:
    """An engine and short ways to use it. Every script comes with what the fake does in its stead."""

    name: str
    engine: Engine
    temporary: Path
    scripts: dict[str, FakeRun] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=count)

    def spec(self, script: str, fake: FakeRun | None = None, **changes: Any) -> ContainerSpec:
        number = next(self.numbers)
        self.scripts[f"{RUN}-{number}"] = fake or FakeRun()
        wanted: dict[str, Any] = {
            "name": f"{RUN}-{number}",
            "image": IMAGE,
            "command": ("sh", "-c", script),
            "labels": {RUN_LABEL: RUN},
            "network": "none",
        }
        return ContainerSpec(**wanted | changes)

    @property
    def fake(self) -> FakeEngine:
        assert isinstance(self.engine, FakeEngine)
        return self.engine

    def folder(self, files: Mapping[str, bytes], target: str, read_only: bool = False) -> Mount:
        """A mount of a new folder with these files."""
        source = Path(tempfile.mkdtemp(dir=self.temporary))
        source.chmod(0o777)
        for name, content in files.items():
            (source / name).write_bytes(content)
        return Mount(source=str(source), target=target, read_only=read_only)

    def remove_volume(self, name: str) -> None:
        with contextlib.closing(self._sdk()) as client:
            client.remove_volume(name)

    def skip_without_limits(self) -> None:
        """Skip on a rootless engine of a machine with control groups of version 1: such an engine limits nothing."""
        if self.name != "fake":
            with contextlib.closing(self._sdk()) as client:
                if client.info()["CgroupDriver"] == "none":
                    pytest.skip("this engine has no control groups, so it limits nothing")

    def _sdk(self) -> Any:
        assert isinstance(self.engine, DockerEngine)
        return docker.APIClient(self.engine.address.url, version="auto")

    def started(self, script: str, fake: FakeRun | None = None, **changes: Any) -> str:
        container = self.engine.create(self.spec(script, fake, **changes))
        self.engine.start(container)
        return container

    def run(self, script: str, fake: FakeRun | None = None, **changes: Any) -> tuple[bytes, ContainerState]:
        """Run to the end: output and final state. The container is gone afterwards."""
        container = self.started(script, fake, **changes)
        output = b"".join(self.engine.follow(container))
        state = self.ended(container)
        self.engine.remove(container)
        return output, state

    def ended(self, container: str) -> ContainerState:
        state = None
        for _ in range(200):
            state = self.engine.state(container)
            if state is not None and not state.running:
                return state
            time.sleep(0.05)
        raise AssertionError(f"still running: {state}")

    def build(
        self, text: str, fake: FakeBuild | None = None, *, cancel: Cancel | None = None, **changes: Any
    ) -> tuple[str, bytes]:
        """Build an image FROM busybox: id and output."""
        if self.name == "fake":
            self.fake.on_build = lambda _: fake or FakeBuild()
        output = bytearray()
        request = image_build(f"FROM {IMAGE}\nLABEL {IMAGE_LABEL}={RUN}\n{text}", **changes)
        # `cancel or Cancel()` would replace the caller's: one that is not set yet is false.
        image = self.engine.build(request, output.extend, Cancel() if cancel is None else cancel)
        return image, bytes(output)


def image_build(text: str, **changes: Any) -> ImageBuild:
    context = tar({"Dockerfile": text.encode(), "greeting": b"hello\n"})
    pieces = [context[start : start + 4096] for start in range(0, len(context), 4096)]
    wanted: dict[str, Any] = {"context": lambda: iter(pieces), "network": "none"}
    return ImageBuild(**wanted | changes)


def fake_bench(temporary: Path) -> Bench:
    engine = FakeEngine()
    engine.images[IMAGE] = ImageInfo(id="sha256:" + "b" * 64, tags=(IMAGE,))
    bench = Bench("fake", engine, temporary)
    engine.on_run = lambda spec: bench.scripts.get(spec.name, FakeRun())
    return bench


class PrivateEngine:
    """A dockerd that a test may kill: own socket, own data, no network."""

    def __init__(self, folder: Path, data: Path, *options: str) -> None:
        self.folder, self.data, self.options = folder, data, options
        self.host = f"unix://{folder}/docker.sock"
        self.engine = DockerEngine(self.host)
        self._process: subprocess.Popen[bytes] | None = None

    def up(self) -> None:
        """Start it: a failure where it ran before and does not come back, else as `missing` has it."""
        give_up = pytest.fail if self._process else missing
        for _ in range(2):  # after a SIGKILL the first start can trip over what is left of containerd
            self._start()
            with contextlib.suppress(AssertionError):
                wait_until(lambda: self.engine.ping() or self._ended(), 60)
            if not self._ended():
                return
        give_up(f"no private dockerd: {(self.folder / 'dockerd.log').read_text()[-500:]}")

    def kill(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        if number in (signal.SIGKILL, signal.SIGTERM):
            self._process.wait(30)

    def revive(self) -> None:
        """Have it run, whatever was done to it."""
        self.kill(signal.SIGCONT)
        if not self.engine.ping():
            assert self._process is not None
            self._process.wait(30)
            self.up()

    def down(self) -> None:
        """Stop it, and first start it again if it was killed: its containers' shims live on without it."""
        self.revive()
        for container in [*self.engine.containers(RUN_LABEL), *self.engine.containers(IMAGE_LABEL)]:
            self.engine.remove(container.id)
        self.kill(signal.SIGTERM)

    def _start(self) -> None:
        flags = ["--bridge=none", "--iptables=false", "--ip-masq=false", "--insecure-registry=127.0.0.0/8"]
        places = [f"--data-root={self.data}", f"--exec-root={self.folder}/exec", f"--pidfile={self.folder}/pid"]
        # A killed containerd that nobody reaps (no init here) passes for running, and dockerd waits for it in vain.
        for stale in ("pid", "exec/containerd/containerd.pid"):
            (self.folder / stale).unlink(missing_ok=True)
        with (self.folder / "dockerd.log").open("ab") as log:
            self._process = subprocess.Popen(
                ["dockerd", "--host", self.host, *flags, *places, *self.options],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _ended(self) -> bool:
        return self._process is None or self._process.poll() is not None


@contextlib.contextmanager
def private_engine(*options: str, data: Path | None = None) -> Iterator[PrivateEngine]:
    needs_root("a private dockerd")
    if not shutil.which("dockerd"):
        missing("a private dockerd needs Debian's docker.io")
    # Not tmp_path: a unix socket's path ends at 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="tfdock-engine-"))
    engine = PrivateEngine(folder, data or folder / "data", *options)
    try:
        engine.up()
        import_busybox(engine.host)
        yield engine
        engine.down()
    finally:
        if not engine._ended():
            engine.kill(signal.SIGKILL)
        unmount_all(folder, engine.data)
        shutil.rmtree(folder)


@contextlib.contextmanager
def loop_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system of that size at that folder, with nothing in it and nothing kept for root."""
    needs_root("a small disk")
    folder.mkdir()
    disk = folder.with_name(f"{folder.name}.img")
    try:
        subprocess.run(["truncate", "-s", size, disk], check=True)
        subprocess.run(["mkfs.ext4", "-qF", "-m", "0", disk], check=True, capture_output=True)
        subprocess.run(["mount", "-o", "loop", disk, folder], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        missing(f"a small disk needs mkfs.ext4 and loop devices: {error}")
    try:
        (folder / "lost+found").rmdir()
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)
        disk.unlink()


def unmount_all(*folders: Path) -> None:
    """What a dockerd mounts, its data on itself and the host's network, one that is killed leaves behind."""
    mounted = [Path(line.split()[1]) for line in Path("/proc/self/mounts").read_text().splitlines()]
    for place in reversed(mounted):
        if any(place.is_relative_to(folder) for folder in folders):
            subprocess.run(["umount", "--lazy", place], check=True)
