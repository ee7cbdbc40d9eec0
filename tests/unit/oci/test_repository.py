"""The client of registries against one that is scripted here: what it gives away, believes, and does again."""

from __future__ import annotations

import base64
import contextlib
import email.utils
import hashlib
import http.server
import io
import json
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tfdock.errors import Interrupted, NetworkError, TfdockError, VerificationFailed
from tfdock.host.supervise import Stop
from tfdock.oci import manifest, registry_session
from tfdock.oci.manifest import Descriptor
from tfdock.oci.registry_session import Login, login_for
from tfdock.oci.repository import TRIES, Repository

LOGIN = Login(user="me", password="canary-password")
DATA = bytes(range(256)) * 64
BLOB = Descriptor.of("application/octet-stream", DATA)
NOW = 1_800_000_000.0
Headers = dict[str, str]
Answer = tuple[int, Headers, bytes]


class Asked(NamedTuple):
    """`request` is its method and path."""

    request: str
    headers: Headers
    body: bytes


Script = Callable[[Asked], Answer]


@dataclass
class Scripted:
    """A registry on this machine that answers what `script` says."""

    script: Script
    address: str = ""
    asked: list[str] = field(default_factory=list)
    shown: list[str | None] = field(default_factory=list)  #: What it was shown as authorization.

    def repository(self, login: Login | None = None) -> Repository:
        return Repository(self.address, "ci/x", login=lambda _: login)


