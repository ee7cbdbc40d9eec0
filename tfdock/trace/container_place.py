"""Run a script with a wheel in a container: it sees the folder of the script alone, and no network."""

from __future__ import annotations

import json
import shutil
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfdock.errors import EngineError
from tfdock.host.files import make_folder
from tfdock.host.untrusted_folders import UntrustedPath
from tfdock.trace.recording import SESSION
from tfdock.types import ExpectedFiles
from tfdock.verify.trial_container import HERE, read_only_mount
from tfdock.verify.wheel_in_container import MADE, WheelInContainer

#: Results of a container that ends with an error are not used, and a trace is kept however its script ends.
_KEEP_STATUS = f'status=0; "$@" || status=$?; echo "$status" > {MADE}/status'
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
        message, fix = (
            f"a stranger's wheel does not get the folder {found}: {why}",
            "move the script into a new folder",
        )
        raise EngineError.of("mount-refused", message, fix)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerPlace:
    """A wheel in a container that sees the `folder`. `show` gets each line that the script prints."""

    wheel: WheelInContainer
    folder: Path
    show: Callable[[str], object]
    python: Path | None = None

    def feed(self, data: bytes) -> None:
        """Read some bytes of output: each line of it comes to `shown_line` too."""

    def shown_line(self, line: str) -> str:
        """Show a line, which no display of progress shows again."""
        self.show(line)
        return ""

    def run(self, words: Sequence[str], program: str, request: Mapping[str, object], folder: Path) -> int:
        """See `ScriptPlace`. The working folder is the script's, with `-m` the caller's, and read-only."""
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
        """See `ScriptPlace`."""
        name = f"{HERE}/case/{program.name}"
        self.wheel.run(
            [str(self.wheel.python), name], mounts=[read_only_mount(program.resolve(), f"case/{program.name}")]
        )
        return self.wheel.last_line
