"""Caches and execution past this machine, on real servers: nginx, BuildGrid, a buildbox worker."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from waits import FETCH

from .conftest import EditedTree, Workshop
from .harness import UNTRIED, WHOLE, Json, Outcome, Tfdock, before, command_lines, record_of, write_profile
from .remote_servers import CACHE, EXECUTOR, USER, Nginx, buildgrid, nginx_cache, postgres, worker

pytestmark = [pytest.mark.engine, pytest.mark.limit(FETCH)]

CANARY = "Y2FuYXJ5LW9mLXRoZS1yZW1vdGUtY2FjaGU"
KERNEL = "tensorflow/core/kernels/relu_op.cc"
ACTIONS = 18


def credentials(password: str) -> str:
    """The header that a user and a password make."""
    return f"Authorization: Basic {base64.b64encode(f'{USER}:{password}'.encode()).decode()}"


SECRETS = (CANARY, credentials(CANARY).rpartition(" ")[2])


def emptied(workshop: Workshop, **variables: str) -> Tfdock:
    """A command on another machine, as it were: with a disk cache of its own, in which nothing is."""
    command = workshop.tfdock()
    return replace(command, cache=command.home / "cache").with_variables(**variables)


def knowing(workshop: Workshop, guarded: Nginx, **more: str) -> Tfdock:
    """The same, with the certificate and the password of a cache."""
    authority = str(guarded.folder / "tls/ca.pem")
    variables = {"TFDOCK_REMOTE_CACHE": guarded.url, "TFDOCK_REMOTE_HEADER": credentials(CANARY)}
    return emptied(workshop, **variables, **more, SSL_CERT_FILE=authority)


def remote_of(outcome: Outcome) -> Json:
    """What the record says of the remote cache or executor."""
    assert outcome.code == 0, outcome.told
    remote: Json = record_of(outcome.build)["remote"]
    return remote


def figures(outcome: Outcome) -> tuple[int, int]:
    """Bazel's own: actions out of a cache, and executed."""
    assert outcome.code == 0, outcome.told
    return outcome.build["cache"]["hits"], outcome.build["cache"]["executed"]


@dataclass(frozen=True, kw_only=True)
class Filled:
    """An HTTP cache that the first build has filled."""

    profile: Path
    outcome: Outcome
    store: Path
    uploads: int


@pytest.fixture(scope="module")
def filled(workshop: Workshop) -> Iterator[Filled]:
    folder = workshop.folder / "nginx"
    with nginx_cache(folder) as cache:
        profile = write_profile(
            workshop.folder / "remote.yaml", workshop.tree(), cache={"remote": cache.url}, verify=UNTRIED
        )
        emptied(workshop).build(profile, code=2, problem="endpoint-not-allowed")
        assert cache.asked("GET") == 0
        outcome = emptied(workshop).build(profile, "--allow-endpoint", cache.url, code=0)
        yield Filled(profile=profile, outcome=outcome, store=folder / "store", uploads=cache.asked("PUT"))


# --- an HTTP cache ------------------------------------------------------------------------------------------------


def test_what_one_machine_has_compiled_another_one_takes_from_an_http_cache(
    filled: Filled, workshop: Workshop
) -> None:
    assert figures(filled.outcome) == (0, ACTIONS)
    first = remote_of(filled.outcome)["cache"]
    assert first["hits"] == 0
    assert first["sent"] > 100_000
    assert filled.uploads > 2 * ACTIONS
    assert first["endpoint"] == json.loads(filled.profile.read_text())["cache"]["remote"].removesuffix("/cache")

    named = json.loads(filled.profile.read_text())["cache"]["remote"]
    second = emptied(workshop, TFDOCK_ALLOW_ENDPOINTS=named).build(filled.profile)
    assert figures(second) == (ACTIONS, 0)
    assert remote_of(second)["cache"]["hits"] == ACTIONS
    assert second.build["wheels"][0]["sha256"] == filled.outcome.build["wheels"][0]["sha256"]
    assert second.build["build_id"] == filled.outcome.build["build_id"]


# --- TLS and credentials ------------------------------------------------------------------------------------------


@pytest.fixture
def guarded(filled: Filled, tmp_path: Path) -> Iterator[Nginx]:
    """The same cache, with TLS and a password."""
    with nginx_cache(tmp_path / "guarded", password=CANARY, store=filled.store) as cache:
        yield cache


def test_who_has_certificate_and_password_gets_what_the_cache_has_and_a_read_only_job_sends_nothing(
    guarded: Nginx, workshop: Workshop, edited: EditedTree
) -> None:
    # One action is new: what a job that may write would upload.
    profile = edited({KERNEL: before("// another line\n")}, cache={"upload": True}, verify=UNTRIED)
    outcome = knowing(workshop, guarded, TFDOCK_REMOTE_UPLOAD="false").build(profile)
    hits, executed = figures(outcome)
    assert hits > executed > 0
    assert remote_of(outcome)["cache"]["hits"] == hits
    assert guarded.asked("PUT") == 0
    assert guarded.asked("GET") > hits


