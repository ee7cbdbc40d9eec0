"""What an attacker plants where the host may look after a container has ended: as data, and as orders for a build."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from build.harness import Json

from .rig import Range, Victims

PASSWD = Path("/etc/passwd").read_bytes()
SOCKET = "/var/run/docker.sock"


@dataclass(frozen=True, slots=True)
class Plant:
    """One thing at one name. `aim` is what a link leads to: `file`, `folder`, `absent`, or a path as it stands."""

    phase: str
    root: str
    path: str
    kind: str
    aim: str = ""

    @property
    def name(self) -> str:
        return f"{self.root}-{self.path}-{self.kind}-{self.aim}".replace("/", "-")

    def order(self, victims: Victims, socket: str) -> Json:
        """What the attacker's program is told."""
        aims = {"file": victims.file, "folder": victims.inner, "absent": victims.absent}
        target = str(aims[self.aim](self.name)) if self.aim in aims else self.aim.replace(SOCKET, socket)
        return {"phase": self.phase, "root": self.root, "path": self.path, "kind": self.kind, "target": target}


#: What is planted: how, and what it leads to.
WAYS = (
    ("link", "file"),
    ("link", "folder"),
    ("link", "absent"),
    ("link", "/dev/zero"),
    ("link", SOCKET),
    ("link", "/"),
    ("link", "../../../../../../../../../../proc/self/environ"),
    ("fifo", ""),
    ("sparse", ""),
    ("socket", ""),
    ("folder", ""),
    ("closed", ""),
    ("deep", ""),
    ("swapped", "file"),
)

ROWS = 4

#: Names at which a plant is no reason for a build to fail: the host has no need of what is there.
TOLERATED = (
    ("staging", "sealed"),
    ("staging", "sealed/wheel"),
    ("staging", "done.tmp"),
    ("staging", "events.json"),
    ("staging", "profile.gz"),
    ("staging", "external.tar"),
    ("staging", "requirements.json"),
    ("staging", "-rf"),
    ("output", "verify"),
    ("output", "verify/nothing"),
    ("output", "verify/requirements"),
    ("output", "verify/fetched"),
    ("output", "verify/work"),
    ("output", "verify/request"),
    ("output", "remote"),
    ("output", "remote/forward.py"),
    ("output", "remote/cache"),
    ("output", "tried"),
    ("output", "again"),
    ("output", "base"),
    ("output", "user"),
)

#: Names in the staging folder of what the host does need, and what is there instead: it ends the build. Every kind at
#: every name is tried without an engine, in `unit/test_results.py`.
NEEDED = (
    ("done", "link", "file"),
    ("done", "fifo", ""),
    ("done", "hard", "raw/WHEEL"),
    ("SHA256SUMS", "fifo", ""),
    ("SHA256SUMS", "sparse", ""),
    ("SHA256SUMS", "swapped", "file"),
    ("raw", "link", "folder"),
    ("raw", "many", ""),
    ("raw/WHEEL", "link", "file"),
    ("raw/WHEEL", "fifo", ""),
    ("raw/WHEEL", "sparse", ""),
    ("raw/WHEEL", "swapped", "file"),
    ("raw/WHEEL", "hard", "another-name"),
    ("raw/line\nbreak.whl", "link", "file"),
)

#: What the sums may say that is not true.
TEXTS = (
    ("SHA256SUMS", f"{hashlib.sha256(PASSWD).hexdigest()}  /etc/passwd\n"),
    ("SHA256SUMS", f"{hashlib.sha256(PASSWD).hexdigest()}  ../../../../../../../../../../etc/passwd\n"),
    ("SHA256SUMS", f"{'0' * 64}  WHEEL\n" * 200_000),
)

#: Attacks that once won: a wheel over a file of the user, the machine's files in a trial, a helper over a file.
PROOFS = (
    Plant("last", "staging", "sealed/wheel", "link", "file"),
    Plant("fetch", "output", "verify/nothing", "link", "/"),
    Plant("fetch", "output", "verify/requirements", "link", "folder"),
    Plant("fetch", "output", "remote/forward.py", "link", "file"),
)

#: The folder of the trial leads to one of the user, in which the folders are that the host once emptied.
VERIFY = (Plant("fetch", "output", "verify", "link", "folder"),)

#: Too many files, and too many folders in each other.
CROWD = (
    Plant("last", "staging", "crowd", "many"),
    Plant("last", "staging", "events.json", "deep"),
)

