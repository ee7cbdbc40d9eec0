"""What the end-to-end tests share: the command as its users run it, trees, profiles, and servers it talks to."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO, Any

import docker
import pytest
from bed import missing, needs_root
from build import warm
from document_schemas import check_named, check_printed
from servers import serving
from waits import run_within, wait_until

from tfdock.bazel.cache.cache_folder import CacheFolder
from tfdock.engine.protocol import IMAGE_LABEL

REPOSITORY = Path(__file__).parents[2]
MINIATURE = REPOSITORY / "tests/miniature"
KNOWLEDGE = MINIATURE / "knowledge"
PLAYED = REPOSITORY / "tests/played/tree"
CPU: dict[str, object] = {"accelerator": "cpu", "compute_capabilities": None}  #: Fields of a profile.
PATIENCE = 60.0  #: Seconds in which a command does the next thing, or is taken to hang.
#: Seconds that a command may take to its end, or a build to a late phase: on a busy machine a cold one takes 60, and
#: some commands have several.
WHOLE = 240.0
DRAIN = 10.0  #: Seconds after the end of a command in which the last of its output is read.
STOP = 10.0  #: Seconds in which a command that has failed its test removes its containers.

Json = dict[str, Any]
#: How a profile has its wheel verified whose test is about something else: nothing of it runs.
UNTRIED: Json = {"run": False}


# --- the command --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a finished command left."""

    code: int
    stdout: str
    stderr: str
    seconds: float

    @property
    def document(self) -> Json:
        """The one JSON document on standard output."""
        document: Json = json.loads(self.stdout)
        return document

    @property
    def builds(self) -> list[Json]:
        """The results of `build --json`, in the order of the profiles."""
        builds: list[Json] = self.document["builds"]
        return builds

    @property
    def build(self) -> Json:
        """The only result."""
        (build,) = self.builds
        return build

    @property
    def problems(self) -> list[Json]:
        """The problems of the document, and of each of its results."""
        results = [row for name in ("builds", "locks", "pulls") for row in self.document.get(name, ())]
        return [problem for part in (self.document, *results) for problem in part.get("problems", ())]

    @property
    def problem(self) -> Json:
        """The only problem."""
        (problem,) = self.problems
        return problem

    @property
    def told(self) -> str:
        """All that was printed, for the message of a failed assertion."""
        return f"exit code {self.code} after {self.seconds:.1f} s\n{self.stderr}\n{self.stdout}"


