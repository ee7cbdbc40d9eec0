"""Open wheels on disk, with errors that have a fix."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from tfdock.errors import ProfileError, WheelRefused
from tfdock.wheel.facts import WheelError
from tfdock.wheel.inspection import Inspection, inspect_wheel, toolkit_extra


def inspected(
    path: Path, *, traces: Sequence[bytes] = (), progress: Callable[[int], object] | None = None
) -> Inspection:
    """Inspect a wheel; ProfileError if there is no such file, WheelRefused if it is not a valid wheel."""
    # People give the folder that `tfdock build` wrote to. The error "Is a directory" would not help them.
    if path.is_dir():
        names = sorted(wheel.name for wheel in path.glob("*.whl"))
        fix = f"name a wheel in it: `{path / names[0]}`" if names else "name a wheel, a file that ends with `.whl`"
        raise ProfileError.of("wheel-not-found", f"{path} is a folder", fix)
    if not path.is_file():
        message, fix = f"wheel not found: {path}", "check the path; `tfdock build` prints the path of each wheel"
        raise ProfileError.of("wheel-not-found", message, fix)
    try:
        with path.open("rb") as file:
            return inspect_wheel(file, path.name, traces=traces, progress=progress)
    except WheelError as error:
        raise refused(path, error) from error


def refused(path: Path, error: WheelError) -> WheelRefused:
    """Return the same error with the path of the file."""
    return WheelRefused.of(error.code, error.message, error.fix, file=str(path))


def install_command(path: Path) -> str:
    """Return the pip command for a wheel, with the extra for its own CUDA libraries."""
    return f"pip install {shlex.quote(f'{path}{bracketed_extra(path)}')}"


def bracketed_extra(path: Path) -> str:
    """Return `[and-cuda]` if this extra installs the CUDA libraries of the wheel's build; empty if it does not."""
    try:
        with path.open("rb") as file:
            extra = toolkit_extra(file)
    # The extra is only advice. An unreadable file is reported where the file is needed.
    except (OSError, WheelError):
        extra = ""
    return f"[{extra}]" if extra else ""