@contextlib.contextmanager
def scripted(script: Script) -> Iterator[Scripted]:
    """Start the registry."""
    state = Scripted(script)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            request = f"{self.command} {self.path}"
            state.asked.append(request)
            state.shown.append(self.headers.get("Authorization"))
            status, headers, data = state.script(Asked(request, dict(self.headers), body))
            self.send_response(status)
            for name, value in {"Content-Length": str(len(data)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(b"" if self.command == "HEAD" else data)

        do_HEAD = do_POST = do_PATCH = do_PUT = do_GET  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        state.address = f"127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield state
        finally:
            server.shutdown()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfdock.oci.http.random.uniform", lambda *_: 0.001)


def refused(do: Callable[[], Any]) -> tuple[str, str]:
    """Code and message of what goes wrong."""
    with pytest.raises(TfdockError) as caught:
        do()
    (problem,) = caught.value.problems
    return problem.code, f"{problem.message} {problem.why} {problem.fix}"


# --- logins ---------------------------------------------------------------------------------------------------------


def asking(kind: str = "Bearer", token: bytes = b'{"token": "x"}') -> Script:
    """Asks for a login, and gives that token for any."""

    def answer(asked: Asked) -> Answer:
        realm = f'{kind} realm="http://{asked.headers["Host"]}/token",service="x",scope="y"'
        return (200, {}, token) if "/token" in asked.request else (401, {"WWW-Authenticate": realm}, b"")

    return answer


@pytest.mark.parametrize("kind", ["Basic", "Bearer"])
def test_whom_the_registry_redirects_to_learns_no_login_by_asking_for_one(kind: str) -> None:
    """A store of blobs, or who has taken one over, is not the registry."""

    with scripted(asking(kind)) as store:
        leads = {"Location": f"http://{store.address}/blob"}
        with scripted(lambda _: (307, leads, b"")) as registry:
            code, _ = refused(lambda: list(registry.repository(LOGIN).blob(BLOB)))
    assert code == "registry-denied"
    assert store.asked == ["GET /blob"]
    assert store.shown == [None]
    assert set(registry.shown) == {None}


def test_where_an_upload_goes_learns_no_login_by_asking_for_one() -> None:
    with scripted(asking()) as store:

        def registry_(asked: Asked) -> Answer:
            leads = {"Location": f"http://{store.address}/upload"}
            return (404, {}, b"") if "HEAD" in asked.request else (202, leads, b"")

        with scripted(registry_) as registry:
            code, _ = refused(lambda: registry.repository(LOGIN).upload(BLOB, io.BytesIO(DATA)))
    assert code == "registry-denied"
    assert set(store.shown) == {None}
    assert not [one for one in store.asked if "token" in one]


def test_a_long_challenge_that_names_no_realm_is_no_login() -> None:
    challenge = {"WWW-Authenticate": "Bearer " + "a" * 60_000}
    with scripted(lambda _: (401, challenge, b"")) as registry:
        assert refused(lambda: registry.repository().digest("main"))[0] == "registry-denied"


def test_a_token_may_be_anything() -> None:
    with scripted(asking(token=b"[" * 100_000)) as registry:
        code, told = refused(lambda: registry.repository().digest("main"))
    assert (code, "sends none" in told) == ("registry-unreachable", True)


@pytest.mark.parametrize(
    "config",
    ["[]", "5", "null", '{"auths": [1]}', '{"auths": {"HOST": {"auth": 5}}}', '{"credHelpers": [1]}',
     '{"credHelpers": {"HOST": 5}}', "[" * 100_000],
    ids=lambda text: text[:40],
)  # fmt: skip
def test_a_configuration_of_dockers_that_is_none_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    (tmp_path / "config.json").write_text(config.replace("HOST", "registry.example"))
    assert refused(lambda: login_for("registry.example"))[0] == "credentials-unreadable"


@pytest.fixture
def helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes a credential helper that is a shell script."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    (tmp_path / "config.json").write_text(json.dumps({"credHelpers": {"registry.example": "tests"}}))

    def make(script: str) -> None:
        (tmp_path / "docker-credential-tests").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "docker-credential-tests").chmod(0o755)

    return make


@pytest.mark.parametrize("said", ["[]", "5", "{}", "null", "junk", ""])
def test_a_helper_that_says_what_is_no_login_is_told(helper: Callable[[str], None], said: str) -> None:
    helper(f"echo '{said}'")
    assert refused(lambda: login_for("registry.example"))[0] == "credentials-unreadable"


@pytest.mark.slow
def test_a_helper_that_never_answers_is_left_when_its_time_is_up(
    helper: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_session, "_PATIENCE", 0.2)
    helper("exec sleep 3600")
    code, told = refused(lambda: login_for("registry.example"))
    assert (code, "0 s" in told) == ("credentials-unreadable", True)


@pytest.mark.parametrize("absent", [True, False])
def test_a_helper_that_is_not_there_is_told_and_one_that_knows_nothing_is_no_login(
    helper: Callable[[str], None], absent: bool, recwarn: pytest.WarningsRecorder
) -> None:
    if absent:
        assert refused(lambda: login_for("registry.example"))[0] == "credentials-unreadable"
    else:
        helper("echo 'credentials not found in native keychain'; exit 1")
        assert login_for("registry.example") is None
    assert not recwarn.list


# --- what is believed -----------------------------------------------------------------------------------------------


def test_a_manifest_with_other_bytes_than_the_registry_itself_says_is_refused() -> None:
    answer = (200, {"Content-Type": manifest.MANIFEST, "Docker-Content-Digest": manifest.digest(b"{}")}, b"[]")
    with scripted(lambda _: answer) as registry, pytest.raises(VerificationFailed, match="registry-damaged-content"):
        registry.repository().manifest("main")
    assert len(registry.asked) == 1


@pytest.mark.slow
def test_a_manifest_that_takes_for_ever_is_left_when_its_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfdock.oci.http.WHOLE", 0.2)

    left = threading.Event()

    def slow(asked: Asked) -> Answer:
        left.wait()
        return 200, {"Content-Type": manifest.MANIFEST}, asked.body

    with scripted(slow) as registry:
        code, told = refused(lambda: registry.repository().manifest("main"))
        left.set()
    assert (code, "no complete answer" in told) == ("registry-unreachable", True)


def test_a_registry_says_in_its_own_words_why_it_refuses() -> None:
    said = {"errors": [{"code": "MANIFEST_BLOB_UNKNOWN", "message": "blob \x1b[31munknown", "detail": "x" * 999}]}
    with scripted(lambda _: (400, {}, json.dumps(said).encode())) as registry:
        code, told = refused(lambda: registry.repository().put_manifest("main", manifest.MANIFEST, b"{}"))
    assert code == "registry-refused"
    assert "MANIFEST_BLOB_UNKNOWN" in told
    assert len(told) < 1000


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"errors": 5}', b'{"errors": [5, {"code": 7}]}', b"[" * 60_000])
def test_what_a_registry_says_may_be_anything(body: bytes) -> None:
    with scripted(lambda _: (400, {}, body)) as registry:
        assert refused(lambda: registry.repository().manifest("main"))[0] == "registry-refused"


@pytest.mark.parametrize("had", [0, 1, 5000, len(DATA) - 1])
@pytest.mark.parametrize("ranges", [True, False], ids=["ranges", "no ranges"])
def test_a_blob_of_which_a_part_is_here_goes_on_from_there(had: int, ranges: bool) -> None:
    def script(asked: Asked) -> Answer:
        assert asked.headers.get("Range") == (f"bytes={had}-" if had else None)
        if had and ranges:
            return 206, {"Content-Range": f"bytes {had}-{len(DATA) - 1}/{len(DATA)}"}, DATA[had:]
        return 200, {}, DATA

    with scripted(script) as registry:
        repository = registry.repository()
        assert b"".join(repository.blob(BLOB, [DATA[:had]])) == DATA[had:]
        if had:
            other = b"x" * had
            assert refused(lambda: b"".join(repository.blob(BLOB, [other])))[0] == "registry-damaged-content"


