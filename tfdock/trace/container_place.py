"""Run a script with a wheel in a container: it sees the folder of the script alone, and no network."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerPlace:
    """A wheel in a container. `show` gets each line that the script prints."""

    wheel: WheelInContainer
    name: str
    show: Callable[[str], object]
    sees_this_machine: bool = False

    def feed(self, data: bytes) -> None:
        """Read some bytes of output: each line of it comes to `shown_line` too."""

    def shown_line(self, line: str) -> str:
        """Show a line, which no display of progress shows again."""
        self.show(line)
        return ""

    def run(self, words: Sequence[str], program: str, request: Mapping[str, object], folder: Path) -> int:
        """See `ScriptPlace`. The working folder is the script's, with `-m` the caller's, and read-only."""
        script = Path(words[0])
        source = Path.cwd() if words[0] == "-m" else script.parent.resolve()
        words = [words[0] if words[0] == "-m" else script.name, *words[1:]]
        asked = json.dumps({**request, "folder": MADE})
        kept = self.wheel.run(
            ["/bin/sh", "-c", _KEEP_STATUS, "sh", str(self.wheel.python), "-c", program, asked, *words],
            mounts=[read_only_mount(source, "script")],
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
