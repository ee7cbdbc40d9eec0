"""The test bed leaves nothing behind when a part of it is killed, and refuses to start on a full disk."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from bed import BED, needs_root
from build.harness import small_disk
from waits import FETCH, first_line, run_within, wait_until

pytestmark = pytest.mark.engine

SHOW = 'docker ps --quiet && echo "TMPDIR=$TMPDIR"; exec sleep 1000'


class Bed:
    """A bed of its own beside the one of these tests: it shares that one's store, so that it has its images."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        own = ("TFDOCK_BED", "TFDOCK_BED_WORLD", "DOCKER_HOST", "TFDOCK_BED_SECOND")
        self.environment = {name: value for name, value in os.environ.items() if name not in own}
        self.environment["TFDOCK_BED"] = str(folder)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return run_within(FETCH, [BED, *words], env=self.environment)

    def start(self) -> subprocess.Popen[str]:
        """A command in the bed, when it runs."""
        pipe = subprocess.PIPE
        command = [str(BED), "run", "--", "sh", "-c", SHOW]
        process = subprocess.Popen(
            command, env=self.environment, stdout=pipe, stderr=subprocess.DEVNULL, text=True, start_new_session=True
        )
        self.temporary = Path(first_line(process, FETCH).removeprefix("TMPDIR=").strip())
        return process

    def processes(self, words: str) -> list[int]:
        """Those of this bed whose command line begins so."""
        mine = f"TFDOCK_BED={self.folder}".encode()
        found = [pid for pid, line in processes() if re.match(words, line.strip())]
        return [pid for pid in found if mine in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")]

    @property
    def left(self) -> list[str]:
        """Processes and mounts that name the bed's folders, its bridge, and its temporary folder."""
        found = [f"{pid}: {words}" for pid, words in processes() if str(self.folder) in words]
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        found += [line for line in mounts if str(self.folder) in line or str(self.temporary) in line]
        found += [str(path) for path in (self.temporary, *self._bridges) if path.exists()]
        return found

    @property
    def _bridges(self) -> list[Path]:
        return list(Path("/sys/class/net").glob(f"tfdock*-{self.temporary.name.removeprefix('tfdock-')[:6]}"))


def processes() -> Iterator[tuple[int, str]]:
    """Processes that run, with their command lines; this one is not among them."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words, state = (path / "cmdline").read_bytes(), (path / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if int(path.name) != os.getpid() and state != "Z":
            yield int(path.name), words.decode(errors="replace").replace("\0", " ")


def bound(taken: socket.socket, port: int) -> bool:
    try:
        taken.bind(("127.0.0.1", port))
    except OSError:
        return False
    return True


@pytest.fixture
def own(tmp_path: Path) -> Bed:
    needs_root("a bed of its own")
    if "TFDOCK_BED_SECOND" not in os.environ:
        pytest.skip("the engine is the machine's own: the bed starts none")
    return Bed(tmp_path / "bed")


@pytest.mark.limit(FETCH)
@pytest.mark.parametrize(
    "words", ["bash .*bed run --", "sleep 1000$", "dockerd "], ids=["bed run", "command", "engine"]
)
def test_whatever_is_killed_nothing_is_left_and_the_next_one_starts(own: Bed, words: str) -> None:
    process = own.start()
    try:
        wait_until(lambda: own.processes(words), process=process)
        (victim,) = own.processes(words)
        os.kill(victim, signal.SIGKILL)
        if "dockerd" in words:
            process.terminate()  # as tests that lose their engine end
        process.wait(60)
    finally:
        process.kill()
        process.communicate()
    wait_until(lambda: own.left == [], 60)
    again = own.run("run", "--", "docker", "ps")
    assert again.returncode == 0, again.stderr
    assert own.left == []


@pytest.mark.limit(FETCH)
def test_a_bed_that_is_kept_runs_commands_until_it_is_taken_down(own: Bed) -> None:
    # Another bed that starts has taken a port, and does not answer there yet.
    with socket.socket() as taken:
        port = next(port for port in (5551, *range(5553, 5600)) if bound(taken, port))
        started = own.run("up")
    assert started.returncode == 0, started.stderr
    assert not re.search(rf"docker.io=127.0.0.1:{port}$", own.run("env").stdout, re.MULTILINE)
    status = own.run("status").stdout
    assert re.search(r"^engine +up, pid \d+$", status, re.MULTILINE)
    assert re.search(rf"^disk +\S+ in {re.escape(str(own.folder))}$", status, re.MULTILINE)
    shown = own.run("run", "--", "sh", "-c", 'echo "$TMPDIR"; exit 7')
    own.temporary = Path(shown.stdout.strip())
    assert (shown.returncode, own.left != []) == (7, True)
    refused = own.run("clean")
    assert refused.returncode == 1
    assert "the bed is in use" in refused.stderr
    # An engine that is killed leaves what it has mounted.
    left = 'cd "$(dirname "${DOCKER_HOST#unix://}")"; mkdir engine.exec/left; mount -t tmpfs left engine.exec/left'
    assert own.run("run", "--", "sh", "-c", f"{left}; kill -9 $(cat engine.dockerd.pid)").returncode == 0
    again = own.run("run", "--", "docker", "ps")
    assert again.returncode == 0, again.stderr
    assert own.run("down").returncode == 0
    assert own.left == []
    data = own.folder / "engine"
    assert data.exists()
    with (data / "images of a suite").open("xb") as file:
        os.posix_fallocate(file.fileno(), 0, 1600 << 20)
    assert own.run("run", "--", "true").returncode == 0
    assert not data.exists()


def test_a_disk_without_room_is_told_before_anything_starts(own: Bed) -> None:
    with small_disk(own.folder, "64m"):
        for words in (("room",), ("run", "--", "true")):
            refused = own.run(*words)
            assert refused.returncode == 1
            assert re.search(r"0 GB are free on the disk of \S+, and up to \d GB are needed", refused.stderr)
