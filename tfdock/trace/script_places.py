"""Where a traced script runs: with a Python of this machine, or with a wheel in a container.

`run` runs the script under a program that gets the request and writes its files into the folder. `run` returns the
exit status, or minus the number of the signal that ended the script. `time_case` returns a program's last line.
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

#: Hide the script's exit status: tfdock drops the results of a failed container, but must keep every trace.
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
    """Return the folder that a container sees: the script's folder, or with `-m` the current folder.

    Raises EngineError (`mount-refused`) for a folder through which a container would reach programs of this machine.
    """
    found = Path.cwd() if words[0] == "-m" else Path(words[0]).parent.resolve()
    why = "it contains your home folder" if Path.home().resolve().is_relative_to(found) else ""
    if not why:
        files = UntrustedPath(found.parent, found.name).walk()
        # A program, perhaps the engine, listens at a socket. A read-only mount does not prevent a connection.
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

    Ctrl-C reaches the script and the caller; SIGTERM is passed on. A second signal, or some seconds, kill the script.
    """

    python: Path
    stoppable: Callable[[], AbstractContextManager[Stop]]
    stdout: int | None = None  #: A file descriptor for the script's output; None for the caller's own output.

    def run(self, words: Sequence[str], program: str, request: Mapping[str, object], folder: Path) -> int:
        """Run a script; return its exit status. Raises Interrupted."""
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
    python: None = None  #: The paths of the wheel's Python mean nothing on this machine.

    def feed(self, data: bytes) -> None:
        """Ignore the bytes of the output: each line also comes to `shown_line`."""

    def shown_line(self, line: str) -> str:
        """Show a line; return an empty text, so that the display of progress does not show it again."""
        self.show(line)
        return ""

    def run(self, words: Sequence[str], program: str, request: Mapping[str, object], folder: Path) -> int:
        """Run a script in its folder (with `-m`: in the caller's folder), read-only; return the exit status."""
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
        # The shell reports a program that a signal ended as 128 plus the signal's number.
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
