"""Run a script with TensorFlow's profiler around its steps, and find the profile that it leaves."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tfdock.errors import ProfileError
from tfdock.host.foreign_json import Line
from tfdock.host.untrusted_folders import FoundFile, UntrustedPath

_FIRST_STEP_SECONDS = 30  #: A script without a step until then is kept as far as it has come.
_MOST_JSON, _ENDING = 1 << 20, ".xplane.pb"
_LOOK_SECONDS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """What `dockerfiles/trace/capture.py` tells of the script that it ran."""

    tensorflow: Line  #: The version.
    steps: int  #: Steps in the profile.
    left_out: int  #: Steps before and after them.
    calls: Mapping[Line, int]  #: Functions whose calls were those steps -> how many were.
    own_steps: bool  #: The script marks steps itself, as Keras 2 does.
    own_profile: Line | None  #: The folder of a profiler that the script starts itself.


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A script, the Python that runs it, and which of its steps are recorded."""

    python: Path
    words: Sequence[str]  #: The script and its arguments, or `-m`, a module and its arguments.
    skip: int  #: Steps that are left out at the start.
    steps: int  #: Steps that are recorded.


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminal:
    """Where a script's output goes, and what its caller does meanwhile."""

    stdout: int | None = None  #: A descriptor; None for the caller's own output.
    tick: Callable[[], object] = lambda: None  #: Called several times a second; ends the script by raising.


def record(script: Script, program: str, folder: Path, terminal: Terminal) -> int:
    """Run a script under `program`, which leaves a profile in a folder; return its exit status, -2 for SIGINT."""
    steps = {"skip": script.skip, "steps": script.steps, "seconds": _FIRST_STEP_SECONDS}
    return run_script(script, program, {"folder": str(folder.absolute()), **steps}, terminal)


def run_script(script: Script, program: str, request: Mapping[str, object], terminal: Terminal) -> int:
    """Run a script under `program`; return its exit status, -2 for SIGINT.

    The script has the caller's folder and environment. Ctrl-C reaches it as well as the caller.
    """
    command = [str(script.python), "-c", program, json.dumps(request), *script.words]
    process = subprocess.Popen(command, stdout=terminal.stdout)
    try:
        while True:
            with suppress(subprocess.TimeoutExpired):
                return process.wait(_LOOK_SECONDS)
            terminal.tick()
    finally:
        if process.returncode is None:
            process.kill()
            process.wait()


def captured_in(folder: Path) -> Captured | None:
    """Return what was told of the script; None where it was killed."""
    found: Captured | None = UntrustedPath(folder, "capture.json").load(Captured, _MOST_JSON)
    return found


def profile_in(place: Path) -> UntrustedPath:
    """Return the newest profile of a folder, or the file itself. Raises ProfileError where there is none."""
    place = place.resolve()
    root = UntrustedPath(place.parent, place.name)
    if place.is_file():
        return root
    # A session that is thrown away leaves an empty file. `/` has no name, and no profile.
    found = (file for file in root.walk() if file.is_plain and file.status.st_size) if place.name else ()
    files = [file for file in found if file.name.endswith(_ENDING)]
    if not files:
        raise ProfileError.of(
            "trace-missing",
            f"there is no profile in {place}: no file `*{_ENDING}`",
            "name a folder that TensorFlow's profiler has written, or record one: `tfdock trace .venv train.py`",
        )
    return root / max(files, key=_age).name


def _age(file: FoundFile) -> tuple[int, str]:
    return file.status.st_mtime_ns, file.name
