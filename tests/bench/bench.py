"""`make bench`: tfdock against hand-written equivalents; prints a table and writes build/bench.json.

What is built is the miniature TensorFlow. Whole processes are timed, the two sides take turns, medians count.

- Cold: no image, no caches, no wheelhouse. The base image is present, but under a label nobody has seen, so that the
  engine has no layer above it: both sides run every step of the Dockerfile.
- Warm: the image and Bazel's caches are present; new containers, a fresh output base, an empty wheelhouse.
- Unchanged: the same call again. The script knows of no wheel that is up to date, as such scripts do not.

Looking into the official wheel of TensorFlow 2.18.0 is held against the least it can cost in Python, inflating its
libraries once with zlib, and against the way it is done by hand: unpack the wheel, ask cuobjdump of each library.

A cache goes into a registry and out of it beside the same folder as the one layer of an image, pushed and pulled by
the engine: to and from the same registry, each time under a name that nobody has used.

A wheel of 600 MB goes into a registry as an image, beside the image of one layer that holds the same wheel, pushed by
the engine; the registry is emptied before each. Such a wheel, and the official one of TensorFlow 2.18.0, come out of
one as well, every file held against RECORD; beside that the engine takes the same image and copies the wheel out of
it, and pip downloads it from an index of static files. Neither of these looks into the wheel: what ours takes longer
for the official one, whose files have 1.7 GB unpacked, is for that.

The index of 5,000 wheels of 40 kB is made from nothing, and after one wheel more. Larger wheels take longer to read,
and only the first has to read them all.

The cause at the end of a log of 1 GB is found beside `wc -l` of that log: about the least that it takes to read it.
It is a hard one: lines have BuildKit's prefix and two thirds of them colours, and 380,000 say what failures say too.

Short commands are held against a peer's. Both are compiled to bytecode, as pip does when it installs a program, and
`check` has been called once, so that it has its knowledge at hand.

A matrix of 10,000 cells is expanded, pruned and told as JSON; what a cell of it costs is held against what one of 100
costs, the start of the program included.

A row that fails does not stop the others; the exit status is 1 then. `--quick` runs the code of every row once, with
small stand-ins for what the rows are named for. It shows that the bench works; its figures mean nothing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
import uuid
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import platformdirs

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # where the tests' own packages lie

import wheelhouses
from build import harness, registries
from official import official_wheel

from tfdock.bazel.cache.cache_folder import CacheFolder
from tfdock.host import settings
from tfdock.host.files import file_sha256
from tfdock.host.untrusted_folders import remove_folder
from tfdock.types import ImageRef

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TFDOCK = Path(sys.executable).with_name("tfdock")
# The profile extends a shipped one, and others elsewhere extend it: no folder but the whole checkout holds them all.
PROFILE = (HERE / "bench.yaml", "--knowledge", HERE.parent / "miniature/knowledge", "--allow-path", ROOT)
REFERENCE = HERE / "reference.sh"
CIBUILDWHEEL = "4.3.0"
CUOBJDUMP = "13.5.37"
OFFICIAL = "tensorflow==2.18.0"
LABEL = "io.tfdock.bench"
TOOLCHAIN = "0123456789abcdef"
STOP_SECONDS = 60.0
LAST_LINES = 20


# --- processes ----------------------------------------------------------------------------------------------------


class Failed(Exception):
    """A command failed, or two sides cannot be compared."""


def output(*command: str | Path, text: str | None = None) -> str:
    """Run a command outside the clock; returns its standard output."""
    done = subprocess.run(command, check=False, input=text, capture_output=True, text=True)
    check(command, done.returncode, done.stderr)
    return done.stdout


def check(command: Sequence[str | Path], code: int, told: str) -> None:
    """Raise `Failed` with what a command told if it did not end well."""
    if code != 0:
        raise Failed(f"{told.rstrip()}\n{shlex.join(map(str, command))} ended with {code}")


def timed(command: Sequence[str | Path], environment: dict[str, str] | None = None) -> float:
    """Run a command to its end; returns its seconds."""
    os.sync()  # nobody pays for what the run before has left to be written
    return _run(command, environment)[0]


def peak_memory(command: Sequence[str | Path]) -> float:
    """Run a command to its end; returns the most memory that it held at once, in MB of 10**6 bytes."""
    return _run(command)[1]


def _run(command: Sequence[str | Path], environment: dict[str, str] | None = None) -> tuple[float, float]:
    """The seconds and the memory of a command. It has a session of its own, so that Ctrl-C reaches only us."""
    with tempfile.TemporaryFile() as sink:
        started = time.perf_counter()
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, start_new_session=True
        )
        try:
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:
            _stop(process)
            raise
        seconds = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        sink.seek(0)
        check(command, process.returncode, sink.read().decode("utf-8", "replace"))
    return seconds, usage.ru_maxrss * 1024 / 1e6


def _stop(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(STOP_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


# --- the two sides of a build -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One way to build: what it is called with, and what it leaves."""

    command: tuple[str | Path, ...]
    environment: dict[str, str]
    origin: str
    base: str
    image: str
    folder: Path

    def cold(self) -> float:
        """Time a build from nothing but the base image."""
        subprocess.run(["docker", "rmi", "--force", self.image, self.base], capture_output=True)
        unseen = f"{LABEL}={uuid.uuid4()}"
        base = ("docker", "build", "--quiet", "--label", unseen, "--tag", self.base, "-")
        output(*base, text=f"FROM {self.origin}\n")
        remove_folder(self.folder)
        self.folder.mkdir()
        return self.unchanged()

    def warm(self) -> float:
        """Time a build with the image and the caches of the one before, for an empty wheelhouse."""
        remove_folder(self.folder / "wheelhouse")
        return self.unchanged()

    def unchanged(self) -> float:
        """Time the same call again."""
        return timed(self.command, self.environment)

    @property
    def wheel(self) -> Path:
        """The wheel that was built."""
        (wheel,) = (self.folder / "wheelhouse").glob("*.whl")
        return wheel

    def contents(self) -> dict[str, int]:
        """Checksums of what lies in the wheel, but for its metadata, where the local version stands."""
        with zipfile.ZipFile(self.wheel) as archive:
            return {item.filename: item.CRC for item in archive.infolist() if ".dist-info/" not in item.filename}


