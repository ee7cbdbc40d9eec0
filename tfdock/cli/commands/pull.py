"""The `pull` command: copy finished wheels from a registry into the wheelhouse. It needs no engine."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from tfdock.cli import console
from tfdock.cli.app import (
    AllowUntested,
    AsJson,
    MatrixFile,
    Only,
    Report,
    app,
    check_matrix_options,
    command,
    is_wheel,
    knowledge_for,
    parse_reference,
    preparer_for,
    print_result,
    stoppable,
)
from tfdock.cli.gpu_text import answer, gpu_json, reasons, requested_gpus
from tfdock.cli.matrix_run import CellSelection, as_build, cells_to_do, finish_matrix, report_of
from tfdock.errors import NetworkError, Problem, ProfileError, TfdockError, combined_exit_code
from tfdock.gpu.compatibility import serve
from tfdock.gpu.gpu_facts import XLA_TRACE, facts_of_wheel
from tfdock.host import hardware
from tfdock.host.settings import Settings
from tfdock.host.supervise import Stop, until_stopped
from tfdock.images.image_pull import ImagePull, PulledImage
from tfdock.images.image_tags import is_promise
from tfdock.images.lookup import ImageLookup, StoredImage, find_image, local_platform, native_refusal
from tfdock.matrix.matrix_status import locate_wheels
from tfdock.matrix.planned_matrix import Cell, Cells
from tfdock.plan.build_plan import BuildPlan
from tfdock.plan.wish import Wish
from tfdock.types import ImageRef
from tfdock.wheel.inspection import Inspection, inspect_wheel
from tfdock.wheel.wheel import WheelFacts
from tfdock.wheel.wheel_file import install_command
from tfdock.wheelhouse.store import Wheelhouse as House

_SILENT = 5.0  #: Seconds without an answer before a message is printed.
_REFERENCE_FIX = (
    "write `host/name:tag` or `host/name@sha256:…`: no `https://`, no capitals; a profile's file ends in `.yaml`"
)
_PLATFORM = re.compile(r"linux/[a-z0-9_]+(?:/[a-z0-9_]+)?")


def _platform(text: str) -> str:
    if not _PLATFORM.fullmatch(text):
        raise typer.BadParameter(f"`{text}` is not a platform; write it like `linux/amd64`")
    return text


@app.command(
    epilog="Examples: `tfdock pull ghcr.io/me/wheels:2.18-py3.11-cuda12.5-sm86`, `tfdock pull rtx3080`, `tfdock pull "
    "--matrix profiles/matrix.yaml`. Prints the wheels' paths. Exit status: 2 no such profile, or the image has no "
    "wheels; 3 no wheel for this machine; 4 the wheel is refused; 7 not found, or no registry answers."
)
@command("tfdock.pull/1", "registries", "wheelhouse", "knowledge", "allow_paths", "allow_endpoints")
def pull(
    settings: Settings,
    wish: Wish,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="Images by tag or digest, or profiles and build ids to look up in the registries.",
            metavar="REF|PROFILE…",
        ),
    ] = None,
    matrix: MatrixFile = None,
    only: Only = None,
    report: Report = None,
    platform: Annotated[
        str | None,
        typer.Option(
            "--platform",
            help="Pull the wheels for this platform, such as linux/arm64.",
            metavar="PLATFORM",
            parser=_platform,
        ),
    ] = None,
    allow_untested: AllowUntested = False,
    as_json: AsJson = False,
) -> None:
    """Print how this machine's GPUs run the wheels."""
    if wish and any(_is_image(name) or is_promise(name) for name in names or ()):
        raise typer.BadParameter("options change profiles, not images or build ids: leave them out")
    if wish and not names and not matrix:
        names = [wish.words]
    _check_names(names, wish, matrix, platform=platform)
    check_matrix_options(matrix, only=only, report=report)
    finder = _ImageFinder(settings, wish, platform=platform, allow_untested=allow_untested)
    items = [finder.item(name) for name in names or ()]  # report a misspelt name before long work
    with stoppable("completed downloads are kept") as stop:
        if matrix:
            choice = CellSelection(file=matrix, only=only or (), report=report)
            code = _pull_matrix(finder, choice, stop, as_json=as_json)
        else:
            results = [_result(finder, item, stop) for item in items]
            code = _print_results(results, {}, as_json=as_json)
    raise typer.Exit(code)


