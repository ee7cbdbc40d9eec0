"""`pull`: wheels that somebody has built, out of a registry into the wheelhouse. Needs no engine."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from tfdock.errors import NetworkError, Problem, ProfileError, TfdockError, combined_exit_code, one_of
from tfdock.model import ImageRef
from tfdock.talk import console
from tfdock.talk.app import (
    AllowUntested,
    AsJson,
    Knowledge,
    Registry,
    Wheelhouse,
    app,
    command,
    knowledge_for,
    preparer_for,
    print_json,
    settings_for,
)
from tfdock.talk.commands.build import stoppable

if TYPE_CHECKING:
    from tfdock.do.images.pulling import Pulled
    from tfdock.do.images.stored import StoredImage
    from tfdock.do.settings import Settings
    from tfdock.do.watch import Stop
    from tfdock.inspect.inspection import Inspection
    from tfdock.inspect.wheel import WheelFacts
    from tfdock.read.knowledge import KnowledgeBase
    from tfdock.talk.gpus import Asked

_SILENT = 5.0
"""Seconds without an answer after which it is said."""
_PLATFORM = re.compile(r"linux/[a-z0-9_]+(?:/[a-z0-9_]+)?")


def _platform(text: str | None) -> str | None:
    if text is not None and not _PLATFORM.fullmatch(text):
        raise typer.BadParameter(f"`{text}` is no platform; write it like `linux/amd64`")
    return text


@app.command(
    epilog="Examples: `tfdock pull ghcr.io/me/wheels:2.18-py3.11-cuda12.5-sm86`, `tfdock pull rtx3080`. Prints the "
    "wheels' paths. Exit status: 2 no such profile, or no image of wheels, 3 nothing for this machine, 4 refused, "
    "7 not there, or no registry answers.",
)
@command("tfdock.pull/1")
def pull(
    names: Annotated[
        list[str],
        typer.Argument(
            help="Images, by tag or digest; or profiles, and build ids, to look for in the registries.",
            metavar="REF|PROFILE…",
            show_default=False,
        ),
    ],
    registry: Registry = None,
    platform: Annotated[
        str | None,
        typer.Option(
            "--platform",
            help="Take an image's wheels for another machine, such as linux/arm64.",
            metavar="PLATFORM",
            show_default=False,
            callback=_platform,
        ),
    ] = None,
    wheelhouse: Wheelhouse = None,
    knowledge: Knowledge = None,
    allow_untested: AllowUntested = False,
    as_json: AsJson = False,
) -> None:
    """Pull finished wheels from a registry into the wheelhouse, and say how this machine's GPUs run them."""
    settings = settings_for(wheelhouse=wheelhouse, knowledge=knowledge, registries=registry)
    looking = _Looking(settings, platform=platform, allow_untested=allow_untested)
    wanted = [looking.wanted(name) for name in names]  # a misspelt name is told before anybody waits
    with stoppable("what has arrived is kept") as stop:
        results = [_result(looking, one, stop) for one in wanted]
    if as_json:
        codes = [result.pop("exit_code") for result in results]
        print_json("tfdock.pull/1", not any(codes), {"pulls": results})
    else:
        codes = [result["exit_code"] for result in results]
        for wheel in (wheel for result in results for build in result["builds"] for wheel in build["wheels"]):
            console.say(wheel["path"], stream=sys.stdout)
    raise typer.Exit(combined_exit_code(codes))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """A word of the command line: `find` gives the image that it stands for."""

    name: str
    find: Callable[[Callable[[], None]], StoredImage]


