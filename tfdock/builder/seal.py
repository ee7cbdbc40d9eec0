"""Sealing: from what the compile container left to wheels that may be published."""

from __future__ import annotations

from pathlib import Path

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from tfdock.errors import BuildFailed, Problem, WheelRefused
from tfdock.host.files import file_sha256
from tfdock.plan.build_plan import EPOCH, BuildPlan
from tfdock.run.results import RunFolders
from tfdock.wheel import wheel as wheels
from tfdock.wheelhouse.store import WheelFile


def sealed_wheels(plan: BuildPlan, folders: RunFolders, run: str) -> dict[Path, WheelFile]:
    """Check the marker and the sums, normalise each wheel, and check it against its own RECORD.

    Returns where each sealed wheel lies, outside the wheelhouse. Raises BuildFailed without a marker of this run, and
    WheelRefused for a wheel that is not sound or not the one asked for.
    """
    results = folders.results
    if _text(results / "done").strip() != run:
        raise _unfinished("the compile container exited without writing its completion marker")
    sums = {name: digest for digest, _, name in (line.partition("  ") for line in _lines(results / "SHA256SUMS"))}
    sealed = {}
    for raw in sorted((results / "raw").glob("*.whl")):
        if file_sha256(raw) != sums.get(raw.name):
            message = f"{raw.name} changed after it was built"
            raise WheelRefused(Problem(code="wheel-changed", message=message, fix="build again"))
        path, wheel = _sealed(plan, raw, folders.sealed)
        sealed[path] = wheel
    if not sealed:
        raise _unfinished("the compile container left no wheel")
    return sealed


def _unfinished(message: str) -> BuildFailed:
    fix = "run the same command again: it goes on from the cache"
    return BuildFailed(Problem(code="build-unfinished", message=message, fix=fix))


def _sealed(plan: BuildPlan, raw: Path, folder: Path) -> tuple[Path, WheelFile]:
    folder.mkdir(0o700, exist_ok=True)
    target = folder / "wheel"
    try:
        name = _normalized(plan, raw, target)
        with target.open("rb") as file:
            facts = wheels.read_wheel(file, name)
    except InvalidWheelFilename as error:
        raise WheelRefused(
            Problem(code="wheel-bad-name", message=str(error), fix="report this with the log")
        ) from error
    except wheels.WheelError as error:
        raise WheelRefused(Problem(code=error.code, message=f"{raw.name}: {error.message}", fix=error.fix)) from error
    _check(plan, name, facts)
    return target.rename(folder / name), WheelFile(file=name, sha256=facts.sha256, size=facts.size)


def _normalized(plan: BuildPlan, raw: Path, target: Path) -> str:
    """Write the wheel anew, byte for byte repeatable, with its local version; returns its name."""
    local = plan.resolution.local_version
    version = f"{parse_wheel_filename(raw.name)[1].public}+{local}" if local else None
    with raw.open("rb") as source, target.open("w+b") as sink:
        return wheels.normalize(source, raw.name, sink, epoch=EPOCH, version=version)


def _check(plan: BuildPlan, name: str, facts: wheels.WheelFacts) -> None:
    python = plan.resolution.python
    tags = facts.python_tag.split(".")
    if f"cp{python.replace('.', '')}" not in tags and not any(tag in ("py3", "py2") for tag in tags):
        raise WheelRefused(
            Problem(
                code="wheel-wrong-python",
                message=f"{name} is for {facts.python_tag}, the profile asks for Python {python}",
                fix="the release chooses its Python in another way: report this with the plan and the log",
            )
        )
    if not facts.record_ok:
        first = facts.record_problems[0]
        message = f"{name}: {first.path}: {first.message}"
        raise WheelRefused(Problem(code=first.code, message=message, fix="build again; if it stays, report it"))


def deflate_backend() -> str:
    """What packed the wheels: equal contents are equal bytes only from the same implementation."""
    return wheels.deflate_backend()


def _text(path: Path) -> str:
    return path.read_text("utf-8", "replace") if path.is_file() else ""


def _lines(path: Path) -> list[str]:
    return _text(path).splitlines()
