"""`tfdock wheelhouse serve`: pip and uv install from it, nobody writes to it, and nothing else is to be had there."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType

import pytest

from tfdock.wheel import build_info
from tfdock.wheelhouse.index import WheelIndex
from tfdock.wheelhouse.store import Wheelhouse

from .. import houses, small_wheels
from ..samples import sample
from .test_simple_index import install, installed

TFDOCK = Path(sys.executable).with_name("tfdock")
PATIENT = "from tfdock.wheelhouse import server; server._PATIENCE = 86400.0; from tfdock.cli.main import main; main()"


class Server:
    """The command, in a process of its own."""

    def __init__(self, root: Path, *words: str, files: int | None = None, patient: bool = False) -> None:
        program = [sys.executable, "-c", PATIENT] if patient else [str(TFDOCK)]
        command = [*program, "wheelhouse", "serve", "--wheelhouse", str(root), "--port", "0", *words]
        if files:
            command = ["bash", "-c", f'ulimit -n {files}; exec "$@"', "bash", *command]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout
        self.url = self.process.stdout.readline().strip()
        self.port = int(self.url.rpartition(":")[2].partition("/")[0]) if self.url else 0

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.communicate()

    def ask(
        self, path: str, method: str = "GET", headers: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Ask for a path as it stands: no client tidies it up before."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request(method, path, body=body, headers=dict(headers or {}))
        answer = connection.getresponse()
        found = answer.status, {key.lower(): value for key, value in answer.getheaders()}, answer.read()
        connection.close()
        return found


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Wheelhouse:
    house = houses.house(tmp_path_factory.mktemp("served") / "house")
    houses.publish(house, salt="ours")
    WheelIndex(house).update()
    secret = house.root.parent / "secret.whl"
    secret.write_bytes(b"secret")
    (house.root / "linked-1.0-py3-none-any.whl").symlink_to(secret)
    (house.root / "simple" / "linked").symlink_to(house.root.parent)
    (house.root / "notes.txt").write_bytes(b"secret")
    (house.root / ".hidden.whl").write_bytes(b"secret")
    return house


@pytest.fixture(scope="module")
def server(house: Wheelhouse) -> Iterator[Server]:
    with Server(house.root) as server:
        yield server


def ended(server: Server, number: signal.Signals = signal.SIGTERM) -> str:
    """End a server; return what it said meanwhile."""
    server.process.send_signal(number)
    output, errors = server.process.communicate(timeout=60)
    assert (server.process.returncode, output) == (0, "")
    return errors


NAME = "tensorflow-2.18.0+cuda12.5.sm86-py3-none-any.whl"


@pytest.mark.slow
@pytest.mark.parametrize("program", ["pip", "uv"])
def test_pip_and_uv_install_from_the_server(server: Server, tmp_path: Path, program: str) -> None:
    done = install(program, tmp_path / "env", server.url)
    assert done.returncode == 0, done.stdout + done.stderr
    assert installed(tmp_path / "env") == {"version": "2.18.0+cuda12.5.sm86", "salt": "ours"}
    if program == "pip":
        assert f"{NAME.replace('+', '%2B')}.metadata" in done.stdout, "METADATA alone is read before the wheel is"


@pytest.mark.slow
def test_files_come_whole_and_in_ranges(server: Server, house: Wheelhouse) -> None:
    data = (house.root / NAME).read_bytes()
    status, headers, body = server.ask(f"/{NAME}")
    assert (status, body, headers["accept-ranges"]) == (200, data, "bytes")
    assert headers["content-type"] == "application/octet-stream"
    status, headers, body = server.ask(f"/{NAME.replace('+', '%2B')}", headers={"Range": "bytes=10-19"})
    assert (status, body, headers["content-range"]) == (206, data[10:20], f"bytes 10-19/{len(data)}")
    assert server.ask(f"/{NAME}", headers={"Range": "bytes=-5"})[2] == data[-5:]
    assert server.ask(f"/{NAME}", headers={"Range": f"bytes={len(data)}-"})[0] == 416
    status, again, body = server.ask(f"/{NAME}", "HEAD")
    assert (status, again["content-length"], body) == (200, str(len(data)), b"")
    assert server.ask(f"/{NAME}", headers={"If-None-Match": headers["etag"]})[0] == 304


def test_a_whole_address_in_a_request_is_the_path_in_it_and_the_host_of_it(server: Server, house: Wheelhouse) -> None:
    data, here = (house.root / NAME).read_bytes(), f"http://127.0.0.1:{server.port}"
    assert server.ask(f"{here}/{NAME}", headers={"Host": "else.example"})[::2] == (200, data)
    assert server.ask(here)[::2] == server.ask("/")[::2]
    assert server.ask(f"{here}/simple/")[0] == 200
    assert server.ask(f"http://else.example/{NAME}")[0] == 421
    assert server.ask(f"{here}/.tfdock/records")[0] == 404


def test_the_rest_of_a_file_is_had_only_while_it_is_the_same(server: Server, house: Wheelhouse) -> None:
    data = (house.root / NAME).read_bytes()
    etag = server.ask(f"/{NAME}", "HEAD")[1]["etag"]
    rest = {"Range": "bytes=10-"}
    assert server.ask(f"/{NAME}", headers={**rest, "If-Range": etag})[::2] == (206, data[10:])
    for other in ('"another"', f"W/{etag}", "Sat, 21 Nov 2026 10:46:00 GMT"):
        assert server.ask(f"/{NAME}", headers={**rest, "If-Range": other})[::2] == (200, data)


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ("bytes=0-0,5-6", 200), ("bytes=-0", 416), ("bytes=-999999", 200), ("bytes=5-2", 416), ("bytes=a-b", 200),
        ("lines=0-3", 200), ("bytes=0-999999", 200), (f"bytes={10**30}-", 416),
    ],
)  # fmt: skip
def test_a_range_that_is_none_gives_everything_or_nothing(
    server: Server, house: Wheelhouse, asked: str, status: int
) -> None:
    found, headers, body = server.ask(f"/{NAME}", headers={"Range": asked})
    data = (house.root / NAME).read_bytes()
    assert (found, body) == (status, data if status == 200 else b"")
    assert status == 200 or headers["content-range"] == f"bytes */{len(data)}"


def test_pages_and_constraints_are_served(server: Server, house: Wheelhouse) -> None:
    for path in ("/simple/", "/simple/index.html", "/simple/tensorflow/"):
        status, headers, _ = server.ask(path)
        assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    status, headers, _ = server.ask("/simple/tensorflow")
    assert (status, headers["location"]) == (301, "/simple/tensorflow/")
    assert server.ask(f"/{house.constraints(houses.build_id()).path.name}")[2].startswith(b"# tfdock")
    assert server.ask(f"/{NAME}.metadata")[2].startswith(b"Metadata-Version")
    page = house.root / "index.html"
    page.write_text("the page for people")
    assert server.ask("/")[2] == b"the page for people"
    page.unlink()


@pytest.mark.parametrize(
    "path",
    [
        "/.tfdock/index.json",
        "/.tfdock/",
        "/.hidden.whl",
        "/notes.txt",
        "/../secret.whl",
        "/simple/../../secret.whl",
        "/%2e%2e/secret.whl",
        "/..%2fsecret.whl",
        "/simple/..%2f..%2fsecret.whl",
        "/%252e%252e/secret.whl",
        "//etc/passwd",
        "/etc/passwd",
        "/simple/%00",
        f"/{NAME}%00.metadata",
        "/linked-1.0-py3-none-any.whl",
        "/simple/linked/",
        "/simple/linked/secret.whl",
        "/simple/linked/index.html",
        "/simple/tensorflow/nothing.html",
        "/simple//",
        "\\..\\secret.whl",
        "http://localhost/.tfdock/index.json",
        "*",
        "/",
    ],
)
def test_nothing_else_is_to_be_had(server: Server, path: str) -> None:
    status, _, body = server.ask(path)
    assert status in (400, 403, 404), body
    assert b"secret" not in body
    assert b"href" not in body, "a listing"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nobody_writes(server: Server, house: Wheelhouse, method: str) -> None:
    before = (house.root / NAME).read_bytes()
    body = b"other bytes" if method in ("POST", "PUT", "PATCH") else None
    assert server.ask(f"/{NAME}", method, body=body)[0] == 405
    assert (house.root / NAME).read_bytes() == before


def test_a_body_that_never_ends_is_not_read(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(b"PUT /x.whl HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000000\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 4")
    assert server.ask("/simple/")[0] == 200


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_cleanly_even_while_somebody_reads(house: Wheelhouse, number: signal.Signals) -> None:
    with Server(house.root) as server, socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
        client.sendall(b"GET /simple/ HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert client.recv(12) == b"HTTP/1.1 200"
        errors = ended(server, number)
    assert "200 GET /simple/" in errors
    assert errors.endswith("stopped\n")
    assert "Traceback" not in errors


@pytest.mark.slow
def test_it_says_how_to_install_and_listens_to_this_machine_alone(house: Wheelhouse) -> None:
    with Server(house.root) as server:
        assert server.url == f"http://127.0.0.1:{server.port}/simple/"
        errors = ended(server)
    assert f"pip install --extra-index-url {server.url} tensorflow==2.18.0+cuda12.5.sm86\n" in errors
    assert f"uv pip install --index {server.url} tensorflow==2.18.0+cuda12.5.sm86\n" in errors
    assert "note:" not in errors


@pytest.mark.slow
def test_the_lines_that_install_have_the_extra_for_the_wheels_own_cuda(tmp_path: Path) -> None:
    (tmp_path / small_wheels.NAME).write_bytes(
        small_wheels.wheel_of({build_info.PATHS[0]: b'build_info = {"cuda_version": "12.5.1"}\n'})
    )
    WheelIndex(Wheelhouse(tmp_path)).update()
    with Server(tmp_path) as server:
        errors = ended(server)
    assert f"pip install --extra-index-url {server.url} 'tensorflow[and-cuda]==2.18.0'\n" in errors
    assert f"uv pip install --index {server.url} 'tensorflow[and-cuda]==2.18.0'\n" in errors


@pytest.mark.slow
def test_beyond_this_machine_it_warns_and_pip_is_told_to_trust_it(house: Wheelhouse) -> None:
    with Server(house.root, "--host", "0.0.0.0") as server:
        errors = ended(server)
    assert "note: other machines can read the wheels" in errors
    assert f"--trusted-host {socket.gethostname()} --extra-index-url http://{socket.gethostname()}:" in errors


# --- many clients ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "begun",
    sample(
        [
            b"GET /simple/ HTTP/1.1\r\nHost: loc",
            b"",
            b"PUT /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n",
        ],
        every=3,
    ),
)
def test_half_sent_requests_keep_nobody_waiting_and_say_nothing(house: Wheelhouse, begun: bytes) -> None:
    """No server that waits for the rest of a request would ever answer: this one has a day's patience."""
    with ExitStack() as stack:
        server = stack.enter_context(Server(house.root, files=256, patient=True))
        for _ in range(300):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=60))
            with suppress(OSError):
                client.sendall(begun)
        for _ in range(3):
            assert server.ask("/simple/")[0] == 200
        held = len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))
        assert held < 200
        errors = ended(server)
    assert "Traceback" not in errors
    assert "Too many open files" not in errors
    assert len(errors.splitlines()) < 20


