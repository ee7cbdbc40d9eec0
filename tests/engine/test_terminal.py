"""`attach` on real engines, with a pseudo terminal in the place of the user's."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from waits import wait_until

from tfdock.engine.docker_engine import DockerEngine

from .bench import Bench

SHELL = """
import fcntl, sys, termios
from tfdock.engine.docker_engine import DockerEngine
if sys.stdin.isatty():
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
print("attaching", flush=True)
sys.exit(DockerEngine(sys.argv[1]).attach(sys.argv[2]))
"""


def command(bench: Bench, container: str) -> list[str]:
    assert isinstance(bench.engine, DockerEngine)
    return [sys.executable, "-c", SHELL, bench.engine.address.url, container]


@dataclass
class Terminal:
    """A pseudo terminal and the process that thinks a user sits at it."""

    keyboard: int
    process: subprocess.Popen[bytes]
    shown: bytearray = field(default_factory=bytearray)

    def type(self, keys: bytes) -> None:
        os.write(self.keyboard, keys)

    def shows(self, text: bytes) -> None:
        def found() -> bool:
            with contextlib.suppress(BlockingIOError, OSError):
                self.shown += os.read(self.keyboard, 4096)
            return text in self.shown

        wait_until(found, 15, self.process)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.keyboard, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def modes(self) -> list[object]:
        return termios.tcgetattr(self.keyboard)


@contextlib.contextmanager
def terminal(bench: Bench, script: str) -> Iterator[Terminal]:
    container = bench.engine.create(bench.spec(script, terminal=True))
    keyboard, screen = pty.openpty()
    os.set_blocking(keyboard, False)
    process = subprocess.Popen(
        command(bench, container), stdin=screen, stdout=screen, stderr=screen, start_new_session=True
    )
    try:
        yield Terminal(keyboard, process)
        process.wait(20)
    finally:
        process.kill()
        process.wait(30)
        os.close(keyboard)
        os.close(screen)
        bench.engine.remove(container)


def test_terminal_is_joined_resized_and_restored(real: Bench) -> None:
    script = "read a; stty size; read b; stty size; echo got $a $b; exit 5"
    with terminal(real, script) as user:
        before = user.modes()
        user.resize(33, 101)
        user.shows(b"attaching")
        wait_until(lambda: user.modes() != before, 15, user.process)
        user.type(b"one\r")
        user.shows(b"33 101")
        user.resize(44, 120)
        user.type(b"two\r")
        user.shows(b"44 120")
        user.shows(b"got one two")
        assert user.process.wait(20) == 5
        assert user.modes() == before


def test_control_c_goes_to_the_container(real: Bench) -> None:
    with terminal(real, "trap 'exit 9' INT; echo ready; while true; do sleep 0.1; done") as user:
        user.shows(b"ready")
        user.type(b"\x03")
        assert user.process.wait(20) == 9


def test_terminal_is_restored_when_the_program_is_terminated(docker_only: Bench) -> None:
    with terminal(docker_only, "echo ready; while true; do sleep 0.1; done") as user:
        before = user.modes()
        user.shows(b"ready")
        assert user.modes() != before
        user.process.send_signal(signal.SIGTERM)
        user.process.wait(20)
        assert user.modes() == before


@pytest.mark.parametrize(
    ("typed", "exit_code"),
    [
        pytest.param(b"echo $((6*7))\nexit 4\n", 4, id="exit"),
        pytest.param(b"echo $((6*7))\n", 0, id="end"),
        pytest.param(b"echo $((6*7)); false", 1, id="end-within-a-line"),
    ],
)
def test_piped_input_is_typed_and_ends(real: Bench, typed: bytes, exit_code: int) -> None:
    container = real.engine.create(real.spec("exec sh", terminal=True))
    done = subprocess.run(command(real, container), input=typed, capture_output=True, timeout=60)
    assert b"42" in done.stdout
    assert (done.returncode, done.stderr) == (exit_code, b"")
    real.engine.remove(container)
