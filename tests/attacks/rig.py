"""What the attacks work with: an attacker's base image, victims beside the folders, and an ear in the command."""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import io
import json
import os
import re
import secrets
import socket
import stat
import tarfile
import threading
import urllib.parse
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from build.harness import TREES, Json, Outcome, Tfdock, remove_built_images, write_profile
from wheelhouses import with_record, write_wheel

from tfdock.host.settings import load
from tfdock.types import ImageRef

HERE = Path(__file__).parent
CLEAN = "python:3.11-slim-bookworm"  #: The base of the attacker's base: it is small, and no compiler is in it.
FIELDS: dict[str, object] = {
    "accelerator": "cpu",
    "compute_capabilities": None,
    "wheel": {"name": "tensorflow_miniature"},
    "resources": {"disk": "1M", "jobs": 2, "memory": "2GiB"},
}
#: Bytes on the disk that the copies of one attacked build may take; a sparse file is forty times as large.
LARGEST = 1 << 29
PROGRAMS = ("Dockerfile", "attack.py", "bazel", "mv")
INIT = "tensorflow/__init__.py"


# --- what must not change -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Victims:
    """Files and folders of the user that links of an attack lead to: one of each for each plant."""

    folder: Path
    secret: str = field(default_factory=lambda: f"CANARY-{secrets.token_hex(12)}")

    def file(self, plant: str) -> Path:
        """A file that an attack may read or change."""
        return self._made(plant) / "file"

    def inner(self, plant: str) -> Path:
        """A folder that an attack may fill, walk or empty."""
        return self._made(plant) / "folder"

    def absent(self, plant: str) -> Path:
        """A name that no file has yet."""
        return self._made(plant) / "absent"

    def _made(self, plant: str) -> Path:
        folder = self.folder / re.sub(r"[^A-Za-z0-9.-]+", "-", plant)
        for name in ("file", *(f"folder/{part}" for part in ("inside", "done", "work/x", "request/x", "fetched/x"))):
            path = folder / name
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(self.secret)
        return folder

    def state(self) -> dict[str, tuple[object, ...]]:
        """All that can be seen of them, times of reading aside."""
        return state_of(self.folder)


def state_of(folder: Path) -> dict[str, tuple[object, ...]]:
    """Each path below a folder with its kind, owner, times of change, size and content."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted([folder, *folder.rglob("*")]):
        about = path.lstat()
        content = ""
        if stat.S_ISREG(about.st_mode) and about.st_size < 1 << 20:
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        elif stat.S_ISLNK(about.st_mode):
            content = str(path.readlink())
        facts = (about.st_mode, about.st_uid, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns)
        found[str(path.relative_to(folder))] = (*facts, content)
    return found


# --- the ear ------------------------------------------------------------------------------------------------------


def with_ear(command: Tfdock) -> Tfdock:
    """The command with an ear in its process. What it hears stands in the file `heard` of its home."""
    hook = os.pathsep.join([str(HERE / "hook"), command.environment["PYTHONPATH"]])
    return command.with_variables(PYTHONPATH=hook, ATTACKS_HEARD=str(command.home / "heard"))


@dataclass(frozen=True)
class Heard:
    """What the command's process changed and whom it called."""

    changed: tuple[tuple[str, str], ...]
    called: tuple[str, ...]
    started: tuple[str, ...]

    @classmethod
    def read(cls, file: Path) -> Heard:
        lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        calls = tuple(place for kind, place in lines if kind == "call")
        programs = tuple(place for kind, place in lines if kind == "start")
        return cls(tuple((kind, place) for kind, place in lines if kind not in ("call", "start")), calls, programs)

    def strangers(self, *known: str) -> list[str]:
        """Calls to addresses in which none of these texts is."""
        return [call for call in dict.fromkeys(self.called) if not any(text in call for text in known)]

    def outside(self, folders: Iterable[Path]) -> list[tuple[str, str]]:
        """Changes that are in none of the folders."""
        known = tuple(Path(os.path.realpath(folder)) for folder in folders)
        return [
            (kind, place)
            for kind, place in dict.fromkeys(self.changed)
            if place != "/dev/null" and not any(Path(place).is_relative_to(folder) for folder in known)
        ]


# --- the attacker's server ----------------------------------------------------------------------------------------


