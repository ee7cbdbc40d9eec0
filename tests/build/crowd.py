"""Eight processes that build, pull, prune and index in one wheelhouse: run by `test_wheelhouse_crowd`.

They are forked from one that has everything loaded, so that they start at once. What goes wrong in one is printed.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where the tests' own packages lie

from tfdock.decide.holdings import Rules
from tfdock.do.images.pulling import Pulling
from tfdock.do.images.stored import StoredImage
from tfdock.do.registry.oci import Repository
from tfdock.do.wheelhouse import pruning
from tfdock.do.wheelhouse.index import WheelIndex
from tfdock.do.workspace import Wheelhouse
from tfdock.errors import Locked
from tfdock.inspect.oci import Descriptor, digest
from tfdock.inspect.wheel_image import frame
from tfdock.inspect.wheel_image_read import FoundBuild, FoundWheel
from tfdock.model import ImageRef
from unit import houses

ROLES = ("built", "built", "built", "pulled", "pulled", "pruned", "pruned", "indexed")
GPUS = ("sm80", "sm86", "sm89", "sm90")
SECONDS = 0.5


def main(folder: Path, number: int) -> None:
    """Fork the eight and print their process ids; wait for them once standard input ends: until then those stand."""
    workers = []
    for place, role in enumerate(ROLES):
        worker = os.fork()
        if worker == 0:
            work(folder, role, random.Random(100 * number + place))
        workers.append(worker)
    sys.stdout.write(json.dumps(workers) + "\n")
    sys.stdout.flush()
    sys.stdin.read()
    for worker in workers:
        os.waitpid(worker, 0)


def work(folder: Path, role: str, chance: random.Random) -> None:
    """One of them, for as long as a round lasts."""
    house = Wheelhouse(folder / "house")
    end = time.monotonic() + SECONDS
    try:
        with (folder / f"done-{os.getpid()}").open("a") as done:
            while time.monotonic() < end:
                if DO[role](folder, house, chance):
                    done.write(f"{role}\n")
                    done.flush()
    except BaseException:
        sys.stdout.write(traceback.format_exc())
        sys.stdout.flush()
    os._exit(0)


def build(_: Path, house: Wheelhouse, chance: random.Random) -> bool:
    """As a build does: hold the build id, write into staging, publish."""
    gpu, salt = chance.choice(GPUS), f"{chance.random()} {chance.randbytes(200_000).hex()}"
    try:
        with house.locked(houses.build_id(gpu)):
            houses.publish(
                house, f"2.18.0+cuda12.5.{gpu}", name=houses.build_id(gpu), salt=salt, finished=time.time()
            )
    except Locked:
        return False
    return True


@dataclass(frozen=True)
class Slowly:
    """A registry that has one layer, and takes its time."""

    layer: bytes

    def blob(self, _: Descriptor, begun: Iterable[bytes] = ()) -> Iterator[bytes]:
        """The layer behind what is there already."""
        at = sum(map(len, begun))
        while at < len(self.layer):
            time.sleep(0.004)
            yield self.layer[at : at + 8192]
            at += 8192


def pull(_: Path, house: Wheelhouse, chance: random.Random) -> bool:
    """As `tfdock pull` does, from where an earlier one broke off."""
    gpu, salt = chance.choice(GPUS), random.Random(chance.randrange(2)).randbytes(50_000).hex()
    name = houses.build_id(gpu)
    file, data = houses.wheel(version=f"2.18.0+cuda12.5.{gpu}", salt=salt)
    layer = data.join(frame(file, len(data)))
    descriptor = Descriptor(
        media_type="application/vnd.oci.image.layer.v1.tar", digest=digest(layer), size=len(layer)
    )
    sha256, fingerprint = hashlib.sha256(data).hexdigest(), houses.fingerprint_of(name, salt)
    build = FoundBuild(
        build_id=name,
        fingerprint=fingerprint,
        record=houses.record(name, fingerprint, file, data, time.time()),
        wheels=(FoundWheel(file=file, sha256=sha256, size=len(data), layer=descriptor),),
    )
    image = StoredImage(
        image=ImageRef("me/wheels", "registry.example"),
        digest=descriptor.digest,
        platform="linux/amd64",
        builds=(build,),
        repository=cast("Repository", Slowly(layer)),
    )
    try:
        (found,) = Pulling(house, check=lambda: None).all_of(image)
    except Locked:
        return False
    return found.status == "pulled"


def prune(folder: Path, house: Wheelhouse, chance: random.Random) -> bool:
    """One rule or another."""
    now = time.time()
    rules = chance.choice(
        [Rules(max_size=0), Rules(before=now - 0.2), Rules(max_size=500_000, keep=1), Rules(keep=1)]
    )
    pruning.prune(house, folder / "state", rules, failed=chance.random() < 0.5)
    return True


def index(_: Path, house: Wheelhouse, __: random.Random) -> bool:
    WheelIndex(house).update()
    return True


DO: dict[str, Callable[[Path, Wheelhouse, random.Random], bool]] = {
    "built": build,
    "pulled": pull,
    "pruned": prune,
    "indexed": index,
}

if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
