"""Locks: what is pinned, by the registry and the image themselves; builds by a lock; and every pin that can move."""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import os
import re
import secrets
import signal
import socket
import socketserver
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import docker
import pytest
import yaml
from bed import missing
from refusals import refusal
from servers import Handler, serving

from tfdock.builder import pins as registry
from tfdock.engine.docker_engine import DockerEngine
from tfdock.errors import Interrupted, NetworkError, Problem
from tfdock.host.settings import load
from tfdock.oci import http as web
from tfdock.types import ImageRef

from .conftest import Workshop
from .harness import (
    KNOWLEDGE,
    PLAYED_BUILD,
    Json,
    Outcome,
    Tfdock,
    closed_port,
    copy_tree,
    file_server,
    git,
    git_server,
    new_repository,
    record_of,
    silent_server,
    write_profile,
)

STAND_IN = str(PLAYED_BUILD["base"])
RUNTIME = "python:3.11-slim-bookworm"
ASK = "dpkg-query -W -f '${Package}:${Architecture} ${Version}\\n'; sha256sum $(readlink -f $(command -v bazel))"


class Bench:
    """A profile with a base in the real registry and a source on a git server, both of which can be moved."""

    def __init__(self, workshop: Workshop, repositories: Path, url: str) -> None:
        self.workshop, self.sdk = workshop, workshop.sdk
        self.base = f"tfdock-tests/lock-{secrets.token_hex(4)}:1"
        settings = load({}, os.environ)
        self.pushed = str(settings.mirrored(ImageRef.parse(self.base)))
        self.stand_in = str(settings.mirrored(ImageRef.parse(STAND_IN)))
        self.tree = copy_tree(workshop.tree("played"), repositories / "tensorflow")
        git(self.tree, "init", "--initial-branch=main")
        git(self.tree, "add", "--all")
        git(self.tree, "commit", "--message", "one")
        git(self.tree, "tag", "--annotate", "--message", "a tag with a name of its own", "v99.18.0")
        self.commit = git(self.tree, "rev-parse", "HEAD")
        self.tfdock = workshop.tfdock().with_variables(TFDOCK_ALLOW_ENDPOINTS=url)
        self.fields: Json = {**PLAYED_BUILD, "base": self.base}
        self.fields["tensorflow"] = {"release": "99.18.0", "git": f"{url}/tensorflow"}
        self.profile = write_profile(self.tfdock.home / "profile.yaml", **self.fields)
        self.lock = self.profile.with_suffix(".lock")
        if not DockerEngine(workshop.host).image(self.stand_in):
            DockerEngine(workshop.host).pull(self.stand_in)
        self.digest = self.push(self.stand_in)
        self.outcome = self.tfdock.run("lock", "--json", self.profile)
        assert self.outcome.code == 0, self.outcome.told
        self.text = self.lock.read_text()

    def push(self, image: str) -> str:
        """Make the tag stand for that image; returns the digest that the engine learns from the registry."""
        repository, _, tag = self.pushed.rpartition(":")
        self.sdk.tag(image, repository, tag, force=True)
        for message in self.sdk.push(repository, tag, stream=True, decode=True):
            assert "error" not in message, message
        digest: str = self.sdk.inspect_distribution(self.pushed)["Descriptor"]["digest"]
        return digest

    @contextlib.contextmanager
    def moved_base(self) -> Iterator[str]:
        """The tag stands for another image for a while; gives the digest of that."""
        recipe = f"FROM {self.stand_in}\nLABEL io.tfdock.tests={secrets.token_hex(8)}\n"
        built = list(self.sdk.build(fileobj=io.BytesIO(recipe.encode()), rm=True, decode=True))
        image = next(message["aux"]["ID"] for message in built if "aux" in message)
        try:
            yield self.push(image)
        finally:
            assert self.push(self.stand_in) == self.digest
            self.sdk.remove_image(image, force=True)

    @contextlib.contextmanager
    def lock_with(self, edit: Callable[[str], str]) -> Iterator[None]:
        """The lock with some of its text changed for a while."""
        changed = edit(self.text)
        assert changed != self.text
        self.lock.write_text(changed)
        try:
            yield
        finally:
            self.lock.write_text(self.text)

    def build(self, *, code: int | None = None) -> Outcome:
        return self.tfdock.build("--locked", self.profile, code=code)

    @property
    def without_engine(self) -> Tfdock:
        return replace(self.tfdock, engine=Tfdock.engine)

    @property
    def pins(self) -> dict[tuple[str, str], str]:
        """(kind, name) -> value, as any reader of YAML finds them."""
        return {(row["pin"], row["name"]): row["value"] for row in yaml.safe_load(self.text)["pins"]}

    @property
    def phases(self) -> list[str]:
        """The phases that all runs so far have gone through, run by run."""
        logs = sorted(self.tfdock.wheelhouse.glob(".tfdock/tf*/*/*.log"), key=lambda log: log.stat().st_mtime)
        return [name for log in logs for name in re.findall(r"^=== tfdock: (\w+) of", log.read_text(), re.MULTILINE)]

    def close(self) -> None:
        for name in (self.pushed, f"{self.pushed.rpartition(':')[0]}@{self.digest}"):
            with contextlib.suppress(docker.errors.APIError):
                self.sdk.remove_image(name)