@dataclass
class Ear:
    """Somebody who listens on the loopback, and counts who comes."""

    server: socket.socket
    came: list[bytes] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.getsockname()[1]}"

    @property
    def port(self) -> str:
        return self.address.rpartition(":")[2]

    def listen(self) -> None:
        while True:
            try:
                connection, _ = self.server.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(1)
                self.came.append(b"")
                with contextlib.suppress(OSError):
                    while piece := connection.recv(1 << 16):
                        self.came[-1] += piece


@contextlib.contextmanager
def listening() -> Iterator[Ear]:
    """Somebody who listens, as long as the context lasts."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ear = Ear(server)
        thread = threading.Thread(target=ear.listen, daemon=True)
        thread.start()
        yield ear
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


# --- a range ------------------------------------------------------------------------------------------------------


@dataclass
class Range:
    """An engine with the attacker's base image, and a folder for homes, victims and trees."""

    host: str
    folder: Path
    sdk: Any
    victims: Victims
    mark: str = field(default_factory=lambda: secrets.token_hex(4))
    prefix: tuple[str, ...] = ()
    owner: int = 0
    base: str = ""  #: The attacker's base image, as a profile names it.
    wheel: Path = Path()
    homes: Iterator[int] = field(default_factory=lambda: iter(range(10_000)))

    @property
    def clean(self) -> str:
        """The base of the attacker's base, as the engine has it."""
        return str(load({}, os.environ).mirrored(ImageRef.parse(CLEAN)))

    def home(self, *, cache: Path | None = None) -> Tfdock:
        """A command with folders of its own, and with an ear in it."""
        home = self.folder / f"home-{next(self.homes)}"
        (home / "tmp").mkdir(parents=True)
        command = Tfdock(
            home=home, cache=cache or home / "cache", engine=self.host, prefix=self.prefix, trusted=False
        )
        for path in (home, home / "tmp"):
            os.chown(path, self.owner, self.owner)
        return with_ear(command.with_variables(TMPDIR=str(home / "tmp")))

    def tree(self, name: str, edits: Mapping[str, Any] | None = None) -> Path:
        """The miniature, with a mark, and with some files changed."""
        target = self.folder / "trees" / name
        if not target.exists():
            TREES["hermetic"](target, edits)
            (target / "MARK").write_text(self.mark)
        return target

    def small_tree(self) -> Path:
        """A checkout in which nothing is but a `configure`: the attacker's Bazel needs no more."""
        target = self.folder / "trees/small"
        if not target.exists():
            target.mkdir(parents=True)
            (target / "configure").write_text("#!/bin/sh\necho 'build:opt --copt=-O2' > .tf_configure.bazelrc\n")
            (target / "configure").chmod(0o755)
            (target / "MARK").write_text(self.mark)
        return target

    def attack(self, command: Tfdock, name: str, **fields: object) -> Path:
        """A profile that has the attacker's Bazel carry out the attack of that name."""
        words = {"base": self.base, "bazel": {"flags": [f"--define=attack={name}"]}}
        return write_profile(command.home / "attack.yaml", self.small_tree(), **{**FIELDS, **words, **fields})

    def make_base(self, orders: Mapping[str, Json]) -> None:
        """Make the attacker's base image, in which the orders lie."""
        settings = load({}, os.environ)
        reference = ImageRef.parse(f"attacks/base:{self.mark}")
        if not self.sdk.images(self.clean):
            for _ in self.sdk.pull(self.clean, stream=True):
                pass
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            for path in (HERE / "attacker" / name for name in PROGRAMS):
                tar.add(path, path.name)
            tar.add(self.wheel, "tensorflow.whl")
            text = json.dumps(orders).encode()
            entry = tarfile.TarInfo("orders.json")
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text))
        archive.seek(0)
        output = list(
            self.sdk.build(
                fileobj=archive,
                custom_context=True,
                tag=str(settings.mirrored(reference)),
                buildargs={"CLEAN": self.clean},
                rm=True,
                forcerm=True,
                decode=True,
            )
        )
        assert not [part["error"] for part in output if "error" in part], output
        self.base = str(reference)

    def remove_images(self) -> None:
        remove_built_images(self.sdk, self.folder)
        if self.base:
            self.sdk.remove_image(str(load({}, os.environ).mirrored(ImageRef.parse(self.base))), force=True)


