"""Names for completion in shells and editors.

After an error there are no names: a shell would show the message as a name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tfdock.errors import TfdockError
from tfdock.host import settings
from tfdock.knowledge import loader
from tfdock.types import Version

if TYPE_CHECKING:
    from tfdock.knowledge.tables import KnowledgeBase

Complete = Callable[[str], list[str]]


def _from_knowledge(what: str, names: Callable[[KnowledgeBase], Iterable[str]]) -> Complete:
    def complete(incomplete: str) -> list[str]:
        try:
            here = settings.load({})
            known = loader.names(what, names, here.knowledge, here.cache_dir)
        except TfdockError:
            return []
        # In `--gpu rtx3080,h1`, completion starts after the comma.
        before, comma, last = incomplete.rpartition(",")
        return [f"{before}{comma}{name}" for name in known if name.startswith(last)]

    return complete


def _from_folder(names: Callable[[settings.Settings], Iterable[str]]) -> Complete:
    def complete(incomplete: str) -> list[str]:
        try:
            return sorted(name for name in names(settings.load({})) if name.startswith(incomplete))
        except (TfdockError, OSError):
            return []

    return complete


def _profiles(_: settings.Settings) -> Iterable[str]:
    """Return the shipped profiles, and the files in this folder and in `profiles/` that may be profiles."""
    files = [*map(str, Path().glob("[!.]*.yaml")), *map(str, Path("profiles").glob("*.yaml"))]
    return {*files, *(file.stem for file in loader.profile_files())}


def _build_ids(here: settings.Settings) -> Iterable[str]:
    from tfdock.wheelhouse.store import Wheelhouse  # here: no other name needs it

    folder = Wheelhouse(here.wheelhouse).private.path
    return [path.name for path in folder.iterdir() if path.is_dir() and path.name.startswith("tf")]


def _toolchains(here: settings.Settings) -> Iterable[str]:
    from tfdock.bazel.cache.cache_folder import CacheFolder  # here: no other name needs it

    cache = CacheFolder.existing(here.cache_dir)
    return {disk.toolchain for disk in cache.disks()} if cache else []


_gpus = _from_knowledge("gpus", lambda base: [*base.gpus, "cpu", "local"])
_releases = _from_knowledge("releases", lambda base: base.releases)
_pythons = _from_knowledge("pythons", lambda base: {name for row in base.releases.values() for name in row.pythons})
_explained = _from_knowledge("explained", lambda base: [*base.codes, *base.switches])
_profile_names = _from_folder(_profiles)
_builds = _from_folder(_build_ids)
_TAKE_PROFILES = ("build", "check", "doctor", "fetch", "lock", "plan", "pull", "render", "shell", "trace")
#: How to complete the arguments of each command; for other commands, the shell completes names of files.
ARGUMENTS: Mapping[str, Complete] = {
    **dict.fromkeys((*_TAKE_PROFILES, "image pack", "image push", "image runtime"), _profile_names),
    **dict.fromkeys(("advise", "gpus"), _gpus),
    **dict.fromkeys(("logs", "report"), _builds),
    "explain": _explained,
    "releases": _releases,
}


def values_of(command: str, before: str, load: Callable[[], Any]) -> Any:
    """Return a command that completes values as a command's words; `before` is the word before the completed one.

    Return the real command, from `load`, if it must complete the word. Importing its module takes longer than a user
    waits for a word.
    """
    light = typer.Typer()
    light.command(command)(_values)
    quick = typer.main.get_command(light)
    if before.startswith("-") and not any(before in option.opts for option in quick.params):
        return load()
    quick.shell_complete = lambda ctx, incomplete: load().shell_complete(ctx, incomplete)  # type: ignore[method-assign]
    return quick


def _arguments(ctx: typer.Context, incomplete: str) -> list[str]:
    complete = ARGUMENTS.get(ctx.command.name or "")
    return complete(incomplete) if complete else []


def _values(
    names: Annotated[list[str] | None, typer.Argument(autocompletion=_arguments)] = None,
    gpu: Annotated[list[str] | None, typer.Option("--gpu", autocompletion=_gpus)] = None,
    tensorflow: Annotated[str, typer.Option("--tensorflow", autocompletion=_releases)] = "",
    python: Annotated[str, typer.Option("--python", autocompletion=_pythons)] = "",
    profile: Annotated[str, typer.Option("--profile", autocompletion=_profile_names)] = "",
    toolchain: Annotated[str, typer.Option("--toolchain", autocompletion=_from_folder(_toolchains))] = "",
) -> None:
    """Take the arguments of any command, and the options whose values have names."""


def of_fields(base: KnowledgeBase) -> dict[str, list[str]]:
    """Return the names that each field of a profile accepts. Versions are sorted with the newest first."""
    releases = base.releases.values()
    versions: dict[str, set[str]] = {
        "tensorflow": {patch for row in releases for patch in row.patches},
        "python": {python for row in releases for python in row.pythons},
    }
    for row in releases:
        for component, support in row.components.items():
            versions.setdefault(component, set()).update(support.accepted)
    return {
        "gpus": [*base.gpus],
        "accelerator": [*base.accelerators],
        "compiler": sorted({name for row in base.accelerators.values() for name in row.compilers}),
        "host_compiler": sorted({name for row in releases for name in row.compilers}),
    } | {name: sorted(found, key=Version, reverse=True) for name, found in versions.items()}