def tfdock_side(folder: Path, plan: dict[str, Any], profiles: Sequence[str | Path], *words: str) -> Side:
    """tfdock building profiles, with a base image, caches and a wheelhouse of its own."""
    values = settings.load({})
    base = ImageRef.parse(plan["image"]["base"])
    mirror = f"{folder.name}.tfdock-bench.invalid"  # never asked: the image is there
    places = ("--cache-dir", folder / "cache", "--wheelhouse", folder / "wheelhouse")
    return Side(
        command=(TFDOCK, "build", *profiles, *PROFILE[1:], *places, *words),
        environment={
            **os.environ,
            "TFDOCK_STATE_DIR": str(folder.with_name(f"{folder.name}-state")),
            "TFDOCK_REGISTRY_MIRROR": f"{base.registry}={mirror}",
        },
        origin=str(values.mirrored(base)),
        base=str(base.at(mirror)),
        image=plan["image"]["name"],
        folder=folder,
    )


def script_side(work: Path, plan: dict[str, Any]) -> Side:
    """The script, with the same of its own."""
    values, folder = settings.load({}), work / "reference"
    output(TFDOCK, "render", *PROFILE, "-o", work / "context")
    (work / "environment").write_text("".join(f"{key}={value}\n" for key, value in plan["environment"].items()))
    for phase in plan["phases"]:
        (work / phase["name"]).write_text("".join(f"{word}\n" for word in phase["command"]))
    script = {
        "CONTEXT": str(work / "context"),
        "BASE": "reference.tfdock-bench.invalid/base:1",
        "IMAGE": "reference.tfdock-bench.invalid/image:1",
        "PLAN": str(work),
        "CACHE": str(folder / "cache"),
        "WHEELHOUSE": str(folder / "wheelhouse"),
        "NETWORK": values.network or "default",
        "MEMORY": str(plan["resources"]["memory"]),
        "CPUS": str(plan["resources"]["cpus"]),
        "PIDS": str(plan["resources"]["pids"]),
    }
    return Side(
        command=(REFERENCE,),
        environment={**os.environ, "DOCKER_BUILDKIT": "0", **script},
        origin=str(values.mirrored(ImageRef.parse(plan["image"]["base"]))),
        base=script["BASE"],
        image=script["IMAGE"],
        folder=folder,
    )


@contextmanager
def workplace() -> Iterator[Path]:
    """A folder for everything; afterwards it is gone, and so are our containers and images, however we end."""
    work = Path(tempfile.mkdtemp(prefix="tfdock-bench-"))
    try:
        yield work
    finally:
        # Every layer and every container upon the base image has inherited its label.
        for listing, removal in ((("ps", "--all"), "rm"), (("images",), "rmi")):
            query = ["docker", *listing, "--quiet", "--filter", f"label={LABEL}"]
            found = subprocess.run(query, stdout=subprocess.PIPE, text=True).stdout.split()
            subprocess.run(["docker", removal, "--force", *dict.fromkeys(found)], capture_output=True)
        remove_folder(work)