@dataclass(frozen=True)
class After:
    """An attacked command that has ended, with what it left."""

    command: Tfdock
    outcome: Outcome
    heard: Heard
    changed: tuple[str, ...]  #: The victims that are no longer what they were.
    largest: int  #: Bytes on the disk that the command's copies of results took, at most.
    #: What changed meanwhile in the system's folders and in those of its users, if that was asked for.
    elsewhere: tuple[str, ...]

    @property
    def log(self) -> str:
        logs = sorted(self.command.wheelhouse.glob(".tfdock/*/*/*.log"))
        return "".join(path.read_text(errors="replace") for path in logs)

    def folders(self) -> list[Path]:
        """The folders that the command names: it may write there, and nowhere else."""
        return [self.command.wheelhouse, self.command.cache, self.command.state, self.command.home / "tmp"]


def attacked(range_: Range, command: Tfdock, *words: str | Path, everywhere: bool = False) -> After:
    """Run a command while the victims, and what it copies, are watched; `everywhere`: the machine's folders too."""
    before = range_.victims.state()
    engine = Path(command.engine.removeprefix("unix://"))
    machine = Machine(command.home / "machine", (engine, range_.folder))
    runner = replace(command, prefix=(*machine.prefix, *command.prefix)) if everywhere else command
    with _scales(command.wheelhouse / ".tfdock/staging") as weighed:
        outcome = runner.run(*words)
    after = range_.victims.state()
    changed = tuple(sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path)))
    elsewhere = machine.changes() if everywhere else ()
    return After(command, outcome, Heard.read(command.home / "heard"), changed, max(weighed), elsewhere)


@dataclass(frozen=True)
class Machine:
    """The machine's folders as one command sees them, which root must run: each change lands in a folder of ours.

    So a change is the command's, or of a program that it started. What others change meanwhile does not count.
    """

    folder: Path
    #: What the command shares with others: the engine's socket, and last its own folder, in which `folder` is.
    kept: tuple[Path, ...]

    @property
    def prefix(self) -> tuple[str, ...]:
        """The words before the command."""
        script = """
            set -e
            IFS='\n'
            mine=$1 kept=$2
            mkdir "$mine" "$mine/kept"
            mount -t tmpfs tmpfs "$mine/kept"
            number=0
            for path in $kept; do
              number=$((number + 1))
              if [ -d "$path" ]; then mkdir "$mine/kept/$number"; else touch "$mine/kept/$number"; fi
              mount --bind "$path" "$mine/kept/$number"
            done
            for place in /boot /etc /opt /root /srv /usr; do
              [ -d "$place" ] || continue
              mkdir -p "$mine/changes$place" "$mine/work$place"
              mount -t overlay -o "lowerdir=$place,upperdir=$mine/changes$place,workdir=$mine/work$place" \
                overlay "$place"
            done
            number=0
            for path in $kept; do
              number=$((number + 1))
              mount --bind "$mine/kept/$number" "$path"
            done
            shift 2
            exec "$@"
        """
        return ("unshare", "--mount", "sh", "-c", script, "sh", str(self.folder), "\n".join(map(str, self.kept)))

    def changes(self) -> tuple[str, ...]:
        """What was made, changed or removed. A folder whose content alone was changed is not among it."""
        upper = self.folder / "changes"
        found = []
        for path in upper.rglob("*"):
            place = Path("/", path.relative_to(upper))
            if path.parent != upper and not (path.is_dir() and place.is_dir()):
                found.append(str(place))
        return tuple(sorted(found))


@contextlib.contextmanager
def _scales(folder: Path) -> Iterator[list[int]]:
    """What the files in a folder take on the disk, again and again, as long as the context lasts."""
    weighed, over = [0], threading.Event()

    def weigh() -> None:
        while not over.wait(0.1):
            total = 0
            # What goes meanwhile, a folder too, is passed over.
            for parent, folders, files in os.walk(folder):
                for name in (*folders, *files) if "/results" in parent.removeprefix(str(folder)) else ():
                    with contextlib.suppress(OSError):
                        total += os.lstat(f"{parent}/{name}").st_blocks * 512
            weighed.append(total)

    thread = threading.Thread(target=weigh)
    thread.start()
    try:
        yield weighed
    finally:
        over.set()
        thread.join()