class Running:
    """A command that runs; what it prints is read as it comes. One that fails its test is stopped."""

    def __init__(self, process: subprocess.Popen[str] | warm.Started) -> None:
        self.process = process
        self._lines: list[str] = []
        self._started = time.monotonic()
        self._stdout = ""
        assert process.stderr is not None
        assert process.stdout is not None
        self._readers = {
            threading.Thread(target=read, args=(stream,), daemon=True): stream
            for read, stream in ((self._read, process.stderr), (self._read_result, process.stdout))
        }
        for reader in self._readers:
            reader.start()

    def _read_result(self, stream: IO[str]) -> None:
        # Not at the end: a document may be larger than what a pipe holds.
        with stream:
            self._stdout = stream.read()

    def _read(self, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                self._lines.append(line)

    def wait_for(self, text: str, seconds: float = PATIENCE) -> None:
        """Return when a line with that text was printed."""
        self.until(lambda: any(text in line for line in self._lines), seconds, f"{text!r} was not printed")

    def until(self, condition: Callable[[], object], seconds: float = PATIENCE, failure: str = "") -> None:
        """Return when the condition holds. Fail after that long, or as soon as the command has ended."""

        def holds() -> object:
            if self.process.poll() is not None:
                self._read_to_the_end()
            return condition()

        with self._told(failure):
            wait_until(holds, seconds, self.process)

    def end_by(
        self, number: signal.Signals, seconds: float = WHOLE, *, code: int | None = None, problem: str = ""
    ) -> Outcome:
        """Send it a signal, and wait for the end as `finish` does."""
        self.signal(number)
        return self.finish(seconds, code=code, problem=problem)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def finish(self, seconds: float = WHOLE, *, code: int | None = None, problem: str = "") -> Outcome:
        """Wait for the end. The test fails if the command takes longer, if a document breaks its schema, and if the
        exit code, or that of the only problem, is not the one that is given."""
        with self._told():
            ended = self.process.wait(seconds)
            self._read_to_the_end()
        for document in check_printed(self._stdout):
            # After an error, the record may be the one that a test has damaged.
            if ended == 0:
                check_named(document)
        outcome = Outcome(
            code=ended,
            stdout=self._stdout,
            stderr="".join(self._lines),
            seconds=time.monotonic() - self._started,
        )
        assert code in (None, ended), outcome.told
        assert not problem or outcome.problem["code"] == problem, outcome.told
        return outcome

    def _read_to_the_end(self) -> None:
        """Read what an ended command has printed. A process that it left behind may hold the pipe for ever."""
        for reader, stream in self._readers.items():
            reader.join(DRAIN)
            assert not reader.is_alive(), f"it has ended, and its output is still held open by {holders(stream)}"

    @contextlib.contextmanager
    def _told(self, failure: str = "") -> Iterator[None]:
        """Stop the command when the wait for it fails, for whatever reason, and add what it has printed."""
        try:
            yield
        except BaseException as error:
            code = self.process.poll()
            state = "runs" if code is None else f"ended with {code}"
            error.add_note(f"{failure}\nthe command {state}:\n{''.join(self._lines)}{self._stdout}")
            self._stop()
            raise

    def _stop(self) -> None:
        """End it, with its containers if it can."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait(STOP)


def holders(stream: IO[str]) -> dict[int, str]:
    """The other processes that have the pipe open: number -> command line."""
    pipe = str(Path(f"/proc/self/fd/{stream.fileno()}").readlink())
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        # Some have ended meanwhile, some are another user's.
        with contextlib.suppress(OSError):
            if int(folder.name) != os.getpid() and pipe in map(os.readlink, (folder / "fd").iterdir()):
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    return found


def copy_cache(source: Path, target: Path, parts: Iterable[str] = ("disk", "repository")) -> None:
    """Copy parts of a cache folder, those that exist, into another one."""
    CacheFolder.opened(target)
    for part in parts:
        if (source / part).exists():
            shutil.copytree(source / part, target / part, dirs_exist_ok=True)


@dataclass(frozen=True, kw_only=True)
class Tfdock:
    """The command with a wheelhouse, a cache and a state folder of its own, and nothing else of the caller's."""

    home: Path
    cache: Path
    engine: str = "unix:///nonexistent/docker.sock"
    variables: Mapping[str, str] = field(default_factory=dict)
    prefix: tuple[str, ...] = ()  #: Words before the command, such as `setpriv …`.
    #: Builds share one cache, though their sources are checkouts: most tests are about something else.
    trusted: bool = True

    @property
    def wheelhouse(self) -> Path:
        return self.home / "wheelhouse"

    @property
    def state(self) -> Path:
        return self.home / "state"

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "PYTHONDONTWRITEBYTECODE": "1",
            # The command of these very tests, also where another checkout is the one that is installed.
            "PYTHONPATH": str(REPOSITORY),
            # Sentences stay on one line, where tests look for them.
            "COLUMNS": "1000",
            "DOCKER_HOST": self.engine,
            "TFDOCK_KNOWLEDGE": str(KNOWLEDGE),
            # What the miniature downloads stands on 127.0.0.1 of this machine.
            "TFDOCK_NETWORK": "host",
            "TFDOCK_REGISTRY_MIRROR": os.environ.get("TFDOCK_REGISTRY_MIRROR", ""),
            "TFDOCK_WHEELHOUSE": str(self.wheelhouse),
            "TFDOCK_CACHE_DIR": str(self.cache),
            "TFDOCK_STATE_DIR": str(self.state),
            # Trees lie beside the profiles' folders, in folders of the tests' own and in the repository.
            "TFDOCK_ALLOW_PATHS": os.pathsep.join((str(REPOSITORY), tempfile.gettempdir())),
            **self.variables,
        }

    def with_variables(self, **variables: str) -> Tfdock:
        return replace(self, variables={**self.variables, **variables})

    def impatient(self, seconds: float) -> Tfdock:
        """The same, which asks an engine that is silent for so long whether it is still there: not after a minute."""
        folder = self.home / "impatient"
        folder.mkdir(exist_ok=True)
        program = f"from tfdock.host import supervise\nsupervise.HANG_AFTER_SECONDS = {seconds}\n"
        (folder / "sitecustomize.py").write_text(program)
        return self.with_variables(PYTHONPATH=os.pathsep.join((str(folder), self.environment["PYTHONPATH"])))

    def start(self, *words: str | Path) -> Running:
        self.home.mkdir(exist_ok=True)
        if words[0] == "build" and self.trusted:
            words = ("build", "--trust", *words[1:])
        written = [str(word) for word in words]
        return Running(
            (not self.prefix and warm.start(written, self.home, self.environment))
            or subprocess.Popen(
                [*self.prefix, sys.executable, "-m", "tfdock", *written],
                cwd=self.home,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                # As in a terminal's own session; a signal to the tests is not one to the command.
                start_new_session=True,
            )
        )

    def run(self, *words: str | Path, code: int | None = None, problem: str = "") -> Outcome:
        return self.start(*words).finish(code=code, problem=problem)

    def build(self, *words: str | Path, code: int | None = None, problem: str = "") -> Outcome:
        return self.run("build", "--json", *words, code=code, problem=problem)

    @property
    def visible(self) -> list[str]:
        """What `ls` shows of the wheelhouse."""
        return sorted(path.name for path in self.wheelhouse.glob("[!.]*"))

    @property
    def leftovers(self) -> list[str]:
        """What runs that are over left: staging folders, output bases, journal entries, half-written files."""
        private = self.wheelhouse / ".tfdock"
        found = [*private.glob("staging/*"), *(self.state / "runs").glob("*"), *private.glob("*/*/.*")]
        return sorted(str(path) for path in found)


