"""Eight processes at one wheelhouse, killed at any moment: nothing is ever half there, and nobody waits forever."""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tfdock.do.wheelhouse.index import WheelIndex
from tfdock.do.workspace import Wheelhouse
from tfdock.inspect.wheel import read_wheel

from . import houses
from .crowd import SECONDS
from .test_simple_index import named

ROUNDS = 20


def whole(house: Wheelhouse) -> Iterator[str]:
    """Every wheel, read to its last byte."""
    for path in house.root.glob("*.whl"):
        data = path.read_bytes()
        facts = read_wheel(io.BytesIO(data), path.name)
        assert facts.record_ok, path.name
        yield path.name


def owned(house: Wheelhouse) -> set[tuple[str, str]]:
    """File and sha256 of every wheel that some record tells of."""
    return {(wheel["file"], wheel["sha256"]) for record in house.records() for wheel in record["wheels"]}


def test_eight_processes_leave_only_whole_wheels_whenever_they_are_killed(tmp_path: Path) -> None:
    house = houses.house(tmp_path / "house")
    WheelIndex(house).update()
    chance = random.Random(6)
    seen: set[str] = set()
    done = {"built": 0, "pulled": 0, "pruned": 0, "indexed": 0}
    for number in range(ROUNDS):
        with Crowd(tmp_path, number) as crowd:
            crowd.kill_some(chance)
            crowd.let_end()
        for path, data in ((path, path.read_bytes()) for path in house.root.glob("*.whl")):
            assert (path.name, hashlib.sha256(data).hexdigest()) in owned(house), "of no build"
        seen |= set(whole(house))
        assert set(named(house)) <= set(whole(house)), "the index names what is not there"
    for file in tmp_path.glob("done-*"):
        for word in file.read_text().split():
            done[word] += 1
    assert all(count >= ROUNDS for count in done.values()), f"they did next to nothing: {done}"
    assert len(seen) >= 4, "not all names were ever there"
    # What the killed ones left keeps nobody from going on.
    WheelIndex(house).update()
    assert set(named(house)) == set(whole(house))
    houses.publish(house, salt="at last")
    assert len(named(house)) == len(list(whole(house)))


class Crowd:
    """Eight processes for a round."""

    def __init__(self, folder: Path, number: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("crowd.py")), str(folder), str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._process.stdout
        self._workers: list[int] = json.loads(self._process.stdout.readline())

    def __enter__(self) -> Crowd:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                pipe.close()

    def kill_some(self, chance: random.Random) -> None:
        """Kill half of them, each at a moment of its own."""
        doomed = chance.sample(self._workers, len(self._workers) // 2)
        for worker in doomed:
            time.sleep(chance.random() * SECONDS / len(doomed))
            with suppress(ProcessLookupError):  # on a slow machine it has ended by itself meanwhile
                os.kill(worker, signal.SIGKILL)

    def let_end(self) -> None:
        """The others end by themselves, soon."""
        assert self._process.stdin
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            pytest.fail("somebody waits forever")
        assert self._process.stdout
        said = self._process.stdout.read()
        assert not said, said