def _print_results(results: list[dict[str, Any]], more: Mapping[str, Any], *, as_json: bool) -> int:
    """Print the wheels' paths, or the document with `more` in it; return the exit code."""
    code = combined_exit_code(result["exit_code"] for result in (*results, *more.values()))
    pulls = [{name: value for name, value in result.items() if name != "exit_code"} for result in results]
    paths = (wheel["path"] for result in results for build in result["builds"] for wheel in build["wheels"])
    print_result("tfdock.pull/1", {"pulls": pulls, **more}, paths, as_json=as_json, ok=code == 0)
    return code


def _check_names(names: list[str] | None, wish: Wish, matrix: Path | None, *, platform: str | None) -> None:
    if matrix and wish:
        raise typer.BadParameter("a matrix has its own profiles: leave out `--gpu`, `--set` and similar options")
    if bool(names) == bool(matrix):
        raise typer.BadParameter(
            "name images or profiles, a GPU (`--gpu rtx5090`), or a matrix: `--matrix profiles/matrix.yaml`"
        )
    if matrix and platform:
        raise typer.BadParameter("a matrix sets the platform of its wheels: leave out `--platform`")


@dataclass(frozen=True, slots=True, kw_only=True)
class _PullItem:
    """A name on the command line, or a cell of a matrix; `find` returns its image.

    With `required`, a missing image is an error.
    """

    name: str
    find: Callable[[Callable[[], None]], StoredImage]
    required: bool = True


class _NotInRegistries(NetworkError):
    """All registries have answered and none has the image, or no registry can have it."""


# --- what the names mean --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _ImageFinder:
    """Finds the image for a name: the name of an image, a build id or a profile."""

    settings: Settings
    wish: Wish
    platform: str | None = field(kw_only=True)
    allow_untested: bool = field(kw_only=True)

    def item(self, name: str) -> _PullItem:
        """Return the item to pull for the name of an image, a build id or a profile. Raise ProfileError."""
        if is_wheel(name):
            message = f"`{console.clean(name)}` is a wheel, not a profile or an image"
            fix = ("install it with pip", "name an image, a profile or a build id to pull")
            raise ProfileError.of("reference-malformed", message, fix)
        if _is_image(name):
            asked = parse_reference(name, _REFERENCE_FIX)
            image = self.settings.mirrored(asked if asked.tag or asked.digest else asked.tagged("latest"))
            return _PullItem(name=name, find=lambda check: self._image([image], check))
        if is_promise(name):
            images = [repository.tagged(name) for repository in self._repositories(name)]
            return _PullItem(name=name, find=lambda check: self._image(images, check))
        try:
            return self._profile(name)
        except ProfileError as error:
            raise ProfileError(*map(_or_image, error.problems)) from error

    def _image(self, images: Sequence[ImageRef], check: Callable[[], None]) -> StoredImage:
        down: list[NetworkError] = []
        for image in images:
            try:
                stored = find_image(image, self.platform or local_platform(), check)
            # Another repository may have the image, so continue after a repository that does not answer.
            except NetworkError as error:
                down.append(error)
                continue
            if stored:
                return stored
        # A silent repository may have the image, so the image does not count as missing.
        if down:
            raise down[0]
        places = ", ".join(f"`{image}`" for image in images)
        fix = "check the name and the tag; if the repository is private, log in first: `docker login`"
        raise NetworkError.of("image-not-found", f"not found, or private: {places}", fix)

    def _profile(self, name: str) -> _PullItem:
        plan = preparer_for(self.settings, allow_untested=self.allow_untested, wish=self.wish).prepare(name).plan
        refused = native_refusal(plan)
        if refused:
            raise refused
        repositories = self._repositories(name)
        return _PullItem(name=name, find=lambda check: self._look_up(name, plan, repositories, check))

    def cell(self, cells: Cells, cell: Cell) -> _PullItem:
        """Return the item to pull for a matrix cell. The cell is planned only when its turn comes."""
        repositories = self._repositories(cell.name)

        def find(check: Callable[[], None]) -> StoredImage:
            plan = cells.prepared(cell).plan
            refused = native_refusal(plan)
            if refused:
                # The cell is for one machine's CPU only. In a matrix this is no error, because no registry can have
                # the wheel.
                raise _NotInRegistries(*refused.problems)
            return self._look_up(cell.name, plan, repositories, check)

        return _PullItem(name=cell.name, find=find, required=False)

    def _look_up(
        self, name: str, plan: BuildPlan, repositories: tuple[ImageRef, ...], check: Callable[[], None]
    ) -> StoredImage:
        down: list[NetworkError] = []
        asked = ImageLookup(repositories=repositories, check=check)
        image = next(asked.images(plan, None, down.append), None)
        if image:
            return image
        if down:
            raise down[0]
        build = f"build it: `tfdock build {name}`" if name != plan.build_id else "build it"
        raise _NotInRegistries(
            Problem(
                "image-not-found",
                f"no registry has this build of {plan.build_id}: {', '.join(map(str, repositories))}",
                why=f"the fingerprint of this build is {plan.fingerprint[:32]}",
                fixes=[
                    build,
                    *(f"pull another build of this profile: `tfdock pull {other}`" for other in asked.others),
                ],
            )
        )

    def _repositories(self, name: str) -> tuple[ImageRef, ...]:
        if not self.settings.registries:
            raise ProfileError.of(
                "registries-unset",
                f"no registry to search for {name}: the setting `registries` is empty",
                (
                    "name one: `--registry ghcr.io/me/wheels`",
                    "set TFDOCK_REGISTRIES, or `registries: [ghcr.io/me/wheels]` in the configuration file",
                ),
            )
        return self.settings.repositories