def test_another_machine_is_spoken_to_without_tls_on_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Repository("registry.example:5000", "ci/x").url == "https://registry.example:5000/v2/ci/x"
    monkeypatch.setattr(registry_session, "plain_http", lambda _: True)
    assert Repository("registry.example:5000", "ci/x").url == "http://registry.example:5000/v2/ci/x"


def test_a_registry_that_takes_no_such_repository_is_not_said_to_lack_the_blob() -> None:
    with scripted(lambda _: (404, {}, b"")) as registry:
        code, told = refused(lambda: registry.repository().upload(BLOB, io.BytesIO(DATA)))
    assert (code, "no repository `ci/x`" in told) == ("image-not-found", True)


@pytest.mark.parametrize(
    ("patience", "waited"),
    [
        ("2", [2.0]),
        ("3600", []),
        (email.utils.formatdate(NOW + 7, usegmt=True), [7.0]),
        (email.utils.formatdate(NOW + 3600, usegmt=True), []),
        (email.utils.formatdate(NOW - 9, usegmt=True), [0.0]),
    ],
    ids=["seconds", "an hour", "a date", "a date in an hour", "a date that is over"],
)
def test_a_registry_that_asks_for_patience_is_given_it_unless_it_asks_for_too_much(
    monkeypatch: pytest.MonkeyPatch, patience: str, waited: list[float]
) -> None:
    waits: list[float] = []
    monkeypatch.setattr("tfdock.oci.http.time.time", lambda: NOW)
    monkeypatch.setattr("tfdock.oci.http.wait", lambda seconds, _: waits.append(seconds))
    answers = iter([(429, {"Retry-After": patience}, b""), (200, {"Content-Type": manifest.MANIFEST}, b"{}")])
    with scripted(lambda _: next(answers)) as registry, contextlib.suppress(NetworkError):
        registry.repository().manifest("main")
    assert waits == waited
    assert len(registry.asked) == 1 + len(waits)


# --- uploads that are lost ------------------------------------------------------------------------------------------


class Uploads:
    """A registry that forgets uploads: at its first so many requests of a kind."""

    def __init__(self, method: str, status: int, times: int) -> None:
        self.method, self.status, self.times = method, status, times
        self.data, self.kept = b"", b""

    def __call__(self, asked: Asked) -> Answer:
        method, path = asked.request.split(" ", 1)
        if method == "HEAD":
            return (200 if self.kept else 404), {}, b""
        if method == self.method and self.times:
            self.times -= 1
            if self.status == 404:
                self.data = b""
            return self.status, {}, b""
        if method == "POST":
            self.data = b""
            return 202, {"Location": "/upload"}, b""
        if method == "GET":
            return (204, {"Range": f"0-{len(self.data) - 1}"}, b"") if self.data else (404, {}, b"")
        if method == "PATCH":
            first = int(asked.headers["Content-Range"].partition("-")[0])
            if first != len(self.data):
                return 416, {}, b""
            self.data += asked.body
            return 202, {}, b""
        if f"sha256:{hashlib.sha256(self.data).hexdigest()}" not in path.replace("%3A", ":"):
            return 400, {}, b'{"errors": [{"code": "DIGEST_INVALID"}]}'
        self.kept = self.data
        return 201, {}, b""