# --- rows ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bench:
    """What the rows share: a folder for everything, how much is measured, and what is built."""

    work: Path
    quick: bool

    def pick(self, whole: int, quick: int = 1) -> int:
        """Return the number of runs, or the size, of a whole bench or of a quick one."""
        return quick if self.quick else whole

    @cached_property
    def plan(self) -> dict[str, Any]:
        """The plan of the bench's profile."""
        plan: dict[str, Any] = json.loads(output(TFDOCK, "plan", *PROFILE, "--json"))
        return plan

    @cached_property
    def sides(self) -> tuple[Side, Side]:
        """tfdock and the script."""
        return tfdock_side(self.work / "ours", self.plan, PROFILE[:1]), script_side(self.work, self.plan)

    @cached_property
    def official(self) -> Path:
        """The official wheel; for a quick bench the miniature's."""
        if not self.quick:
            return official_wheel(OFFICIAL)
        ours, _ = self.sides
        if not ours.folder.exists():
            ours.cold()
        return ours.wheel


@dataclass(slots=True, kw_only=True)
class Row:
    """One comparison, in seconds or another unit."""

    name: str
    aim: float
    reference_command: str
    unit: str = "s"
    ours: list[float] = field(default_factory=list)
    reference: list[float] = field(default_factory=list)
    error: str | None = None

    def measure(self, runs: int, ours: Callable[[], float], reference: Callable[[], float]) -> Row:
        """Time both sides in turn; who begins alternates too. A side that fails is the end of this row alone."""
        pair = ((self.ours, ours), (self.reference, reference))
        try:
            for run in range(runs):
                sys.stderr.write(f"bench: {self.name}, run {run + 1} of {runs}\n")
                for seconds, side in pair if run % 2 == 0 else reversed(pair):
                    seconds.append(side())
        except Exception as error:
            self.fail(error)
        return self

    def fail(self, error: Exception) -> Row:
        """Keep and print the last lines of an error."""
        text = str(error) if isinstance(error, Failed) else "".join(traceback.format_exception(error))
        self.error = "\n".join(text.splitlines()[-LAST_LINES:])
        sys.stderr.write(f"bench: {self.name} failed:\n{self.error}\n")
        return self

    @property
    def medians(self) -> tuple[float, float]:
        return statistics.median(self.ours), statistics.median(self.reference)

    def as_json(self) -> dict[str, Any]:
        if self.error is not None:
            return {"name": self.name, "error": self.error}
        ours, reference = self.medians
        return {
            "name": self.name,
            "unit": self.unit,
            "ours": round(ours, 3),
            "reference": round(reference, 3),
            "ratio": round(ours / reference, 3),
            "aim": self.aim,
            "met": ours / reference <= self.aim,
            "runs": len(self.ours),
            "reference_command": self.reference_command,
            "samples": {
                "ours": [round(seconds, 3) for seconds in self.ours],
                "reference": [round(seconds, 3) for seconds in self.reference],
            },
        }


def memory_row(name: str, limit: float, ours: Callable[[], float]) -> Row:
    """The memory that a command takes, in MB, against the limit."""
    row = Row(name=f"{name}, memory", aim=1.0, unit="MB", reference_command="the limit")
    return row.measure(1, ours, lambda: limit)


def build_rows(bench: Bench) -> Iterator[Row]:
    """The three kinds of a build; refuses to compare builds whose wheels differ."""
    ours, reference = bench.sides
    runs, script = bench.pick(5), str(REFERENCE.relative_to(ROOT))
    cold = Row(name="build, cold", aim=1.05, reference_command=script).measure(runs, ours.cold, reference.cold)
    yield cold
    if cold.error is None and ours.contents() != reference.contents():
        raise Failed("the two sides have built different wheels")
    yield Row(name="build, warm caches", aim=1.1, reference_command=script).measure(runs, ours.warm, reference.warm)
    row = Row(name="build, nothing changed", aim=0.1, reference_command=f"{script} (again)")
    yield row.measure(runs, ours.unchanged, reference.unchanged)


def side_by_side_rows(bench: Bench) -> Iterator[Row]:
    """One, two and four profiles of one release, at once and one after another, from nothing but the base image."""
    profiles = list(related_profiles(bench.work / "related"))
    for count in (2,) if bench.quick else (1, 2, 4):
        at_once = tfdock_side(bench.work / f"{count}-at-once", bench.plan, profiles[:count], "-j", str(count))
        in_turn = tfdock_side(bench.work / f"{count}-in-turn", bench.plan, profiles[:count])
        row = Row(name=f"{count} profile{'s' if count > 1 else ''} at once", aim=1.05, reference_command="without -j")
        yield row.measure(bench.pick(3), at_once.cold, in_turn.cold)