def _or_image(problem: Problem) -> Problem:
    """Return a problem about a missing profile. Its fixes are the other meanings of the name."""
    if problem.code != "profile-not-found" or problem.line:
        return problem
    return replace(problem, fixes=(*problem.fixes, "an image: `host/name:tag`, such as `ghcr.io/me/wheels:nightly`"))


def _is_image(name: str) -> bool:
    """Return whether a word names an image: a path with a host, a tag or a digest, and no file."""
    if Path(name).exists() or name.endswith((".yaml", ".yml")) or name.startswith((".", "/", "--")):
        return False
    return "/" in name or ":" in name or "@" in name


# --- pulling --------------------------------------------------------------------------------------------------------


def _result(finder: _ImageFinder, item: _PullItem, stop: Stop) -> dict[str, Any]:
    """Pull one item, print its result, and return it as a row of `tfdock.pull/1`."""
    try:
        stop.check()
        builds = _pull_item(finder.settings, item, stop)
        return {"name": item.name, "problems": [], "builds": builds, "exit_code": 0}
    except TfdockError as error:
        code, problems = int(error.exit_code), list(error.problems)
        if isinstance(error, _NotInRegistries) and not item.required:
            code, problems = 0, [replace(problem, severity="warning") for problem in problems]
        else:
            console.say(f"{console.Style(sys.stderr).bad('not pulled')}  {item.name}")
        console.show_problems(problems)
        return {"name": item.name, "problems": problems, "builds": [], "exit_code": code}


def _pull_matrix(finder: _ImageFinder, choice: CellSelection, stop: Stop, *, as_json: bool) -> int:
    """Pull the cells of a matrix whose wheels are not here; return the exit code."""
    started, settings = time.monotonic(), finder.settings
    preparer = preparer_for(settings, allow_untested=finder.allow_untested)
    # No registry is queried: each wheel that is not here is pulled.
    cells = locate_wheels(choice.planned(settings, preparer, stop.check), settings, stop.check, repositories=())
    todo = cells_to_do(cells, settings, "pull")
    results = [_result(finder, finder.cell(cells, cell), stop) for cell in todo]
    report = report_of(cells, list(map(as_build, results)), settings, started, "tfdock pull")
    return finish_matrix(report, choice, lambda more: _print_results(results, more, as_json=as_json))


