"""The engines under test: the fake, Docker 20.10 (DOCKER_HOST) and Docker 28 (the bed starts it on demand)."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from bed import engine_variant

from tfdock.engine.docker_engine import DockerEngine
from tfdock.engine.protocol import IMAGE_LABEL, RUN_LABEL

from .bench import RUN, Bench, PrivateEngine, fake_bench, import_busybox, private_engine


def real_bench(name: str, host: str, temporary: Path) -> Iterator[Bench]:
    """A bench on that engine; whatever carries our labels is removed at the end, and must then be gone."""
    engine = DockerEngine(host)
    import_busybox(host)
    yield Bench(name, engine, temporary)
    left = [*engine.containers(RUN_LABEL, RUN), *engine.containers(IMAGE_LABEL, RUN)]
    for container in left:
        engine.remove(container.id)
    assert not engine.containers(RUN_LABEL, RUN)
    assert not engine.containers(IMAGE_LABEL, RUN)
    assert not [state.name for state in left if IMAGE_LABEL in state.labels and RUN_LABEL not in state.labels]


@pytest.fixture(scope="session")
def docker_bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    host = os.environ.get("DOCKER_HOST")
    if not host:
        pytest.skip("no engine: DOCKER_HOST is not set (`ci/bed/bed run -- …` sets it)")
    yield from real_bench("docker", host, tmp_path_factory.mktemp("docker"))


@pytest.fixture(scope="session")
def docker28_bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with engine_variant("docker28") as environment:
        yield from real_bench("docker28", environment["DOCKER_HOST"], tmp_path_factory.mktemp("docker28"))


REAL = [pytest.param(name, marks=pytest.mark.engine) for name in ("docker", "docker28")]


@pytest.fixture(params=["fake", *REAL])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    """Each implementation in turn."""
    if request.param == "fake":
        return fake_bench(tmp_path)
    found: Bench = request.getfixturevalue(f"{request.param}_bench")
    return found


@pytest.fixture(params=REAL)
def real(request: pytest.FixtureRequest) -> Bench:
    """Each real engine in turn: for what only a kernel can do."""
    found: Bench = request.getfixturevalue(f"{request.param}_bench")
    return found


@pytest.fixture
def docker_only(docker_bench: Bench) -> Bench:
    """One real engine, where the second would tell nothing new."""
    return docker_bench


@pytest.fixture(scope="module")
def private() -> Iterator[PrivateEngine]:
    # A rotating log by default, as careful administrators set it: `follow` must not lose anything to it.
    with private_engine("--log-opt=max-size=16k") as engine:
        yield engine


@pytest.fixture
def victim(private: PrivateEngine, tmp_path: Path) -> Iterator[Bench]:
    """A bench on the private engine, which runs again afterwards."""
    yield Bench("private", DockerEngine(private.host, sleep=lambda _: None), tmp_path)
    private.revive()


@pytest.fixture(autouse=True)
def _no_test_hangs() -> Iterator[None]:
    """Everything here waits for something; what never comes shall be an error with a traceback."""

    def over(_number: int, _frame: object) -> None:
        pytest.fail("the test took more than 90 seconds")  # no Exception, so that nothing swallows it

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(90)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