@pytest.fixture(scope="module")
def bench(workshop: Workshop, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    if "127.0.0.1" not in os.environ.get("TFDOCK_REGISTRY_MIRROR", ""):
        missing("no registry of our own to push to (`ci/bed/bed run -- …` starts one)")
    repositories = tmp_path_factory.mktemp("repositories")
    with git_server(repositories) as url:
        bench = Bench(workshop, repositories, url)
        yield bench
        bench.close()
    assert bench.tfdock.leftovers == []


@pytest.fixture(scope="module")
def built(bench: Bench) -> Json:
    """The build by the lock."""
    outcome = bench.build(code=0)
    return outcome.build


def refused(outcome: Outcome, code: str, *words: str) -> None:
    """Refused as incompatible, with one problem that names all these."""
    assert outcome.code == 3, outcome.told
    assert outcome.build["status"] == "refused"
    assert outcome.problem["code"] == code, outcome.told
    for word in words:
        assert word in outcome.problem["message"], outcome.told


# --- what a lock holds --------------------------------------------------------------------------------------------


@pytest.mark.engine
def test_a_lock_pins_what_the_registry_the_git_server_and_the_image_say_themselves(bench: Bench) -> None:
    document = bench.outcome.document
    assert (document["schema"], document["ok"]) == ("tfdock.lock/1", True)
    (told,) = document["locks"]
    assert told["file"] == str(bench.lock)
    assert {(row["pin"], row["name"]): row["value"] for row in told["pins"]} == bench.pins
    assert bench.pins["base", bench.base] == bench.digest
    assert bench.pins["source", "v99.18.0"] == bench.commit
    assert re.fullmatch("sha256:[0-9a-f]{64}", bench.pins["runtime", RUNTIME])

    *packages, bazel = bench.workshop.said(bench.stand_in, "bash", "-c", ASK).splitlines()
    pinned = {name: value for (kind, name), value in bench.pins.items() if kind == "package"}
    assert pinned == dict(line.split(" ") for line in packages)
    assert bench.pins["bazel", "bazel"] == f"4.2.3 sha256:{bazel.split()[0]}"
    assert re.fullmatch(r"1\.24\.2 sha256:[0-9a-f]{64}", bench.pins["requirement", "numpy"])
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", bench.pins["toolchain", "/usr/bin/python3"])


@pytest.mark.engine
def test_locking_compiles_nothing_and_again_writes_the_same_bytes(bench: Bench) -> None:
    assert bench.phases[:1] == ["image"]
    again = bench.tfdock.run("lock", bench.profile)
    assert (again.code, again.stdout) == (0, f"{bench.lock}\n"), again.told
    assert "moved" not in again.stderr
    assert bench.lock.read_text() == bench.text
    assert list(bench.tfdock.home.glob("*.lock")) == [bench.lock], "nothing half written stays"


@pytest.mark.engine
def test_of_several_profiles_each_gets_a_lock_of_its_own_and_those_that_cannot_are_named(bench: Bench) -> None:
    native = write_profile(bench.tfdock.home / "native.yaml", tensorflow="99.18.0", optimize="native")
    gone = write_profile(bench.tfdock.home / "gone.yaml", **{**bench.fields, "base": "tfdock-tests/nobody:1"})
    outcome = bench.tfdock.run("lock", "--json", native, bench.profile, gone, code=7)
    unsafe, locked, missing = outcome.document["locks"]
    assert (unsafe["ok"], unsafe["problems"][0]["code"]) == (False, "native-in-lock")
    assert (locked["ok"], locked["file"]) == (True, str(bench.lock))
    assert (missing["ok"], missing["problems"][0]["code"]) == (False, "image-not-found")
    assert not native.with_suffix(".lock").exists()
    assert not gone.with_suffix(".lock").exists()


@pytest.mark.engine
def test_where_a_pin_cannot_be_asked_for_the_lock_that_was_there_stays(bench: Bench) -> None:
    nowhere = bench.tfdock.with_variables(TFDOCK_REGISTRY_MIRROR=f"docker.io={closed_port()}")
    for outcome in (nowhere.run("lock", bench.profile), nowhere.build("--locked", bench.profile)):
        assert outcome.code == 7, outcome.told
        assert "registry-unreachable" in outcome.stderr
    assert bench.lock.read_text() == bench.text


# --- building by a lock -------------------------------------------------------------------------------------------


@pytest.mark.engine
def test_a_locked_build_is_made_of_what_is_locked_and_its_record_names_the_lock(bench: Bench, built: Json) -> None:
    record = record_of(built)
    assert built["status"] == "built"
    assert record["lock"] == hashlib.sha256(bench.text.encode()).hexdigest()
    assert record["base_digest"] == bench.digest
    assert record["source"] == {"ref": "v99.18.0", "found": bench.commit}
    assert record["plan"]["image"]["base"] == f"{bench.base.partition(':')[0]}@{bench.digest}"
    assert record["fingerprint"] == yaml.safe_load(bench.text)["fingerprint"]
    assert record["build_id"] == yaml.safe_load(bench.text)["build_id"]
    # Locked, nothing is asked of the engine for what is up to date.
    nowhere = bench.without_engine.build("--locked", bench.profile, code=0)
    assert nowhere.build["status"] == "up-to-date"


def says(words: str, outcome: Outcome) -> bool:
    """Whether these words stand on standard error, however its lines are broken."""
    return words in " ".join(outcome.stderr.split())


@pytest.mark.engine
def test_a_tag_that_moved_is_told_and_the_locked_digest_is_built_as_long_as_it_can_be_had(
    bench: Bench, built: Json
) -> None:
    before = bench.phases
    with bench.moved_base() as digest:
        assert digest != bench.digest
        told = bench.tfdock.run("build", "--locked", bench.profile, code=0)
        assert "profile.lock: warning: 1 pin has moved" in told.stderr
        assert digest in told.stderr
        assert says("the build uses the locked values", told)
        assert bench.phases == before, "it is up to date"
        checked = bench.tfdock.run("lock", "--check", "--json", bench.profile, code=3)
        (problem,) = checked.document["locks"][0]["problems"]
        assert (problem["code"], problem["severity"]) == ("pin-moved", "error")
        assert all(word in problem["message"] for word in (f"base {bench.base}", bench.digest, digest))
    checked = bench.tfdock.run("lock", "--check", "--json", bench.profile, code=0)
    assert checked.document["locks"][0]["build_id"] == built["build_id"]
    assert bench.lock.read_text() == bench.text
    assert bench.phases == before, "a check builds nothing"


@pytest.mark.engine
@pytest.mark.parametrize("kind", ["moved", "deleted"])
def test_a_git_tag_that_is_gone_or_moved_is_told_and_the_locked_commit_is_fetched(
    bench: Bench, built: Json, kind: str
) -> None:
    git(bench.tree, "commit", "--allow-empty", "--message", "two")
    if kind == "moved":
        git(bench.tree, "tag", "--force", "v99.18.0")
    else:
        git(bench.tree, "tag", "--delete", "v99.18.0")
        assert bench.tfdock.run("lock", "--check", bench.profile).code == 3
    found = git(bench.tree, "rev-parse", "HEAD")
    try:
        outcome = bench.tfdock.build("--locked", "--force", bench.profile)
    finally:
        git(bench.tree, "tag", "--force", "v99.18.0", bench.commit)
    assert outcome.code == 0, outcome.told
    assert "source v99.18.0" in outcome.stderr
    assert (found if kind == "moved" else "no longer there") in outcome.stderr
    record = record_of(outcome.build)
    assert record["source"] == {"ref": "v99.18.0", "found": bench.commit}
    assert outcome.build["wheels"] == built["wheels"], "the version stamp names the tag all the same"


@pytest.mark.engine
def test_what_the_image_holds_is_held_against_the_lock_before_anything_is_compiled(bench: Bench, built: Json) -> None:
    before = bench.phases
    numpy = bench.pins["requirement", "numpy"]
    version = bench.pins["package", "bash:amd64"]

    def other(text: str) -> str:
        text = text.replace(numpy, f"1.24.1 {numpy.split()[1]}")
        return text.replace(f'name: "bash:amd64", value: "{version}"', 'name: "bash:amd64", value: "4.4-5"')

    with bench.lock_with(other):
        refused(bench.build(), "pin-moved", "2 pins", "package bash:amd64", version, "4.4-5", "numpy", "1.24.1")
        # Who means it locks again, and is told what has moved.
        again = bench.tfdock.run("lock", "--json", bench.profile)
        (bash, _) = again.document["locks"][0]["moved"]
        assert bash == {"pin": "package bash:amd64", "locked": "4.4-5", "found": version}
        assert yaml.safe_load(bench.lock.read_text())["pins"] == yaml.safe_load(bench.text)["pins"]
    assert bench.phases in (before, [*before, "image"])
    # What the lock does not know is not pinned.
    with bench.lock_with(lambda text: re.sub(r".*pin: requirement.*\n", "", text)):
        refused(bench.build(), "pin-missing", "requirement numpy", "not at all")
    assert bench.phases.count("compile") == before.count("compile")
    assert bench.build().build["wheels"] == built["wheels"]


@pytest.mark.engine
@pytest.mark.parametrize("kind", ["base", "source", "bazel", "package", "toolchain"])
def test_a_lock_without_a_kind_of_pin_is_refused_without_an_engine(bench: Bench, kind: str) -> None:
    with bench.lock_with(lambda text: re.sub(rf".*pin: {kind},.*\n", "", text)):
        refused(bench.without_engine.build("--locked", bench.profile), "pin-missing", kind)


@pytest.mark.engine
def test_a_profile_that_has_changed_since_is_refused_with_what_has_changed(bench: Bench) -> None:
    text = bench.profile.read_text()
    try:
        write_profile(bench.profile, **bench.fields, xla=False)
        refused(bench.build(), "lock-outdated", "`xla` was true, now it is false")
        write_profile(bench.profile, **bench.fields, bazel={"flags": ["--keep_going"]})
        refused(bench.build(), "lock-outdated", "flags")
        write_profile(bench.profile, **bench.fields, resources={"jobs": 1})
        assert bench.build().code == 0, "what does not decide the wheel may change"
    finally:
        bench.profile.write_text(text)


@pytest.mark.parametrize(
    ("text", "code", "problem"),
    [(None, 3, "lock-missing"), ("schema: 2\n", 2, "lock-malformed"), ("pins: [\n", 2, "yaml-syntax")],
)
def test_without_a_lock_that_can_be_read_nothing_is_built(
    alone: Tfdock, tmp_path: Path, text: str | None, code: int, problem: str
) -> None:
    profile = write_profile(tmp_path / "profile.yaml", tensorflow="99.18.0")
    if text is not None:
        (tmp_path / "profile.lock").write_text(text)
    outcome = alone.build("--locked", profile, code=code, problem=problem)
    assert outcome.problem["file"] == str(tmp_path / "profile.lock")
    assert "tfdock lock" in outcome.problem["fix"] or problem == "yaml-syntax"


def test_the_lock_of_a_shipped_profile_is_looked_for_where_one_may_write(tmp_path: Path) -> None:
    tfdock = Tfdock(home=tmp_path, cache=tmp_path / "cache", variables={"TFDOCK_KNOWLEDGE": ""})
    assert tfdock.build("--locked", "rtx3080").problem["file"] == "rtx3080.lock"


def test_a_tag_that_is_not_the_commit_that_its_release_is_known_by_is_not_locked(
    alone: Tfdock, tmp_path: Path
) -> None:
    tree = new_repository(tmp_path / "served/tensorflow")
    git(tree, "tag", "v99.18.0")
    row = next(
        row for row in yaml.safe_load((KNOWLEDGE / "releases.yaml").read_text())["rows"] if "99.18" in str(row)
    )
    overlay = tmp_path / "overlay"
    overlay.mkdir()
    tfdock = alone.with_variables(TFDOCK_KNOWLEDGE=f"{KNOWLEDGE}:{overlay}")
    with fake_registry() as (image, _), git_server(tree.parent) as url:
        tfdock = tfdock.with_variables(TFDOCK_ALLOW_ENDPOINTS=f"http://{image.registry}")
        profile = write_profile(tmp_path / "profile.yaml", tensorflow="99.18.0", base=str(image))
        for known, code in (("d" * 40, "pin-moved"), (git(tree, "rev-parse", "HEAD"), "engine-unavailable")):
            row |= {"repository": f"{url}/tensorflow", "commits": {"99.18.0": known}, "source": "tests"}
            (overlay / "releases.yaml").write_text(yaml.safe_dump({"sources": {"tests": "x"}, "rows": [row]}))
            outcome = tfdock.run("lock", "--json", profile, problem=code)
            assert known in outcome.problem["message"] or code != "pin-moved"
            assert not profile.with_suffix(".lock").exists()


@pytest.mark.parametrize("there", [True, False])
def test_another_ref_is_locked_only_where_the_server_says_that_it_has_not_the_first(
    alone: Tfdock, tmp_path: Path, there: bool
) -> None:
    tree = new_repository(tmp_path / "served/tensorflow")
    with fake_registry() as (image, _), git_server(tree.parent) as url:
        address = url if there else f"git://{closed_port()}"
        tfdock = alone.with_variables(TFDOCK_ALLOW_ENDPOINTS=f"http://{image.registry},{address}")
        source = {"release": "99.18.0", "git": f"{address}/tensorflow", "ref": "gone", "fallback": ["main"]}
        profile = write_profile(tmp_path / "profile.yaml", base=str(image), tensorflow=source)
        code = "engine-unavailable" if there else "source-unreachable"
        outcome = tfdock.run("lock", "--json", profile, problem=code)
    assert ("source gone does not work" in outcome.stderr) is there
    with git_server(tree.parent) as url:
        only = {"release": "99.18.0", "git": f"{url}/tensorflow", "ref": "gone"}
        base = f"some/image@{MANIFEST_DIGEST}"
        profile = write_profile(profile, base=base, tensorflow=only)
        tfdock.run("lock", "--json", profile, "--allow-endpoint", url, problem="source-ref-missing")


@pytest.mark.parametrize("words", [("lock",), ("check", "--online")], ids=["lock", "check"])
@pytest.mark.parametrize("asked", ["registry", "git server"])
def test_control_c_ends_a_question_that_nobody_answers(
    alone: Tfdock, tmp_path: Path, asked: str, words: tuple[str, ...]
) -> None:
    with silent_server() as address, socket.create_server(("127.0.0.1", 0)) as server:
        place = f"127.0.0.1:{server.getsockname()[1]}"
        base = f"{place}/some/image:1" if asked == "registry" else f"some/image@{MANIFEST_DIGEST}"
        git_place = place if asked == "git server" else address
        source = {"release": "99.18.0", "git": f"git://{git_place}/x", "ref": "main"}
        profile = write_profile(tmp_path / "profile.yaml", base=base, tensorflow=source)
        running = alone.start(
            *words, profile, "--allow-endpoint", f"https://{place}", "--allow-endpoint", f"git://{git_place}"
        )
        connection, _ = server.accept()
        with connection:
            outcome = running.end_by(signal.SIGINT, 10, code=130)
    assert "[interrupted]" in outcome.stderr


def test_what_is_no_lock_is_not_replaced(alone: Tfdock, tmp_path: Path) -> None:
    profile = write_profile(tmp_path / "poetry.yaml", tensorflow="99.18.0")
    (tmp_path / "poetry.lock").write_text("[[package]]\n")
    alone.run("lock", "--json", profile, code=2, problem="lock-name-taken")
    assert (tmp_path / "poetry.lock").read_text() == "[[package]]\n"


@pytest.mark.engine
def test_a_state_folder_that_cannot_be_is_told_for_each_profile(bench: Bench) -> None:
    nowhere = bench.tfdock.with_variables(TFDOCK_STATE_DIR="/dev/null/x")
    outcome = nowhere.run("lock", "--json", bench.profile, "nowhere.yaml")
    first, second = outcome.document["locks"]
    assert first["problems"][0]["code"] == "file-error", outcome.told
    assert second["problems"][0]["code"] == "profile-not-found"
    assert bench.lock.read_text() == bench.text


# --- asking registries --------------------------------------------------------------------------------------------

MANIFEST = b'{"schemaVersion": 2}'
MANIFEST_DIGEST = f"sha256:{hashlib.sha256(MANIFEST).hexdigest()}"


class FakeRegistry(Handler):
    """Answers as registries do that want a token of everybody, or do not name the digest; keeps what it was asked."""

    asked: list[tuple[str, str]]
    told: list[str | None]  #: What it was shown as authorization.
    status = 200
    busy = 0  #: So many times it asks for patience first.
    patience = "0"
    names_digest = True
    content_type = "application/vnd.oci.image.manifest.v1+json"
    cut_short = 0  #: So many bytes are missing.
    wants_token = False
    takes_token = True
    token_status = 200
    token = b'{"token": "t0k3n"}'
    realm = ""
    leads_to = ""

    def respond(self) -> None:
        self.asked.append((self.command, self.path))
        self.told.append(self.headers.get("Authorization"))
        wanted = "Bearer t0k3n" if self.takes_token else "another one"
        if self.path.startswith("/token"):
            self._answer(self.token_status, self.token, ("Retry-After", "0"))
        elif self.wants_token and self.headers.get("Authorization") != wanted:
            host = self.headers["Host"]
            realm = self.realm or f"http://{host}/token"
            self._answer(401, b"", ("WWW-Authenticate", f'Bearer realm="{realm}",service="here",scope="s"'))
        elif len(self.asked) <= self.busy:
            self._answer(429, b"", ("Retry-After", self.patience))
        elif self.leads_to:
            self._answer(307, b"", ("Location", f"{self.leads_to}{self.path}"))
        elif "application/vnd.oci.image.index.v1+json" not in self.headers["Accept"]:
            self._answer(404, b"")
        else:
            digest = [("Docker-Content-Digest", MANIFEST_DIGEST)] if self.names_digest else []
            more = [("Content-Type", self.content_type), ("Retry-After", "0")]
            self._answer(self.status, MANIFEST, *digest, *more)

    def _answer(self, status: int, body: bytes, *headers: tuple[str, str]) -> None:
        self.answer(status, body, headers, len(body) + self.cut_short)


@contextlib.contextmanager
def fake_registry(**behaviour: Any) -> Iterator[tuple[ImageRef, list[tuple[str, str]]]]:
    """An image's name there, and what the registry was asked."""
    asked: list[tuple[str, str]] = []
    handler = type("Handler", (FakeRegistry,), {"told": [], **behaviour, "asked": asked})
    with serving(handler) as address:
        yield ImageRef("some/image", address, "1.0"), asked


def test_a_digest_is_asked_for_without_fetching_the_manifest() -> None:
    with fake_registry() as (image, asked):
        assert registry.digest(image) == MANIFEST_DIGEST
    assert asked == [("HEAD", "/v2/some/image/manifests/1.0")]


def test_a_digest_that_the_registry_does_not_name_is_that_of_the_manifests_bytes() -> None:
    with fake_registry(names_digest=False) as (image, asked):
        assert registry.digest(image) == MANIFEST_DIGEST
    assert [method for method, _ in asked] == ["HEAD", "GET"]


def test_a_registry_that_gives_everybody_a_token_is_asked_with_one() -> None:
    with fake_registry(wants_token=True) as (image, asked):
        assert registry.digest(image) == MANIFEST_DIGEST
    assert asked[1] == ("GET", "/token?scope=s&service=here")


def test_a_registry_cannot_send_us_to_a_file_for_its_token(tmp_path: Path) -> None:
    (tmp_path / "token").write_text('{"token": "t0k3n"}')
    with fake_registry(wants_token=True, realm=f"file://{tmp_path}/token") as (image, _), pytest.raises(NetworkError):
        registry.digest(image)


def asked_in_vain(image: ImageRef) -> str:
    """What one is told instead of a digest: code and message."""
    with pytest.raises(NetworkError) as caught:
        registry.digest(image)
    (problem,) = caught.value.problems
    return f"{problem.code}: {problem.message}"


@pytest.mark.parametrize("names_digest", [True, False])
def test_a_portal_that_answers_200_to_everything_is_no_registry(names_digest: bool) -> None:
    with fake_registry(content_type="text/html; charset=utf-8", names_digest=names_digest) as (image, _):
        assert "answer is not an image manifest" in asked_in_vain(image)


def test_half_a_manifest_is_not_pinned() -> None:
    with fake_registry(names_digest=False, cut_short=7) as (image, _):
        assert "broke off" in asked_in_vain(image)


def test_a_token_is_shown_to_the_registry_that_asked_and_to_no_other() -> None:
    told: list[str | None] = []
    with (
        fake_registry(told=told) as (elsewhere, asked),
        fake_registry(wants_token=True, leads_to=f"http://{elsewhere.registry}") as (image, _),
    ):
        assert registry.digest(image) == MANIFEST_DIGEST
    assert [method for method, _ in asked] == ["HEAD"], "the method stays"
    assert told == [None]


@pytest.mark.parametrize("place", ["ftp://127.0.0.1/x", "file:///etc", "http://registry.example"])
def test_a_registry_leads_nowhere_but_to_where_one_may_ask(place: str) -> None:
    with fake_registry(leads_to=place) as (image, _):
        assert place.partition(":")[0] in asked_in_vain(image)


@pytest.mark.parametrize(
    ("url", "other", "may"),
    [
        ("https://a.example/x", "https://b.example/y", True),
        ("https://a.example/x", "http://a.example/x", False),
        ("http://a.example/x", "https://a.example/x", True),
        ("http://a.example/x", "http://a.example/x.git", True),
        ("http://a.example/x", "http://b.example/x", False),
        ("https://a.example/x", "https://127.0.0.1/x", False),
        ("https://a.example/x", "http://localhost:5000/token", False),
        *(
            ("https://a.example/x", f"https://{host}/x", False)
            for host in ("0", "127.1", "0x7f000001", "2130706433", "[::]", "[::ffff:127.0.0.1]", "169.254.169.254")
        ),
        ("http://127.0.0.1:5000/v2", "http://localhost:5001/token", True),
        ("http://127.0.0.1:5000/v2", "https://auth.example/token", True),
        ("http://127.0.0.1:5000/v2", "ftp://127.0.0.1/token", False),
    ],
)
def test_no_server_sends_us_out_of_https_or_to_what_listens_on_this_machine(url: str, other: str, may: bool) -> None:
    assert web.may_lead_to(url, other) is may


def test_what_a_token_does_not_open_is_not_there_or_private() -> None:
    with fake_registry(wants_token=True, takes_token=False) as (image, _):
        told = asked_in_vain(image)
    assert told.startswith("image-not-found:")
    assert "or it is private" in told


@pytest.mark.parametrize(
    ("status", "token", "words"),
    [(404, b"", "answers 404"), (503, b"", "answers 503"), (200, b"<html>", "sends none")],
)
def test_a_token_that_is_not_to_be_had_is_told_of_by_itself(status: int, token: bytes, words: str) -> None:
    with fake_registry(wants_token=True, token_status=status, token=token) as (image, _):
        told = asked_in_vain(image)
    assert told.startswith("registry-unreachable:")
    assert f"{image.registry} for a token, which {words}" in told


def test_a_registry_that_asks_for_patience_is_asked_twice_more_unless_it_wants_too_much() -> None:
    with fake_registry(busy=2) as (image, asked):
        assert registry.digest(image) == MANIFEST_DIGEST
    assert len(asked) == 3
    with fake_registry(busy=3) as (image, asked):
        assert asked_in_vain(image).startswith("registry-rate-limited:")
    assert len(asked) == 3
    with fake_registry(busy=1, patience="3600") as (image, asked):
        assert asked_in_vain(image).startswith("registry-rate-limited:")
    assert len(asked) == 1


@contextlib.contextmanager
def speaking(*words: bytes, pause: float = 0.0, endless: bool = False) -> Iterator[str]:
    """`host:port` of a server that says these words to everybody, one after the other, and over again if endless."""
    ended = threading.Event()

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(4096)
            with contextlib.suppress(OSError):
                for word in itertools.cycle(words) if endless else words:
                    self.request.sendall(word)
                    if ended.wait(pause):
                        return

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}"
        ended.set()
        server.shutdown()


