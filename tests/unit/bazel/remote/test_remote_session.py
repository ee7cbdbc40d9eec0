"""Remote caches and executors without an engine: addresses, flags, credentials, and the relay over real sockets."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import h2.config
import h2.connection
import h2.events
import pytest

from tfdock.bazel.remote import relay, relay_line, remote_session
from tfdock.bazel.remote.relay_grpc import capabilities
from tfdock.errors import ProfileError, TfdockError
from tfdock.host.settings import Settings, load
from tfdock.knowledge import loader
from tfdock.plan import planning, remote_flags
from tfdock.profile import profile as profiles
from tfdock.profile.endpoint import parse
from tfdock.types import Endpoint, Remote

from ...desk import Desk, problem_of

SECRET = "c2VjcmV0LWhlYWRlcg"
PROFILE = """
schema: 1
tensorflow: "2.18.0"
compute_capabilities: [sm_86]
"""


# --- addresses ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "endpoint", "shown"),
    [
        ("http://cache.example", Endpoint("http", "cache.example", 80), "http://cache.example"),
        ("https://Cache.example/a/b/", Endpoint("https", "cache.example", 443, "/a/b"), "https://cache.example"),
        ("grpc://10.0.0.1:9092", Endpoint("grpc", "10.0.0.1", 9092), "grpc://10.0.0.1:9092"),
        ("grpcs://[::1]:8443", Endpoint("grpcs", "[::1]", 8443), "grpcs://[::1]:8443"),
        ("grpcs://cache.example", Endpoint("grpcs", "cache.example", 443), "grpcs://cache.example:443"),
    ],
)
def test_an_address_is_scheme_host_port_and_path_and_is_shown_without_the_path(
    text: str, endpoint: Endpoint, shown: str
) -> None:
    assert parse(text) == endpoint
    assert str(endpoint) == shown


@pytest.mark.parametrize(
    "cache",
    [
        "remote: https://me:c2VjcmV0@cache.example",
        "remote: ftp://cache.example",
        "remote: grpc://cache.example",  # no port goes without saying
        "remote: http://cache.example/a?b",
        "executor: http://cache.example",  # an executor speaks gRPC only
        "executor: grpcs://c2VjcmV0@cache.example",
        'instance: "-x"',
        "jobs: 0",
        "upload: maybe",
    ],
)
def test_what_is_no_address_is_refused_at_its_place_with_a_fix_and_without_the_password(
    desk: Desk, cache: str
) -> None:
    problem = problem_of(lambda: desk.plan(f"{PROFILE}cache:\n  {cache}\n"))
    assert (problem.line, problem.column) == (6, cache.index(":") + 5)
    assert problem.fix
    assert "c2VjcmV0" not in f"{problem}"


@pytest.mark.parametrize(
    "flag", ["--remote_cache=http://x", "--remote_header=a=b", "--noremote_upload_local_results"]
)
def test_flags_that_would_go_past_the_relay_are_refused(desk: Desk, flag: str) -> None:
    with pytest.raises(ProfileError):
        desk.plan(f"{PROFILE}bazel: {{flags: ['{flag}']}}\n")


def test_settings_say_the_same_and_a_wrong_one_names_its_variable() -> None:
    given = {
        "TFDOCK_REMOTE_CACHE": "https://cache.example/x",
        "TFDOCK_REMOTE_EXECUTOR": "grpcs://executor.example",
        "TFDOCK_REMOTE_INSTANCE": "main",
        "TFDOCK_REMOTE_JOBS": "70",
        "TFDOCK_REMOTE_UPLOAD": "false",
    }
    cache, executor = parse(given["TFDOCK_REMOTE_CACHE"]), parse(given["TFDOCK_REMOTE_EXECUTOR"])
    expected = Remote(cache=cache, executor=executor, instance="main", upload=False, jobs=70)
    assert load({}, given).remote == expected
    assert load({"remote_upload": None}, {}).remote.upload
    for name, wrong in (("CACHE", "http://a:c2VjcmV0@b"), ("EXECUTOR", "http://b"), ("UPLOAD", "no"), ("JOBS", "-1")):
        problem = problem_of(partial(load, {}, {f"TFDOCK_REMOTE_{name}": wrong}))
        assert (problem.code, problem.file) == ("settings-bad-value", f"TFDOCK_REMOTE_{name}")
        assert "c2VjcmV0" not in str(problem)


# --- what Bazel is told -------------------------------------------------------------------------------------------


def words(desk: Desk, text: str) -> tuple[str, ...]:
    return desk.plan(text).compile.command


def test_bazel_is_told_of_its_own_loopback_and_neither_build_id_nor_fingerprint_knows(desk: Desk) -> None:
    plain = desk.plan(PROFILE)
    cache = "cache: {remote: 'https://cache.example/secret-path', instance: main, upload: false}\n"
    plan = desk.plan(PROFILE + cache)
    assert (plan.build_id, plan.fingerprint) == (plain.build_id, plain.fingerprint)
    command = plan.compile.command
    assert command[:4] == ("python3", f"{remote_flags.FOLDER}/forward.py", f"8980={remote_flags.FOLDER}/cache", "--")
    assert {"--remote_cache=http://127.0.0.1:8980", "--remote_upload_local_results=false"} <= set(command)
    assert "--remote_instance_name=main" in command
    assert not any("remote_cache" in word for word in plan.fetch.command)
    assert not plan.compile.network
    assert "secret-path" not in str(command)
    assert not any("--remote_cache" in word for word in plain.compile.command)


def test_an_executor_gets_jobs_of_its_own_and_wins_against_the_releases_strategy(desk: Desk) -> None:
    command = words(desk, f"{PROFILE}cache: {{executor: 'grpcs://executor.example'}}\n")
    assert "--remote_executor=grpc://127.0.0.1:8981" in command
    assert [word for word in command if word.startswith("--jobs=")][-1] == f"--jobs={remote_flags.DEFAULT_JOBS}"
    assert {"--spawn_strategy=remote,local", "--remote_local_fallback"} <= set(command)


def test_the_toolchain_is_part_of_every_action_with_and_without_a_remote_cache(desk: Desk) -> None:
    for text in (PROFILE, f"{PROFILE}cache: {{remote: 'http://cache.example'}}\n"):
        assert "--remote_default_exec_properties=tfdock-toolchain={toolchain}" in words(desk, text)


CACHED, EXECUTED = Remote(cache=parse("http://cache.example")), Remote(executor=parse("grpcs://x.example"))


@pytest.mark.parametrize(
    ("remote", "bazel", "native", "code", "fix"),
    [
        pytest.param(
            CACHED, "0.7.0", False, "remote-bazel-too-old", "TFDOCK_REMOTE_CACHE", id="options nobody tried"
        ),
        pytest.param(
            replace(EXECUTED, cache=CACHED.cache), "7.4.1", False, "remote-http-executor", "", id="HTTP cache"
        ),
        pytest.param(EXECUTED, "7.4.1", True, "native-shared", "TFDOCK_REMOTE_EXECUTOR", id="one machine's CPU"),
    ],
)
def test_what_cannot_be_shared_is_refused_with_a_way_on(
    remote: Remote, bazel: str, native: bool, code: str, fix: str
) -> None:
    options = ("--some",) if bazel != "0.7.0" else ()
    problem = problem_of(lambda: planning.check_remote(remote, bazel, lambda *_: options, native=native), TfdockError)
    assert (problem.code, problem.field) == (code, "optimize" if native else problem.field)
    assert problem.fix
    assert fix in problem.fix
    planning.check_remote(Remote(), bazel, lambda *_: (), native=native)


@pytest.mark.parametrize("profile", [True, False])
@pytest.mark.parametrize("machine", [True, False])
def test_nothing_is_uploaded_that_profile_or_machine_want_to_keep(profile: bool, machine: bool) -> None:
    assert planning.remote_of(profiles.Cache(upload=profile), Remote(upload=machine)).upload is (profile and machine)


# --- credentials --------------------------------------------------------------------------------------------------


def headers(endpoint: str, machine: Settings) -> tuple[tuple[str, str], ...]:
    return remote_session.lines_for(Remote(cache=parse(endpoint)), machine)["cache"].headers


def helper(folder: Path, script: str) -> str:
    program = folder / "helper"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o700)
    return str(program)


def test_the_environments_credentials_go_to_this_machines_endpoints_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(remote_session.VARIABLE, f"Authorization: Bearer {SECRET}\nX-Key: 1")
    own = Settings(remote_cache="https://cache.example")
    assert headers("https://cache.example", own) == (("Authorization", f"Bearer {SECRET}"), ("X-Key", "1"))
    assert headers("https://a-strangers.example", own) == ()
    assert headers("http://cache.example", own) == (), "not even without TLS"


def test_a_helper_is_asked_by_bazels_protocol(tmp_path: Path) -> None:
    script = f'cat >{tmp_path}/asked; echo $1 >>{tmp_path}/asked; echo \'{{"headers": {{"X-Token": ["{SECRET}"]}}}}\''
    machine = Settings(remote_credential_helper=helper(tmp_path, script))
    assert headers("grpcs://cache.example/", machine) == (("X-Token", SECRET),)
    assert (tmp_path / "asked").read_text() == '{"uri": "https://cache.example:443"}get\n'


@pytest.mark.parametrize(
    "script",
    [
        f"echo {SECRET}; echo {SECRET} >&2; exit 3",
        f"echo {SECRET}",
        f"echo '[\"{SECRET}\"]'",
        f'echo \'{{"headers": ["{SECRET}"]}}\'',
        f'echo \'{{"headers": {{"X": ["{SECRET}\\\\nY: 1"]}}}}\'',
        f'echo \'{{"headers": {{"X {SECRET}": ["1"]}}}}\'',
        None,
    ],
)
def test_credentials_that_cannot_be_had_are_told_and_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None
) -> None:
    """From a helper, which is named, or (None) from a variable that is no header."""
    url = "https://cache.example"
    if script is None:
        monkeypatch.setenv(remote_session.VARIABLE, SECRET)
    program = "" if script is None else helper(tmp_path, script)
    machine = Settings(remote_credential_helper=program) if program else Settings(remote_cache=url)
    with pytest.raises(TfdockError) as caught:
        headers(url, machine)
    (problem,) = caught.value.problems
    assert problem.code == "remote-credentials"
    assert program in problem.message
    assert SECRET not in str(problem)
    assert not program or caught.value.__cause__ is None


# --- servers and clients ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def raw_server(talk: Callable[[socket.socket], object]) -> Iterator[int]:
    """A port of this machine where each connection is talked to like that."""

    def one(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            talk(connection)

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=one, args=(server.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]


@contextlib.contextmanager
def dialled(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))  # with a timeout it would not wait for its turn
        connection.settimeout(20)
        yield connection


# --- an HTTP cache that can be told what to do --------------------------------------------------------------------


@dataclass
class Cache:
    """What it holds, what it was asked, and what it answers instead."""

    held: dict[str, bytes] = field(default_factory=dict)
    asked: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    refuse: dict[str, int] = field(default_factory=dict)
    chunked: bool = False
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/pre/fix"


def handler(cache: Cache) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self, status: int, body: bytes = b"") -> None:
            self.send_response(status)
            chunked = cache.chunked and body
            self.send_header(*("Transfer-Encoding", "chunked") if chunked else ("Content-Length", str(len(body))))
            self.end_headers()
            if chunked:
                pieces = [body[at : at + 1000] for at in range(0, len(body), 1000)]
                body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in [*pieces, b""])
            self.wfile.write(body)

        def do_GET(self) -> None:
            cache.asked.append(("GET", self.path, dict(self.headers.items())))
            body = cache.held.get(self.path)
            status = cache.refuse.get("GET", 404 if body is None else 200)
            self.answer(status, body or b"" if status == 200 else b"no")

        def do_PUT(self) -> None:
            cache.asked.append(("PUT", self.path, dict(self.headers.items())))
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status = cache.refuse.get("PUT", 201)
            if status == 201:
                cache.held[self.path] = body
            self.answer(status)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Say nothing."""

    return Handler


