"""Which engine is taken where nobody names one, and what is advised where none answers."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tfdock.engine import address
from tfdock.engine.address import EngineAddress, cannot_connect, find_address
from tfdock.engine.engine_errors import refusal, registry_refusal
from tfdock.errors import EngineUnavailable

DEFAULT = "unix:///nowhere/docker.sock"


@pytest.fixture(autouse=True)
def _no_engine_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    # This machine may have an engine.
    monkeypatch.setattr(address, "_DEFAULT_SOCKET", DEFAULT)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))


def listening(path: Path) -> closing[socket.socket]:
    path.parent.mkdir(parents=True)
    server = socket.socket(socket.AF_UNIX)
    server.bind(os.path.relpath(path))
    server.listen()
    return closing(server)


@pytest.fixture
def podman(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    # A socket's path is at most 107 characters long.
    monkeypatch.chdir(tmp_path)
    with listening(tmp_path / "run/podman/podman.sock"):
        monkeypatch.setenv("XDG_RUNTIME_DIR", "run")
        yield Path("run/podman/podman.sock")


def test_without_docker_the_socket_of_podman_is_taken_and_named(podman: Path) -> None:
    found = find_address(None)
    assert found.url == f"unix://{podman}"
    assert "this user's podman" in str(found)
    assert f"nothing answers at {DEFAULT}" in str(found)


@pytest.mark.usefixtures("podman")
def test_docker_goes_first(tmp_path: Path) -> None:
    with listening(tmp_path / ".docker/desktop/docker.sock"):
        assert find_address(None).origin.startswith("Docker Desktop")


@pytest.mark.usefixtures("podman")
def test_a_named_engine_is_the_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///elsewhere.sock")
    assert find_address(None).url == "unix:///elsewhere.sock"


@pytest.mark.parametrize(
    ("programs", "advice"),
    [
        ({"podman"}, "enable --now podman.socket"),
        ({"dockerd"}, "systemctl start docker"),
        (set(), "install Docker 20.10 or newer, or podman"),
    ],
)
def test_what_is_installed_shall_be_started(programs: set[str], advice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: name if name in programs else None)
    problem = cannot_connect(EngineAddress("unix:///nowhere", "the default"), FileNotFoundError()).problems[0]
    assert advice in problem.fix
    assert ("install" in problem.fix) == (not programs)


def test_podman_is_advised_about_in_its_own_words() -> None:
    untrusted = "http: server gave HTTP response to HTTPS client"
    assert "daemon.json" in registry_refusal("r.example/x", untrusted).problems[0].fix
    for error in (registry_refusal("r.example/x", untrusted, "podman"), refusal("x", "who knows", "podman")):
        (problem,) = error.problems
        assert "docker" not in problem.fix
        assert "daemon.json" not in problem.fix
    assert "registries.conf" in registry_refusal("r.example/x", untrusted, "podman").problems[0].fix


@pytest.mark.parametrize("folder", ["", "certificates"])
def test_certificates_that_are_not_there_are_named_with_their_folder(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
    monkeypatch.setenv("DOCKER_CERT_PATH", folder and str(tmp_path / folder))
    with pytest.raises(EngineUnavailable) as caught:
        find_address(None)
    (problem,) = caught.value.problems
    assert f"{tmp_path / (folder or '.docker')} does not have `cert.pem`" in problem.message
    assert "DOCKER_CERT_PATH" in problem.fix
    # A Unix socket needs none.
    monkeypatch.setenv("DOCKER_HOST", "unix:///var/run/docker.sock")
    assert find_address(None).tls is False
