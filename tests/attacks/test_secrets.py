"""Secrets of the user, as canaries: no build carries one out, not in any spelling."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import secrets
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from build.harness import Tfdock, built_images, write_profile
from servers import Handler, serving

from .rig import FIELDS, After, Range, attacked, leaks, leaks_below, listening, parts_of_image, spellings

pytestmark = pytest.mark.engine


def _canary(name: str) -> str:
    return f"CANARY-{name}-{secrets.token_hex(12)}"


VARIABLES = {
    "GITHUB_TOKEN": "",
    "ACTIONS_ID_TOKEN_REQUEST_TOKEN": "",
    "CI_JOB_TOKEN": "",
    "AWS_SECRET_ACCESS_KEY": "",
    "PIP_INDEX_URL": "http://me:{}@127.0.0.1:1/simple",
    "HTTPS_PROXY_PASSWORD": "",
    "TFDOCK_REMOTE_HEADER": "Authorization: Bearer {}",
    "BUILDKIT_SECRET": "",
}
FILES = {
    ".netrc": "machine github.com login me password {}\n",
    ".gitconfig": "[http]\n\textraheader = Authorization: Basic {}\n",
    ".git-credentials": "https://me:{}@github.com\n",
    ".ssh/id_ed25519": "-----BEGIN OPENSSH PRIVATE KEY-----\n{}\n-----END OPENSSH PRIVATE KEY-----\n",
    ".config/pip/pip.conf": "[global]\nindex-url = https://me:{}@pypi.example/simple\n",
    ".pypirc": "[pypi]\npassword = {}\n",
    ".aws/credentials": "aws_secret_access_key = {}\n",
}


@dataclass(frozen=True)
class Robbed:
    """A build by an attacker's base and source, of a user who has secrets wherever users have them."""

    after: After
    secrets: dict[str, str]
    files: tuple[Path, ...]
    heard: bytes
    asked: tuple[str, ...]  #: The logins that the user's own remote cache was shown.
    there: Range


@pytest.fixture(scope="module")
def robbed(ground: Range) -> Robbed:
    command = ground.home()
    found, files = {}, []
    variables = {}
    for name, form in VARIABLES.items():
        found[name] = _canary(name)
        variables[name] = (form or "{}").format(found[name])
    for name, form in FILES.items():
        found[name] = _canary(name.strip(".").replace("/", "-"))
        files.append(command.home / name)
        files[-1].parent.mkdir(parents=True, exist_ok=True)
        files[-1].write_text(form.format(found[name]))
    found["docker"] = _canary("docker")
    files.append(command.home / ".docker/config.json")
    files[-1].parent.mkdir()
    login = base64.b64encode(f"me:{found['docker']}".encode()).decode()
    logins = {name: {"auth": login} for name in ("ghcr.io", "docker.io", "quay.io")}
    found["proxy"] = _canary("proxy")
    proxies = {"default": {"httpProxy": f"http://me:{found['proxy']}@127.0.0.1:1", "noProxy": "127.0.0.1"}}
    files[-1].write_text(json.dumps({"auths": logins, "proxies": proxies}))
    with listening() as server, remote_cache() as (cache, asked):
        variables["TFDOCK_REMOTE_CACHE"] = cache
        tree = ground.folder / "trees/telling"
        tree.mkdir(parents=True)
        (tree / "configure").write_text(
            f"#!/bin/sh\npython3 /opt/attacker/attack.py image {server.address}\n"
            "echo 'build:opt --copt=-O2' > .tf_configure.bazelrc\n"
        )
        (tree / "configure").chmod(0o755)
        (tree / "PORT").write_text(server.address)
        flags = ["--define=attack=telling", f"--define=address={server.address}"]
        fields = {**FIELDS, "base": ground.base, "bazel": {"flags": flags}}
        profile = write_profile(command.home / "telling.yaml", tree, **fields)
        after = attacked(ground, command.with_variables(**variables), "build", "--json", profile, everywhere=True)
        heard = b"\n".join(server.came)
    return Robbed(after, found, tuple(files), heard, tuple(asked), ground)


@contextlib.contextmanager
def remote_cache() -> Iterator[tuple[str, list[str]]]:
    """A remote cache of the user, in which nothing is: its address, and the login of each request."""
    asked: list[str] = []

    class Nothing(Handler):
        def respond(self) -> None:
            asked.append(self.headers.get("Authorization", ""))
            self.answer(404)

    with serving(Nothing) as address:
        yield f"http://{address}", asked


def test_the_search_finds_a_secret_however_it_is_written() -> None:
    """The other tests of this file can fail."""
    secret = _canary("search")
    for how, text in spellings(secret).items():
        assert leaks(b"some text " + text + b" and more", {"it": secret}), how
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        entry = tarfile.TarInfo("inner")
        entry.size = len(secret)
        tar.addfile(entry, io.BytesIO(secret.encode()))
    assert leaks(packed.getvalue(), {"it": secret})
    for shift in range(3):
        assert leaks(base64.b64encode(b"x" * shift + b"me:" + secret.encode()), {"it": secret}), shift


def test_the_attacker_was_told_what_there_is(robbed: Robbed) -> None:
    assert robbed.after.outcome.code == 0, robbed.after.outcome.told
    assert robbed.after.changed == ()
    assert robbed.after.elsewhere == ()
    for phase in ("image", "fetch", "compile", "last"):
        assert f"attack: known in\nattack: {phase}" in robbed.after.log, robbed.after.log[-2000:]
    assert b"from fetch" in robbed.heard, "it has a network"
    assert b"from compile" not in robbed.heard
    assert b"from last" not in robbed.heard
    assert b"http_proxy=http://127.0.0.1:1" in robbed.heard, "a proxy, without its login"
    assert set(robbed.asked) == {f"Bearer {robbed.secrets['TFDOCK_REMOTE_HEADER']}"}


def test_no_secret_is_told_kept_or_sent(robbed: Robbed) -> None:
    after = robbed.after
    told = f"{after.outcome.stdout}\n{after.outcome.stderr}".encode()
    assert leaks(told, robbed.secrets) == []
    assert leaks(robbed.heard, robbed.secrets) == []
    assert leaks_below(after.command.home, robbed.secrets, but=robbed.files) == []


def test_no_secret_is_in_a_layer_or_in_the_history_of_an_image(robbed: Robbed) -> None:
    sdk, home = robbed.there.sdk, robbed.after.command.home
    images = [image["Id"] for image in built_images(sdk, robbed.there.folder, home.name)]
    parts = [part for image in images for part in parts_of_image(sdk, image, robbed.there.clean)]
    assert [f"{name}: {leak}" for name, data in parts for leak in leaks(data, robbed.secrets, 2)] == []
    assert len(parts) - len(images) > 5, "there are images, and their layers were searched"


def test_no_secret_is_in_a_report(robbed: Robbed) -> None:
    command: Tfdock = robbed.after.command
    log = next(command.wheelhouse.glob(".tfdock/*/*/*.log"))
    command.run("report", "--bundle", log, "-o", command.home / "report.tar.gz", code=0)
    assert leaks_below(command.home, robbed.secrets, but=robbed.files) == []