@contextlib.contextmanager
def http_cache(cache: Cache) -> Iterator[Cache]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler(cache)) as server:
        server.daemon_threads = True
        cache.port = server.server_port
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield cache
        server.shutdown()


class Client(http.client.HTTPConnection):
    """Bazel's place: HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=60)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(20)
        self.sock.connect(str(self.path))

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, method: str, target: str, body: bytes | None = None) -> tuple[int, bytes]:
        self.request(method, target, body)
        answer = self.getresponse()
        return answer.status, answer.read()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits long for a server that is gone."""
    monkeypatch.setattr(relay_line, "_PAUSES", (0.0, 0.01))


KEY = "/ac/" + "0" * 64


@contextlib.contextmanager
def relayed(
    folder: Path, url: str, *headers: tuple[str, str], upload: bool = True, executes: bool = False
) -> Iterator[relay_line.RelayLine]:
    """A relay to that address, whose socket is `cache` in the folder."""
    line = relay_line.RelayLine(parse(url), headers, upload=upload, executes=executes)
    with relay.running({"cache": line}, folder):
        yield line


@pytest.mark.parametrize("chunked", [False, True])
def test_requests_get_host_path_and_credentials_and_bodies_pass_as_they_are(tmp_path: Path, chunked: bool) -> None:
    body = bytes(range(256)) * 4000
    with (
        http_cache(Cache(chunked=chunked)) as cache,
        relayed(tmp_path, cache.url, ("Authorization", f"Basic {SECRET}")) as line,
        Client(tmp_path / "cache") as client,
        Client(tmp_path / "cache") as another,
    ):
        assert client.ask("GET", KEY)[0] == 404
        assert client.ask("PUT", KEY, body)[0] == 201
        assert client.ask("GET", KEY) == another.ask("GET", KEY) == (200, body)
    assert cache.held == {f"/pre/fix{KEY}": body}
    for _, target, sent in cache.asked:
        told = (target, sent["host"], sent["Authorization"])
        assert told == (f"/pre/fix{KEY}", f"127.0.0.1:{cache.port}", f"Basic {SECRET}")
    assert (line.hits, line.sent) == (2, len(body))
    assert line.received >= 2 * len(body)
    assert SECRET not in repr(line)