def _pull_item(settings: Settings, item: _PullItem, stop: Stop) -> list[dict[str, Any]]:
    gpus = _LocalGpus(settings)
    house = House(settings.wheelhouse.absolute())
    with console.ReadProgress(sys.stderr, item.name, "received") as reading:
        pulling = ImagePull(house, stop.check, console.say, reading, gpus.reader)

        def find_and_pull() -> tuple[StoredImage, list[PulledImage]]:
            image = item.find(stop.check)
            reading.total = sum(wheel.size for build in image.builds for wheel in build.wheels)
            return image, pulling.pull_all(image)

        waits = False

        def waiting(silent: float) -> None:
            """Print once that a registry does not answer, before the first byte arrives."""
            nonlocal waits
            if silent > _SILENT and not (waits or reading.total):
                waits = True
                console.say(f"waiting for an answer about {item.name}")

        image, builds = until_stopped(find_and_pull, stop, waiting)
    return [_show_pulled(image, build, gpus) for build in builds]


# --- printing -------------------------------------------------------------------------------------------------------


class _LocalGpus:
    """Inspect pulled wheels if this machine has a GPU, keep the inspections, and print how its GPUs run them."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._here = bool(hardware.local_gpus())
        self._inspections: dict[str, Inspection] = {}

    @property
    def reader(self) -> Callable[[BinaryIO, str], WheelFacts] | None:
        """A function that reads a wheel by its name and may raise WheelError. None on a machine without a GPU."""
        return self._read if self._here else None

    def _read(self, file: BinaryIO, name: str) -> WheelFacts:
        inspection = self._inspections[name] = inspect_wheel(file, name, traces=[XLA_TRACE.encode()])
        return inspection.wheel

    def show(self, wheel: Path) -> Iterator[dict[str, Any]]:
        """Print how each GPU of this machine runs a wheel; yield the rows of the JSON document."""
        if not self._here:
            return
        base = knowledge_for(self._settings)
        if wheel.name not in self._inspections:  # the wheel was already on this machine
            with wheel.open("rb") as file:
                self._read(file, wheel.name)
        try:
            requests = requested_gpus(base, ["local"])
        # The knowledge base has no row for this GPU, so nothing is printed.
        except ProfileError:
            return
        style, facts = console.Style(sys.stderr), facts_of_wheel(base, self._inspections[wheel.name])
        for request in requests:
            service = serve(base, request.gpu, facts, request.host)
            console.tell(f"  {answer(base, service, style, wheel='the wheel')}", indent=" " * 4)
            for line, indent in reasons(service, style):
                console.tell(f"  {line}", indent=f"  {indent}")
            yield gpu_json(service)


def _show_pulled(image: StoredImage, pulled: PulledImage, gpus: _LocalGpus) -> dict[str, Any]:
    """Print a pulled build, and return its row of the JSON document."""
    style = console.Style(sys.stderr)
    source = f", {console.size(pulled.kept)} of it by an earlier pull" if pulled.kept else ""
    console.say(f"{style.good(pulled.status)}  {pulled.build.build_id} from {pulled.origin}{source}")
    serving: list[dict[str, Any]] = []
    wheels = []
    for path, wheel in zip(pulled.wheels, pulled.build.wheels, strict=True):
        console.say(f"  wheel    {path}  {console.size(wheel.size)}")
        serving += gpus.show(path)
        install = install_command(path)
        console.say(f"  install  {install}")
        wheels.append({"path": str(path), "sha256": wheel.sha256, "size": wheel.size, "install": install})
    console.say(f"  record   {pulled.record_path}")
    return {
        "build_id": pulled.build.build_id,
        "fingerprint": pulled.build.fingerprint,
        "status": pulled.status,
        "reference": str(image.image),
        "digest": image.digest,
        "platform": image.platform,
        "wheels": wheels,
        "record": str(pulled.record_path),
        "received": pulled.received,
        "kept": pulled.kept,
        "gpus": serving,
    }
