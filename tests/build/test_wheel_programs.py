"""`bench` and `trace` on wheels, in real containers: an official one, and such as cannot be installed."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from waits import FETCH

from .conftest import Finished, Workshop
from .harness import Tfdock, skip_without_pypi
from .test_verify import PIP, with_first_line

pytestmark = [pytest.mark.engine, pytest.mark.limit(FETCH)]

TRAINING = """
import os, sys, tensorflow as tf
weights = [tf.Variable(0.01 * tf.random.normal((512, 512))) for _ in range(4)]
batch = tf.constant(eval(open("beside.txt").read()))
@tf.function
def train():
    found = batch
    for one in weights:
        found = tf.nn.relu(tf.matmul(found, one))
    return tf.reduce_mean(found**2)
for _ in range(26):
    train()
for place in sys.argv[1:]:
    try:
        open(place, "w")
    except OSError as error:
        print(f"{place}: {error.strerror}")
print("proxy" if os.path.exists("/sys/class/net/eth0") else "no network")
sys.exit(3)
"""


@pytest.fixture
def with_pip(tfdock: Tfdock) -> Tfdock:
    """The command with the settings by which pip reaches PyPI here."""
    return tfdock.with_variables(**{name: os.environ[name] for name in PIP if os.environ.get(name)})


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A script that reads a file beside it, tries to write files, and ends with 3."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "beside.txt").write_text("[[0.5] * 512] * 256")
    (folder / "train.py").write_text(TRAINING)
    return folder / "train.py"


def test_two_wheels_take_turns_in_one_container(
    with_pip: Tfdock, official_wheels: Callable[..., Path], tmp_path: Path
) -> None:
    wheel = official_wheels("tensorflow-cpu==2.18.0", "3.11")
    other = tmp_path / wheel.name
    shutil.copy(wheel, other)
    words: list[str | Path] = ["--pairs", "4", "--suite", "dispatch", "--switch", "TF_ENABLE_ONEDNN_OPTS=0"]
    outcome = with_pip.start("bench", wheel, "--vs", other, *words, "--json").finish(FETCH)
    skip_without_pypi([] if outcome.code == 0 else ["dependencies-unavailable"])
    assert outcome.code == 0, outcome.told
    found = outcome.document
    assert [side["python"] for side in found["sides"]] == [str(wheel), str(other)]
    assert [side["tensorflow"] for side in found["sides"]] == ["2.18.0", "2.18.0"]
    assert [side["version"] for side in found["sides"]] == ["3.11", "3.11"]
    assert [side["variables"] for side in found["sides"]] == [{}, {"TF_ENABLE_ONEDNN_OPTS": "0"}]
    assert (found["pairs"], len(found["operations"])) == (4, 3)
    # A call that is not made takes a microsecond.
    assert all(min(one["seconds"]) > 1e-5 for one in found["operations"])
    assert "pair 4 of 4" in outcome.stderr


def test_a_script_is_recorded_with_a_wheel_and_touches_nothing(
    with_pip: Tfdock, official_wheels: Callable[..., Path], xprof: Path, script: Path, tmp_path: Path
) -> None:
    wheel = official_wheels("tensorflow-cpu==2.18.0", "3.11")
    words: list[str | Path] = ["--json", "--xprof", xprof, "--output", tmp_path / "out", "--case", "longest"]
    outcome = with_pip.start("trace", *words, wheel, "--", script, "mine.txt", "/tfdock/wheel/x").finish(FETCH)
    skip_without_pypi([] if outcome.stdout else ["dependencies-unavailable"])
    assert outcome.code == 3, outcome.told
    found = outcome.document
    assert (found["script"]["tensorflow"], found["script"]["steps"]) == ("2.18.0", 20)
    assert "MatMul" in str([one["type"] for one in found["facts"]["operations"]])
    assert Path(found["profile"]).is_relative_to(tmp_path / "out")
    assert found["case"]["seconds"] > 0
    assert "mine.txt: Read-only file system" in outcome.stderr
    assert "no network" in outcome.stderr
    assert {path.name for path in script.parent.iterdir()} == {"beside.txt", "train.py"}


def test_a_wheel_that_cannot_be_installed_is_named_with_the_reason(
    finished: Finished, tfdock: Tfdock, script: Path, tmp_path: Path, xprof: Path
) -> None:
    foreign = finished.wheel.name.replace("cp311-cp311", "cp310-cp310")
    other = Path(shutil.copy(finished.wheel, tmp_path / foreign))
    refused = tfdock.run("bench", finished.wheel, "--vs", other, code=2)
    assert "no known image has a Python for both wheels, cp311 and cp310" in refused.stderr
    mac = tmp_path / f"{finished.wheel.name.rpartition('-')[0]}-macosx_12_0_arm64.whl"
    shutil.copy(finished.wheel, mac)
    outcome = tfdock.run("trace", "--xprof", xprof, mac, script, code=4)
    assert f"{mac.name} cannot be installed: ERROR: {mac.name} is not a supported wheel on this platform" in (
        outcome.stderr
    )
    assert not list((tmp_path / "trace").glob("*"))
    assert list((tfdock.cache / "output").glob("*")) == []


def test_a_wheel_that_dies_in_a_container_is_named_with_its_last_words(
    finished: Finished, tfdock: Tfdock, tmp_path: Path
) -> None:
    dying = with_first_line(finished.wheel, tmp_path / "dying", "import sys; sys.exit('no such library')")
    outcome = tfdock.run("bench", dying, "--pairs", "4", code=4)
    assert f"TensorFlow of {dying} ends with exit status 1: no such library [tensorflow-trial]" in outcome.stderr
    assert f"`tfdock verify {dying}`" in outcome.stderr


def test_a_stop_ends_the_container(finished: Finished, tfdock: Tfdock, workshop: Workshop, tmp_path: Path) -> None:
    sleeping = with_first_line(finished.wheel, tmp_path / "sleeping", "import time; time.sleep(600)")
    running = tfdock.start("bench", sleeping)

    def names() -> list[str]:
        listed = workshop.sdk.containers(filters={"label": "io.tfdock.run"})
        return [name for one in listed for name in one["Names"] if name.endswith("-program")]

    running.until(names)
    outcome = running.end_by(signal.SIGINT, 60, code=130)
    assert "the measured times are lost" in outcome.stderr
    assert names() == []


def test_a_wheel_needs_an_engine(finished: Finished, tfdock: Tfdock) -> None:
    outcome = tfdock.with_variables(DOCKER_HOST="unix:///nonexistent/docker.sock").run(
        "bench", finished.wheel, code=6
    )
    assert "[engine-unavailable]" in outcome.stderr
