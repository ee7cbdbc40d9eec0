"""tfdock for Python programs and notebooks: the commands as functions that return values.

A profile is a file, or the name of a shipped profile; with `gpu`, none is needed. Keyword arguments change fields of
the profile; nested names have dots: `api.check("rtx3080", **{"resources.memory": "16GiB"})`. The functions use the
same settings as the commands: the configuration file and `TFDOCK_*`. Every function may raise TfdockError, whose
problems name the error, the place, and the fix.

Imports: `builder`, `diagnose`, `engine`, `gpu`, `host`, `knowledge`, `plan`, `resolve`, `wheel`.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

from tfdock.builder.build import build as build_plan
from tfdock.builder.session import BuildRequest, BuildResult, BuildSession
from tfdock.diagnose.diagnose_logs import diagnose_file
from tfdock.diagnose.diagnosis import Diagnosis
from tfdock.engine.docker_engine import DockerEngine
from tfdock.errors import ProfileError
from tfdock.events import Event, Listener
from tfdock.gpu.compatibility import Compatibility, serve
from tfdock.gpu.gpu_facts import facts_of_wheel
from tfdock.host import hardware
from tfdock.host import settings as settings_of_machine
from tfdock.knowledge import loader
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.plan.build_plan import BuildPlan
from tfdock.plan.notes import notes_of
from tfdock.plan.prepare import PreparedBuild, Preparer
from tfdock.plan.wish import NO_WISH, Wish, wish_of
from tfdock.resolve.advice import Advice, advise_on, gpus_named, read_question
from tfdock.resolve.resolution import Resolution
from tfdock.wheel.inspection import Inspection
from tfdock.wheel.wheel_file import inspected

__all__ = ["advise", "build", "check", "diagnose", "inspect", "notes", "plan", "runs_on"]


def advise(*words: str, tensorflow: str | None = None, python: str | None = None) -> Advice:
    """Return how official wheels run on GPUs or a system, and the profile of a better build, if there is one."""
    asked = read_question(base := _knowledge(), words)
    return advise_on(base, asked, tensorflow=tensorflow, python=python, machine=platform.machine())


def check(profile: str = "", *, gpu: str | Sequence[str] = (), **fields: object) -> Resolution:
    """Return every choice of a build. Raises Incompatible, with possible changes, if the build cannot work."""
    wish = _wish(gpu, fields)
    return _preparer(wish).resolve(profile or wish.words).resolution


def plan(profile: str = "", *, gpu: str | Sequence[str] = (), **fields: object) -> BuildPlan:
    """Return the plan of a build: image, commands, limits."""
    return _prepared(profile, _wish(gpu, fields)).plan


def notes(profile: str = "", *, gpu: str | Sequence[str] = (), **fields: object) -> tuple[str, ...]:
    """Return notes to read before a build, for instance that an official wheel is enough."""
    wish = _wish(gpu, fields)
    preparer = _preparer(wish)
    resolved = preparer.resolve(profile or wish.words)
    return notes_of(preparer, resolved.written, resolved.resolution)


def build(
    profile: str = "",
    *,
    gpu: str | Sequence[str] = (),
    listen: Listener | None = None,
    force: bool = False,
    **fields: object,
) -> BuildResult:
    """Build a wheel into the wheelhouse, unless the wheel exists. `listen` gets the events of the build."""
    prepared = _prepared(profile, _wish(gpu, fields))
    session = BuildSession(connect=DockerEngine, settings=settings_of_machine.load({}), knowledge=_knowledge())
    return build_plan(session, BuildRequest(prepared=prepared, force=force), listen or _ignore)


def inspect(wheel: str | Path) -> Inspection:
    """Return the contents of a wheel: GPU code by library, requirements, damage. No code of the wheel runs."""
    return inspected(Path(wheel))


def runs_on(wheel: Inspection, gpu: str) -> Compatibility:
    """Return how a GPU runs a wheel that was inspected: natively, by JIT, or not, and why."""
    base = _knowledge()
    return serve(base, gpus_named(base, [gpu])[0], facts_of_wheel(base, wheel))


def diagnose(log: str | Path, *, profile: str = "") -> Diagnosis:
    """Return the failures in a log, the most probable cause first. The profile of the build adds details."""
    preparer = _preparer(NO_WISH)
    context = preparer.context(preparer.read(profile)) if profile else None
    return diagnose_file(str(log), _knowledge(), context)


def _ignore(_: Event) -> None:
    pass


def _knowledge() -> KnowledgeBase:
    settings = settings_of_machine.load({})
    return loader.knowledge(settings.knowledge, settings.cache_dir)


def _wish(gpu: str | Sequence[str], fields: Mapping[str, object]) -> Wish:
    """Return the wish of a call. A version must be text: the number 3.10 equals 3.1."""
    for name, value in fields.items():
        if isinstance(value, float):
            fix = f'write it as text: `{name}="{value}"`'
            raise ProfileError.of("version-not-text", f"`{name}` is a number, but versions are text", fix)
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in fields.items()}
    sets = [f"{name}={value}" for name, value in texts.items()]
    return wish_of(gpu=[gpu] if isinstance(gpu, str) else gpu, sets=sets)


def _preparer(wish: Wish) -> Preparer:
    return Preparer(settings_of_machine.load({}), hardware.local_machine(), wish=wish)


def _prepared(profile: str, wish: Wish) -> PreparedBuild:
    return _preparer(wish).prepare(profile or wish.words)
