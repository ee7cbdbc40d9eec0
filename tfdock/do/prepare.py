"""From a profile's file to its plan: reads what is on disk, hands it to the pure rings, and returns all of it."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from tfdock.decide.lock import LockFile
from tfdock.decide.plan import BuildPlan, make_plan
from tfdock.decide.render import render
from tfdock.decide.resolve import Resolution, resolve
from tfdock.do import assets
from tfdock.do.machine import local_gpus
from tfdock.do.settings import Settings
from tfdock.do.source import read_local
from tfdock.errors import Incompatible, Problem, ProfileError
from tfdock.model import Machine
from tfdock.read import profile as profiles
from tfdock.read.knowledge import KnowledgeBase
from tfdock.read.yamldoc import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A profile, planned. `tree` is the local checkout it builds, if it names one; `lock` what it was planned by."""

    file: str
    plan: BuildPlan
    tree: Path | None
    lock: LockFile | None = None


class Preparer:
    """Plans profiles for one machine; knowledge and templates are read once."""

    def __init__(self, settings: Settings, machine: Machine, *, allow_untested: bool = False) -> None:
        self._machine = machine
        self._allow_untested = allow_untested
        self.knowledge: KnowledgeBase = assets.knowledge(settings.knowledge)
        self._templates = assets.templates()

    def prepare(self, name: str, pinned: Callable[[Resolution], Resolution] | None = None) -> Prepared:
        """Plan the profile in a file, or the shipped profile of that name; raises ProfileError or Incompatible.

        `pinned` says what of its resolution is fixed more closely, by a lock.
        """
        try:
            return self._prepare(name, pinned or (lambda resolution: resolution))
        except OSError as error:  # the profile, or a file of the checkout or of the patches that it names
            message, fix = f"cannot be read: {error.strerror}", "check the name, the owner and the mode"
            file = str(error.filename or name)
            raise ProfileError(Problem(code="file-unreadable", message=message, fix=fix, file=file)) from error

    def _prepare(self, name: str, pinned: Callable[[Resolution], Resolution]) -> Prepared:
        path = find_profile(name)
        text = read_text(path)
        profile, document = profiles.read(text, str(path), _extended(text, path))
        source, tree = read_local(profile.source, path.parent, str(path))
        gpus = local_gpus() if "local" in (profile.gpus or ()) else ()
        resolution = resolve(
            profile,
            document,
            self.knowledge,
            file=str(path),
            local=source,
            local_gpus=gpus,
            machine=platform.machine(),
            allow_untested=self._allow_untested,
        )
        resolution = pinned(resolution)
        context = render(resolution, self._templates)
        try:
            plan = make_plan(profile, resolution, context, self.knowledge, self._machine)
        except Incompatible as error:
            raise Incompatible(*(_placed(problem, document, str(path)) for problem in error.problems)) from error
        return Prepared(file=str(path), plan=plan, tree=tree)


def _placed(problem: Problem, document: Node, file: str) -> Problem:
    """The problem with the place of its field."""
    node = document.at(tuple((problem.field or "").split(".")))
    return replace(problem, file=node.file or file, line=node.line, column=node.column)


def find_profile(name: str) -> Path:
    """A file; else `profiles/<name>.yaml` here; else the shipped profile of that name."""
    path = Path(name)
    if path.is_file():
        return path
    if path.suffix not in (".yaml", ".yml") and path.name == name:
        for folder in (Path("profiles"), assets.profiles()):
            if (folder / f"{name}.yaml").is_file():
                return folder / f"{name}.yaml"
    shipped = ", ".join(sorted(file.stem for file in assets.profiles().glob("*.yaml")))
    what = "is a folder" if path.is_dir() else "does not exist"
    raise ProfileError(
        Problem(
            code="profile-not-found",
            message=f"the profile `{name}` {what}",
            fix=f"give a file, or the name of a shipped profile: {shipped}",
            file=name,
        )
    )


def read_text(path: Path) -> str:
    """A file's text; raises ProfileError for one that cannot be read or is not UTF-8."""
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        message, fix = f"not UTF-8 text (byte {error.start})", "save it as UTF-8; is it a YAML file at all?"
    except OSError as error:
        message, fix = f"cannot be read: {error.strerror}", "check the file's owner and mode"
    raise ProfileError(Problem(code="profile-unreadable", message=message, fix=fix, file=str(path)))


def _extended(text: str, path: Path) -> dict[str, str]:
    """The texts of the profiles that this one extends, by the name each is given."""
    others: dict[str, str] = {}
    folder, file = path.parent, str(path)
    while (name := profiles.extended_by(text, file)) is not None and name not in others:
        target = folder / name
        if not target.is_file():
            raise ProfileError(
                Problem(
                    code="profile-not-found",
                    message=f"`extends: {name}`: there is no {target}",
                    fix="the path is relative to the profile that extends",
                    file=file,
                    field="extends",
                )
            )
        text = others[name] = read_text(target)
        folder, file = target.parent, name
    return others
