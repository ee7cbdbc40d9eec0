"""Run a script with TensorFlow's profiler around its steps, and find the resulting profile."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tfdock.errors import ProfileError
from tfdock.host.foreign_json import Line
from tfdock.host.hardware import ask, last_line
from tfdock.host.supervise import Stop, Stopper
from tfdock.host.untrusted_folders import UntrustedPath

#: What the profiler of TensorFlow 2 writes, and what `dockerfiles/trace/capture.py` writes of a session of 1.x.
_ENDINGS = (".xplane.pb", SESSION := "session.trace.json")
_LOOK_SECONDS, _CASE_SECONDS = 0.2, 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """The report of `dockerfiles/trace/capture.py` on the script that it ran."""

    tensorflow: Line  #: The version.
    steps: int  #: Steps in the profile.
    left_out: int  #: Steps before and after the recorded steps.
    calls: Mapping[Line, int]  #: Functions whose calls were the steps -> number of calls.
    own_steps: bool  #: The script marks steps itself, as Keras 2 does.
    own_profile: Line | None  #: The folder of a profile that the script made itself.


class ScriptPlace(Protocol):
    """Where a script runs: with a Python of this machine, or with a wheel in a container (`container_place`)."""

    @property
    def python(self) -> Path | None:
        """The Python of this machine; None in a container, whose paths name nothing here."""

    def run(self, words: Sequence[str], program: str, request: Mapping[str, object], folder: Path) -> int:
        """Run a script under `program`, which gets the request and leaves its files in the folder.

        Returns the script's exit status, below 0 the number of the signal that ended it. Raises Interrupted.
        """

    def time_case(self, program: Path) -> str:
        """Return the last line that a program prints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A script, where it runs, and which of its steps are recorded."""

    place: ScriptPlace
    words: Sequence[str]  #: The script and its arguments, or `-m`, a module and its arguments.
    skip: int  #: Steps that are left out at the start.
    steps: int  #: Steps that are recorded.


def check_script(words: Sequence[str]) -> None:
    """Raise ProfileError if these words name no script."""
    name = next(iter(words), "")
    if name != "-m" and not Path(name).is_file():
        raise ProfileError.of("source-missing", f"the script {name} does not exist", "check its path")
    if [*words] == ["-m"]:
        raise ProfileError.of("source-missing", "`-m` names no module", "name one: `-m mine.train`")


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonPlace:
    """A Python of this machine. The script has the caller's folder and environment.

    Ctrl-C reaches the script and the caller, SIGTERM is passed on; a second signal, or some seconds, kill the script.
    """

    python: Path
    stoppable: Callable[[], AbstractContextManager[Stop]]
    stdout: int | None = None  #: A file descriptor for the script's output; None for the caller's own output.

    def run(self, words: Sequence[str], program: str, request: Mapping[str, object], folder: Path) -> int:
        """See `ScriptPlace`."""
        asked = json.dumps({**request, "folder": str(folder.absolute())})
        with self.stoppable() as stop:
            process = subprocess.Popen([str(self.python), "-c", program, asked, *words], stdout=self.stdout)
            gently, by_force = lambda: process.terminate() if stop.terminated else None, stop.check
            stopper = Stopper(stop, gently=gently, by_force=by_force)
            try:
                while True:
                    with suppress(subprocess.TimeoutExpired):
                        return process.wait(_LOOK_SECONDS)
                    stopper.tick()
            finally:
                if process.returncode is None:
                    process.kill()
                    process.wait()

    def time_case(self, program: Path) -> str:
        """See `ScriptPlace`."""
        return last_line(ask(str(self.python), str(program), seconds=_CASE_SECONDS).text)


def profile_in(*places: Path) -> UntrustedPath:
    """Return the newest profile of the first place that has one, a folder or a file. Raises ProfileError for none."""
    for place in (place.resolve() for place in places):
        root = UntrustedPath(place.parent, place.name)
        if place.is_file() and place.name.endswith(_ENDINGS):
            return root
        if place.is_file():
            message = f"{place} is not a profile, whose name ends with `{_ENDINGS[0]}`"
            fix = f"give the Python of the script first: `tfdock trace .venv {place.name}`"
            raise ProfileError.of("trace-missing", message, fix)
        # A session that is thrown away leaves an empty file. `/` has no name, and no profile.
        found = (file for file in root.walk() if file.is_plain and file.status.st_size) if place.name else ()
        if files := [file for file in found if file.name.endswith(_ENDINGS)]:
            return root / max(files, key=lambda file: (file.status.st_mtime_ns, file.name)).name
    raise ProfileError.of(
        "trace-missing",
        f"there is no profile in {places[0]}: no file `*{_ENDINGS[0]}`",
        "give a folder that TensorFlow's profiler has written, or record a profile: `tfdock trace .venv train.py`",
    )
