"""Builds on an engine that is somewhere else: behind TCP and TLS, by DOCKER_HOST and by a context, with volumes."""

from __future__ import annotations

import hashlib
import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tfdock.engine.protocol import RUN_LABEL
from tfdock.run.containers import CACHE_LABEL

from .conftest import EditedTree, Workshop
from .elsewhere import Gate, make_certificates
from .harness import WHOLE, Running, Tfdock, record_of

pytestmark = [pytest.mark.engine, pytest.mark.limit(300)]


@pytest.fixture
def profile(played: EditedTree) -> Path:
    return played({})


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    return make_certificates(tmp_path / "certificates")


@pytest.fixture
def gate(workshop: Workshop, certificates: Path) -> Iterator[Gate]:
    gate = Gate(workshop.host, certificates)
    gate.open()
    yield gate
    gate.close()


@pytest.fixture
def far(workshop: Workshop, gate: Gate, certificates: Path, tmp_path: Path) -> Iterator[Tfdock]:
    """The command, for which the engine is on another machine; its volumes are removed afterwards."""
    before = set(volumes(workshop))
    command = replace(workshop.tfdock(), cache=tmp_path / "cache", engine=gate.host)
    yield command.with_variables(DOCKER_TLS_VERIFY="1", DOCKER_CERT_PATH=str(certificates))
    for name in set(volumes(workshop)) - before:
        workshop.sdk.remove_volume(name)


def volumes(workshop: Workshop, label: str | None = None) -> list[str]:
    found = workshop.sdk.volumes(filters={"label": label} if label else {})
    return [volume["Name"] for volume in found["Volumes"] or ()]


def compiling(workshop: Workshop, running: Running) -> list[str]:
    """Wait until Bazel compiles; the kinds of what its container has mounted."""
    running.wait_for("compile …", WHOLE)
    running.until(lambda: _mounts(workshop))
    return sorted({mount["Type"] for mount in _mounts(workshop)})


def _mounts(workshop: Workshop) -> list[dict[str, str]]:
    containers = workshop.sdk.containers(filters={"label": RUN_LABEL, "name": "-compile"})
    return [mount for one in containers if one["Names"][0].endswith("-compile") for mount in one["Mounts"]]


def test_a_build_elsewhere_gives_the_same_wheel_and_survives_the_loss_of_engine_and_client(
    workshop: Workshop, far: Tfdock, gate: Gate, profile: Path, tfdock: Tfdock
) -> None:
    reference = tfdock.build(profile).build["wheels"][0]["sha256"]
    started = far.start("build", "--json", profile)
    assert compiling(workshop, started) == ["volume"], "no folder of this machine is seen by a container"
    gate.shut()
    started.finish(code=6, problem="engine-lost")
    gate.open()

    killed = far.start("build", "--json", profile)
    killed.wait_for("cleaned up after run")
    compiling(workshop, killed)
    killed.end_by(signal.SIGKILL)
    assert volumes(workshop, RUN_LABEL)

    outcome = far.build(profile, code=0)
    assert "cleaned up after run" in outcome.stderr
    assert outcome.build["wheels"][0]["sha256"] == reference
    assert volumes(workshop, RUN_LABEL) == []
    record = record_of(outcome.build)
    assert record["engine"]["local"] is False
    checks = {check["name"]: check["status"] for check in record["verification"]["checks"]}
    assert checks["op"] == "passed", checks
    kept = [path for path in far.cache.rglob("*") if {"ac", "cas"} & set(path.relative_to(far.cache).parts)]
    assert kept == [], "its cache is there, not here"
    assert f"tfdock-{os.getuid()}-disk-{record['toolchain_key']}" in volumes(workshop, CACHE_LABEL)

    again = far.build("--force", profile, code=0)
    assert again.build["cache"]["executed"] == 0
    assert again.build["wheels"][0]["sha256"] == reference
    assert far.leftovers == []


def test_an_engine_elsewhere_is_found_by_its_address_and_by_a_context(
    workshop: Workshop, far: Tfdock, gate: Gate, certificates: Path
) -> None:
    assert f"{gate.host} (from DOCKER_HOST), on another machine" in told_by_doctor(far)
    without = far.with_variables(DOCKER_TLS_VERIFY="", DOCKER_CERT_PATH="").run("doctor", "--json")
    assert without.code == 6

    plain = Gate(workshop.host)
    plain.open()
    by_tcp = replace(far, engine=plain.host, variables={})
    assert f"{plain.host} (from DOCKER_HOST), on another machine" in told_by_doctor(by_tcp)
    plain.close()

    folder = hashlib.sha256(b"far").hexdigest()
    meta, tls = (far.home / ".docker/contexts" / kind / folder for kind in ("meta", "tls"))
    meta.mkdir(parents=True)
    endpoint = {"Host": gate.host, "SkipTLSVerify": False}
    (meta / "meta.json").write_text(json.dumps({"Name": "far", "Metadata": {}, "Endpoints": {"docker": endpoint}}))
    (tls / "docker").mkdir(parents=True)
    for name in ("ca", "cert", "key"):
        (tls / "docker" / f"{name}.pem").write_bytes((certificates / f"{name}.pem").read_bytes())
    nothing = {"DOCKER_HOST": "", "DOCKER_TLS_VERIFY": "", "DOCKER_CERT_PATH": ""}
    by_name = far.with_variables(**nothing, DOCKER_CONTEXT="far")
    assert f"{gate.host} (from the docker context `far`), on another machine" in told_by_doctor(by_name)
    (far.home / ".docker/config.json").write_text(json.dumps({"currentContext": "far"}))
    assert f"{gate.host} (from the docker context `far`), on another machine" in told_by_doctor(
        far.with_variables(**nothing)
    )


def told_by_doctor(command: Tfdock) -> str:
    outcome = command.run("doctor", "--json")
    (engine,) = [check for check in outcome.document["checks"] if check["name"] == "engine"]
    assert engine["status"] == "ok", outcome.told
    return str(engine["found"])