def test_a_job_that_may_not_write_is_stopped_before_the_endpoint(tmp_path: Path) -> None:
    with (
        http_cache(Cache()) as cache,
        relayed(tmp_path, cache.url, upload=False),
        Client(tmp_path / "cache") as client,
    ):
        assert client.ask("PUT", KEY, b"x" * 10_000_000)[0] == 403, "it hears so once all of it is sent"
        assert cache.asked == []


def told(line: relay_line.RelayLine) -> list[str]:
    heard: list[str] = []
    link = remote_session.EndpointWatch({"cache": line}, lambda event: heard.append(getattr(event, "text", "")))
    link.feed(b"")
    link.feed(b"")
    return heard


@pytest.mark.usefixtures("quick")
def test_an_endpoint_that_goes_away_has_nothing_takes_everything_and_is_told_of_once(tmp_path: Path) -> None:
    with http_cache(Cache()) as cache:
        pass
    with relayed(tmp_path, cache.url) as line, Client(tmp_path / "cache") as client:
        assert client.ask("GET", KEY) == (404, b"")
        assert client.ask("PUT", KEY, b"x" * 100_000) == (200, b"")
        assert line.lost == "connection refused"
        (text,) = told(line)
    assert text.startswith(f"warning: the remote cache http://127.0.0.1:{cache.port} was lost")