# --- what is asked for ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Looking:
    """Makes images of words: a profile where there is one of that name, else a build id, else an image's name."""

    settings: Settings
    platform: str | None = field(kw_only=True)
    allow_untested: bool = field(kw_only=True)

    def wanted(self, name: str) -> _Wanted:
        """What a word stands for; raises ProfileError, and what planning a profile raises."""
        from tfdock.inspect.wheel_image_read import is_promise

        _check_no_wheel(name)
        if _is_image(name):
            asked = _named(name)
            image = self.settings.mirrored(asked if asked.tag or asked.digest else asked.tagged("latest"))
            return _Wanted(name=name, find=lambda check: self._image([image], check))
        if is_promise(name):
            images = [one.tagged(name) for one in self._repositories(name)]
            return _Wanted(name=name, find=lambda check: self._image(images, check))
        try:
            return self._profile(name)
        except ProfileError as error:
            raise ProfileError(*map(_or_image, error.problems)) from error

    def _image(self, images: Sequence[ImageRef], check: Callable[[], None]) -> StoredImage:
        from tfdock.do.images.finding import here
        from tfdock.do.images.stored import stored

        down: list[NetworkError] = []
        for image in images:
            try:
                found = stored(image, self.platform or here(), check)
            except NetworkError as error:
                down.append(error)
                continue
            if found:
                return found
        if down:
            raise down[0]
        places = ", ".join(f"`{image}`" for image in images)
        fix = "check name and tag; a private one wants a login: `docker login`"
        raise NetworkError(
            Problem(code="image-not-found", message=f"there is no {places}, or it is private", fix=fix)
        )

    def _profile(self, name: str) -> _Wanted:
        from tfdock.do.images.finding import Finding, refusal

        plan = preparer_for(self.settings, allow_untested=self.allow_untested).prepare(name).plan
        refused = refusal(plan)
        if refused:
            raise refused
        repositories = tuple(str(one) for one in self._repositories(name))

        def find(check: Callable[[], None]) -> StoredImage:
            down: list[NetworkError] = []
            finding = Finding(repositories=repositories, check=check)
            found = next(finding.images(plan, None, down.append), None)
            if found:
                return found
            if down:
                raise down[0]
            where = ", ".join(repositories)
            raise NetworkError(
                Problem(
                    code="image-not-found",
                    message=f"no registry has this build of {plan.build_id}: {where}",
                    why=f"what is looked for has the fingerprint {plan.fingerprint[:32]}",
                    fix=one_of(
                        [
                            f"build it: `tfdock build {name}`",
                            *(f"take another build of it: `tfdock pull {one}`" for one in finding.others),
                        ]
                    ),
                )
            )

        return _Wanted(name=name, find=find)

    def _repositories(self, name: str) -> list[ImageRef]:
        if not self.settings.registries:
            raise ProfileError(
                Problem(
                    code="registries-unset",
                    message=f"nothing says where to look for {name}: the setting `registries` is empty",
                    fix="name one: `--registry ghcr.io/me/wheels`; or set TFDOCK_REGISTRIES, or "
                    "`registries: [ghcr.io/me/wheels]` in the configuration file",
                )
            )
        return [self.settings.mirrored(ImageRef.parse(one)) for one in self.settings.registries]


def _or_image(problem: Problem) -> Problem:
    """With what else could have been meant, where there is no profile of that name."""
    if problem.code != "profile-not-found" or problem.line:
        return problem
    return replace(problem, fix=f"{problem.fix}; or an image: `host/name:tag`, such as `ghcr.io/me/wheels:nightly`")


def _is_image(name: str) -> bool:
    """Whether a word names an image: a path with a host, a tag or a digest, and no file."""
    if Path(name).exists() or name.endswith((".yaml", ".yml")) or name.startswith((".", "/")):
        return False
    return "/" in name or ":" in name or "@" in name


def _check_no_wheel(name: str) -> None:
    if name.endswith(".whl"):
        message = f"`{console.clean(name)}` is a wheel, and neither a profile nor an image"
        fix = "install it with pip; or name what is to be pulled: an image, a profile, a build id"
        raise ProfileError(Problem(code="reference-malformed", message=message, fix=fix))


def _named(text: str) -> ImageRef:
    try:
        return ImageRef.parse(text)
    except ValueError as error:
        raise ProfileError(
            Problem(
                code="reference-malformed",
                message=f"`{text}` is no name in a registry",
                fix="write `host/name:tag` or `host/name@sha256:…`: no `https://`, no capitals; "
                "a profile's file ends in `.yaml`",
            )
        ) from error


# --- pulling --------------------------------------------------------------------------------------------------------


def _result(looking: _Looking, wanted: _Wanted, stop: Stop) -> dict[str, Any]:
    """Pull one; what became of it, which is told."""
    try:
        stop.check()
        builds = _pulled(looking.settings, wanted, stop)
        result = {"name": wanted.name, "problems": [], "builds": builds, "exit_code": 0}
    except TfdockError as error:
        problems = list(error.problems)
        result = {"name": wanted.name, "problems": problems, "builds": [], "exit_code": int(error.exit_code)}
        console.say(f"{console.Style(sys.stderr).bad('not pulled')}  {wanted.name}")
        console.show_problems(problems)
    return result


