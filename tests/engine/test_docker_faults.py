"""What goes wrong with real engines, registries and disks, and what the user is told."""

from __future__ import annotations

import base64
import contextlib
import gc
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import docker
import pytest
from bed import needs_root
from build.harness import closed_port
from build.registries import own_registry
from refusals import refusal
from servers import Handler, serving
from waits import wait_until

from tfdock.engine.docker_engine import DockerEngine
from tfdock.engine.protocol import IMAGE_LABEL, RUN_LABEL, Cancel, Engine
from tfdock.errors import (
    BuildFailed,
    DiskFull,
    EngineError,
    EngineHung,
    EngineLost,
    EngineUnavailable,
    ExitCode,
    Interrupted,
    NetworkError,
    TfdockError,
)

from .bench import IMAGE, RUN, Bench, PrivateEngine, image_build, loop_disk, private_engine, tar

pytestmark = [
    pytest.mark.engine,
    # docker-py leaves the socket of a connection that failed to the garbage collector (transport/unixconn.py).
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]


@pytest.fixture(autouse=True, scope="module")
def _no_garbage_for_other_modules() -> Iterator[None]:
    yield
    gc.collect()


Reply = tuple[int, bytes, dict[str, str]]  # status, body, headers
VERSION: dict[str, Any] = {"ApiVersion": "1.41", "Version": "20.10"}


@contextlib.contextmanager
def answering(answer: Callable[[str], Reply]) -> Iterator[str]:
    """`host:port` of a server; `answer` is asked for each path."""

    class Answers(Handler):
        def respond(self) -> None:
            status, body, headers = answer(self.path)
            self.answer(status, body, headers.items())

    with serving(Answers) as address:
        yield address


def reply(status: int = 200, **fields: object) -> Reply:
    headers = {"Content-Type": "application/json", "Docker-Distribution-Api-Version": "registry/2.0"}
    return status, json.dumps(fields).encode(), headers


# With a trap, because an engine that comes back gives what it finds running ten seconds to obey SIGTERM.
TICKING = "trap 'exit 3' TERM; i=0; while true; do echo tick $i; i=$((i+1)); sleep 0.05; done"


# The engine dies, stops or freezes


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_engine_that_dies_in_a_build_is_lost(victim: Bench, private: PrivateEngine, number: signal.Signals) -> None:
    def ticked(piece: bytes) -> None:
        if b"tick 3" in piece:
            threading.Thread(target=private.kill, args=(number,)).start()

    with refusal(EngineLost, "engine-lost") as error:
        victim.engine.build(
            image_build(f"FROM {IMAGE}\nLABEL {IMAGE_LABEL}={RUN}-d\nRUN {TICKING}"), ticked, Cancel()
        )
    assert error.value.exit_code == ExitCode.ENGINE
    wait_until(lambda: not victim.engine.ping())


def test_an_engine_that_is_lost_before_a_build_is_told_without_the_build_arguments() -> None:
    with answering(
        lambda path: reply(**VERSION) if path == "/version" else reply(404, message="No such image")
    ) as address:
        engine = DockerEngine(f"tcp://{address}")
        assert engine.image("busybox") is None, "the engine was asked for its version"
    proxies = {"https_proxy": "http://me:swordfish@proxy.example"}
    with pytest.raises(EngineLost) as error:
        engine.build(image_build(f"FROM {IMAGE}", build_args=proxies), lambda _: None, Cancel())
    assert "url: /v1.41/build " in str(error.value), "of a TCP connection, the error names the whole address"
    assert "swordfish" not in str(error.value)


def test_step_left_behind_by_a_crash_is_found_by_its_label(victim: Bench, private: PrivateEngine) -> None:
    with contextlib.suppress(EngineLost):
        victim.engine.build(
            image_build(f"FROM {IMAGE}\nLABEL {IMAGE_LABEL}={RUN}-crash\nRUN {TICKING}"),
            lambda piece: private.kill(signal.SIGKILL) if b"tick 1" in piece else None,
            Cancel(),
        )
    private.up()
    left = victim.engine.containers(IMAGE_LABEL, f"{RUN}-crash")
    assert len(left) == 1
    victim.engine.remove(left[0].id)
    assert victim.engine.containers(IMAGE_LABEL, f"{RUN}-crash") == []