def test_credentials_that_run_out_and_uploads_that_are_refused_end_in_one_line_each(tmp_path: Path) -> None:
    with (
        http_cache(Cache(refuse={"PUT": 405})) as cache,
        relayed(tmp_path, cache.url) as line,
        Client(tmp_path / "cache") as client,
    ):
        assert client.ask("PUT", KEY, b"x")[0] == 200
        assert client.ask("PUT", KEY, b"x")[0] == 200
        assert [method for method, _, _ in cache.asked] == ["PUT"]
        assert "accepts no uploads" in told(line)[0]
        cache.refuse["GET"] = 401
        assert client.ask("GET", KEY) == (404, b"")
        assert "credentials are no longer accepted" in told(line)[0]


def test_a_server_that_breaks_off_is_a_miss_and_the_next_question_is_asked_again(tmp_path: Path) -> None:
    answers = iter([b"", b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"])

    def talk(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(next(answers))

    with (
        raw_server(talk) as port,
        relayed(tmp_path, f"http://127.0.0.1:{port}") as line,
        Client(tmp_path / "cache") as client,
    ):
        assert client.ask("GET", KEY) == (404, b"")
        assert client.ask("GET", KEY) == (200, b"ok")
    assert line.lost is None


def test_a_folder_deeper_than_a_sockets_path_may_be_serves_too(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    with relayed(deep, "http://127.0.0.1:1"):
        assert (deep / "cache").is_socket()
    assert not (deep / "cache").exists()


# --- gRPC ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def grpc_server(
    status: str, asked: list[dict[str, str]], message: Callable[[dict[str, str]], str] = lambda _: "as told"
) -> Iterator[str]:
    """An address that answers every call with that status and a message, and what it was asked."""

    def talk(plain: socket.socket) -> None:
        connection = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding="utf-8"))
        connection.initiate_connection()
        while True:
            plain.sendall(connection.data_to_send())
            data = plain.recv(1 << 16)
            if not data:
                return
            for event in connection.receive_data(data):
                if isinstance(event, h2.events.RequestReceived):
                    asked.append({str(name): str(value) for name, value in event.headers or ()})
                    head = [(":status", "200"), ("grpc-status", status), ("grpc-message", message(asked[-1]))]
                    connection.send_headers(event.stream_id, head, end_stream=True)

    with raw_server(talk) as port:
        yield f"grpc://127.0.0.1:{port}"


def call(path: Path) -> tuple[str, str]:
    """Ask what can be done, through a relay, as Bazel would with an address of its own loopback."""
    with dialled(path) as plain:
        mine = relay_line.RelayLine(Endpoint("grpc", "127.0.0.1", 8980))
        return capabilities(mine, "main", plain.sendall, lambda: plain.recv(1 << 16))


def test_a_call_gets_the_endpoints_name_and_credentials(tmp_path: Path) -> None:
    asked: list[dict[str, str]] = []
    login = f"Bearer {SECRET}" + "x" * 20_000  # in more frames than one
    with grpc_server("0", asked) as url, relayed(tmp_path, url, ("Authorization", login)):
        assert call(tmp_path / "cache") == ("0", "as told")
    (headers,) = asked
    assert (headers[":authority"], headers["authorization"]) == (url.removeprefix("grpc://"), login)
    assert headers[":path"].endswith("Capabilities/GetCapabilities")


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_an_endpoint_that_says_nothing_any_more_is_gone(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_line, "SILENCE", 0.3)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        relayed(tmp_path, f"{scheme}://127.0.0.1:{server.getsockname()[1]}") as line,
    ):
        if scheme == "http":
            with Client(tmp_path / "cache") as client:
                assert client.ask("GET", KEY) == (404, b"")
        else:
            with pytest.raises(ConnectionError):
                call(tmp_path / "cache")
            assert call(tmp_path / "cache")[0] == "0", "somebody else answers now"
    assert line.lost == "the server does not answer"


