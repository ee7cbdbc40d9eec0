"""The host connects to no endpoint that only a profile or a matrix names."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import Result

from tfdock.errors import ProfileError
from tfdock.host.settings import Settings, load
from tfdock.profile.endpoint import parse

from .. import command_line

PROFILE = 'schema: 1\ntensorflow: "2.18.0"\naccelerator: cpu\npython: "3.11"\n'
GIT = PROFILE.replace('"2.18.0"', '{release: "2.18.0", git: "%s/x.git", ref: main}')


@pytest.fixture
def server() -> Iterator[socket.socket]:
    """A server that nobody may connect to."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening
        listening.setblocking(False)
        with pytest.raises(BlockingIOError):
            listening.accept()


def address(server: socket.socket) -> str:
    return f"127.0.0.1:{server.getsockname()[1]}"


def run(*words: str | Path, code: int, **variables: str) -> Result:
    defaults = {"TFDOCK_REGISTRIES": "", "DOCKER_HOST": "unix:///nonexistent", "TFDOCK_REMOTE_CACHE": ""}
    result = command_line.run(*words, COLUMNS="1000", **{**defaults, **variables})
    assert result.exit_code == code, result.output
    return result


@pytest.mark.parametrize(
    ("field", "scheme"), [("remote", "http"), ("remote", "https"), ("remote", "grpc"), ("executor", "grpcs")]
)
def test_an_endpoint_of_a_profile_alone_is_refused_at_its_place_before_any_connection(
    server: socket.socket, tmp_path: Path, field: str, scheme: str
) -> None:
    file, url = tmp_path / "x.yaml", f"{scheme}://{address(server)}"
    file.write_text(f"{PROFILE}cache: {{{field}: '{url}'}}\n")
    for words in (("check", file), ("plan", file), ("build", file, "--wheelhouse", tmp_path / "wheels")):
        result = run(*words, code=2)
        assert f"{file}:5:{len(field) + 11}: error: " in result.stderr
        assert f"`--allow-endpoint {url}`" in result.stderr
        assert "[endpoint-not-allowed]" in result.stderr
    run("plan", file, "--allow-endpoint", url, code=0)
    run("plan", file, code=0, TFDOCK_ALLOW_ENDPOINTS=f"https://other.example,{url}")
    run("plan", file, "--allow-endpoint", "https://other.example", code=2)


def test_an_endpoint_of_the_settings_may_stand_in_a_profile_too(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(f"{PROFILE}cache: {{remote: 'grpcs://cache.example:443'}}\n")
    run("check", file, code=0, TFDOCK_REMOTE_CACHE="grpcs://cache.example")
    run("check", file, code=2, TFDOCK_REMOTE_CACHE="grpcs://cache.example:444")


@pytest.mark.parametrize("other", ["https://h:1/b", "https://h:2/a", "http://h:1/a", "https://g:1/a", "https://h:1"])
def test_an_endpoint_that_is_allowed_is_that_one_alone(other: str) -> None:
    settings = Settings(allow_endpoints=("https://h:1/a",))
    assert settings.allows(parse("https://H:1/a/"))
    assert not settings.allows(parse(other))


@pytest.mark.parametrize("text", ["cache.example", "ftp://x", "https://me:secret@x", "file:///etc"])
def test_what_is_no_endpoint_cannot_be_allowed(text: str) -> None:
    with pytest.raises(ProfileError) as caught:
        load({"allow_endpoints": (text,)}, {})
    assert caught.value.problems[0].code == "settings-bad-value"
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["git", "http", "https"])
def test_a_lock_asks_no_git_server_that_only_the_profile_names(
    server: socket.socket, tmp_path: Path, scheme: str
) -> None:
    file, url = tmp_path / "x.yaml", f"{scheme}://{address(server)}"
    file.write_text(GIT % url)
    result = run("lock", file, code=2)
    assert f"{file}:2:" in result.stderr
    assert f"`--allow-endpoint {url}`" in result.stderr
    file.with_suffix(".lock").write_text("# Written by `tfdock lock`.\n")
    assert "[endpoint-not-allowed]" in run("build", "--locked", file, code=2).stderr


def test_a_lock_asks_no_registry_that_only_the_profile_names(server: socket.socket, tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(f"{PROFILE}base: {address(server)}/some/image:1\n")
    result = run("lock", file, code=2)
    assert f"{file}:5:7: error: " in result.stderr
    assert f"`--allow-endpoint https://{address(server)}`" in result.stderr


def test_registries_that_any_setting_names_and_docker_hub_may_be_asked() -> None:
    settings = Settings(
        registries=("ghcr.io/me/wheels",),
        mirrors={"quay.io": "m"},
        plain_http=("lan:5000",),
        allow_endpoints=("https://r.example",),
    )
    asked = ("docker.io", "ghcr.io", "quay.io", "lan:5000", "r.example", "evil.example", "r.example:444")
    assert [settings.allows_registry(name) for name in asked] == [True, True, True, True, True, False, False]


def test_the_registry_of_a_matrix_alone_is_never_asked_and_told_once(server: socket.socket, tmp_path: Path) -> None:
    file, registry = tmp_path / "m.yaml", f"{address(server)}/me/wheels"
    (tmp_path / "base.yaml").write_text(PROFILE)
    file.write_text(f'schema: 1\nbase: base.yaml\naxes: {{python: ["3.11"]}}\nci: {{registry: "{registry}"}}\n')
    house = ("--wheelhouse", tmp_path / "wheels")
    for words, code in (
        (("matrix", file), 0),
        (("matrix", file, "--missing"), 0),
        (("pull", "--matrix", file), 2),
    ):
        result = run(*words, *house, code=code)
        assert result.stderr.count("[matrix-registry-not-allowed]") == 1
        assert f"{file}:4:16: warning: " in result.stderr
        assert f"`--registry {registry}`" in result.stderr