@pytest.mark.slow
def test_clients_that_read_nothing_are_told_from_those_that_wait(house: Wheelhouse) -> None:
    big = house.root / "big-1.0-py3-none-any.whl"
    with big.open("wb") as file:
        file.truncate(64 << 20)
    try:
        with ExitStack() as stack:
            server = stack.enter_context(Server(house.root, files=256))
            for _ in range(100):
                client = stack.enter_context(socket.socket())
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                client.settimeout(20)
                client.connect(("127.0.0.1", server.port))
                client.sendall(f"GET /{big.name} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                assert client.recv(12) == b"HTTP/1.1 200"
            status, _, body = server.ask("/simple/")
            assert (status, body) == (503, b"503 too many connections\n")
            errors = ended(server)
        assert "Traceback" not in errors
    finally:
        big.unlink()


@pytest.mark.slow
def test_a_silent_client_is_sent_away(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
        client.sendall(b"GET /simple/ HTTP/1.1\r\nHost: loc")
        assert client.recv(100) == b""


# --- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["localhost", "LOCALHOST.", "127.0.0.1", "[::1]", "127.8.8.8", "app.localhost"])
def test_a_server_for_this_machine_answers_to_its_names(server: Server, name: str) -> None:
    for host in (name, f"{name}:{server.port}", f"{name}:9"):  # a tunnel has a port of its own
        assert server.ask("/simple/", headers={"Host": host})[0] == 200


@pytest.mark.parametrize(
    "name", ["evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example"]
)
def test_a_server_for_this_machine_answers_to_no_other_name(server: Server, name: str) -> None:
    for path in ("/simple/", f"/{NAME}", "/simple", "/nothing"):
        status, headers, body = server.ask(path, headers={"Host": name})
        assert (status, headers["content-type"]) == (421, "text/plain; charset=utf-8")
        assert b"`localhost`" in body
        assert b"href" not in body


@pytest.mark.slow
def test_a_server_for_other_machines_answers_to_every_name(house: Wheelhouse) -> None:
    with Server(house.root, "--host", "0.0.0.0") as server:
        assert server.ask("/simple/", headers={"Host": "any.example"})[0] == 200


def problem(*words: str) -> tuple[int, str]:
    command = [str(TFDOCK), "wheelhouse", "serve", "--json", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ), timeout=60)
    document = json.loads(done.stdout)
    assert document["schema"] == "tfdock.wheelhouse-serve/1"
    return done.returncode, document["problems"][0]["code"]


@pytest.mark.slow
def test_what_cannot_be_served_is_said(house: Wheelhouse, tmp_path: Path) -> None:
    assert problem("--wheelhouse", str(tmp_path / "nowhere")) == (2, "wheelhouse-not-found")
    assert problem("--wheelhouse", str(tmp_path)) == (2, "wheelhouse-not-indexed")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert problem("--wheelhouse", str(house.root), "--port", port) == (2, "serve-address")
    for host in ("203.0.113.9", "", "two..dots", "a" * 80, "no.such.host.invalid"):
        assert problem("--wheelhouse", str(house.root), "--host", host) == (2, "serve-address")


@pytest.mark.slow
def test_an_address_of_ipv6_stands_in_brackets(house: Wheelhouse) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    with Server(house.root, "--host", "::1") as server:
        assert server.url == f"http://[::1]:{server.port}/simple/"
        with socket.create_connection(("::1", server.port), timeout=60) as client:
            client.sendall(b"GET /simple/ HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert client.recv(12) == b"HTTP/1.1 200"
        assert "--trusted-host" not in ended(server)
