"""Ask a Python interpreter for its facts, with a short program that imports only the standard library."""

from __future__ import annotations

import shutil
import signal
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from tfdock.errors import ProfileError
from tfdock.host.foreign_json import Line, Malformed, below, parse
from tfdock.host.hardware import ask, last_line

_MARK = "tfdock:"
_QUESTION = f"""
import json, platform, site, struct, sys, sysconfig
answer = {{
    "version": platform.python_version(), "bits": 8 * struct.calcsize("P"), "platform": sysconfig.get_platform(),
    "suffix": sysconfig.get_config_var("EXT_SUFFIX") or "", "prefix": sys.prefix,
    "path": [name for name in sys.path if name],
    "user_site": site.getusersitepackages() if site.ENABLE_USER_SITE else "",
}}
print("\\n{_MARK}" + json.dumps(answer))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonFacts:
    """The facts that a Python reports.

    `version` is the full version (`3.11.2`), `platform` is from sysconfig (`linux-x86_64`), `suffix` is the suffix of
    extension modules (`.cpython-311-x86_64-linux-gnu.so`). `path` is sys.path without the script's folder.
    `user_site` is the folder of the user's own packages, empty if this Python does not use it.
    """

    version: Line = ""
    bits: Annotated[int, below(1000)] = 0
    platform: Line = ""
    suffix: Line = ""
    prefix: Line = ""
    path: tuple[Line, ...] = ()
    user_site: Line = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedPython(PythonFacts):
    """A Python: its program file, and the facts that it reports. `trouble`: why it does not start, or empty."""

    program: Path
    trouble: str = ""

    @property
    def minor(self) -> str:
        """The Python's minor version, `3.11`."""
        return ".".join(self.version.split(".")[:2])


def interpreter_at(text: str) -> AskedPython:
    """Return the interpreter that a user names: by its file, by a command, or by the folder of its environment.

    The interpreter's start-up files (`.pth`, `sitecustomize`) run. Raises ProfileError if there is no such file.
    """
    program = _program(text)
    answer = ask(str(program), "-c", _QUESTION, folder="/")  # so that no module of the working folder is imported
    line = next((line for line in reversed(answer.text.splitlines()) if line.startswith(_MARK)), "")
    try:
        told: PythonFacts = parse(PythonFacts, line.removeprefix(_MARK))
        if not told.version:
            raise Malformed("it reports no version")
    except Malformed:
        trouble = last_line(answer.text)[:200] or f"it ends with exit status {answer.status}"
        return AskedPython(program=program, trouble=trouble)
    return AskedPython(program=program, **{**asdict(told), "path": tuple(dict.fromkeys(told.path))})


def started_python(text: str) -> AskedPython:
    """Return the interpreter that a user names, as `interpreter_at` does. Raises ProfileError if it fails."""
    found = interpreter_at(text)
    if found.trouble:
        message = f"{found.program} does not start: {found.trouble}"
        raise ProfileError.of("python-unusable", message, "name another Python, or repair its installation")
    return found


def ending(status: int) -> str:
    """Return how a process ended, from subprocess's return code: `SIGILL`, or `exit status 1`."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:  # most real-time signals have no name
        return f"signal {-status}"


def _program(text: str) -> Path:
    named = Path(text).expanduser()
    candidates = [named, named / "bin/python", named / "bin/python3", named / "Scripts/python.exe"]
    if "/" not in text and (command := shutil.which(text)):
        candidates.append(Path(command))
    found = next((path for path in candidates if path.is_file()), None)
    if text.endswith(".whl"):
        fix = f"install it and name the environment: `python3 -m venv .venv && .venv/bin/pip install {text}`"
        raise ProfileError.of("python-not-found", f"{text} is a wheel, not a Python", fix)
    if found is None:
        raise ProfileError.of(
            "python-not-found",
            f"there is no Python at {text}",
            "name an interpreter (`.venv/bin/python`), a command (`python3.12`), or the folder of an environment",
        )
    # Do not resolve the link: Python finds the packages of a virtual environment by it.
    return found.absolute()