def related_profiles(folder: Path) -> Iterator[Path]:
    """Profiles that differ from the bench's own in what they are compiled for."""
    folder.mkdir()
    for target in ("sm_80", "sm_86", "sm_89", "sm_90"):
        path = folder / f"{target}.yaml"
        source = f"tensorflow: {{path: {HERE.parent / 'miniature/hermetic'}}}"  # relative to whoever extends
        path.write_text(f"schema: 1\nextends: {PROFILE[0]}\n{source}\ncompute_capabilities: [{target}]\n", "utf-8")
        yield path


def layer_rows(bench: Bench) -> Iterator[Row]:
    """A disk cache of 200 MB into a registry and out of it: against the same folder as the one layer of an image."""
    runs = bench.pick(5)
    with registries.own_registry(bench.work / "registry") as registry:
        layers = Layers(work=bench.work, address=registry.address, actions=bench.pick(2000, 20))
        made = "docker push, of one layer made by `tar | docker import`"
        yield Row(name="cache push", aim=1.0, reference_command=made).measure(runs, layers.push, layers.docker_push)
        row = Row(name="cache pull", aim=1.0, reference_command="docker pull, of that image")
        yield row.measure(runs, layers.pull, layers.docker_pull)
        limit = "1.5 times its entries' own size, and 64 KiB a pack"
        row = Row(name="cache push, one action", unit="kB", aim=1.0, reference_command=limit)
        yield row.measure(1, *layers.changed())


