"""The relay between a container that may want anything and a server that may do anything."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import h2.config
import h2.connection
import h2.events
import pytest

from tfdock.bazel.remote import relay, relay_grpc, relay_line, remote_session
from tfdock.bazel.remote.relay_grpc import PREFACE
from tfdock.host.settings import Settings
from tfdock.profile.endpoint import parse
from tfdock.types import Remote

from .test_remote_session import (
    KEY,
    SECRET,
    Cache,
    Client,
    dialled,
    forwarder,
    grpc_server,
    helper,
    http_cache,
    raw_server,
    refusal,
    relayed,
    told,
)

DENIED = b"HTTP/1.1 403 Forbidden"
API = "/build.bazel.remote.execution.v2."


@contextlib.contextmanager
def before(
    talk: Callable[[socket.socket], object], folder: Path, *headers: tuple[str, str]
) -> Iterator[relay_line.RelayLine]:
    """A relay to an HTTP server that talks like that."""
    with raw_server(talk) as port, relayed(folder, f"http://127.0.0.1:{port}/pre", *headers) as line:
        yield line


def said(connection: socket.socket) -> bytes:
    """All that is said until the other side is done."""
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while data := connection.recv(1 << 16):
            found += data
    return found


def speaking(*answers: bytes) -> tuple[Callable[[socket.socket], object], list[bytes]]:
    """A server that gives an answer for each thing it hears, and what it heard."""
    heard: list[bytes] = []

    def talk(connection: socket.socket) -> None:
        for answer in answers:
            heard.append(connection.recv(1 << 16))
            connection.sendall(answer)
        while data := connection.recv(1 << 16):
            heard.append(data)

    return talk, heard


# --- HTTP: what a container asks ----------------------------------------------------------------------------------

SMUGGLED = f"PUT {KEY[:-1]}1 HTTP/1.1\r\ncontent-length: 1\r\n\r\nx"


@pytest.mark.parametrize(
    "request_",
    [
        f"GET http://elsewhere.example{KEY} HTTP/1.1\r\n\r\n",
        "CONNECT elsewhere.example:443 HTTP/1.1\r\n\r\n",
        "GET /../../secrets HTTP/1.1\r\n\r\n",
        f"GET /ac/../..{KEY} HTTP/1.1\r\n\r\n",
        f"GET {KEY}?x HTTP/1.1\r\n\r\n",
        f"DELETE {KEY} HTTP/1.1\r\n\r\n",
        f"GET {KEY} HTTP/1.1\r\nX: a\n\n{SMUGGLED}\r\n\r\n",
        f"GET {KEY}\nX: HTTP/1.1\r\n\r\n",
        f"GET {KEY} HTTP/1.1\r\ncontent-length: {len(SMUGGLED)}\r\n\r\n{SMUGGLED}",
        f"GET {KEY} HTTP/1.1\r\ntransfer-encoding: chunked\r\ncontent-length: {len(SMUGGLED)}\r\n\r\n0\r\n\r\n",
        f"GET {KEY} HTTP/1.1\r\ncontent-length: 0\r\ncontent-length: {len(SMUGGLED)}\r\n\r\n{SMUGGLED}",
        f"PUT {KEY} HTTP/1.1\r\ncontent-length: -1\r\n\r\nx",
        f"PUT {KEY} HTTP/1.1\r\ncontent-length: 1_0\r\n\r\nxxxxxxxxxx",
        f"PUT {KEY} HTTP/1.1\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        f"GET {KEY} HTTP/1.1\r\ncontent-length : 5\r\n\r\nhello",
        f"GET {KEY} HTTP/1.1\r\n folded\r\n\r\n",
        f"GET {KEY} HTTP/1.1\r\nx: {'y' * (3 << 20)}\r\n\r\n",
        "\r\n\r\n",
    ],
    ids=lambda text: repr(text[:40]),
)
@pytest.mark.filterwarnings("error")
def test_what_bazel_would_not_ask_reaches_nobody(request_: str, tmp_path: Path) -> None:
    talk, heard = speaking(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
    with before(talk, tmp_path, ("Authorization", SECRET)), dialled(tmp_path / "cache") as client:
        with contextlib.suppress(OSError):  # it may have been cut off meanwhile
            client.sendall(request_.encode())
        answer = said(client)
    assert answer == b"" or answer.startswith(DENIED)
    assert not any(heard)


@pytest.mark.parametrize("size", [b"-1", b"+1", b"0x1", b"1_0", b"", b"1" * 20, b"2"])
def test_a_chunk_that_others_could_read_otherwise_ends_the_request(size: bytes, tmp_path: Path) -> None:
    talk, heard = speaking(b"")
    with before(talk, tmp_path), dialled(tmp_path / "cache") as client:
        head = f"PUT {KEY} HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n".encode()
        client.sendall(head + size + b"\r\nx\r\nZZ\r\n0\r\n\r\n")
        assert said(client) == b""
    assert size == b"2" or not b"".join(heard).partition(b"\r\n\r\n")[2]


def test_of_a_request_only_what_a_cache_needs_is_handed_on(tmp_path: Path) -> None:
    with (
        http_cache(Cache()) as cache,
        relayed(tmp_path, cache.url, ("X-Key", SECRET)),
        Client(tmp_path / "cache") as client,
    ):
        own = {"X-Key": "mine", "X-Forwarded-For": "1.2.3.4", "Upgrade": "h2c", "Cookie": "a", "Accept": "*/*"}
        client.request("GET", KEY, headers={**own, "Authorization": "Basic bWluZQ==", "Host": "elsewhere"})
        assert client.getresponse().read() == b""
    ((_, _, sent),) = cache.asked
    kept = {name.lower(): value for name, value in sent.items()}
    assert kept.pop("host") == f"127.0.0.1:{cache.port}"
    assert kept == {"x-key": SECRET, "accept": "*/*", "accept-encoding": "identity", "connection": "keep-alive"}


def test_a_chunk_of_any_size_is_carried_in_pieces(tmp_path: Path) -> None:
    """A container cannot make this process hold what it says it will send."""
    taken = threading.Event()

    def talk(connection: socket.socket) -> None:
        total = 0
        while total < 3 << 20 and (data := connection.recv(1 << 16)):
            total += len(data)
        taken.set()
        connection.recv(1)

    with before(talk, tmp_path), dialled(tmp_path / "cache") as client:
        client.sendall(f"PUT {KEY} HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nffffffffff\r\n".encode())
        for _ in range(64):
            client.sendall(bytes(1 << 16))
        assert taken.wait(10)


@pytest.mark.slow
def test_connections_are_not_endless_and_the_next_ones_are_served_when_others_go(tmp_path: Path) -> None:
    with http_cache(Cache()) as cache, relayed(tmp_path, cache.url):
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(dialled(tmp_path / "cache")) for _ in range(relay.CONNECTIONS + 8)]
            time.sleep(0.5)
            assert sum(not one.recv(1) for one in clients[relay.CONNECTIONS :]) == 8
        time.sleep(0.2)
        with Client(tmp_path / "cache") as client:
            assert client.ask("GET", KEY)[0] == 404


def test_the_socket_is_for_its_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with relayed(tmp_path, "http://127.0.0.1:1"):
            assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(before)


# --- HTTP: what a server answers ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"SSH-2.0-x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * (1 << 19),
        b"HTTP/1.1 100 Continue\r\n\r\n" * 3,
        b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 2\r\n\r\nno",
        b"HTTP/1.1 301 Moved\r\nlocation: http://elsewhere.example/\r\ncontent-length: 0\r\n\r\n",
    ],
    ids=lambda answer: repr(answer[:30]),
)
@pytest.mark.parametrize(("method", "answered"), [("GET", 404), ("PUT", 200)])
def test_what_is_no_answer_is_a_miss_and_no_word_of_pythons(
    answer: bytes,
    method: str,
    answered: int,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(relay_line, "SILENCE", 0.5)
    talk, _ = speaking(answer)
    with before(talk, tmp_path), Client(tmp_path / "cache") as client:
        assert client.ask(*((method, KEY, b"x") if method == "PUT" else (method, KEY))) == (answered, b"")
    assert not caplog.records


def test_a_server_that_answers_but_does_not_serve_is_told_of_in_one_line(tmp_path: Path) -> None:
    with http_cache(Cache()) as cache:
        cache.refuse |= {"GET": 503, "PUT": 413}
        with relayed(tmp_path, cache.url) as line, Client(tmp_path / "cache") as client:
            assert client.ask("PUT", KEY, b"x") == (200, b"")
            assert client.ask("GET", KEY) == (404, b"")
            (text,) = told(line)
            assert "HTTP status 503" in text
            assert line.lost is None
            del cache.refuse["GET"]
            cache.held[f"/pre/fix{KEY}"] = b"back"
            assert client.ask("GET", KEY) == (200, b"back")


def test_a_server_that_dies_while_it_takes_an_upload_is_not_bazels_to_tell(tmp_path: Path) -> None:
    with before(lambda connection: connection.recv(1000), tmp_path), Client(tmp_path / "cache") as client:
        assert client.ask("PUT", KEY, b"x" * 5_000_000) == (200, b"")


@pytest.mark.slow
def test_a_server_that_stops_taking_an_upload_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_line, "SILENCE", 0.5)
    held = threading.Event()

    with before(lambda _: held.wait(), tmp_path) as line, Client(tmp_path / "cache") as client:
        assert client.ask("PUT", KEY, b"x" * 30_000_000) == (200, b"")
        assert line.lost == "the server does not answer"
    held.set()


def test_an_answer_that_breaks_off_is_not_taken_for_whole(tmp_path: Path) -> None:
    def talk(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf")

    with before(talk, tmp_path) as line, dialled(tmp_path / "cache") as client:
        client.sendall(f"GET {KEY} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        answer = said(client)
    assert answer.endswith(b"\r\n\r\nhalf")
    assert line.hits == 0


# --- gRPC ---------------------------------------------------------------------------------------------------------


def asked_by(path: Path, *calls: tuple[tuple[str, str], ...], data: bytes = b"") -> dict[int, bytes]:
    """Stream -> status of calls with these headers, each with that data, on one connection."""
    connection = h2.connection.H2Connection(
        h2.config.H2Configuration(
            header_encoding=None, validate_outbound_headers=False, normalize_outbound_headers=False
        )
    )
    connection.initiate_connection()
    found: dict[int, bytes] = {}
    with dialled(path) as plain:
        for number, headers in enumerate(calls):
            connection.send_headers(2 * number + 1, headers, end_stream=not data)
            if data:
                connection.send_data(2 * number + 1, data, end_stream=True)
        while len(found) < len(calls):
            plain.sendall(connection.data_to_send())
            for event in connection.receive_data(plain.recv(1 << 16)):
                if isinstance(event, h2.events.ResponseReceived):
                    found[event.stream_id] = dict(event.headers or ())[b"grpc-status"]
    assert connection.outbound_flow_control_window >= 65_535 - len(data), "the window of refused data was given back"
    return found


def call_of(path: str, *more: tuple[str, str]) -> tuple[tuple[str, str], ...]:
    return ((":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "mine"), *more)


READING = [f"{API}ActionCache/GetActionResult", f"{API}ContentAddressableStorage/FindMissingBlobs"]
SENDING = ["/google.bytestream.ByteStream/Write", f"{API}ContentAddressableStorage/BatchUpdateBlobs"]
RUNNING = [f"{API}Execution/Execute"]
NEVER = [f"{API}ActionCache/UpdateActionResult", f"{API}ContentAddressableStorage/SpliceBlob", "/some.Service/Read"]


@pytest.mark.parametrize(
    ("upload", "executes", "passed"),
    [
        (False, False, READING),
        (False, True, [*READING, *SENDING, *RUNNING]),
        (True, False, [*READING, *SENDING, *RUNNING, *NEVER]),
    ],
)
def test_who_may_not_write_may_call_what_is_known_to_read_and_an_executor_gets_what_it_reads(
    upload: bool, executes: bool, passed: list[str], tmp_path: Path
) -> None:
    asked: list[dict[str, str]] = []
    every = [*READING, *SENDING, *RUNNING, *NEVER]
    with grpc_server("0", asked) as url, relayed(tmp_path, url, upload=upload, executes=executes):
        found = asked_by(tmp_path / "cache", *(call_of(path) for path in every))
    assert [one[":path"] for one in asked] == passed
    assert [status for _, status in sorted(found.items())] == [b"0" if path in passed else b"7" for path in every]


def test_a_call_that_is_refused_gives_back_its_share_of_the_window(tmp_path: Path) -> None:
    asked: list[dict[str, str]] = []
    write, read = (f"/google.bytestream.ByteStream/{method}" for method in ("Write", "Read"))
    with grpc_server("0", asked) as url, relayed(tmp_path, url, upload=False):
        found = asked_by(tmp_path / "cache", call_of(write), call_of(read), data=b"x" * 10_000)
    assert found == {1: b"7", 3: b"0"}
    assert [one[":path"] for one in asked] == [read]


@pytest.mark.parametrize("names", [(), (":PATH",), (":path", ":path"), (":path", ":PATH")])
def test_a_call_that_names_its_path_not_once_is_refused(names: tuple[str, ...], tmp_path: Path) -> None:
    asked: list[dict[str, str]] = []
    first, *rest = [pair for pair in call_of("") if pair[0] != ":path"]
    with (
        grpc_server("0", asked) as url,
        relayed(tmp_path, url, upload=False),
    ):
        odd = (first, *((name, READING[0]) for name in names), *rest)
        found = asked_by(tmp_path / "cache", odd, call_of(READING[0]))
    assert found == {1: b"7", 3: b"0"}
    assert len(asked) == 1


def test_read_only_holds_for_cache_and_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(remote_session.VARIABLE, raising=False)
    both = Remote(cache=parse("grpc://a:1"), executor=parse("grpc://b:1"), upload=False)
    lines = remote_session.lines_for(both, Settings())
    assert [(role, line.upload, line.executes) for role, line in lines.items()] == [
        ("cache", False, False),
        ("executor", False, True),
    ]


def test_a_call_cannot_name_another_host_or_bring_credentials_of_its_own(tmp_path: Path) -> None:
    asked: list[dict[str, str]] = []
    with grpc_server("0", asked) as url, relayed(tmp_path, url, ("X-Key", SECRET)):
        own = call_of(READING[0], ("host", "mine"), ("x-key", "mine"), ("authorization", "mine"))
        asked_by(tmp_path / "cache", own)
    (headers,) = asked
    assert "mine" not in headers.values()
    assert headers["x-key"] == SECRET


@pytest.mark.parametrize(
    "frames",
    [
        b"\0\0\0\x01\0\0\0\0\x01" + (b"\0\x40\0\x09\0\0\0\0\x01" + b"\0" * (1 << 14)) * 200,
        b"\0\0\0\x01\x0d\0\0\0\x01" * 3,
        b"\0\0\x03\x01\x04\0\0\0\x01\xff\xff\xff",
        b"\0\0\x01\x09\x04\0\0\0\x01\0",
    ],
    ids=["headers without an end", "padding that is not there", "no HPACK", "a continuation of nothing"],
)
def test_what_is_no_http2_ends_the_connection_and_no_other(
    frames: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[dict[str, str]] = []
    with grpc_server("0", asked) as url, relayed(tmp_path, url, upload=False):
        with dialled(tmp_path / "cache") as client:
            with contextlib.suppress(OSError):
                client.sendall(PREFACE + frames)
                client.shutdown(socket.SHUT_WR)
            said(client)
        assert asked_by(tmp_path / "cache", call_of(READING[0])) == {1: b"0"}
    assert len(asked) == 1
    assert not caplog.records


def test_nothing_of_a_client_that_speaks_another_protocol_reaches_the_endpoint(tmp_path: Path) -> None:
    heard: list[bytes] = []
    with (
        raw_server(lambda connection: heard.append(connection.recv(1 << 16))) as port,
        relayed(tmp_path, f"grpc://127.0.0.1:{port}", upload=False),
        dialled(tmp_path / "cache") as client,
    ):
        client.sendall(b"PUT /ac/" + b"0" * 64 + b" HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        client.shutdown(socket.SHUT_WR)
        said(client)
    assert b"".join(heard) == b""


# --- asked at the start -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_large_frames_that_never_come_keep_no_other_call_waiting_and_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_grpc, "_PATIENCE", 1.0)
    asked: list[dict[str, str]] = []
    with (
        grpc_server("0", asked) as url,
        relayed(tmp_path, url),
        contextlib.ExitStack() as clients,
    ):
        begun = [clients.enter_context(dialled(tmp_path / "cache")) for _ in range(12)]
        for client in begun:
            client.sendall(PREFACE + b"\xff\xff\xff\0\0\0\0\0\1" + b"x" * 1000)
        assert asked_by(tmp_path / "cache", call_of(READING[0])) == {1: b"0"}
        for client in begun:
            client.settimeout(10)
            while client.recv(1 << 16):
                pass


def test_a_name_that_none_can_have_is_an_error_of_ours() -> None:
    for host in ("a..b", "a" * 70 + ".example"):
        assert refusal(f"http://{host}").startswith("remote-unreachable: ")
        assert "the name cannot be" in refusal(f"grpc://{host}:1")


@pytest.mark.slow
def test_a_server_that_answers_for_ever_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_session, "_LONGEST", 0.5)

    def talk(connection: socket.socket) -> None:
        while True:
            connection.sendall(b"x")
            time.sleep(0.05)

    with raw_server(talk) as port:
        for scheme in ("http", "https", "grpc", "grpcs"):
            assert refusal(f"{scheme}://127.0.0.1:{port}").startswith("remote-unreachable: ")


def test_what_speaks_something_else_is_told_as_that() -> None:
    for scheme, name, answer in (
        ("grpc", "HTTP/2", b"HTTP/1.1 400 Bad Request\r\n\r\n"),
        ("grpc", "HTTP/2", b"\0\0\1\4\0\0\0\0\0x"),
        ("http", "HTTP", b"220 ready\r\n"),
    ):
        talk, _ = speaking(answer)
        with raw_server(talk) as port:
            assert f"does not speak {name}" in refusal(f"{scheme}://127.0.0.1:{port}")


def test_what_a_server_repeats_and_the_path_of_an_address_are_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, str]] = []
    with grpc_server("3", asked, lambda headers: headers["x-key"]) as url:
        monkeypatch.setenv(remote_session.VARIABLE, f"X-Key: {SECRET}")
        found = refusal(url, Settings(remote_cache=url))
        assert found.startswith("remote-unusable")
        assert SECRET not in found
        assert asked[0]["x-key"] == SECRET
    machine = Settings(remote_credential_helper=helper(tmp_path, "exit 3"))
    found = refusal(f"https://cache.example/{SECRET}", machine)
    assert found.startswith("remote-credentials")
    assert SECRET not in found


def test_a_certificate_of_another_host_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-days", "2", "-subj", "/CN=other",
         "-addext", "subjectAltName=DNS:other.example", "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    heard: list[bytes] = []

    def talk(plain: socket.socket) -> None:
        with context.wrap_socket(plain, server_side=True) as connection:
            heard.append(connection.recv(1 << 16))

    with raw_server(talk) as port:
        url = f"https://127.0.0.1:{port}"
        monkeypatch.setenv(remote_session.VARIABLE, f"X-Key: {SECRET}")
        found = refusal(url, Settings(remote_cache=url))
        assert found.startswith("remote-untrusted")
        with relayed(tmp_path, url, ("X-Key", SECRET)) as line, Client(tmp_path / "cache") as client:
            assert client.ask("GET", KEY) == (404, b"")
        assert line.lost
        assert line.lost.startswith("the certificate is not trusted: IP address mismatch")
    assert not any(heard)


# --- in the container ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_forwarder_outlives_a_time_without_free_files(tmp_path: Path) -> None:
    """Whoever is in the container may take them all; what is asked later is answered."""
    port, words = forwarder(tmp_path)
    ask = f"""
import http.client, socket, time
held = [socket.create_connection(("127.0.0.1", {port})) for _ in range(60)]
time.sleep(0.5)
for one in held: one.close()
time.sleep(1)
client = http.client.HTTPConnection("127.0.0.1", {port}, timeout=60)
client.request("GET", "{KEY}")
print(client.getresponse().status)
"""

    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))

    with http_cache(Cache()) as cache, relayed(tmp_path, cache.url):
        command = [*words, sys.executable, "-c", ask]
        done = subprocess.run(command, check=False, capture_output=True, text=True, preexec_fn=few, timeout=60)
    assert done.stdout == "404\n", done.stderr
    assert "Traceback" not in done.stderr