def _pulled(settings: Settings, wanted: _Wanted, stop: Stop) -> list[dict[str, Any]]:
    from tfdock.do.images.pulling import Pulling
    from tfdock.do.watch import until_stopped
    from tfdock.do.workspace import Wheelhouse as House

    gpus = _Gpus(settings)
    house = House(settings.wheelhouse.absolute())
    with console.Reading(sys.stderr, wanted.name, "received") as reading:
        pulling = Pulling(house, stop.check, _say, reading, gpus.reader)

        def taken() -> tuple[StoredImage, list[Pulled]]:
            image = wanted.find(stop.check)
            reading.total = sum(wheel.size for build in image.builds for wheel in build.wheels)
            return image, pulling.all_of(image)

        image, found = until_stopped(taken, stop, _Waiting(wanted.name, reading))
    return [_told(image, one, gpus) for one in found]


@dataclass
class _Waiting:
    """Says that a registry is silent, once: before anything has come."""

    name: str
    reading: console.Reading
    said: bool = False

    def __call__(self, silent: float) -> None:
        """Time passes."""
        if silent > _SILENT and not (self.said or self.reading.total):
            self.said = True
            _say(f"waiting for an answer about {self.name}")


def _say(text: str) -> None:
    console.say(text, stream=sys.stderr)


class _Gpus:
    """Reads wheels as `inspect` does where this machine has a GPU, and remembers what was found."""

    def __init__(self, settings: Settings) -> None:
        from tfdock.do.machine import local_gpus

        self._settings = settings
        self._here = bool(local_gpus())
        self._found: dict[str, Inspection] = {}

    @property
    def reader(self) -> Callable[[BinaryIO, str], WheelFacts] | None:
        """Reads a wheel of that name; raises WheelError. None where nobody needs to know what is in it."""
        return self._read if self._here else None

    def _read(self, file: BinaryIO, name: str) -> WheelFacts:
        from tfdock.decide.serving import XLA_TRACE
        from tfdock.inspect.inspection import inspect_wheel

        found = self._found[name] = inspect_wheel(file, name, traces=[XLA_TRACE.encode()])
        return found.wheel

    def answers(self, wheel: Path) -> tuple[KnowledgeBase, Inspection, tuple[Asked, ...]] | None:
        """The GPUs of this machine, and a wheel to be asked about; None where there is no GPU that is known."""
        if not self._here:
            return None
        from tfdock.talk.gpus import asked

        base = knowledge_for(self._settings)
        if wheel.name not in self._found:  # it was here before
            with wheel.open("rb") as file:
                self._read(file, wheel.name)
        try:
            return base, self._found[wheel.name], asked(base, ["local"])
        except ProfileError:
            return None


# --- what is told ---------------------------------------------------------------------------------------------------


def _told(image: StoredImage, one: Pulled, gpus: _Gpus) -> dict[str, Any]:
    """A build that was pulled, for people and as JSON has it."""
    style = console.Style(sys.stderr)
    came = f", {console.size(one.kept)} of it by an earlier pull" if one.kept else ""
    console.say(f"{style.good(one.status)}  {one.build.build_id} from {one.origin}{came}")
    serving: list[dict[str, Any]] = []
    wheels = []
    for path, wheel in zip(one.wheels, one.build.wheels, strict=True):
        console.say(f"  wheel    {path}  {console.size(wheel.size)}")
        serving += _served(path, gpus)
        console.say(f"  install  pip install '{path}'")
        wheels.append({"path": str(path), "sha256": wheel.sha256, "size": wheel.size})
    console.say(f"  record   {one.record_path}")
    return {
        "build_id": one.build.build_id,
        "fingerprint": one.build.fingerprint,
        "status": one.status,
        "reference": str(image.image),
        "digest": image.digest,
        "platform": image.platform,
        "wheels": wheels,
        "record": str(one.record_path),
        "received": one.received,
        "kept": one.kept,
        "gpus": serving,
    }


def _served(wheel: Path, gpus: _Gpus) -> Iterator[dict[str, Any]]:
    """How this machine's GPUs run a wheel."""
    found = gpus.answers(wheel)
    if not found:
        return
    from tfdock.decide.serving import evidence_of, serve
    from tfdock.talk.gpus import answer, gpu_json, reasons

    base, inspection, asked = found
    style, evidence = console.Style(sys.stderr), evidence_of(base, inspection)
    for one in asked:
        service = serve(base, one.gpu, evidence, one.host)
        console.tell(f"  {answer(base, service, style, wheel='the wheel')}", indent=" " * 4)
        for line, indent in reasons(service, style):
            console.tell(f"  {line}", indent=f"  {indent}")
        yield gpu_json(service)
