"""phase.sh under an init that signals its child alone: one INT reaches Bazel, whatever is sent, and how often."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tfdock.knowledge import loader

# As bazelisk: it survives an INT, and hands none on to the Bazel that it runs.
_BAZELISK = """#!/bin/bash
trap : INT
[ "${@: -1}" != quick ] || exit 0
"$PYTHON" "$FOLDER/bazel.py"
"""
# As Bazel: the first INT ends it with 8, when its actions have ended, as the test says. It writes down each.
_BAZEL = """
import os, signal, sys, time
def interrupted(*_):
    with open(os.environ["FOLDER"] + "/interrupts", "a") as file:
        file.write("INT\\n")
signal.signal(signal.SIGINT, interrupted)
open(os.environ["FOLDER"] + "/ready", "w").close()
while not all(os.path.exists(f"{os.environ['FOLDER']}/{name}") for name in ("interrupts", "ended")):
    time.sleep(0.02)
sys.exit(8)
"""
FETCH = ("fetch", "--", "--", "//:wheel")
COMPILE = ("compile", "--", "--", "//:wheel", "--", "collect", "wheels")
PACKAGE = ("compile", "--", "--", "quick", "--", "run", "bazel")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A container's folders, with the script and a Bazel that waits."""
    for name in ("tf/tensorflow", "tf/staging", "bin"):
        (tmp_path / name).mkdir(parents=True)
    # The only path of the script that this user may not be able to make.
    script = loader.templates()["scripts/phase.sh"].replace("/tf/", f"{tmp_path}/tf/")
    (tmp_path / "phase.sh").write_text(script)
    (tmp_path / "bin/bazel").write_text(_BAZELISK)
    (tmp_path / "bin/bazel").chmod(0o755)
    (tmp_path / "bazel.py").write_text(_BAZEL)
    return tmp_path


@pytest.fixture
def started(folder: Path, words: tuple[str, ...]) -> Iterator[subprocess.Popen[bytes]]:
    """The script, once its Bazel waits."""
    environment = os.environ | {
        "PATH": f"{folder}/bin:{os.environ['PATH']}",
        "PYTHON": sys.executable,
        "FOLDER": str(folder),
        "TFDOCK_RUN": "run",
    }
    command = ["/bin/bash", str(folder / "phase.sh"), *words]
    with subprocess.Popen(command, env=environment, start_new_session=True) as process:
        deadline = time.monotonic() + 60
        while not (folder / "ready").exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield process
        process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    "words",
    [FETCH, *(pytest.param(words, marks=pytest.mark.slow) for words in (COMPILE, PACKAGE))],
    ids=["fetch", "compile", "package"],
)
def test_one_interrupt_reaches_bazel_whose_exit_code_stays(
    folder: Path, started: subprocess.Popen[bytes], number: signal.Signals
) -> None:
    # The script alone, not its group: what an init does that knows nothing of groups.
    for _ in range(3):
        started.send_signal(number)
        time.sleep(0.1)
    (folder / "ended").touch()

    assert started.wait(60) == 8
    assert (folder / "interrupts").read_text() == "INT\n"
    assert not (folder / "tf/staging/done").exists()
