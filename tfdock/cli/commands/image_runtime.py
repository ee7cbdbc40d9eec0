"""The `image runtime` command: make an image that can run a finished wheel."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import typer

from tfdock.cli import console
from tfdock.cli.app import (
    AllowUntested,
    AsJson,
    command,
    knowledge_for,
    local_engine,
    parse_reference,
    preparer_for,
    print_result,
    stoppable,
)
from tfdock.cli.build_progress import shown_progress
from tfdock.cli.lazy_commands import image_group
from tfdock.engine.engine_errors import own_words
from tfdock.errors import ProfileError, VerificationFailed, WheelRefused
from tfdock.host.files import file_error
from tfdock.host.settings import Settings
from tfdock.images.runtime import runtime_image as images
from tfdock.images.runtime.runtime_image import BuiltRuntimeImage, RuntimeImageRequest, default_name, default_tag
from tfdock.images.selection import WheelSelection
from tfdock.images.wheel_image import WheelBuild
from tfdock.images.wheel_labels import plan_choice
from tfdock.images.wheel_layer import ImageWheel
from tfdock.knowledge.switch_rows import doubts, variables
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.types import ImageRef, Version
from tfdock.verify.checks import build_traces
from tfdock.verify.trial_container import TrialEnvironment, TrialRequest, trial_environment
from tfdock.verify.verification import verify_wheel
from tfdock.wheel.wheel_file import inspected
from tfdock.wheelhouse.store import Wheelhouse as House

#: Variables that every runtime image sets. Other values would break the image.
_OF_THE_IMAGE = {"PATH", "HOME", "PIP_CONSTRAINT"}


@image_group.command(
    epilog="Examples: `tfdock image runtime rtx3080`, then `docker run --rm -it --gpus all IMAGE`; `tfdock image "
    "runtime cpu-native --push ghcr.io/me/tensorflow:2.18-cpu`. Prints the image's name. Exit status: 2 there is no "
    "such build, 4 the image does not work, 6 no engine, 7 a package is unavailable, or the registry refuses."
)
@command("tfdock.image-runtime/1", "wheelhouse", "cache_dir", "knowledge", "allow_paths", "allow_endpoints")
def runtime(
    settings: Settings,
    name: Annotated[
        str,
        typer.Argument(
            help="A finished build: a profile, a wheel, or a build id. A wheel without a build record is verified "
            "first.",
            metavar="PROFILE|WHEEL",
        ),
    ],
    tag: Annotated[
        str | None,
        typer.Option(
            "--tag", help="The name of the image. The default is `tfdock/runtime:<build id>`.", metavar="NAME"
        ),
    ] = None,
    push: Annotated[
        str | None, typer.Option("--push", help="Also push the image to a registry under this name.", metavar="REF")
    ] = None,
    no_gpu_libraries: Annotated[
        bool,
        typer.Option(
            "--no-gpu-libraries",
            help="Leave out CUDA's libraries: for an image for the CPU, or if the base image has the libraries.",
        ),
    ] = False,
    switches: Annotated[
        list[str] | None,
        typer.Option(
            "--switch",
            help="Set this variable, XLA flag or preset in the image. Repeatable. `tfdock explain` lists them.",
            metavar="NAME=VALUE|PRESET",
        ),
    ] = None,
    allow_untested: AllowUntested = False,
    as_json: AsJson = False,
) -> None:
    """Use the image with `docker run … python`. The program does not run as root."""
    # Refuse invalid names and switches before anything is fetched.
    names = (_parse_name(tag, "--tag"), _parse_name(push, "--push"))
    known = knowledge_for(settings).switches
    try:
        sets = variables(switches or [], known)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    for taken in sorted(sets.keys() & _OF_THE_IMAGE):
        raise typer.BadParameter(f"the image sets `{taken}` itself, and its Python and wheel need that value")

    # The names depend on the build id, which is known only once the build is found.
    def wish(build: WheelBuild) -> RuntimeImageRequest:
        gpu = not no_gpu_libraries
        release = Version(plan_choice(build.record, "tensorflow")).minor
        for doubt in doubts(sets, known, str(release)):
            console.tell(f"note: {doubt}")
        own = default_name(build.build_id, gpu=gpu, variables=sets)
        sent = _with_tag(names[1], default_tag(build.build_id, gpu=gpu, variables=sets))
        return RuntimeImageRequest(name=_with_tag(names[0], "latest") or own, push=sent, gpu=gpu, variables=sets)

    image, program = _make_image(settings, name, wish, allow_untested=allow_untested)
    _show(image, program, sets)
    line = _pushed_name(image.pushed) if image.pushed else image.name
    print_result("tfdock.image-runtime/1", {"image": image}, [line], as_json=as_json)


def _make_image(
    settings: Settings, name: str, wish: Callable[[WheelBuild], RuntimeImageRequest], *, allow_untested: bool
) -> tuple[BuiltRuntimeImage, str]:
    """Return the image, and the name of the engine's program (`docker`, `podman`)."""
    house = House(settings.wheelhouse.absolute())
    preparer = preparer_for(settings, allow_untested=allow_untested)
    try:
        with (
            stoppable("finished layers (without a name) and downloads are kept") as stop,
            WheelSelection(house, lambda profile: preparer.prepare(profile).plan, stop.check) as choosing,
        ):
            known = _known_build(choosing, name)
            label = known.build_id if known else Path(name).stem
            log = settings.cache_dir.absolute() / "images" / f"{label}.log"
            engine, base = local_engine(), knowledge_for(settings)
            with (
                shown_progress() as listen,
                trial_environment(engine, settings, listen, stop, log, label, "image") as environment,
            ):
                build = known or _verified_build(environment, base, choosing.wheel(Path(name)), Path(name))
                wheels = [choosing.path(wheel) for wheel in build.wheels]
                return images.make(environment, base, build, wheels, wish(build)), engine.info().name
    except OSError as error:
        raise file_error(error, {"the wheelhouse": house.root}) from error