# --- wheels -------------------------------------------------------------------------------------------------------


def with_probe(wheel: Path, target: Path, probe: str) -> Path:
    """The wheel with Python that runs when it is imported; its RECORD is right."""
    with zipfile.ZipFile(wheel) as source:
        members = {info.filename: source.read(info) for info in source.infolist()}
    members[INIT] += probe.encode()
    write_wheel(target, with_record(members))
    return target


# --- secrets ------------------------------------------------------------------------------------------------------


def spellings(secret: str) -> dict[str, bytes]:
    """A secret as it may be written; those of base64 are the parts that do not depend on what stands before it."""
    data = secret.encode()
    found = {
        "plain": data,
        "reversed": data[::-1],
        "hex": data.hex().encode(),
        "HEX": data.hex().upper().encode(),
        "URL": urllib.parse.quote(secret, safe="").encode(),
        "percent": "".join(f"%{byte:02X}" for byte in data).encode(),
        "utf-16": secret.encode("utf-16-le"),
        "rot13": secret.translate(_ROT13).encode(),
        "base32": base64.b32encode(data)[: len(data) * 8 // 5 - 2],
    }
    for shift in range(3):
        encoded = base64.b64encode(b"\0" * shift + data)
        found[f"base64+{shift}"] = encoded[(4 if shift else 0) : len(encoded) - 4]
    return found


_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_TURNED = _LETTERS[13:] + _LETTERS[:13]
_ROT13 = str.maketrans(_LETTERS + _LETTERS.lower(), _TURNED + _TURNED.lower())


def leaks(data: bytes, wanted: Mapping[str, str], depth: int = 3) -> list[str]:
    """Which secrets are in the data, and how they are written; packed members are looked into."""
    found = []
    for name, secret in wanted.items():
        found += [f"{name} ({how})" for how, text in spellings(secret).items() if text in data]
    if depth:
        for inside in _unpacked(data):
            found += leaks(inside, wanted, depth - 1)
    return found


def parts_of_image(sdk: Any, image: str, base: str) -> Iterator[tuple[str, bytes]]:
    """What the engine says of an image, its configuration, and its layers above those of its base."""
    yield "inspect", json.dumps([sdk.inspect_image(image), sdk.history(image)]).encode()
    below = len(sdk.inspect_image(base)["RootFS"]["Layers"])
    with tarfile.open(fileobj=io.BytesIO(b"".join(sdk.get_image(image)))) as tar:

        def content(name: str) -> bytes:
            member = tar.extractfile(name)
            assert member
            return member.read()

        (manifest,) = json.loads(content("manifest.json"))
        for name in (manifest["Config"], *manifest["Layers"][below:]):
            yield name, content(name)


def _unpacked(data: bytes) -> Iterator[bytes]:
    if data[:2] == b"\x1f\x8b":
        with contextlib.suppress(OSError, EOFError):
            yield gzip.decompress(data)
    elif data[:2] == b"PK":
        with contextlib.suppress(zipfile.BadZipFile), zipfile.ZipFile(io.BytesIO(data)) as archive:
            for name in archive.namelist():
                yield archive.read(name)
    elif data[257:262] == b"ustar":
        with contextlib.suppress(tarfile.TarError), tarfile.open(fileobj=io.BytesIO(data)) as tar:
            for member in tar:
                content = tar.extractfile(member) if member.isreg() else None
                if content:
                    yield content.read()


def leaks_below(folder: Path, wanted: Mapping[str, str], but: Iterable[Path] = ()) -> list[str]:
    """Which secrets are below a folder: in names, in targets of links, and in contents."""
    found, left_out = [], tuple(but)
    for path in sorted(folder.rglob("*")):
        if any(path.is_relative_to(one) for one in left_out):
            continue
        named = str(path.readlink()) if path.is_symlink() else ""
        data = (
            path.read_bytes() if path.is_file() and not path.is_symlink() and path.stat().st_size < 1 << 28 else b""
        )
        for leak in leaks(f"{path.name}\n{named}\n".encode(), wanted, 0) + leaks(data, wanted):
            found.append(f"{path}: {leak}")
    return found