@pytest.mark.slow
def test_a_ping_of_the_relays_own_is_not_handed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_line, "SILENCE", 0.3)
    with (
        grpc_server("0", []) as url,
        relayed(tmp_path, url) as line,
        dialled(tmp_path / "cache") as plain,
    ):
        mine = relay_line.RelayLine(Endpoint("grpc", "127.0.0.1", 8980))
        assert capabilities(mine, "", plain.sendall, lambda: plain.recv(1 << 16))[0] == "0"
        time.sleep(1)
        plain.setblocking(False)
        with pytest.raises(BlockingIOError):
            plain.recv(1)
    assert line.lost is None


@pytest.mark.usefixtures("quick")
def test_in_place_of_an_endpoint_that_is_gone_somebody_can_do_all_and_has_nothing(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"grpc://127.0.0.1:{server.getsockname()[1]}"
    with relayed(tmp_path, url) as line:
        assert call(tmp_path / "cache")[0] == "0"
    assert line.lost == "connection refused"


# --- asked at the start -------------------------------------------------------------------------------------------


def refusal(url: str, machine: Settings | None = None) -> str:
    """Code, message and fix."""
    problem = problem_of(lambda: remote_session.check(Remote(cache=parse(url)), machine or Settings()), TfdockError)
    assert problem.fix
    return f"{problem.code}: {problem.message} {problem.fix}"


def refused(url: str) -> str:
    text = refusal(url)
    assert re.search(r"the remote cache \w+://[\w.:]+", text)
    return text.partition(":")[0]


def test_an_http_cache_is_asked_before_the_build() -> None:
    with http_cache(Cache()) as cache:
        remote_session.check(Remote(cache=parse(cache.url)), Settings())
        assert cache.asked[0][1].startswith("/pre/fix/ac/")
        for status, code in ((401, "remote-denied"), (403, "remote-denied"), (500, "remote-unusable")):
            cache.refuse["GET"] = status
            assert refused(cache.url) == code
        others = cache.url.replace("http:", "https:"), f"grpc://127.0.0.1:{cache.port}"
        assert [refused(url) for url in others] == ["remote-unreachable"] * 2
    assert refused(cache.url) == refused("http://no-such-host.invalid") == "remote-unreachable"


def test_a_server_that_speaks_grpc_is_asked_before_the_build() -> None:
    for status, code in (("16", "remote-denied"), ("7", "remote-denied"), ("3", "remote-unusable")):
        with grpc_server(status, []) as url:
            assert refused(url) == code
    for status in ("0", "12"):
        with grpc_server(status, []) as url:
            remote_session.check(Remote(cache=parse(url)), Settings())


def test_an_engine_on_another_machine_is_refused() -> None:
    (problem,) = remote_session.engine_far_error(Remote(cache=parse("http://cache.example"))).problems
    assert problem.code == "remote-engine-far"
    assert "TFDOCK_REMOTE_CACHE" in problem.fix


# --- in the container ---------------------------------------------------------------------------------------------


def forwarder(folder: Path) -> tuple[int, list[str]]:
    """A free port, and the words before a command that reaches the relay of a folder there."""
    script = folder / "forward.py"
    script.write_text(loader.templates()["run/forward.py"])
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    return port, [sys.executable, str(script), f"{port}={folder}/cache", "--"]


def test_the_forwarder_hands_connections_on_and_ends_as_its_command_does(tmp_path: Path) -> None:
    port, words = forwarder(tmp_path)
    with http_cache(Cache()) as cache, relayed(tmp_path, cache.url):
        ask = (
            "import http.client, sys; c = http.client.HTTPConnection('127.0.0.1', int(sys.argv[1]));"
            f"c.request('PUT', '{KEY}', b'x' * 300000); c.getresponse().read();"
            f"c.request('GET', '{KEY}'); sys.exit(len(c.getresponse().read()) % 251)"
        )
        command = [*words, sys.executable, "-c", ask, str(port)]
        assert subprocess.run(command, timeout=120, check=False).returncode == 300_000 % 251