def test_a_server_that_sends_a_byte_now_and_then_is_left_when_its_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfdock.oci.http.WHOLE", 0.3)
    monkeypatch.setattr("tfdock.oci.registry_session._PATIENCE", 0)
    with speaking(b"X", pause=0.05, endless=True) as address:
        assert "no complete answer" in asked_in_vain(ImageRef("some/image", address))


def test_who_is_asking_may_be_stopped_at_any_time() -> None:
    def check() -> None:
        raise Interrupted(Problem(code="interrupted", message="enough"))

    with silent_server() as address:
        with pytest.raises(Interrupted):
            registry.digest(ImageRef("some/image", address), check)
        with pytest.raises(Interrupted):
            registry.commit(f"git://{address}/x", "main", check)


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (403, "registry-denied"),
        (404, "image-not-found"),
        (429, "registry-rate-limited"),
        (503, "registry-unreachable"),
    ],
)
def test_what_a_registry_answers_instead_is_told_apart(status: int, code: str) -> None:
    with fake_registry(status=status) as (image, _), refusal(NetworkError, code):
        registry.digest(image)


# --- asking git servers -------------------------------------------------------------------------------------------


class GitOverHttp(Handler):
    """git's own CGI program behind a web server."""

    root: Path

    def respond(self) -> None:
        path, _, query = self.path.partition("?")
        environment = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": str(self.root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "REQUEST_METHOD": "GET",
            "PATH_INFO": path,
            "QUERY_STRING": query,
        }
        answer = subprocess.run(["git", "http-backend"], env=environment, capture_output=True, check=True).stdout
        headers, _, body = answer.partition(b"\r\n\r\n")
        self.answer(404 if headers.startswith(b"Status: 404") else 200, body)