def test_output_from_before_the_engine_died_is_there_when_it_came_back(victim: Bench, private: PrivateEngine) -> None:
    container = victim.started(TICKING)
    seen = bytearray()
    with pytest.raises(EngineLost):  # noqa: PT012 - the stream breaks somewhere within
        for piece in victim.engine.follow(container):
            seen += piece
            if len(seen) > 40:
                private.kill(signal.SIGKILL)
    private.up()
    assert b"".join(victim.engine.follow(container)).startswith(seen)
    assert seen.startswith(b"tick 0\ntick 1\n")
    state = victim.engine.state(container)
    assert state is not None
    assert state.exit_code == 3
    victim.engine.remove(container)


LAST_CHUNK = b"0\r\n\r\n"


@contextlib.contextmanager
def altered_live_logs(path: Path, engine: str, alter: Callable[[bytes], bytes]) -> Iterator[str]:
    """An engine's socket through which each piece of a live log comes altered."""

    def relay(client: socket.socket) -> None:
        with contextlib.suppress(OSError), client, socket.socket(socket.AF_UNIX) as server:
            server.connect(engine.removeprefix("unix://"))
            followed = threading.Event()
            up = threading.Thread(target=pass_on, args=(client, server, followed), daemon=True)
            up.start()
            while data := server.recv(1 << 16):
                client.sendall(alter(data) if followed.is_set() else data)
            up.join() if followed.is_set() else None

    def pass_on(client: socket.socket, server: socket.socket, followed: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 16):
                if b"follow=1" in data.partition(b"\r\n")[0]:
                    followed.set()
                server.sendall(data)
            server.shutdown(socket.SHUT_RDWR)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=relay, args=(listener.accept()[0],), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield f"unix://{path}"
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.usefixtures("docker_only")
def test_a_log_that_does_not_end_with_its_container_is_read_to_its_end(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tfdock.engine.docker_engine._LATE_END", 0.3)
    path, engine = short_folder / "engine.sock", os.environ["DOCKER_HOST"]
    with altered_live_logs(path, engine, lambda data: data.removesuffix(LAST_CHUNK)) as address:
        bench = Bench("endless", DockerEngine(address), short_folder)
        output, state = bench.run("echo one; sleep 1; echo two; exit 3")
    assert (output, state.exit_code) == (b"one\ntwo\n", 3)


@pytest.mark.usefixtures("docker_only")
def test_a_log_that_ends_before_its_container_is_followed_again(short_folder: Path) -> None:
    ends = count()

    def cut(data: bytes) -> bytes:
        head, gap, _ = data.partition(b"\r\n\r\n")
        return head + gap + LAST_CHUNK if data.startswith(b"HTTP/") and next(ends) < 3 else data

    with altered_live_logs(short_folder / "engine.sock", os.environ["DOCKER_HOST"], cut) as address:
        bench = Bench("cut", DockerEngine(address), short_folder)
        output, state = bench.run("echo one; sleep 1; echo two; exit 3")
    assert (output, state.exit_code) == (b"one\ntwo\n", 3)
    assert next(ends) > 3


def test_question_is_asked_again_when_the_engine_comes_back(victim: Bench, private: PrivateEngine) -> None:
    waits: list[float] = []

    def back(seconds: float) -> None:
        waits.append(seconds)
        private.up()

    engine = DockerEngine(private.host, sleep=back)
    engine.info()
    private.kill(signal.SIGTERM)
    assert engine.image(IMAGE) is not None
    assert len(waits) == 1
    assert victim.engine.ping()


@pytest.mark.parametrize("size", [0, 100, 1000], ids=["nothing", "half a header", "half a file"])
def test_an_archive_that_ends_early_is_asked_for_again(size: int) -> None:
    content = b"x" * 1000
    whole = tar({"data": content})
    bodies = [whole[:size], whole]

    stat = base64.b64encode(json.dumps({"name": "data", "size": len(content)}).encode()).decode()

    def answer(path: str) -> Reply:
        if path.endswith("/archive?path=%2Fdata"):
            return 200, bodies.pop(0), {"X-Docker-Container-Path-Stat": stat}
        return reply(**VERSION)

    with answering(answer) as address:
        engine = DockerEngine(f"tcp://{address}", sleep=lambda _: None)
        assert engine.read_file("container", "/data") == content
        bodies += [whole[:size]] * 3
        with pytest.raises(EngineLost, match="read /data out of the container container; it answers again"):
            engine.read_file("container", "/data")
    assert not bodies


def test_frozen_engine_answers_no_ping(victim: Bench, private: PrivateEngine) -> None:
    private.kill(signal.SIGSTOP)
    wait_until(lambda: not victim.engine.ping(0.5))  # not all of its threads stop at once
    assert not victim.engine.ping(0.5), "the second one, of an engine that answers nothing any more"


def test_frozen_engine_is_told_from_a_silent_build(private: PrivateEngine, victim: Bench) -> None:
    engine = DockerEngine(private.host, silence=1)
    request = image_build(f"FROM {IMAGE}\nLABEL {IMAGE_LABEL}={RUN}\nRUN echo ready && sleep 2.5 && echo done")
    assert engine.build(request, lambda _: None, Cancel()), "silence alone is no fault"
    request = image_build(f"FROM {IMAGE}\nLABEL {IMAGE_LABEL}={RUN}\nRUN {TICKING}")
    with refusal(EngineHung, "engine-hung"):
        engine.build(request, lambda piece: private.kill(signal.SIGSTOP) if b"tick 1" in piece else None, Cancel())
    private.kill(signal.SIGCONT)
    wait_until(lambda: not victim.engine.containers(IMAGE_LABEL, RUN))  # the engine has noticed that we hung up


def test_frozen_engine_does_not_hold_up_a_question(private: PrivateEngine, victim: Bench) -> None:
    engine = DockerEngine(private.host, timeout=0.5)
    engine.info()
    private.kill(signal.SIGSTOP)
    wait_until(lambda: not engine.ping(0.5))
    with pytest.raises(EngineHung):
        engine.state("anything")
    private.kill(signal.SIGCONT)
    assert victim.engine.ping()


def test_cancelling_works_on_a_frozen_engine(private: PrivateEngine, victim: Bench) -> None:
    cancel = Cancel()

    def freeze(piece: bytes) -> None:
        if b"tick 1" in piece:
            private.kill(signal.SIGSTOP)
            threading.Timer(0.3, cancel.set).start()
            threading.Timer(1.5, private.kill, (signal.SIGCONT,)).start()

    with pytest.raises(Interrupted):
        victim.engine.build(image_build(f"FROM {IMAGE}\nRUN {TICKING}"), freeze, cancel)


# No engine at all


def socket_at(path: Path, *, listening: bool) -> Path:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        if listening:
            server.listen()
    return path


@pytest.fixture
def short_folder() -> Iterator[Path]:
    folder = Path(f"/tmp/tfdock-{os.getpid()}")
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)


