"""Eight processes that build, pull, prune and index in one wheelhouse: run by `test_wheelhouse_crowd`.

Builds go through all their phases, on an engine in memory; pulls are from a real registry. The eight are forked from
one process that has everything loaded, so that they start at once. What goes wrong in one is printed.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where the tests' own packages lie

from build.test_orchestration import SOURCE, Desk, leaving, settings_of, wheel
from fake_engine import FakeRun

from tfdock.errors import Locked
from tfdock.host.settings import Settings
from tfdock.images.image_pull import ImagePull
from tfdock.images.lookup import find_image
from tfdock.types import ImageRef
from tfdock.wheelhouse import wheelhouse_pruning
from tfdock.wheelhouse.index import WheelIndex
from tfdock.wheelhouse.store import Wheelhouse
from tfdock.wheelhouse.wheelhouse_pruning import Rules

ROLES = ("built", "built", "built", "pulled", "pulled", "pruned", "pruned", "indexed")
BRANCHES = ("first", "second", "third", "fourth")  #: Each is a build id of its own.
TAGS = ("older", "newer")  #: Two images of each build id: other bytes, the same file name.
SECONDS = 0.6


def desk_of(folder: Path, branch: str) -> Desk:
    """A builder of one branch; it writes its profile into a folder of its own."""
    own = folder / branch
    own.mkdir(exist_ok=True)
    return Desk(own, tensorflow=SOURCE | {"ref": branch})


def compiling(text: str) -> dict[str, FakeRun]:
    """What the compile container of a build leaves: a wheel with that text in it."""
    return {"compile": FakeRun(effect=leaving(wheel(code=text.encode())))}


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where they all are: one wheelhouse, one state folder, and a repository of a registry."""

    settings: Settings
    repository: str
    desks: dict[str, Desk]

    @property
    def house(self) -> Wheelhouse:
        return Wheelhouse(self.settings.wheelhouse)


def main(folder: Path, repository: str, number: int) -> None:
    """Fork the eight and print their process ids; wait for them once standard input ends: until then those stand."""
    desks = {branch: desk_of(folder, branch) for branch in BRANCHES}
    settings = settings_of(folder, "house")
    for desk in desks.values():
        desk.settings = settings
    place = Place(settings=settings, repository=repository, desks=desks)
    workers = []
    for seat, role in enumerate(ROLES):
        worker = os.fork()
        if worker == 0:
            work(folder, place, role, random.Random(100 * number + seat))
        workers.append(worker)
    sys.stdout.write(json.dumps(workers) + "\n")
    sys.stdout.flush()
    sys.stdin.read()
    for worker in workers:
        os.waitpid(worker, 0)


def work(folder: Path, place: Place, role: str, chance: random.Random) -> None:
    """One of them, for as long as a round lasts."""
    end = time.monotonic() + SECONDS
    try:
        with (folder / f"done-{os.getpid()}").open("a") as done:
            while True:
                if DO[role](place, chance):
                    done.write(f"{role}\n")
                    done.flush()
                if time.monotonic() > end:
                    break
    except BaseException:
        sys.stdout.write(traceback.format_exc())
        sys.stdout.flush()
    os._exit(0)


def build(place: Place, chance: random.Random) -> bool:
    """As `tfdock build --force` does, through image, fetch, compile, seal and verify."""
    desk = place.desks[chance.choice(BRANCHES)]
    desk.engine.phases |= compiling(chance.randbytes(100_000).hex())
    try:
        result = desk.build(force=True)
    except Locked:
        return False
    return result.status == "built"


def pull(place: Place, chance: random.Random) -> bool:
    """As `tfdock pull` does, from where an earlier one broke off."""
    reference = f"{place.repository}/{chance.choice(BRANCHES)}:{chance.choice(TAGS)}"
    image = find_image(ImageRef.parse(reference), "linux/amd64", lambda: None)
    assert image
    try:
        (found,) = ImagePull(place.house, check=lambda: None).pull_all(image)
    except Locked:
        return False
    return found.status == "pulled"


def prune(place: Place, chance: random.Random) -> bool:
    """One rule or another."""
    rules = [Rules(max_size=0), Rules(before=time.time() - 0.2), Rules(max_size=500_000, keep=1), Rules(keep=1)]
    wheelhouse_pruning.prune(place.house, place.settings.state_dir, chance.choice(rules))
    return True


def index(place: Place, _: random.Random) -> bool:
    WheelIndex(place.house).update()
    return True


DO: dict[str, Callable[[Place, random.Random], bool]] = {
    "built": build,
    "pulled": pull,
    "pruned": prune,
    "indexed": index,
}

if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
