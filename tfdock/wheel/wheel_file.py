"""Open wheels on disk, with errors that tell the user what to do."""

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
    """Inspect a wheel; ProfileError where there is no such file, WheelRefused where it is not a sound wheel."""
    # People name the folder that `tfdock build` wrote to. "Is a directory" would not help them on.
    if path.is_dir():
        names = sorted(wheel.name for wheel in path.glob("*.whl"))
        fix = f"name one of its wheels: `{path / names[0]}`" if names else "name a wheel, a file that ends in `.whl`"
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
    """Return the same error with the file it is about."""
    return WheelRefused.of(error.code, error.message, error.fix, file=str(path))


def install_command(path: Path) -> str:
    """Return what installs a wheel with pip, and with the extra for the CUDA libraries that it was built with."""
    return f"pip install {shlex.quote(f'{path}{bracketed_extra(path)}')}"


def bracketed_extra(path: Path) -> str:
    """Return `[and-cuda]` if that extra of a wheel brings the CUDA libraries that it was built with; else empty."""
    try:
        with path.open("rb") as file:
            extra = toolkit_extra(file)
    # The extra is for an advice. A file that cannot be read is told where it is needed.
    except (OSError, WheelError):
        extra = ""
    return f"[{extra}]" if extra else ""
