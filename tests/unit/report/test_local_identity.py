"""What is known of the caller and of this machine: each kind of secret by one test, names and folders."""

from __future__ import annotations

import base64
import json
import os
import pwd
import socket
from pathlib import Path

import pytest

from tfdock.host.settings import Settings
from tfdock.report.local_identity import is_secret, known_texts

CANARY = "c4nary/S3cret+42"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def secrets(**variables: str) -> frozenset[str]:
    return known_texts(Settings(), variables).secrets


@pytest.mark.parametrize(
    "name",
    ["GITHUB_TOKEN", "DB_PASSWORD", "CLIENT_SECRET", "AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY", "accessToken",
     "secretkey", "GIT_CREDENTIALS", "PGPASSWORD", "KEY_PASSPHRASE", "SESSION_COOKIE", "GH_PAT", "DB_PASS",
     "MYSQL_PWD", "SSHPASS", "DEPLOY_KEY", "REGISTRY_AUTH"],
)  # fmt: skip
def test_a_variable_is_a_secret_by_its_name(name: str) -> None:
    assert is_secret(name)
    assert CANARY in secrets(**{name: CANARY})


@pytest.mark.parametrize(
    "name",
    ["GITHUB_TOKEN_FILE", "SSH_AUTH_SOCK", "TFDOCK_REMOTE_CREDENTIAL_HELPER", "CACHE_KEY", "PWD", "tokenizer",
     "TF_CUDA_VERSION", "SECRET_NAME"],
)  # fmt: skip
def test_other_variables_are_none(name: str) -> None:
    assert not is_secret(name)
    assert CANARY not in secrets(**{name: CANARY})


def test_a_key_of_several_lines_is_known_line_by_line() -> None:
    assert {"first line", "second line", "first line\nsecond line"} <= secrets(SSH_KEY="first line\nsecond line\n")


def test_remote_headers_are_known_whatever_their_names() -> None:
    found = secrets(TFDOCK_REMOTE_HEADER="Authorization: Bearer hunter2\nx-anything: hunter3\nhunter4")
    assert {"Bearer hunter2", "hunter2", "hunter3", "hunter4"} <= found


def test_logins_in_addresses_of_variables_are_known_also_by_themselves() -> None:
    found = secrets(PIP_INDEX_URL="https://anna:sword%2Ffish@pypi.example/simple", X="https://hunter2@x.example")
    assert {"anna", "sword%2Ffish", "sword/fish", "hunter2"} <= found


@pytest.mark.parametrize("elsewhere", [False, True], ids=["at home", "elsewhere"])
def test_docker_s_logins_are_known(home: Path, *, elsewhere: bool) -> None:
    login = base64.b64encode(b"somebody:hunter2:canary").decode()
    auths = {
        "ghcr.io": {"auth": login, "email": "x@example.org"},
        "x.example": {"identitytoken": "hunter3", "registrytoken": "hunter4"},
        "y.example": {"auth": "not base64 of a login"},
        "helped.example": {},
    }
    proxies = {"default": {"httpProxy": "http://me:hunter5@127.0.0.1:1"}}
    folder = home / ("elsewhere" if elsewhere else ".docker")
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"auths": auths, "proxies": proxies, "credsStore": "x"}, indent=1))
    found = secrets(**({"DOCKER_CONFIG": str(folder)} if elsewhere else {}))
    assert {login, "hunter2:canary", "hunter3", "hunter4", "hunter5"} <= found
    assert "x@example.org" not in found


@pytest.mark.parametrize("elsewhere", [False, True], ids=["at home", "elsewhere"])
def test_logins_of_netrc_are_known(home: Path, *, elsewhere: bool) -> None:
    file = home / ("elsewhere" if elsewhere else ".netrc")
    file.write_text(
        "machine a.example\n  login x\n  password hunter2\nmachine b.example login x password hunter3\n"
        'default login x password "hunter 4"\n'
    )
    assert {"hunter2", "hunter3", "hunter 4"} <= secrets(**({"NETRC": str(file)} if elsewhere else {}))


@pytest.mark.parametrize("content", ["", "{", '{"auths": 5}', '{"auths": {"x": {"auth": 5}}}', "\xff\0", None])
def test_login_files_of_any_kind_do_no_harm(home: Path, content: str | None) -> None:
    for path in (home / ".docker/config.json", home / ".netrc"):
        path.parent.mkdir(exist_ok=True)
        if content is None:
            os.mkfifo(path)
        else:
            path.write_text(content)
    assert {text for text in secrets() if text} == set()


def test_users_hosts_and_folders_are_known(home: Path) -> None:
    found = known_texts(
        Settings(),
        {"USER": "a", "TFDOCK_REGISTRY_USER": "annacanary", "GITHUB_ACTOR": "actor", "HOSTNAME": "vm.example"},
        str(home / "customer/my.yaml"),
    )
    assert {"a", "annacanary", "actor", home.name, pwd.getpwuid(os.getuid()).pw_name} <= found.users
    assert {socket.gethostname(), "vm.example", "vm"} <= found.hosts
    assert found.places[str(home)] == "<home>"
    assert found.places[str(home / "customer")] == "<profile folder>"
    # The compiler's triple of conda.
    assert "x86_64-conda-linux-gnu" not in known_texts(Settings(), {"HOST": "x86_64-conda-linux-gnu"}).hosts