@dataclass
class Layers:
    """A made-up disk cache, half of whose bytes can be packed away, and names for it in a registry."""

    work: Path
    address: str
    actions: int
    ours: str = ""
    theirs: str = ""

    def __post_init__(self) -> None:
        CacheFolder.opened(self.work / "layers")
        for number in range(self.actions):
            self.action(str(number), 50_000)

    def action(self, name: str, size: int) -> int:
        """Put an action with two outputs into the cache; the bytes of the three entries."""
        disk = self.work / "layers" / "disk" / TOOLCHAIN
        half = [random.Random(f"{name} {output}").randbytes(size // 2) for output in range(2)]
        return sum(
            path.stat().st_size
            for path in registries.add_action(disk, name, *(one + bytes(size // 2) for one in half))
        )

    def _cache(self, verb: str, folder: str) -> tuple[str | Path, ...]:
        where = ("--cache-dir", self.work / folder, "--json")
        return (TFDOCK, "cache", verb, f"{self.address}/{self.ours}:1", *where)

    def push(self) -> float:
        """Time a push into a repository that holds nothing."""
        self.ours = f"ours-{uuid.uuid4().hex}"
        return timed(self._cache("push", "layers"))

    def pull(self) -> float:
        """Time a pull into an empty folder."""
        remove_folder(self.work / "pulled")
        return timed(self._cache("pull", "pulled"))

    def changed(self) -> tuple[Callable[[], float], Callable[[], float]]:
        """What a push sends that finds one action more, and what it may send."""
        size = self.action("changed", 300_000)
        (figures,) = json.loads(output(*self._cache("push", "layers")))["toolchains"]
        return lambda: figures["sent"] / 1e3, lambda: most_sent(size, figures["packs"]) / 1e3

    def docker_push(self) -> float:
        """Time the push of another image each time: the engine remembers which layers a registry has."""
        self.theirs = f"{self.address}/theirs-{uuid.uuid4().hex}:1"
        (self.work / "mark").write_text(self.theirs)
        import_image(self.theirs, self.work, "layers/disk", "mark")
        return timed(("docker", "push", self.theirs))

    def docker_pull(self) -> float:
        """Time a pull by an engine that does not have it."""
        output("docker", "rmi", self.theirs)
        return timed(("docker", "pull", self.theirs))


def import_image(name: str, folder: Path, *files: str) -> None:
    """Make an image whose one layer holds files of a folder."""
    script = 'tar --create --directory "$1" "${@:4}" | docker import --change "$2" - "$3"'
    output("bash", "-euo", "pipefail", "-c", script, "bash", folder, f"LABEL {LABEL}=import", name, *files)


def most_sent(size: int, packs: int) -> float:
    """Bytes that a push may send for changed entries of so many, which came into so many packs."""
    return 1.5 * size + packs * (64 << 10)


def image_rows(bench: Bench) -> Iterator[Row]:
    """A wheel of 600 MB into a registry: against the engine's push, and against the limit of memory."""
    with registries.own_registry(bench.work / "images" / "registry") as registry:
        images = Images(registry, bench.work / "images" / "wheelhouse", bench.pick(600_000_000, 6_000_000))
        made = "docker push, of one layer with that wheel made by `tar | docker import`"
        row = Row(name="image push", aim=0.8, reference_command=made)
        yield row.measure(bench.pick(3), lambda: timed(images.push), images.docker_push)
        yield memory_row("image push", 150.0, lambda: peak_memory(images.push))


class Images:
    """A wheel that is of no use, and a registry for images of it."""

    def __init__(self, registry: registries.OwnRegistry, house: Path, size: int) -> None:
        self.registry, self.made = registry, wheelhouses.made(house, size=size)
        self.theirs = f"{registry.address}/theirs:1"
        import_image(self.theirs, self.made.wheel.parent, self.made.wheel.name)

    @property
    def push(self) -> tuple[str | Path, ...]:
        """The command that pushes, to a registry that has nothing."""
        remove_folder(self.registry.folder / "docker")
        where = ("--wheelhouse", self.made.wheel.parent)
        return (TFDOCK, "image", "push", self.made.build_id, f"{self.registry.address}/ours", *where)

    def docker_push(self) -> float:
        """Time the engine's."""
        remove_folder(self.registry.folder / "docker")
        return timed(("docker", "push", self.theirs))


def pull_rows(bench: Bench) -> Iterator[Row]:
    """Wheels of 600 MB out of a registry: against the engine and `docker cp`, and against pip from a static index."""
    yield from pulls_of(bench, "pull", bench.pick(600_000_000, 6_000_000))
    yield from pulls_of(bench, "pull, official", bench.official)


def pulls_of(bench: Bench, name: str, wheel: Path | int) -> Iterator[Row]:
    """One wheel: a given one, or one of a size."""
    runs, folder = bench.pick(5), bench.work / name
    with registries.own_registry(folder / "registry") as registry:
        pulls = Pulls(folder, f"{registry.address}/wheels", wheel)
        row = Row(name=name, aim=0.5, reference_command="docker pull, docker create, docker cp, of the same image")
        yield row.measure(runs, lambda: timed(pulls.pull), pulls.docker_pull)
        with harness.file_server(pulls.house) as index:
            pip = "pip download, from the wheelhouse's index on this machine"
            row = Row(name=f"{name}, beside pip", aim=1.2, reference_command=pip)
            yield row.measure(runs, lambda: timed(pulls.pull), lambda: pulls.pip_download(f"{index}/simple/"))
        yield memory_row(name, 150.0, lambda: peak_memory(pulls.pull))


class Pulls:
    """A wheel with a record, in a wheelhouse with an index and as an image in a registry: a given one, or a size."""

    def __init__(self, work: Path, repository: str, wheel: Path | int) -> None:
        self.work, self.house = work, work / "wheelhouse"
        made = wheelhouses.made(self.house, local="", size=wheel if isinstance(wheel, int) else 1)
        self.wheel = made.wheel
        if isinstance(wheel, Path):
            made.wheel.unlink()
            self.wheel = Path(shutil.copy(wheel, self.house))
            row = {"file": wheel.name, "sha256": file_sha256(wheel), "size": wheel.stat().st_size}
            record = json.loads(made.record.read_bytes())
            made.record.write_text(json.dumps(record | {"wheels": [row]}))
        self.image = f"{repository}:{made.build_id}"
        output(TFDOCK, "image", "push", made.build_id, repository, "--wheelhouse", self.house)
        output(TFDOCK, "wheelhouse", "index", "--wheelhouse", self.house)

    @property
    def pull(self) -> tuple[str | Path, ...]:
        """The command that pulls into an empty wheelhouse."""
        return (TFDOCK, "pull", self.image, "--wheelhouse", self._empty())

    def _empty(self) -> Path:
        """A folder with nothing in it."""
        folder = self.work / "pulled"
        remove_folder(folder)
        folder.mkdir()
        return folder

    def docker_pull(self) -> float:
        """Time what takes the wheel out of the image without tfdock, by an engine that does not have it."""
        lines = ('docker pull --quiet "$1"', 'id=$(docker create "$1")', 'docker cp "$id:/wheels/$2" "$3"')
        script = "\n".join((*lines, 'docker rm "$id"'))
        subprocess.run(("docker", "rmi", self.image), capture_output=True)
        words = ("sh", "-euc", script, "sh", self.image, self.wheel.name, self._empty())
        seconds = timed(words)
        output("docker", "rmi", self.image)
        return seconds

    def pip_download(self, index: str) -> float:
        """Time pip, which checks the sha256 that the index names."""
        options = ("--isolated", "--no-deps", "--no-cache-dir", "--quiet", "--disable-pip-version-check")
        python = ("--python-version", "3.11", "--only-binary", ":all:")
        what = ("--index-url", index, "--dest", self._empty(), "==".join(self.wheel.name.split("-")[:2]))
        pip = (sys.executable, "-m", "pip", "download", *options, *python, *what)
        return timed(pip)


def command_rows(bench: Bench) -> Iterator[Row]:
    """The commands that people wait for: what the program can do, and whether one profile, or many, can be built."""
    work, runs, peer = bench.work, bench.pick(21), cibuildwheel()
    environment = {**os.environ, "TFDOCK_CACHE_DIR": str(work / "check-cache")}
    output(sys.executable, "-m", "compileall", "-q", ROOT / "tfdock")

    def clock(*command: str | Path) -> Callable[[], float]:
        return lambda: timed(command, environment)

    known = f"cibuildwheel --help (version {CIBUILDWHEEL})"
    row = Row(name="--help", aim=0.6, reference_command=known)
    yield row.measure(runs, clock(TFDOCK, "--help"), clock(peer, "--help"))
    asked = {"_TFDOCK_COMPLETE": "complete_bash", "COMP_WORDS": "tfdock build --gpu rtx50", "COMP_CWORD": "3"}
    row = Row(name="completion", aim=1.4, reference_command=known)
    yield row.measure(runs, lambda: timed([TFDOCK], {**environment, **asked}), clock(peer, "--help"))
    profiles = list(itertools.islice(written_profiles(work / "profiles"), bench.pick(200, 3)))
    one, all_of_them = clock(TFDOCK, "check", profiles[0]), clock(TFDOCK, "check", *profiles)
    one()
    yield Row(name="check-1", aim=1.5, reference_command=known).measure(runs, one, clock(peer, "--help"))
    row = Row(name="check-200", aim=6.0, reference_command="tfdock check, of the first profile alone")
    yield row.measure(max(1, runs // 2), all_of_them, one)


def wheel_rows(bench: Bench) -> Iterator[Row]:
    """Looking into a wheel of 600 MB: against inflating it, against the limit of memory, against the usual way."""
    wheel = bench.official
    ours = (TFDOCK, "inspect", wheel, "--json")
    inflate = (sys.executable, HERE / "inflate.py", wheel)
    by_hand = (HERE / "unpack_and_list.sh", wheel, cuobjdump(), bench.work / "unpacked")
    row = Row(name="inspect", aim=0.8, reference_command="tests/bench/inflate.py: zlib, its libraries once")
    yield row.measure(bench.pick(5), lambda: timed(ours), lambda: timed(inflate))
    yield memory_row("inspect", 300.0, lambda: peak_memory(ours))
    row = Row(name="inspect, the usual way", aim=0.3, reference_command="tests/bench/unpack_and_list.sh")
    yield row.measure(bench.pick(2), lambda: timed(ours), lambda: timed(by_hand))


def index_rows(bench: Bench) -> Iterator[Row]:
    """The index of 5,000 small wheels after one new wheel: against making it from nothing."""
    house = bench.work / "indexed"
    house.mkdir()
    numbers = itertools.count()
    for _ in range(bench.pick(5000, 50)):
        add_wheel(house, next(numbers))
    command = (TFDOCK, "wheelhouse", "index", "--wheelhouse", house)

    def one_more() -> float:
        add_wheel(house, next(numbers))
        return timed(command)

    def anew() -> float:
        for path in (house / "simple", house / ".tfdock"):
            remove_folder(path)
        for path in house.glob("*.metadata"):
            path.unlink()
        return timed(command)

    anew()
    row = Row(name="index, one new of 5000", aim=0.1, reference_command="tfdock wheelhouse index, from nothing")
    yield row.measure(bench.pick(5), one_more, anew)


def add_wheel(house: Path, number: int) -> None:
    """A sound wheel of 40 kB."""
    name, info = f"bench-{number}", f"bench-{number}.dist-info"
    members = {
        "bench/data": random.Random(number).randbytes(40_000),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: bench\nVersion: {number}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    file = house / f"{name}-py3-none-any.whl"
    wheelhouses.write_wheel(file, wheelhouses.with_record(members), zipfile.ZIP_STORED)


def log_rows(bench: Bench) -> Iterator[Row]:
    """What went wrong in a log of 1 GB, its last line: against counting its lines, and the limit of memory."""
    log = bench.work / "build.log"
    lines = "".join(map(logged, range(6000))).encode()
    with log.open("wb") as file:
        for _ in range(bench.pick(10**9, 10**7) // len(lines)):
            file.write(lines)
        file.write(b"nvcc fatal   : Unsupported gpu architecture 'compute_35'\n")
    ours = (TFDOCK, "diagnose", log)
    row = Row(name="diagnose, 1 GB", aim=60.0, reference_command="wc -l")
    yield row.measure(bench.pick(5), lambda: timed(ours), lambda: timed(("wc", "-l", log)))
    yield memory_row("diagnose", 200.0, lambda: peak_memory(ours))
    log.unlink()


def logged(number: int) -> str:
    """What one compilation prints under BuildKit: colours, a warning, at every fourth a mirror without the file."""
    source = f"tensorflow/core/kernels/op_{number}.cc"
    lines = [
        f"\x1b[32m[{number:,} / 35,428]\x1b[0m 12 actions running; last: Compiling {source}; {number % 400}s local",
        f"\x1b[32mINFO: \x1b[0mFrom Compiling {source}:",
        f"\x1b[1m./tensorflow/core/op_{number}.h:{number % 900}:12: \x1b[0m\x1b[0;1;35mwarning: \x1b[0m\x1b[1m"
        "ignoring return value of 'absl::Status tensorflow::OpKernelContext::status()' [-Wunused-result]\x1b[0m",
        f"  {number % 900} |   OP_REQUIRES(context, status.ok(), errors::Internal(status.error_message()));",
        "\x1b[0;1;32m      |   ^~~~~~~~~~~\x1b[0m",
        f"./tensorflow/core/framework/op_kernel.h:{number % 900}:3: note: 'OP_REQUIRES' was declared here",
    ]
    if number % 4 == 0:
        lines.append(
            "WARNING: Download from https://storage.googleapis.com/mirror.tensorflow.org/github.com/google/"
            f"{number}.tar.gz failed: class java.io.FileNotFoundException GET returned 404 Not Found"
        )
    return "".join(f"#15 {number / 10:.1f} {line}\n" for line in lines)


def cuobjdump() -> Path:
    """NVIDIA's lister of GPU code, from PyPI, installed once."""
    folder = platformdirs.user_cache_path("tfdock-bench") / f"cuobjdump-{CUOBJDUMP}"
    if not folder.exists():
        part = folder.with_name(f"{folder.name}.part")
        options = ("--quiet", "--no-deps", "--upgrade", "--target", part)
        pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
        output(*pip, "install", *options, f"nvidia-cuda-cuobjdump=={CUOBJDUMP}")
        part.rename(folder)
    (program,) = folder.glob("nvidia/*/bin/cuobjdump")
    program.chmod(0o755)
    return program


def written_profiles(folder: Path) -> Iterator[Path]:
    """Two hundred profiles, no two of one release, Python and GPU; `timed` stops where one of them is refused."""
    folder.mkdir()
    gpus = ("v100", "t4", "rtx2080ti", "a100", "rtx3080", "rtx3090", "a40", "rtx4090", "l4", "rtx4070")
    releases = ("2.14.1", "2.15.1", "2.16.2", "2.17.1", "2.18.1", "2.19.1", "2.20.0")
    pythons = ("3.9", "3.10", "3.11")
    for gpu, release, python in itertools.islice(itertools.product(gpus, releases, pythons), 200):
        path = folder / f"{gpu}-{release}-{python}.yaml"
        path.write_text(f'schema: 1\ntensorflow: "{release}"\npython: "{python}"\ngpus: [{gpu}]\n', "utf-8")
        yield path


def matrix_rows(bench: Bench) -> Iterator[Row]:
    """A matrix of 10,000 cells told as JSON: a cell of it against one of 100, and its memory against the limit."""
    many = bench.pick(10_000, 200)

    def command(cells: int) -> tuple[str | Path, ...]:
        return (TFDOCK, "matrix", written_matrix(bench.work / f"matrix-{cells}.yaml", cells), "--format", "json")

    def milliseconds(cells: int) -> Callable[[], float]:
        asked = command(cells)
        return lambda: timed(asked) * 1000 / cells

    row = Row(name="matrix, one of 10000", aim=1.0, unit="ms", reference_command="tfdock matrix, one of 100 cells")
    yield row.measure(bench.pick(5), milliseconds(many), milliseconds(100))
    yield memory_row("matrix", 300.0, lambda: peak_memory(command(many)))


def written_matrix(path: Path, cells: int) -> Path:
    """A matrix of so many cells, a hundred times some; a fifth of them cannot be, for want of such a Python."""
    releases = ("2.20.0", "2.19.1", "2.19.0", "2.18.1", "2.18.0", "2.17.1", "2.17.0", "2.16.2", "2.15.1", "2.14.1")
    known = ("sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90")
    chosen = ([one for bit, one in enumerate(known) if number & 1 << bit] for number in range(1, cells // 100 + 1))
    pythons = ("3.9", "3.10", "3.11", "3.12", "3.13")
    axes = {"tensorflow": releases, "python": pythons, "debug": (False, True), "compute_capabilities": list(chosen)}
    path.write_text(json.dumps({"schema": 1, "profile": {"xla": True}, "axes": axes}), "utf-8")
    return path


def cibuildwheel() -> Path:
    """The peer, installed once into an environment of its own."""
    folder = platformdirs.user_cache_path("tfdock-bench") / f"cibuildwheel-{CIBUILDWHEEL}"
    ready, python, program = (folder / name for name in ("ready", "bin/python", "bin/cibuildwheel"))
    if not ready.exists() or not python.exists():  # a link to a Python that may have gone since
        output(sys.executable, "-m", "venv", "--clear", folder)
        pip = (python, "-m", "pip", "--disable-pip-version-check")
        output(*pip, "install", "--quiet", f"cibuildwheel=={CIBUILDWHEEL}")
        ready.touch()
    return program


# --- the whole ----------------------------------------------------------------------------------------------------

GROUPS: dict[str, Callable[[Bench], Iterator[Row]]] = {
    "build": build_rows,
    "profiles": side_by_side_rows,
    "cache": layer_rows,
    "image": image_rows,
    "pull": pull_rows,
    "index": index_rows,
    "diagnose": log_rows,
    "inspect": wheel_rows,
    "commands": command_rows,
    "matrix": matrix_rows,
}
NEED_A_REGISTRY = ("cache", "image", "pull")


def measured(bench: Bench, groups: Mapping[str, Callable[[Bench], Iterator[Row]]]) -> Iterator[Row]:
    """Measure groups of rows; one that cannot go on ends with a failed row for its rest."""
    for name, rows in groups.items():
        if name in NEED_A_REGISTRY and not shutil.which("docker-registry"):
            sys.stderr.write(f"bench: {name} skipped: Debian's docker-registry is not installed\n")
            continue
        try:
            yield from rows(bench)
        except Exception as error:
            yield Row(name=f"the rest of {name}", aim=1.0, reference_command="").fail(error)


def table(rows: Sequence[Row]) -> Iterator[str]:
    """What a person reads: medians, and the range of the runs behind them."""
    yield f"{'':<28}{'tfdock':>9}  {'range':<13}{'reference':>9}  {'range':<13}{'ratio':>6}{'aim':>7}{'runs':>6}"
    for row in rows:
        if row.error is not None:
            yield f"{row.name:<28}   FAILED"
            continue
        digits = 2 if row.unit == "s" else 0
        cells = (
            f"{median:>7.{digits}f} {row.unit:<3}{f'{min(samples):.{digits}f}–{max(samples):.{digits}f}':<13}"
            for median, samples in zip(row.medians, (row.ours, row.reference), strict=True)
        )
        ratio = row.medians[0] / row.medians[1]
        missed = "" if ratio <= row.aim else "  MISSED"
        yield f"{row.name:<28}{''.join(cells)}{ratio:>6.2f}{row.aim:>7.2f}{len(row.ours):>6}{missed}"


def machine() -> dict[str, Any]:
    info = json.loads(output("docker", "info", "--format", "{{json .}}"))
    engine = f"docker {info['ServerVersion']}"
    load = round(os.getloadavg()[0], 2)  # before we add to it
    return {"cpus": info["NCPU"], "memory": info["MemTotal"], "engine": engine, "load": load}


def report(rows: Sequence[Row], quick: bool, here: dict[str, Any], folder: Path) -> int:
    """Print the table and write the document; returns the exit status. A missed aim is only marked."""
    document = {"schema": "tfdock.bench/1", "quick": quick, "machine": here, "rows": [row.as_json() for row in rows]}
    folder.mkdir(exist_ok=True)
    # What a whole bench has found out stays.
    target = folder / ("bench-quick.json" if quick else "bench.json")
    target.write_text(json.dumps(document, indent=2) + "\n", "utf-8")
    if quick:
        sys.stdout.write("A quick run, on small stand-ins for what the rows name. Its figures mean nothing.\n")
    sys.stdout.write("\n".join(table(rows)) + "\n")
    return 1 if any(row.error is not None for row in rows) else 0


def main() -> int:
    """Measure what is asked for; returns the exit status."""
    parser = argparse.ArgumentParser(description="Compare tfdock with hand-written equivalents.")
    parser.add_argument("groups", nargs="*", metavar="GROUP", help="groups of rows; without any, all")
    parser.add_argument("--list", action="store_true", help="print the groups")
    parser.add_argument("--quick", action="store_true", help="run everything once and small, to see that it works")
    asked = parser.parse_args()
    if unknown := set(asked.groups) - set(GROUPS):
        parser.error(f"no such group: {', '.join(sorted(unknown))} (see --list)")
    if asked.list:
        sys.stdout.write("".join(f"{name:<10}{rows.__doc__}\n" for name, rows in GROUPS.items()))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    here = machine()
    with workplace() as work:
        groups = {name: GROUPS[name] for name in asked.groups or GROUPS}
        rows = list(measured(Bench(work, asked.quick), groups))
    return report(rows, asked.quick, here, ROOT / "build")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except Failed as error:
        sys.exit(f"bench: {error}")