@pytest.mark.parametrize("status", [404, 416])
@pytest.mark.parametrize("method", ["PATCH", "PUT"])
def test_an_upload_that_the_registry_has_forgotten_begins_anew(
    monkeypatch: pytest.MonkeyPatch, method: str, status: int
) -> None:
    monkeypatch.setattr("tfdock.oci.repository.CHUNK", len(DATA) // 3)
    uploads = Uploads(method, status, 1)
    with scripted(uploads) as registry:
        assert registry.repository().upload(BLOB, io.BytesIO(DATA))
    assert uploads.kept == DATA


def test_a_registry_that_forgets_every_upload_is_given_up() -> None:
    with scripted(Uploads("PUT", 404, 999)) as registry:
        refused(lambda: registry.repository().upload(BLOB, io.BytesIO(DATA)))
    assert len([one for one in registry.asked if one.startswith("PUT")]) <= TRIES


def test_a_login_is_for_the_registry_alone() -> None:
    basic = f"Basic {base64.b64encode(b'me:canary-password').decode()}"

    def wants(asked: Asked) -> Answer:
        if asked.headers.get("Authorization") != basic:
            return 401, {"WWW-Authenticate": 'Basic realm="here"'}, b""
        return 200, {}, DATA

    with scripted(wants) as registry:
        assert b"".join(registry.repository(LOGIN).blob(BLOB)) == DATA
        with pytest.raises(NetworkError):
            list(registry.repository(None).blob(BLOB))


# --- answers without an end -----------------------------------------------------------------------------------------


@dataclass
class Endless:
    """A registry that begins an answer, sends pieces of it, and never ends it."""

    begin: bytes
    piece: bytes
    pause: float
    left: threading.Event = field(default_factory=threading.Event)  #: Set as soon as a client has gone.

    @contextlib.contextmanager
    def serving(self) -> Iterator[Repository]:
        this = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                while self.rfile.readline().strip():
                    pass
                with contextlib.suppress(OSError):
                    self.wfile.write(this.begin)
                    while not this.left.wait(this.pause):
                        self.wfile.write(this.piece)
                this.left.set()

        with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
            server.daemon_threads = True
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
            yield Repository(f"127.0.0.1:{server.server_address[1]}", "ci/x", login=lambda _: None)
            server.shutdown()


WAYS: dict[str, Callable[[Repository], object]] = {
    "a blob": lambda repository: list(repository.blob(BLOB)),
    "a digest": lambda repository: repository.digest("main"),
    "a new manifest": lambda repository: repository.put_manifest("main", manifest.MANIFEST, b"{}"),
    "an upload": lambda repository: repository.upload(BLOB, DATA),
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_an_answer_whose_head_never_ends_is_left(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    monkeypatch.setattr("tfdock.oci.http.WHOLE", 0.2)
    monkeypatch.setattr("tfdock.oci.http._MINUTE", 0.2)
    monkeypatch.setattr("tfdock.oci.registry_session._PATIENCE", 0)
    endless = Endless(b"HTTP/1.1 200", b"0", 0.02)
    with endless.serving() as repository:
        code, told = refused(lambda: WAYS[way](repository))
        endless.left.set()
    assert code == "registry-unreachable"
    assert "no complete answer in" in told or "less than 10,000 bytes a second" in told


@pytest.mark.parametrize("way", WAYS)
def test_an_answer_that_is_put_off_without_end_is_left_and_its_connection_closed(way: str) -> None:
    endless = Endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 999, 0)
    with endless.serving() as repository:
        code, told = refused(lambda: WAYS[way](repository))
        assert endless.left.wait(30)
    assert (code, "the head of its answer is too long" in told) == ("registry-unreachable", True)


@pytest.mark.slow
@pytest.mark.parametrize("begin", [b"Content-Length: 16384", b"Transfer-Encoding: chunked"])
def test_a_blob_that_comes_byte_by_byte_is_left(monkeypatch: pytest.MonkeyPatch, begin: bytes) -> None:
    monkeypatch.setattr("tfdock.oci.http._MINUTE", 0.2)
    endless = Endless(b"HTTP/1.1 200 OK\r\n" + begin + b"\r\n\r\n", b"1", 0.02)
    with endless.serving() as repository:
        code, told = refused(lambda: list(repository.blob(BLOB)))
        endless.left.set()
    assert (code, "less than 10,000 bytes a second" in told) == ("registry-unreachable", True)


def test_each_block_of_an_upload_has_its_time_of_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of `sendall` is the time for all that it is given: a chunk at once would be silence on a slow line."""
    sent, send = [], socket.socket.sendall

    def counted(connection: socket.socket, data: bytes) -> None:
        sent.append(len(data))
        send(connection, data)

    monkeypatch.setattr(socket.socket, "sendall", counted)
    uploads, data = Uploads("", 0, 0), bytes(3 << 20)
    with scripted(uploads) as registry:
        assert registry.repository().upload(Descriptor.of("application/octet-stream", data), data)
    assert uploads.kept == data
    assert len([one for one in registry.asked if one.startswith("PATCH")]) == 1
    assert max(sent) <= 64 << 10


# --- stops ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_stop_ends_a_handshake_that_nobody_answers() -> None:
    stop = Stop()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = {"Location": f"https://127.0.0.1:{silent.getsockname()[1]}/"}
        with scripted(lambda _: (307, place, b"")) as registry, ThreadPoolExecutor(1) as pool:
            asked = pool.submit(replace(registry.repository(), check=stop.check).digest, "main")
            connection, _ = silent.accept()
            with connection:
                stop.requests += 1
                error = asked.exception(10)
    assert isinstance(error, Interrupted)
