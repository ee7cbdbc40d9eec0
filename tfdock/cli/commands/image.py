"""The `image pack` and `image push` commands: finished wheels as images."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from tfdock.cli import console
from tfdock.cli.app import AllowUntested, AsJson, command, parse_reference, preparer_for, print_result, stoppable
from tfdock.cli.lazy_commands import image_group
from tfdock.errors import ProfileError
from tfdock.host.files import file_error
from tfdock.host.settings import Settings
from tfdock.host.supervise import Stop, until_stopped
from tfdock.images import image_pack
from tfdock.images.image_push import Push
from tfdock.images.image_tags import Shipment, is_promise, members, shipment
from tfdock.images.selection import WheelSelection
from tfdock.oci.repository import Repository
from tfdock.plan.build_plan import BuildPlan
from tfdock.types import ImageRef
from tfdock.wheelhouse.store import Wheelhouse as House

Together = Annotated[
    str | None,
    typer.Option(
        "--as",
        help="Also make one image with all the wheels, under this tag. For several platforms it is an image index.",
        metavar="TAG",
    ),
]
NoMovingTags = Annotated[
    bool, typer.Option("--no-moving-tags", help="Do not move tags such as `2.18-py3.11-cuda12.5-sm86`.")
]
# OCI distribution specification, "Pulling manifests": the form of a tag.
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")


@image_group.command(
    epilog="Example: `tfdock image pack rtx3080 -o rtx3080.tar`, then `docker load -i rtx3080.tar`. Prints each "
    "image's digest and build id. Exit status: 2 no such build, or the file cannot be written; 4 a wheel is refused."
)
@command("tfdock.image-pack/1", "wheelhouse", "knowledge", "allow_paths", "allow_endpoints")
def pack(
    settings: Settings,
    names: Annotated[
        list[str],
        typer.Argument(
            help="Finished builds: profiles, wheels in a wheelhouse, or build ids.", metavar="PROFILE|WHEEL…"
        ),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="Write the images into this file.", metavar="FILE")],
    together: Together = None,
    no_moving_tags: NoMovingTags = False,
    allow_untested: AllowUntested = False,
    as_json: AsJson = False,
) -> None:
    """The file is an OCI image layout. The same wheels always give the same bytes."""
    tag, moving = _tag(together), not no_moving_tags
    # Check before wheels of gigabytes are read, so that a name in use is refused at once.
    image_pack.check_pack_target(output)
    selected = _select(settings, names, tag, "nothing was written", moving=moving, allow_untested=allow_untested)
    with selected as (selection, shipped, stop):
        size = until_stopped(lambda: image_pack.pack(shipped, selection.stream, output, stop.check), stop)
    console.say(f"{console.Style(sys.stderr).good('packed')}  {output}  {console.size(size)}")
    _show_tags(shipped)
    document = {"file": {"path": str(output), "size": size}, "images": _image_rows(shipped)}
    lines = (f"{content.digest}  {tags[0]}" for content, tags in shipped.named)
    print_result("tfdock.image-pack/1", document, lines, as_json=as_json)


@image_group.command(
    epilog="Examples: `tfdock image push rtx3080 ghcr.io/me/wheels`, `tfdock image push rtx3080` (pushes to the "
    "first repository in the setting `registries`). Exit status: 2 there is no such build, 4 a wheel is refused, 7 "
    "the registry cannot be reached or refuses."
)
@command("tfdock.image-push/1", "wheelhouse", "knowledge", "allow_paths", "allow_endpoints")
def push(
    settings: Settings,
    names: Annotated[
        list[str],
        typer.Argument(
            help="Finished builds: profiles, wheels in a wheelhouse, or build ids. Last, the repository to push to, "
            "such as ghcr.io/me/wheels.",
            metavar="PROFILE|WHEEL… [REPOSITORY]",
        ),
    ],
    together: Together = None,
    no_moving_tags: NoMovingTags = False,
    allow_untested: AllowUntested = False,
    as_json: AsJson = False,
) -> None:
    """Only data that the registry lacks is sent. Needs `docker login`."""
    builds, where = _split_names(names, settings.registries)
    tag, moving, kept = _tag(together), not no_moving_tags, "finished uploads stay in the registry"
    selected = _select(settings, builds, tag, kept, moving=moving, allow_untested=allow_untested)
    with selected as (selection, shipped, stop):
        repository = Repository(where.registry, where.repository)
        sending = Push(repository, selection.stream, console.say, stop.check)
        pushed = until_stopped(lambda: sending.push(shipped), stop)
    sent, there = console.size(pushed.sent), console.size(pushed.there)
    console.say(f"{console.Style(sys.stderr).good('pushed')}  {where}: {sent} sent, {there} there before")
    _show_tags(shipped)
    images = _image_rows(shipped)
    document = {"repository": str(where), "images": images, "sent": pushed.sent, "there": pushed.there}
    lines = (f"{where}:{tags[0]}@{content.digest}" for content, tags in shipped.named)
    print_result("tfdock.image-push/1", document, lines, as_json=as_json)


@contextmanager
def _select(
    settings: Settings, names: Sequence[str], together: str | None, kept: str, *, moving: bool, allow_untested: bool
) -> Iterator[tuple[WheelSelection, Shipment, Stop]]:
    """Yield the selected builds with their wheels held open, the images made of them, and the stop requests."""
    house = House(settings.wheelhouse.absolute())

    def plan(name: str) -> BuildPlan:
        # Here, because wheels and build ids need no knowledge base.
        return preparer_for(settings, allow_untested=allow_untested).prepare(name).plan

    try:
        # Keep the file open: if the wheel is replaced meanwhile, the hashed content is still used.
        with stoppable(kept) as stop, WheelSelection(house, plan, stop.check) as selection:
            builds = until_stopped(lambda: selection.builds(names), stop)
            yield selection, shipment(builds, together=together, moving=moving), stop
    except OSError as error:
        raise file_error(error, {"the wheelhouse": house.root, "the current folder": Path.cwd()}) from error


def _show_tags(shipped: Shipment) -> None:
    """Print the tags of each image, and the builds that get no moving tag."""
    for _, tags in shipped.named:
        console.say("  tags  " + ", ".join(tags))
    for build_id in shipped.unmoved:
        console.say(f"  {build_id} gets no moving tag: its trust domain is not `release` (`--as TAG` gives it a tag)")


def _image_rows(shipped: Shipment) -> list[dict[str, Any]]:
    """Return the images, and indexes of images, for a JSON document."""
    rows = []
    for content, tags in shipped.named:
        images = members(content)
        wheels = [wheel for image in images for wheel in image.wheels]
        rows.append(
            {
                "digest": content.digest,
                "tags": list(tags),
                "platforms": [str(image.platform) for image in images],
                "builds": [build.build_id for image in images for build in image.builds],
                "wheels": [{"file": wheel.file, "sha256": wheel.sha256, "size": wheel.size} for wheel in wheels],
            }
        )
    return rows


# --- names ----------------------------------------------------------------------------------------------------------


def _split_names(names: Sequence[str], registries: Sequence[str]) -> tuple[tuple[str, ...], ImageRef]:
    """Return the builds and the repository. The last name is the repository, or else the first of `registries`."""
    *builds, last = names
    if _is_repository(last):
        if not builds:
            message = f"`{last}` is a repository, and no build is given"
            raise ProfileError.of("image-nothing-named", message, "name a profile or a wheel before the repository")
        return tuple(builds), _repository(last)
    if not registries:
        raise ProfileError.of(
            "registries-unset",
            "no repository to push to: the command names none, and the setting `registries` is empty",
            (
                "name the repository last: `tfdock image push PROFILE ghcr.io/me/wheels`",
                "set TFDOCK_REGISTRIES, or `registries: [ghcr.io/me/wheels]` in the configuration file",
            ),
        )
    return tuple(names), _repository(registries[0])


def _is_repository(name: str) -> bool:
    """Return whether a name is not a file and begins with a host, as in `localhost:5000/wheels`."""
    host, slash, _ = name.partition("/")
    # Docker recognises a host by a dot, a colon, or the name `localhost`.
    looks = "://" in name or (bool(slash) and host not in (".", "..") and ("." in host or ":" in host))
    looks = looks or name.startswith("localhost/")
    # An existing file always counts as a file, whatever its name looks like.
    return looks and not name.endswith((".whl", ".yaml", ".yml")) and not Path(name).exists()


def _repository(name: str) -> ImageRef:
    image = parse_reference(name, "write `host/name`, such as `ghcr.io/me/wheels`: no `https://`, no capitals")
    if image.tag or image.digest:
        raise ProfileError.of(
            "reference-malformed",
            f"`{name}` names one image; a push gives each build its own tag",
            "name only the repository, `host/name`; for your own tag, use `--as TAG`",
        )
    return image


def _tag(text: str | None) -> str | None:
    if text is None:
        return None
    if not _TAG.fullmatch(text):
        fix = "letters, digits, `.`, `_` and `-`, at most 128 of them, such as `--as nightly`"
        raise ProfileError.of("reference-malformed", f"`{text}` cannot be a tag", fix)
    if is_promise(text):
        raise ProfileError.of(
            "reference-malformed",
            f"`{text}` cannot be your tag: it is the automatic tag of one build",
            "give another tag, such as `--as nightly`",
            why="this tag is a build id or fingerprint, and `tfdock pull` expects the build of this name there",
        )
    return text