def test_missing_socket_is_named_and_the_start_of_docker_proposed(tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailable, match=r"no/docker\.sock .* does not exist") as error:
        DockerEngine(f"unix://{tmp_path}/no/docker.sock").info()
    assert "systemctl start docker" in error.value.problems[0].fix


def test_wrong_docker_host_is_blamed_on_docker_host(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in ("unix:///no/docker.sock", "tcp://127.0.0.1:1", "carrier-pigeon://x"):
        monkeypatch.setenv("DOCKER_HOST", wrong)
        with refusal(EngineUnavailable, "engine-unavailable") as error:
            DockerEngine().info()
        assert "correct or unset DOCKER_HOST" in error.value.problems[0].fix


def test_docker_context_is_followed_and_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.delenv("DOCKER_CONTEXT", raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    folder = tmp_path / "contexts/meta" / hashlib.sha256(b"farm").hexdigest()
    folder.mkdir(parents=True)
    endpoint = {"docker": {"Host": f"unix://{tmp_path}/farm.sock", "SkipTLSVerify": False}}
    (folder / "meta.json").write_text(json.dumps({"Name": "farm", "Metadata": {}, "Endpoints": endpoint}))
    (tmp_path / "config.json").write_text(json.dumps({"currentContext": "farm"}))
    with pytest.raises(EngineUnavailable, match=r"farm\.sock \(from the docker context `farm`\)"):
        DockerEngine().info()
    monkeypatch.setenv("DOCKER_CONTEXT", "absent")
    with pytest.raises(EngineUnavailable, match="no docker context `absent`"):
        DockerEngine().info()


def test_socket_that_nobody_listens_at_is_told(short_folder: Path) -> None:
    path = socket_at(short_folder / "d.sock", listening=False)
    with pytest.raises(EngineUnavailable, match="no container engine answers"):
        DockerEngine(f"unix://{path}").info()


def test_forbidden_socket_leads_to_the_docker_group(short_folder: Path) -> None:
    needs_root("becoming another user")
    path = socket_at(short_folder / "d.sock", listening=True)
    path.chmod(0o600)
    script = f"""
import os
from tfdock.engine.docker_engine import DockerEngine
os.setgid(65534), os.setuid(65534)
DockerEngine("unix://{path}").info()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd="/", timeout=30)
    assert "usermod -aG docker" in done.stderr
    assert "EngineUnavailable" in done.stderr


def test_engine_that_is_too_old_is_refused() -> None:
    with (
        answering(lambda _: reply(ApiVersion="1.40", Version="19.03")) as address,
        refusal(EngineUnavailable, "engine-too-old", match=r"API version 1\.40"),
    ):
        DockerEngine(f"tcp://{address}").info()


def test_engine_elsewhere_is_not_local() -> None:
    with answering(lambda _: reply(**VERSION, NCPU=1, MemTotal=1 << 30)) as address:
        assert not DockerEngine(f"tcp://{address}").info().local


# Registries


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """A real registry on a port of its own."""
    with own_registry(tmp_path / "registry") as registry:
        yield registry.address


def impatient(bench: Bench) -> tuple[Engine, list[float]]:
    """The same engine, which notes its waits instead of waiting."""
    assert isinstance(bench.engine, DockerEngine)
    waits: list[float] = []
    return DockerEngine(bench.engine.address.url, sleep=waits.append), waits


def push(bench: Bench, name: str, image: str = IMAGE) -> None:
    """Give the image to a registry; the engine keeps nothing of that name."""
    assert isinstance(bench.engine, DockerEngine)
    bench.engine.tag(image, name)
    client: Any = docker.APIClient(bench.engine.address.url, version="auto")
    with contextlib.closing(client):
        messages = list(client.push(name, stream=True, decode=True))
    assert not [message for message in messages if "error" in message]
    bench.engine.remove_image(name)


def test_image_is_pulled_by_tag_and_by_digest(real: Bench, registry: str) -> None:
    push(real, f"{registry}/base:1")
    seen: list[bytes] = []
    image = real.engine.pull(f"{registry}/base:1", seen.append)
    assert image.tags
    digest = next(name for name in image.digests if name.startswith(f"{registry}/base@sha256:"))
    assert any(b"Digest: sha256:" in line for line in seen)
    real.engine.remove_image(f"{registry}/base:1")
    both = f"{registry}/base:1@{digest.partition('@')[2]}"
    for reference in (digest, both):
        assert real.engine.pull(reference).id == image.id
    real.engine.remove_image(digest)


def test_image_is_pushed_and_its_digest_is_the_one_it_is_pulled_by(real: Bench, registry: str) -> None:
    name, seen = f"{registry}/sent:1", list[bytes]()
    real.engine.tag(IMAGE, name)
    digest = real.engine.push(name, seen.append)
    assert real.engine.push(name, seen.append) == digest, "another time it is there"
    assert any(b"Pushed" in line for line in seen)
    real.engine.remove_image(name)
    assert f"{registry}/sent@{digest}" in real.engine.pull(f"{registry}/sent@{digest}").digests
    real.engine.remove_image(f"{registry}/sent@{digest}")


def test_image_that_the_registry_lacks_is_named_with_its_registry(real: Bench, registry: str) -> None:
    engine, waits = impatient(real)
    push(real, f"{registry}/base:1")
    for reference in (f"{registry}/base:2", f"{registry}/nothing:1", f"{registry}/base@sha256:{'0' * 64}"):
        with refusal(NetworkError, "image-not-found") as error:
            engine.pull(reference)
        assert reference in str(error.value)
        assert f"registry {registry}" in str(error.value)
    assert waits == [], "another try cannot help"


def test_damaged_content_is_told_and_not_fetched_again(real: Bench, registry: str, tmp_path: Path) -> None:
    engine, waits = impatient(real)
    image, _ = real.build(f"RUN head -c 100000 /dev/urandom > /random # {real.name}")
    push(real, f"{registry}/damaged:1", image)
    real.engine.remove_image(image)
    for blob in (tmp_path / "registry").rglob("blobs/sha256/*/*/data"):
        if 100_000 < blob.stat().st_size < 200_000:
            content = bytearray(blob.read_bytes())
            content[-1000] ^= 0xFF
            blob.write_bytes(content)
    with refusal(NetworkError, "registry-damaged-content"):
        engine.pull(f"{registry}/damaged:1")
    assert waits == []


def test_registry_that_is_down_is_tried_twice(real: Bench) -> None:
    engine, waits = impatient(real)
    with refusal(NetworkError, "registry-unreachable", match="cannot be reached") as error:
        engine.pull(f"{closed_port()}/base:1")
    assert error.value.exit_code == ExitCode.NETWORK
    assert len(waits) == 1


@pytest.mark.parametrize(
    ("status", "words", "expected", "tries"),
    [
        pytest.param(429, "TOOMANYREQUESTS", "registry-rate-limited", 5, id="429"),
        pytest.param(403, "DENIED", "image-not-found", 1, id="403"),
        pytest.param(401, "UNAUTHORIZED", "registry-denied", 1, id="401"),
        pytest.param(503, "UNAVAILABLE", "registry-unreachable", 2, id="503"),
    ],
)
def test_refusal_of_a_registry_is_understood(real: Bench, status: int, words: str, expected: str, tries: int) -> None:
    engine, waits = impatient(real)
    refused = reply(status, errors=[{"code": words, "message": words.lower()}])
    with answering(lambda _: refused) as address, refusal(NetworkError, expected):
        engine.pull(f"{address}/base:1")
    assert len(waits) + 1 == tries


def test_base_image_that_cannot_be_fetched_is_blamed_on_the_registry(real: Bench) -> None:
    request = image_build(
        "ARG BASE_IMAGE\nFROM ${BASE_IMAGE}", build_args={"BASE_IMAGE": f"{closed_port()}/absent:1"}
    )
    with refusal(NetworkError, "registry-unreachable", match="/absent:1"):
        real.engine.build(request, lambda _: None, Cancel())


# Much output, little disk, missing parts

MUCH = 20_000_000


@pytest.mark.parametrize("separator", [pytest.param("x", id="one-line"), pytest.param("\\n", id="short-lines")])
def test_much_output_takes_little_memory_and_is_complete(victim: Bench, separator: str) -> None:
    amount = MUCH if separator == "x" else MUCH // 200
    container = victim.started(f"head -c {amount} /dev/zero | tr '\\0' '{separator}'")
    received, peak = measured(victim.engine.follow(container))
    assert received == amount
    assert peak < 4_000_000
    victim.engine.remove(container)


def measured(pieces: Iterator[bytes]) -> tuple[int, int]:
    """Bytes in all, and the peak of memory while they came."""
    tracemalloc.start()
    try:
        return sum(len(piece) for piece in pieces), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_build_with_much_output_takes_little_memory(victim: Bench) -> None:
    received = 0

    def count(piece: bytes) -> None:
        nonlocal received
        received += len(piece)

    request = image_build(f"FROM {IMAGE}\nRUN head -c {MUCH} /dev/zero | tr '\\0' x")
    tracemalloc.start()
    victim.engine.build(request, count, Cancel())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert received >= MUCH
    assert peak < 4_000_000


@pytest.fixture(scope="module")
def cramped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """An engine whose data lie on a disk of 80 MB."""
    folder = tmp_path_factory.mktemp("cramped")
    with loop_disk(folder / "disk", "80M") as disk, private_engine(data=disk / "data") as engine:
        yield Bench("cramped", DockerEngine(engine.host), folder)


def test_disk_that_fills_in_a_build_step_is_named(cramped: Bench) -> None:
    with refusal(DiskFull, "disk-full") as error:
        cramped.build("RUN cat /dev/zero > /big")
    assert error.value.exit_code == ExitCode.RESOURCES
    assert "docker system prune" in error.value.problems[0].fix


def test_disk_that_fills_with_the_context_is_named(cramped: Bench) -> None:
    def endless() -> Iterator[bytes]:
        header = bytearray(next(image_build(f"FROM {IMAGE}").context()))[:512]
        header[:10], header[124:136] = b"endless\0\0\0", b"%011o " % (1 << 30)
        header[148:156] = b" " * 8
        header[148:156] = b"%06o\0 " % sum(header)
        yield bytes(header)
        for _ in range(1 << 10):
            yield bytes(1 << 20)

    with refusal(DiskFull, "disk-full"):
        cramped.build("", context=endless)


def test_upload_of_a_context_is_cancelled(victim: Bench) -> None:
    cancel = Cancel()

    def context() -> Iterator[bytes]:
        whole = b"".join(image_build(f"FROM {IMAGE}").context())
        yield whole[:1024]
        cancel.set()
        yield whole[1024:]

    with pytest.raises(Interrupted):
        victim.build("", context=context, cancel=cancel)


def test_missing_docker_init_leads_to_tini() -> None:
    with private_engine("--init-path=/nowhere/docker-init") as engine:
        bench = Bench("private", DockerEngine(engine.host), engine.folder)
        container = bench.engine.create(bench.spec("true"))
        with refusal(EngineError, "docker-init-missing") as error:
            bench.engine.start(container)
    assert "tini" in error.value.problems[0].fix


def test_container_in_the_way_that_is_being_removed_is_waited_for(real: Bench) -> None:
    spec = real.spec(TICKING)
    container = real.engine.create(spec)
    real.engine.start(container)
    removals = [threading.Thread(target=real.engine.remove, args=(container,)) for _ in range(3)]
    for removal in removals:
        removal.start()
    for removal in removals:
        removal.join()
    real.engine.remove(real.engine.create(spec))
    assert real.engine.containers(RUN_LABEL, spec.name) == []


def test_every_error_says_what_to_do(real: Bench) -> None:
    with refusal(TfdockError, "engine-refused") as error:
        real.engine.create(real.spec("true", memory=1000))
    assert "memory limit" in str(error.value)
    assert error.value.problems[0].fix
    with refusal(BuildFailed, "image-step-failed", match="COPY failed"):
        real.build("COPY nothing /x")
