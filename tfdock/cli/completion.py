"""Names for completion in shells and editors.

After an error there are no names: a shell would show the message as a name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from tfdock.errors import TfdockError
from tfdock.host import settings
from tfdock.knowledge import loader
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.types import Version

Complete = Callable[[str], list[str]]


def _from_knowledge(names: Callable[[KnowledgeBase], Iterable[str]]) -> Complete:
    def complete(incomplete: str) -> list[str]:
        try:
            here = settings.load({})
            known = names(loader.knowledge(here.knowledge, here.cache_dir))
        except TfdockError:
            return []
        # In `--gpu rtx3080,h1`, completion starts after the comma.
        before, comma, last = incomplete.rpartition(",")
        return sorted(f"{before}{comma}{name}" for name in known if name.startswith(last))

    return complete


def profiles(incomplete: str) -> list[str]:
    """Return the shipped profiles, and the files in this folder and in `profiles/` that may be profiles."""
    files = [*map(str, Path().glob("[!.]*.yaml")), *map(str, Path("profiles").glob("*.yaml"))]
    shipped = [file.stem for file in loader.profile_files()]
    return sorted(name for name in {*shipped, *files} if name.startswith(incomplete))


def build_ids(incomplete: str) -> list[str]:
    """Return the builds of the wheelhouse, by their folders."""
    from tfdock.wheelhouse.store import Wheelhouse  # here: every command imports this module

    try:
        folder = Wheelhouse(settings.load({}).wheelhouse).private.path
        names = [path.name for path in folder.iterdir() if path.is_dir() and path.name.startswith("tf")]
    except (TfdockError, OSError):
        return []
    return sorted(name for name in names if name.startswith(incomplete))


gpus = _from_knowledge(lambda base: [*base.gpus, "cpu", "local"])
releases = _from_knowledge(lambda base: base.releases)
pythons = _from_knowledge(lambda base: {python for row in base.releases.values() for python in row.pythons})
explained = _from_knowledge(lambda base: [*base.codes, *base.switches])


def profile_command(load: Callable[[], Any]) -> Any:
    """Return a command with the completed values of all commands that take a profile; `load` returns the real one.

    Importing the module of a real command takes longer than a user waits for a word. Only names of options need it.
    """
    light = typer.Typer()
    light.command()(_values)
    command = typer.main.get_command(light)
    command.shell_complete = lambda ctx, incomplete: load().shell_complete(ctx, incomplete)  # type: ignore[method-assign]
    return command


def _values(
    names: Annotated[list[str] | None, typer.Argument(autocompletion=profiles)] = None,
    gpu: Annotated[list[str] | None, typer.Option("--gpu", autocompletion=gpus)] = None,
    tensorflow: Annotated[str, typer.Option("--tensorflow", autocompletion=releases)] = "",
    python: Annotated[str, typer.Option("--python", autocompletion=pythons)] = "",
) -> None:
    """Take the words of a command that takes a profile."""


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
