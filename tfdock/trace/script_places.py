"""Where a traced script runs: with a Python of this machine, or with a wheel in a container.

`run` runs it under a program, which gets the request and leaves its files in the folder, and returns the exit status,
below 0 the number of the signal that ended it. `time_case` returns the last line that a program prints.
"""

from __future__ import annotations

import json
import shutil
import stat
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from tfdock.errors import EngineError
from tfdock.host.files import make_folder
from tfdock.host.hardware import ask, last_line, wait_ticking
from tfdock.host.supervise import Stop, Stopper
from tfdock.host.untrusted_folders import UntrustedPath
from tfdock.trace.recording import SESSION
from tfdock.types import ExpectedFiles
from tfdock.verify.trial_container import HERE, read_only_mount
from tfdock.verify.wheel_in_container import MADE, WheelInContainer

#: Results of a container that ends with an error are not used, and a trace is kept however its script ends.
_KEEP_STATUS = f'status=0; "$@" || status=$?; echo "$status" > {MADE}/status'
_CASE_SECONDS = 300.0
_RESULTS = (
    ExpectedFiles(pattern="status"),
    ExpectedFiles(pattern="capture.json"),
    ExpectedFiles(pattern="operation.json"),
    ExpectedFiles(pattern=SESSION, size=1 << 28),
    ExpectedFiles(pattern="plugins/profile/*/*.xplane.pb", most=100, size=1 << 32),
)


def script_folder(words: Sequence[str]) -> Path:
    """Return the folder that a container sees: the script's, or with `-m` the current one.

    Raises EngineError (`mount-refused`) for a folder through which a container would reach programs of this machine.
    """
    found = Path.cwd() if words[0] == "-m" else Path(words[0]).parent.resolve()
    why = "your home folder lies in it" if Path.home().resolve().is_relative_to(found) else ""
    if not why:
        files = UntrustedPath(found.parent, found.name).walk()
        # A program listens behind a socket, perhaps the engine. Read-only mounts do not hinder a connection.
        kinds = stat.S_ISREG, stat.S_ISDIR, stat.S_ISLNK
        strange = (file.name for file in files if not any(kind(file.status.st_mode) for kind in kinds))
        why = next((f"{name} is a socket, pipe or device" for name in strange), "")
    if why:
        message = f"a stranger's wheel does not get the folder {found}: {why}"
        raise EngineError.of("mount-refused", message, "move the script into a new folder")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonPlace:
    """A Python of this machine. The script has the caller's folder and environment.

    Ctrl-C reaches the script and the caller, SIGTERM is passed on; a second signal, or some seconds, kill the script.
    """

    python: Path
    stoppable: Callable[[], AbstractContextManager[Stop]]
    stdout: int | None = None  #: A file descriptor for the script's output; None for the caller's own output.

    def run(self, words: Sequence[str], program: str, request: Mapping[str, object], folder: Path) -> int:
        """Run a script; raises Interrupted."""
        asked = json.dumps({**request, "folder": str(folder.absolute())})
        with self.stoppable() as stop:
            process = subprocess.Popen([str(self.python), "-c", program, asked, *words], stdout=self.stdout)
            gently, by_force = lambda: process.terminate() if stop.terminated else None, stop.check
            return wait_ticking(process, Stopper(stop, gently=gently, by_force=by_force).tick)

    def time_case(self, program: Path) -> str:
        """Return the last line that a program prints."""
        return last_line(ask(str(self.python), str(program), seconds=_CASE_SECONDS).text)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerPlace:
    """A wheel in a container, which sees the script's `folder` and no network. `show` gets each printed line."""

    wheel: WheelInContainer
    folder: Path
    show: Callable[[str], object]
    python: None = None  #: Its paths name nothing on this machine.

    def feed(self, data: bytes) -> None:
        """Read some bytes of output: each line of it comes to `shown_line` too."""

    def shown_line(self, line: str) -> str:
        """Show a line, which no display of progress shows again."""
        self.show(line)
        return ""

    def run(self, words: Sequence[str], program: str, request: Mapping[str, object], folder: Path) -> int:
        """Run a script. The working folder is the script's, with `-m` the caller's, and read-only."""
        words = [words[0] if words[0] == "-m" else Path(words[0]).name, *words[1:]]
        asked = json.dumps({**request, "folder": MADE})
        kept = self.wheel.run(
            ["/bin/sh", "-c", _KEEP_STATUS, "sh", str(self.wheel.python), "-c", program, asked, *words],
            mounts=[read_only_mount(self.folder, "script")],
            workdir=f"{HERE}/script",
            tap=self,
            expected=_RESULTS,
        )
        status: int | None = UntrustedPath(kept, "status").load(int, 100)
        make_folder(folder)
        shutil.copytree(kept, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("status"))
        # As a shell has it: of a program that a signal ended, 128 and the signal's number.
        return 1 if status is None else 128 - status if status > 128 else status

    def time_case(self, program: Path) -> str:
        """Return the last line that a program prints."""
        name = f"{HERE}/case/{program.name}"
        self.wheel.run(
            [str(self.wheel.python), name], mounts=[read_only_mount(program.resolve(), f"case/{program.name}")]
        )
        return self.wheel.last_line


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A script, where it runs, and which of its steps are recorded."""

    place: PythonPlace | ContainerPlace
    words: Sequence[str]  #: The script and its arguments, or `-m`, a module and its arguments.
    skip: int  #: Steps that are left out at the start.
    steps: int  #: Steps that are recorded.