@pytest.fixture(params=["git", "http"])
def repository(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The address of a repository, by either protocol, and where it lies."""
    tree = new_repository(tmp_path / "served/tensorflow")
    if request.param == "git":
        with git_server(tree.parent) as url:
            yield f"{url}/tensorflow", tree
        return
    handler = type("Handler", (GitOverHttp,), {"root": tree.parent})
    with serving(handler) as address:
        yield f"http://somebody@{address}/tensorflow/.git", tree


def test_a_tag_a_branch_and_an_annotated_tag_are_the_commits_that_git_takes_them_for(
    repository: tuple[str, Path],
) -> None:
    url, tree = repository
    first = git(tree, "rev-parse", "HEAD")
    git(tree, "tag", "light")
    git(tree, "tag", "--annotate", "--message", "m", "heavy")
    git(tree, "branch", "both")
    git(tree, "commit", "--allow-empty", "--message", "two")
    git(tree, "tag", "both")
    second = git(tree, "rev-parse", "HEAD")
    assert git(tree, "rev-parse", "heavy") != first, "the tag is an object of its own"
    refs = {"light": first, "heavy": first, "main": second, "both": second, "nothing": None}
    assert {ref: registry.commit(url, ref) for ref in refs} == refs


@pytest.mark.parametrize("scheme", ["http", "git", "ssh", "git@example.org:"])
def test_a_server_that_cannot_be_asked_is_named_with_a_way_out(scheme: str, tmp_path: Path) -> None:
    with file_server(tmp_path) as url:
        addresses = {"http": url, "git": f"git://{closed_port()}/x", "ssh": "ssh://git@example.org/x"}
        with pytest.raises(NetworkError) as caught:
            registry.commit(addresses.get(scheme, f"{scheme}x.git"), "main")
    (problem,) = caught.value.problems
    assert problem.code == "source-unreachable"
    assert "ref:" in problem.fix


def packet(text: bytes) -> bytes:
    return b"%04x" % (len(text) + 4) + text


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", "the server is not a git server"),
        (b"-001", "the server is not a git server"),
        (b"0003", "the server is not a git server"),
        (packet(b"ERR no such repository"), "no such repository"),
        (packet(b"0" * 40 + b" HEAD\n"), "or the connection broke"),
        (packet(b"--upload-pack=x refs/tags/v1\0\n") + b"0000", "the server lists an invalid commit"),
    ],
)
def test_what_is_no_list_of_refs_is_told_in_words_and_pins_nothing(words: bytes, told: str) -> None:
    with speaking(words) as address, refusal(NetworkError, "source-unreachable") as caught:
        registry.commit(f"git://{address}/x", "v1")
    (problem,) = caught.value.problems
    assert told in problem.message


def test_a_git_server_that_says_nothing_without_end_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_MOST", 1 << 16)
    with speaking(b"0000" * 1024, endless=True) as address, pytest.raises(NetworkError) as caught:
        registry.commit(f"git://{address}/x", "v1")
    assert "too many refs" in caught.value.problems[0].message