#: Files within the bounds that take no room in the container, and would take it here.
HOLES = (
    Plant("last", "staging", "events.json", "sparse", str(2 << 30)),
    Plant("last", "staging", "profile.gz", "sparse", str(2 << 30)),
)

#: In the caches, where it stays when the build is over, and is walked by later commands.
KEPT = (
    Plant("fetch", "repository", "content_addressable/sha256/" + "a" * 64 + "/file", "link", "file"),
    Plant("fetch", "repository", "content_addressable/sha256/" + "b" * 64, "link", "folder"),
    Plant("fetch", "repository", "content_addressable/sha256/" + "c" * 64 + "/file", "fifo"),
    Plant(
        "fetch", "repository", "content_addressable/sha256/" + "d" * 64 + "/file", "text", "not what its name says"
    ),
    Plant("fetch", "repository", "content_addressable/sha256/" + "e" * 64 + "/file", "link", "/dev/zero"),
    Plant("compile", "disk", "cas/aa/" + "a" * 64, "link", "file"),
    Plant("compile", "disk", "ac/bb", "link", "folder"),
    Plant("compile", "disk", "cas/cc/" + "c" * 64, "fifo"),
    Plant("compile", "disk", "ac/dd/" + "d" * 64, "link", "/dev/zero"),
    Plant("compile", "disk", "tmp", "link", "folder"),
)


def in_rows() -> Iterator[tuple[str, list[Plant]]]:
    """Attacks on the names that are not needed: in each row each name has another kind.

    In all rows together each name has four kinds, its neighbour four others. A folder and what is in it take turns,
    and have two kinds of links. The host opens none of these names, so no kind is worse than another.
    """
    links = [way for way in WAYS if way[0] == "link"]
    for row in range(ROWS):
        plants = []
        for number, (root, path) in enumerate(TOLERATED):
            folder, inside = (root, path) in _FOLDERS, (root, path.partition("/")[0]) in _FOLDERS and "/" in path
            if (inside and row % 2 == 0) or (folder and row % 2):
                continue
            kind, aim = (
                links[(number + row // 2) % len(links)] if folder or inside else WAYS[(number + 2 * row) % len(WAYS)]
            )
            phase = "compile" if kind == "swapped" else "fetch" if root == "output" else "last"
            plants.append(Plant(phase, root, path, kind, aim))
        yield f"row-{row}", plants


_FOLDERS = {(root, path.partition("/")[0]) for root, path in TOLERATED if "/" in path and not path.startswith("raw")}


# --- the attacks of a source or of a base image on the host: which boundary, what is planted, what must follow ------


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """Plants that are tried in one build. `tolerated`: the wheel is published all the same, whole."""

    name: str
    boundary: str
    plants: tuple[Plant, ...]
    tolerated: bool = False


def _all() -> list[Attack]:
    found = [Attack(name=name, boundary="T5, T6", plants=tuple(plants), tolerated=True) for name, plants in in_rows()]
    found.append(Attack(name="proofs", boundary="T5, T6", plants=PROOFS, tolerated=True))
    found.append(Attack(name="verify", boundary="T6", plants=VERIFY, tolerated=True))
    found.append(Attack(name="holes", boundary="T5", plants=HOLES, tolerated=True))
    found.append(Attack(name="crowd", boundary="T5", plants=CROWD, tolerated=True))
    found.append(Attack(name="kept", boundary="T7", plants=KEPT, tolerated=True))
    for path, kind, aim in NEEDED:
        name = f"{path}-{kind}-{aim}".replace("/", "-").replace("\n", "-")
        phase = "compile" if kind == "swapped" else "last"
        found.append(Attack(name=name, boundary="T5, T6", plants=(Plant(phase, "staging", path, kind, aim),)))
    for number, (path, text) in enumerate(TEXTS):
        plants = (Plant("last", "staging", path, "text", text),)
        found.append(Attack(name=f"text-{number}", boundary="T5", plants=plants))
    return found


ATTACKS = {attack.name: attack for attack in _all()}


def orders(there: Range) -> dict[str, Json]:
    """What the attacker's program is told, by the name of the attack."""
    wheel, socket = there.wheel.name, there.host.removeprefix("unix://")
    found: dict[str, Json] = {"telling": {"plants": [], "wheel": wheel}}
    for attack in ATTACKS.values():
        plants = []
        for plant in attack.plants:
            order = plant.order(there.victims, socket)
            order["path"] = order["path"].replace("WHEEL", wheel)
            order["target"] = order["target"].replace("WHEEL", wheel)
            plants.append(order)
        found[attack.name] = {"plants": plants, "wheel": wheel}
    return found
