"""Eight processes at one wheelhouse, killed at any moment: nothing is ever half there, and nobody waits forever."""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from waits import first_line

from tfdock.images.image_push import Push
from tfdock.images.image_tags import shipment
from tfdock.images.selection import WheelSelection
from tfdock.wheel.wheel import read_wheel
from tfdock.wheelhouse.index import WheelIndex
from tfdock.wheelhouse.store import Wheelhouse

from .crowd import BRANCHES, SECONDS, TAGS, compiling, desk_of
from .registries import OwnRegistry
from .test_orchestration import settings_of
from .wheel_images import no_plan, repository


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


def named(house: Wheelhouse) -> set[str]:
    """What the index names; each is there, with the bytes that it is named with."""
    found = set()
    for page in house.root.glob("simple/*/index.html"):
        for link, digest in re.findall(r'href="\.\./\.\./([^"#]+)#sha256=([0-9a-f]{64})"', page.read_text()):
            path = house.root / urllib.parse.unquote(link)
            assert hashlib.sha256(path.read_bytes()).hexdigest() == digest, path.name
            found.add(path.name)
    return found


def push_all(folder: Path, where: str) -> None:
    """Build each branch on other machines, and push what they made under the tags that are pulled."""
    for branch in BRANCHES:
        for tag in TAGS:
            machine = folder / tag
            machine.mkdir(exist_ok=True)
            desk = desk_of(machine, branch)
            desk.engine.phases |= compiling(f"# {branch} {tag}\n" + "#" * 200_000)
            result = desk.build()
            with WheelSelection(Wheelhouse(desk.settings.wheelhouse), no_plan, lambda: None) as choosing:
                shipped = shipment(choosing.builds([str(result.wheels[0])]), together=tag, moving=False)
                Push(repository(f"{where}/{branch}"), choosing.stream, lambda _: None, lambda: None).push(shipped)


@pytest.mark.parametrize("rounds", [4, 20], ids=lambda rounds: f"{rounds} rounds")
def test_eight_processes_leave_only_whole_wheels_whenever_they_are_killed(
    tmp_path: Path, registry: OwnRegistry, rounds: int
) -> None:
    where = f"{registry.address}/crowd"
    push_all(tmp_path, where)
    house = Wheelhouse(tmp_path / "house")
    house.root.mkdir()
    WheelIndex(house).update()
    chance = random.Random(6)
    seen: set[str] = set()
    done = {"built": 0, "pulled": 0, "pruned": 0, "indexed": 0}
    for number in range(rounds):
        with Crowd(tmp_path, where, number) as crowd:
            crowd.kill_some(chance)
            crowd.let_end()
        for path, data in ((path, path.read_bytes()) for path in house.root.glob("*.whl")):
            assert (path.name, hashlib.sha256(data).hexdigest()) in owned(house), "of no build"
        seen |= set(whole(house))
        assert named(house) <= set(whole(house)), "the index names what is not there"
    for file in tmp_path.glob("done-*"):
        for word in file.read_text().split():
            done[word] += 1
    assert all(count >= rounds for count in done.values()), f"they did next to nothing: {done}"
    assert len(seen) >= 4, "not all names were ever there"
    # What the killed ones left keeps nobody from going on.
    WheelIndex(house).update()
    assert named(house) == set(whole(house))
    desk = desk_of(tmp_path, "at-last")
    # A build tidies up after those that have its wheelhouse and its cache.
    desk.settings = settings_of(tmp_path, house.root.name)
    result = desk.build()
    assert result.status == "built"
    assert named(house) == set(whole(house)) >= {result.wheels[0].name}
    assert desk.left_behind == []


class Crowd:
    """Eight processes for a round."""

    def __init__(self, folder: Path, where: str, number: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("crowd.py")), str(folder), where, str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._workers: list[int] = json.loads(first_line(self._process))

    def __enter__(self) -> Crowd:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(30)
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
