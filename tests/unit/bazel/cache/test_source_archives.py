"""Archives whose own addresses are dead: whole and with the right sum in Bazel's repository cache, or an error."""

from __future__ import annotations

import hashlib
import http.server
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tfdock.bazel.cache.archive_download import download, has_archive
from tfdock.bazel.cache.cache_folder import opened
from tfdock.bazel.cache.source_archives import addresses, sum_beside
from tfdock.errors import Interrupted, NetworkError, Problem
from tfdock.host import settings
from tfdock.host.supervise import Stop
from tfdock.knowledge.release_rows import SourceArchive
from tfdock.oci.http import no_check

from ...desk import problem_of

DATA = b"an archive" * 100_000
SHA256 = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def server() -> Iterator[str]:
    """The address of a server with `good.tgz`, `other.tgz`, and `cut.tgz`, which ends early."""

    class Answers(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            data = {"/good.tgz": DATA, "/other.tgz": b"other", "/cut.tgz": DATA}.get(self.path)
            self.send_response(200 if data else 404)
            self.send_header("Content-Length", str(len(data or b"")))
            self.end_headers()
            self.wfile.write((data or b"")[: 100 if "cut" in self.path else None])

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def row(*urls: str, sha256: str = SHA256) -> SourceArchive:
    return SourceArchive(
        sha256=sha256,
        archive="x 1.0 (@x)",
        releases="1.4",
        original="https://gone.example/x/good.tgz",
        gone="2020-05",
        urls=urls,
        source="s",
    )


def missing(archive: SourceArchive, folder: Path, mirror: str | None = None) -> Problem:
    with opened(folder) as cache:
        problem = problem_of(lambda: download(archive, cache, mirror, no_check), NetworkError)
    assert [path for path in folder.rglob("*") if path.is_file()] == [], "nothing half done stays"
    assert problem.code == "source-archive-missing"
    return problem


def test_an_archive_comes_from_the_first_address_that_has_it(server: str, tmp_path: Path) -> None:
    archive = row(f"{server}/gone.tgz", f"{server}/other.tgz", f"{server}/good.tgz")
    with opened(tmp_path) as cache:
        assert not has_archive(cache, archive)
        download(archive, cache, None, no_check)
        assert has_archive(cache, archive)
    (file,) = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert str(file.relative_to(tmp_path)) == f"content_addressable/sha256/{SHA256}/file"
    assert file.read_bytes() == DATA


def test_a_file_with_another_sum_is_refused_and_the_error_says_how_to_mend_that(server: str, tmp_path: Path) -> None:
    problem = missing(row(f"{server}/other.tgz", f"{server}/gone.tgz"), tmp_path)
    other = hashlib.sha256(b"other").hexdigest()
    assert problem.message.startswith("no server gave x 1.0 (@x), whose own address is dead since 2020-05: ")
    assert f"{server}/other.tgz: the file there has the sha256 {other}; {server}/gone.tgz: 404 " in problem.message
    assert problem.why == f"the source downloads https://gone.example/x/good.tgz with the sha256 {SHA256}"
    assert "a row with this `sha256` in `source_archives.yaml` of a `--knowledge` folder" in (problem.fix or "")


def test_an_answer_that_ends_early_is_no_archive(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tfdock.oci.http.random.uniform", lambda *_: 0.005)
    assert "cut.tgz: it broke off" in missing(row(f"{server}/cut.tgz"), tmp_path).message


def test_a_mirror_is_asked_first_by_the_address_without_its_scheme(server: str, tmp_path: Path) -> None:
    archive = row("https://else.example/y.tgz")
    assert addresses(archive) == ("https://else.example/y.tgz",)
    assert addresses(archive, "https://mirror.example/a/") == (
        "https://mirror.example/a/gone.example/x/good.tgz",
        "https://mirror.example/a/else.example/y.tgz",
        "https://else.example/y.tgz",
    )
    assert f"{server}/gone.example/x/good.tgz: 404" in missing(row(), tmp_path, server).message


def test_a_stop_ends_the_download(server: str, tmp_path: Path) -> None:
    with opened(tmp_path) as cache, pytest.raises(Interrupted):
        download(row(f"{server}/good.tgz"), cache, None, Stop(requests=1).check)


@pytest.mark.slow
def test_a_stop_ends_a_download_that_stalls_and_nothing_half_done_stays(tmp_path: Path) -> None:
    stop = Stop()
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool, opened(tmp_path) as cache:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
        download_ = pool.submit(download, row(url), cache, None, stop.check)
        connection, _ = server.accept()
        with connection:
            connection.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n" % len(DATA) + DATA[: len(DATA) // 2])
            stop.requests += 1
            error = download_.exception(10)
            left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert isinstance(error, Interrupted)
    assert left == []


def test_the_mirror_is_a_setting_of_the_machine_without_a_login() -> None:
    assert settings.load({}, {"TFDOCK_ARCHIVES": "http://mirror.lan:8080/a/"}).archives == "http://mirror.lan:8080/a"
    for wrong in ("https://me:secret@mirror.lan/", "ftp://mirror.lan/", "mirror.lan"):
        problem = problem_of(partial(settings.load, {}, {"TFDOCK_ARCHIVES": wrong}))
        assert (problem.code, problem.file) == ("settings-bad-value", "TFDOCK_ARCHIVES")
        assert "secret" not in str(problem)


RULES = f"""
tf_http_archive(
    name = "w",
    sha256 = "{"1" * 64}",
    urls = ["https://a/w.tgz"],
)

    tf_http_archive(
        name = "x",
        urls = [
            "https://mirror/a/x.tgz",
            "https://a/x.tgz",
        ],
        sha256 = "{"2" * 64}",
    )

http_archive(name = "y", urls = ["https://a/y.tgz"])

load("z")
"""


@pytest.mark.parametrize(
    ("url", "sha256"),
    [("https://a/w.tgz", "1" * 64), ("https://a/x.tgz", "2" * 64), ("https://a/y.tgz", ""), ("https://a/z.tgz", "")],
)
def test_the_sum_of_an_address_is_the_one_of_its_own_rule(url: str, sha256: str) -> None:
    assert sum_beside(RULES, url) == sha256