def _known_build(choosing: WheelSelection, name: str) -> WheelBuild | None:
    """Return the build of a name; None for a wheel without a record."""
    try:
        (build,) = choosing.builds([name])
    except WheelRefused as error:
        if error.problems[0].code == "wheel-without-record":
            return None
        raise
    return build


def _verified_build(environment: TrialEnvironment, base: KnowledgeBase, wheel: ImageWheel, path: Path) -> WheelBuild:
    """Verify a wheel without a record, and return a build that has only facts from the wheel.

    Raises VerificationFailed (`wheel-refused`), and the errors of the trial.
    """
    inspection = inspected(path, traces=build_traces())
    verification = verify_wheel(environment, base, path, inspection, TrialRequest())
    if verification.impossible:
        raise verification.impossible
    if verification.failed:
        raise VerificationFailed.of(
            "wheel-refused",
            f"{path} has no build record, and failed its verification: "
            + ", ".join(check.name for check in verification.failed),
            f"see all checks: `tfdock verify {path}`",
        )
    passed = sum(check.status == "passed" for check in verification.checks)
    console.say(f"{console.Style(sys.stderr).good('verified')}  {path.name}: {passed} checks passed")
    return images.foreign_build(base, inspection, wheel, verification.document)


def _show(image: BuiltRuntimeImage, program: str, sets: Mapping[str, str]) -> None:
    style = console.Style(sys.stderr)
    more = console.size(max(image.size - image.base_size, 0))
    console.say(f"{style.good(image.status)}  {image.name}")
    console.say(f"  size  {console.size(image.size)}, of which {more} are added to {image.base}")
    console.tell(f"  with  {', '.join(image.distributions)}", indent=" " * 8)
    for reason in image.lacking:
        console.tell(f"  {style.warn('lacks')} {reason}", indent=" " * 8)
    for name, value in sets.items():
        console.tell(f"  sets  {name}={value}", indent=" " * 8)
    gpus = own_words("--gpus all ", program) if image.variables.keys() - sets.keys() else ""
    console.say(f"  run   {program} run --rm -it {gpus}{image.name}")
    if image.pushed:
        console.say(f"  sent  {_pushed_name(image.pushed)}")


def _pushed_name(image: Mapping[str, str]) -> str:
    return f"{image['reference']}@{image['digest']}"


def _parse_name(text: str | None, option: str) -> ImageRef | None:
    """Return the name of an image. Raise ProfileError for a malformed name, or one with a digest."""
    if text is None:
        return None
    fix = "write `name:tag` or `host/name:tag`, such as `ghcr.io/me/tensorflow:2.18`: no `https://`, no capitals"
    image = parse_reference(text, fix, option)
    if image.digest:
        message = f"`{option} {text}` has a digest, but a digest is known only after the image is made"
        raise ProfileError.of("reference-malformed", message, fix)
    return image


def _with_tag(image: ImageRef | None, tag: str) -> str | None:
    return str(image if image.tag else image.tagged(tag)) if image else None