def test_a_certificate_that_nobody_vouches_for_and_credentials_that_are_missing_or_wrong_are_one_clear_error(
    guarded: Nginx, workshop: Workshop, profile: Path
) -> None:
    command = emptied(workshop, TFDOCK_REMOTE_CACHE=guarded.url)
    trusting = command.with_variables(SSL_CERT_FILE=str(guarded.folder / "tls/ca.pem"))
    wrong = trusting.with_variables(TFDOCK_REMOTE_HEADER=credentials(f"{CANARY}-not"))
    for one, code in ((command, "remote-untrusted"), (trusting, "remote-denied"), (wrong, "remote-denied")):
        outcome = one.build(profile, code=7, problem=code)
        assert outcome.problem["fix"]
        assert outcome.stderr.count("error:") == 1, outcome.told
        assert not any(secret in outcome.told for secret in SECRETS)
        assert one.leftovers == []


# --- a server that dies -------------------------------------------------------------------------------------------


def test_a_cache_that_dies_while_it_compiles_is_one_line_of_warning_and_its_password_is_nowhere(
    guarded: Nginx, workshop: Workshop, edited: EditedTree
) -> None:
    profile = edited({KERNEL: before("#define MINIATURE_SLOW_COMPILE 12\n")}, verify=UNTRIED)
    command = knowing(workshop, guarded)
    planned = command.run("plan", "--json", profile).stdout
    running = command.start("build", "--json", profile)
    # What is cached has been asked for; the one slow action takes its time, and what it makes cannot be uploaded.
    running.until(lambda: guarded.asked("GET") > ACTIONS, WHOLE)
    containers = [workshop.sdk.inspect_container(one) for one in workshop.containers()]
    assert any(one["State"]["Running"] for one in containers)
    seen = json.dumps(containers) + b"\n".join(command_lines()).decode(errors="replace")
    guarded.kill()
    outcome = running.finish(code=0)

    assert outcome.stderr.count("warning") == 1, outcome.told
    assert "was lost" in outcome.stderr
    assert remote_of(outcome)["cache"]["lost"]
    kept = [path.read_bytes() for path in command.home.rglob("*") if path.is_file() and not path.is_symlink()]
    for secret in SECRETS:
        assert secret not in seen + planned + outcome.told
        assert not any(secret.encode() in content for content in kept)


# --- BuildGrid ----------------------------------------------------------------------------------------------------

ROADS = [("hermetic", "99.18.0"), ("legacy", "99.15.0")]


@pytest.mark.parametrize(("road", "release"), ROADS)
def test_a_cache_that_speaks_grpc_serves_either_bazel(
    road: str, release: str, workshop: Workshop, tmp_path: Path
) -> None:
    profile = write_profile(
        tmp_path / "grpc.yaml",
        tensorflow={"release": release, "path": str(workshop.tree(road))},
        cache={"instance": "main"},
        verify=UNTRIED,
    )
    with buildgrid(tmp_path / "bgd", CACHE, instance="main") as (address, process):
        variables = {"TFDOCK_REMOTE_CACHE": f"grpc://{address}"}
        first = emptied(workshop, **variables).build(profile)
        hits, executed = figures(first)
        assert hits == 0
        second = emptied(workshop, **variables).build(profile)
        assert figures(second) == (executed, 0)
        assert remote_of(second)["cache"]["hits"] == executed
        # Another wheelhouse, and the same bytes.
        (there,) = second.build["wheels"]
        assert [there] == [
            {**wheel, "path": there["path"], "install": there["install"]} for wheel in first.build["wheels"]
        ]
        process.kill()
        process.wait(30)
        emptied(workshop, **variables).build(profile, code=7, problem="remote-unreachable")


# --- execution ----------------------------------------------------------------------------------------------------


def test_a_worker_with_the_same_toolchain_compiles_everything_and_the_wheel_is_the_same(
    filled: Filled, workshop: Workshop, tmp_path: Path
) -> None:
    profile = write_profile(tmp_path / "remote.yaml", workshop.tree(), verify=UNTRIED)
    local = record_of(filled.outcome.build)
    image = local["plan"]["image"]["name"]
    store = workshop.folder / "executor"
    store.mkdir()
    with (
        postgres() as database,
        buildgrid(tmp_path / "bgd", EXECUTOR, database=database, store=store) as (address, _),
        worker(workshop.host, image, address, local["toolchain_key"], store),
    ):
        command = emptied(workshop, TFDOCK_REMOTE_EXECUTOR=f"grpc://{address}", TFDOCK_REMOTE_JOBS="4")
        outcome = command.build(profile)
        assert figures(outcome) == (0, ACTIONS)
        log = Path(outcome.build["log"]).read_text()
        assert f" {ACTIONS} remote" in log, log[-3000:]
        assert remote_of(outcome)["executor"]["lost"] is None
    assert outcome.build["wheels"][0]["sha256"] == filled.outcome.build["wheels"][0]["sha256"]
