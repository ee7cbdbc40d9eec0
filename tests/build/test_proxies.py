"""A user whose only way out is a proxy that wants a login."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import secrets
import tarfile
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from attacks.rig import leaks, leaks_below, parts_of_image
from servers import Handler, serving

from .conftest import Workshop
from .harness import command_lines, file_server, write_profile

pytestmark = [pytest.mark.engine, pytest.mark.limit(300)]


@contextlib.contextmanager
def proxy_with_login(login: str) -> Iterator[tuple[str, list[str]]]:
    """`host:port` of a proxy that serves whoever knows the login, and the addresses that it served."""
    expected = f"Basic {base64.b64encode(login.encode()).decode()}"
    asked: list[str] = []
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    class Proxy(Handler):
        def respond(self) -> None:
            if self.headers.get("Proxy-Authorization") != expected:
                self.answer(407, headers=[("Proxy-Authenticate", 'Basic realm="proxy"')])
                return
            asked.append(self.path)
            with direct.open(self.path) as answer:
                self.answer(200, answer.read())

    with serving(Proxy) as address:
        yield address, asked


@contextlib.contextmanager
def process_list() -> Iterator[set[bytes]]:
    """The command lines of all processes of this machine while the body runs, those in containers too."""
    lines: set[bytes] = set()
    done = threading.Event()

    def look() -> None:
        while not done.wait(0.1):
            lines.update(command_lines())

    thread = threading.Thread(target=look)
    thread.start()
    yield lines
    done.set()
    thread.join()


def test_a_build_behind_a_proxy_with_a_login_downloads_through_it_and_keeps_the_login_nowhere(
    workshop: Workshop, tmp_path: Path
) -> None:
    served = tmp_path / "served"
    served.mkdir()
    with tarfile.open(served / "source.tar.gz", "w:gz") as tar:
        tar.add(workshop.tree(), "tensorflow-99.18.0")
    sha256 = hashlib.sha256((served / "source.tar.gz").read_bytes()).hexdigest()
    password = f"CANARY-{secrets.token_hex(12)}"
    login = f"anna:{password}"
    command = workshop.tfdock()
    with file_server(served) as url, proxy_with_login(login) as (address, asked), process_list() as processes:
        proxy = f"http://{login}@{address}"
        # Nothing is in its cache: Bazel downloads.
        cache = {"TFDOCK_CACHE_DIR": str(command.home / "cache")}
        command = command.with_variables(http_proxy=proxy, HTTPS_PROXY=proxy, no_proxy="nowhere.example", **cache)
        source = {"release": "99.18.0", "archive": f"{url}/source.tar.gz", "sha256": sha256}
        profile = write_profile(
            tmp_path / "archive.yaml", tensorflow=source, accelerator="cpu", compute_capabilities=None
        )
        outcome = command.build(profile)
    assert outcome.code == 0, outcome.told
    assert {path.rpartition("/")[2] for path in asked} == {"source.tar.gz", "minimath-1.0.tar.gz"}
    wanted = {"password": password, "login": login}
    assert leaks(f"{outcome.stdout}\n{outcome.stderr}".encode(), wanted) == []
    assert leaks_below(command.home, wanted) == []
    assert any(b"phase.sh" in line for line in processes), "the processes of containers are seen"
    assert [line for line in processes if password.encode() in line] == []
    (image,) = workshop.sdk.images(f"tfdock/{outcome.build['build_id'].lower()}", quiet=True)
    base = workshop.sdk.inspect_image(image)["Config"]["Labels"]["io.tfdock.base"]
    parts = dict(parts_of_image(workshop.sdk, image, base))
    assert {name: found for name, data in parts.items() if (found := leaks(data, wanted, 2))} == {}
    assert len(parts) > 5
    for container in workshop.sdk.containers(all=True):
        with contextlib.suppress(Exception):  # of another test, and gone meanwhile
            assert password not in json.dumps(workshop.sdk.inspect_container(container["Id"]))