def pip_install(folder: Path, *words: str | Path) -> str:
    """Have pip install into a folder what is named, and no more; the name and the version of the TensorFlow there."""
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--isolated", "install", "--no-deps")
    done = subprocess.run((*pip, "--no-cache-dir", "--target", folder, *words), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (info,) = folder.glob("tensorflow*.dist-info")
    return info.stem


def built_images(sdk: Any, folder: Path, home: str = "home-*") -> list[Json]:
    """The images that builds have made in homes of a folder; base images are not among them."""
    names = {path.parent.name.lower() for path in folder.glob(f"{home}/wheelhouse/.tfdock/tf*/*/")}
    found = [image for name in names for image in sdk.images(f"tfdock/{name}", filters={"label": IMAGE_LABEL})]
    return list({image["Id"]: image for image in found}.values())


def remove_built_images(sdk: Any, folder: Path) -> None:
    for image in built_images(sdk, folder):
        for tag in image["RepoTags"] or ():
            with contextlib.suppress(docker.errors.APIError):
                sdk.remove_image(tag)


def contents(wheel: Path) -> dict[str, bytes]:
    """The files of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def record_of(build: Json) -> Json:
    """The record of a build, by its result."""
    record: Json = json.loads(Path(build["record"]).read_bytes())
    return record


def published(build: Json) -> list[str]:
    """What a build puts into the wheelhouse for all to see, by its result: its wheels, and pip's constraints."""
    return sorted([*(Path(wheel["path"]).name for wheel in build["wheels"]), f"{build['build_id']}.constraints.txt"])


# --- what it is given ---------------------------------------------------------------------------------------------


def write_profile(path: Path, tree: Path | None = None, **fields: object) -> Path:
    """A profile of the hermetic miniature for one GPU, with changes; None leaves a field out."""
    fields = {
        "schema": 1,
        "tensorflow": {"release": "99.18.0", "path": str(tree)},
        "python": "3.11",
        "compute_capabilities": ["sm_86"],
        "wheel": {"name": "tensorflow_miniature"},
    } | fields
    path.write_text(json.dumps({name: value for name, value in fields.items() if value is not None}, indent=1))
    return path


def archive_knowledge(folder: Path, archive: str, sha256: str, *urls: str) -> Path:
    """A folder with a row for an archive that has left its address, and is at these."""
    row = {"archive": archive, "sha256": sha256, "releases": "99.18", "urls": urls}
    row |= {"original": "https://gone.example/x", "gone": "2026-11", "source": "test"}
    folder.mkdir(exist_ok=True)
    (folder / "source_archives.yaml").write_text(json.dumps({"rows": [row]}))
    return folder


#: Fields of a profile of a `played_tree`.
PLAYED_BUILD: dict[str, object] = {**CPU, "base": "tensorflow/build:99.18-played"}


def copy_tree(source: Path, target: Path, edits: Mapping[str, Callable[[str], str]] | None = None) -> Path:
    """A copy of a miniature with some files changed."""
    shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
    for name, edit in (edits or {}).items():
        path = target / name
        before = path.read_text() if path.exists() else ""
        after = edit(before)
        assert after != before, f"{name} is no longer what this test edits"
        path.write_text(after)
    return target


def legacy_tree(target: Path, edits: Mapping[str, Callable[[str], str]] | None = None) -> Path:
    """A copy of the legacy miniature: the hermetic one, with the files over it that differ."""
    copy_tree(MINIATURE / "hermetic", target)
    return copy_tree(MINIATURE / "legacy", target, edits)


def played_tree(target: Path, edits: Mapping[str, Callable[[str], str]] | None = None) -> Path:
    """A copy of the hermetic miniature with a Bazel that plays back what the real one did: its base image runs it."""
    copy_tree(MINIATURE / "hermetic", target, edits)
    shutil.copytree(PLAYED, target / "played")
    return target


#: Road -> what makes a tree of it: `(target, edits)`.
TREES: dict[str, Callable[..., Path]] = {
    "hermetic": partial(copy_tree, MINIATURE / "hermetic"),
    "legacy": legacy_tree,
    "played": played_tree,
}


def before(text: str) -> Callable[[str], str]:
    return lambda content: text + content


def after_first_line(text: str) -> Callable[[str], str]:
    return lambda content: content.replace("\n", f"\n{text}\n", 1)


def replaced(old: str, new: str) -> Callable[[str], str]:
    return lambda content: content.replace(old, new)


def as_user(user: int, groups: str = "--clear-groups") -> tuple[str, ...]:
    """The words before a command that an ordinary user runs."""
    if not shutil.which("setpriv"):
        missing("running as another user needs setpriv")
    # The one capability that is left opens folders such as /root, where Python or the socket may lie.
    capabilities = ("--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search")
    return ("setpriv", f"--reuid={user}", f"--regid={user}", groups, *capabilities)


def give_to(user: int, folder: Path) -> None:
    """Let a folder, with all that is in it, be that user's."""
    for path in (folder, *folder.rglob("*")):
        os.chown(path, user, user)


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    """A file system of that size at that folder."""
    needs_root("a small disk")
    folder.mkdir(exist_ok=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size},mode=755", "tfdock-tests", str(folder)], capture_output=True
    )
    if mounted.returncode != 0:
        missing(f"cannot mount a small disk: {mounted.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


# --- servers ------------------------------------------------------------------------------------------------------


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""


@contextlib.contextmanager
def file_server(folder: Path) -> Iterator[str]:
    """The URL of a server of these files."""
    with serving(partial(_Quiet, directory=str(folder))) as address:
        yield f"http://{address}"


@contextlib.contextmanager
def silent_server() -> Iterator[str]:
    """`host:port` of a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def closed_port() -> str:
    """`host:port` where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def git(tree: Path, *words: str) -> str:
    """What git says, in a folder, by somebody with a name."""
    identity = ("-c", "user.name=Tests", "-c", "user.email=tests@example.org")
    command = ("git", "-C", str(tree), *identity, *words)
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def new_repository(tree: Path) -> Path:
    """A repository with one commit on the branch `main`."""
    tree.mkdir(parents=True)
    git(tree, "init", "--initial-branch=main")
    git(tree, "commit", "--allow-empty", "--message", "one")
    return tree


@contextlib.contextmanager
def git_server(folder: Path) -> Iterator[str]:
    """The URL of a git server of the repositories in a folder."""
    address = closed_port()
    host, _, port = address.partition(":")
    command = ["git", "daemon", "--export-all", f"--base-path={folder}", f"--listen={host}", f"--port={port}"]
    with subprocess.Popen([*command, "--reuseaddr", str(folder)], stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: connects(address), process=process)
            yield f"git://{address}"
        finally:
            # The daemon proper is a child of `git`; it goes with the parent's group only when told.
            process.terminate()


def connects(address: str) -> bool:
    """Whether somebody listens at `host:port`."""
    host, _, port = address.partition(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1):
        return True
    return False


def command_lines() -> set[bytes]:
    """The arguments of every process of this machine, those in containers too."""
    found = set()
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.add(process.read_bytes())
    return found


def skip_without_pypi(codes: Iterable[str]) -> None:
    """Skip where these codes say that pip has got nothing, and it gets nothing else either."""
    if "dependencies-unavailable" not in codes:
        return
    options = ["--no-deps", "--no-cache-dir", "--dest", os.devnull]
    command = [sys.executable, "-m", "pip", "download", *options, "six"]
    said = run_within(60, command).stderr
    if "connection broken" in said or "Network is unreachable" in said:
        pytest.skip("PyPI cannot be reached")
