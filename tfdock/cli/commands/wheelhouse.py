"""The `wheelhouse list`, `index`, `serve` and `prune` commands."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tfdock.bazel.cache.cache_pruning import read_age, read_size
from tfdock.cli import console
from tfdock.cli.app import AsJson, app, command, knowledge_for, print_json, print_result
from tfdock.errors import Problem, ProfileError, as_document
from tfdock.host.files import file_error
from tfdock.host.settings import Settings
from tfdock.wheel.identity import constraints
from tfdock.wheel.wheel_file import bracketed_extra
from tfdock.wheelhouse import store, wheelhouse_pruning
from tfdock.wheelhouse.catalogue import StoredWheel, list_wheels, unreadable_records
from tfdock.wheelhouse.index import WheelIndex
from tfdock.wheelhouse.wheelhouse_pruning import PrunedWheelhouse, Rules

# The server's packages, tornado and asyncio, are for `serve` alone.
if TYPE_CHECKING:
    from tfdock.wheelhouse.server import ServerAddress

group = typer.Typer(name="wheelhouse", no_args_is_help=True)
app.add_typer(group)


@contextmanager
def _open_wheelhouse(settings: Settings) -> Iterator[store.Wheelhouse]:
    """Yield the wheelhouse. Raise ProfileError if it does not exist, and for errors with its files."""
    root = settings.wheelhouse.absolute()
    # Create no folder: a misspelt name must not look like an empty wheelhouse.
    if not root.is_dir():
        raise ProfileError.of(
            "wheelhouse-not-found",
            f"wheelhouse not found: {root}",
            "name the wheelhouse with `--wheelhouse`; `tfdock build` makes a wheelhouse",
        )
    try:
        yield store.Wheelhouse(root)
    except OSError as error:
        raise file_error(error, {"the wheelhouse": root}) from error


# --- list -----------------------------------------------------------------------------------------------------------


@group.command("list", epilog="Example: `tfdock wheelhouse list --wheelhouse ~/wheels`.")
@command("tfdock.wheelhouse-list/1", "wheelhouse", "knowledge")
def list_(settings: Settings, as_json: AsJson = False) -> None:
    """List the wheels: their TensorFlow, Python and GPUs, whether they were verified, and their origin."""
    with _open_wheelhouse(settings) as house:
        wheels = list_wheels(house, lambda: knowledge_for(settings).accelerators)
        warnings = unreadable_records(house)
    console.show_problems(warnings)
    document = {"wheelhouse": str(house.root), "size": sum(wheel.size for wheel in wheels), "problems": warnings}
    document |= {"wheels": [_wheel_json(wheel) for wheel in wheels]}
    print_result("tfdock.wheelhouse-list/1", document, _listing(house.root, wheels), as_json=as_json)


def _wheel_json(wheel: StoredWheel) -> dict[str, Any]:
    return {
        "file": wheel.path.name,
        "size": wheel.size,
        "sha256": wheel.sha256,
        "name": wheel.name,
        "version": wheel.version,
        "tags": wheel.tags,
        **as_document(wheel.claims),
        "finished": console.moment(wheel.finished),
        "origin": _origin(wheel),
        "pulled_from": wheel.pulled_from,
        "build_id": wheel.build_id,
        "fingerprint": wheel.fingerprint,
        "problem": wheel.problem or None,
    }


def _origin(wheel: StoredWheel) -> str:
    if wheel.build_id is None:
        return "foreign"
    return "pulled" if wheel.pulled_from else "built"


_VERIFIED = {"tried": "yes", "files": "its files", "failed": "failed", "no": "no"}


def _listing(root: Path, wheels: Sequence[StoredWheel]) -> Iterator[str]:
    style = console.Style(sys.stdout)
    size = console.size(sum(wheel.size for wheel in wheels))
    yield f"{style.strong(console.clean(str(root)))}  {_wheels(len(wheels))}, {size}"
    if wheels:
        head = ("TensorFlow", "Python", "for", "GPU code", "verified", "size", "made", "from", "wheel")
        rows = [tuple(map(_in_a_line, _row(wheel))) for wheel in wheels]
        yield from console.table([tuple(map(style.strong, head)), *rows])


def _in_a_line(text: str) -> str:
    """Return text on one line: a file whose name has a line break must not look like two files."""
    return console.clean(text, keep="")


def _row(wheel: StoredWheel) -> tuple[str, ...]:
    claims = wheel.claims
    made_for = f"{claims.accelerator} {claims.toolkit or ''}".strip() if claims.accelerator else "?"
    code = "?" if claims.gpu_code is None else " ".join(claims.gpu_code) or "-"
    return (
        claims.tensorflow or wheel.version.partition("+")[0] or "?",
        claims.python or wheel.tags.partition("-")[0] or "?",
        made_for,
        "-" if claims.accelerator == "cpu" else code,
        _VERIFIED[claims.verified],
        console.size(wheel.size),
        console.ago(wheel.finished),
        {"foreign": "elsewhere", "built": "here", "pulled": "registry"}[_origin(wheel)],
        f"{wheel.path.name}{f', from {wheel.pulled_from}' if wheel.pulled_from else ''}"
        f"{f': {wheel.problem}' if wheel.problem else ''}",
    )


# --- index ----------------------------------------------------------------------------------------------------------


@group.command(
    "index", epilog="Examples: `tfdock wheelhouse index`, then `pip install --extra-index-url file://… NAME`."
)
@command("tfdock.wheelhouse-index/1", "wheelhouse")
def index_(settings: Settings, as_json: AsJson = False) -> None:
    """Make the package index in `simple/` for pip and uv.

    Later builds, pulls and prunes update it.
    """
    with _open_wheelhouse(settings) as house:
        indexed = WheelIndex(house).update(lambda file: console.say(f"reading {console.clean(file)}"))
    console.show_problems(indexed.left_out)
    pages = str(house.root / "simple")
    if as_json:
        print_json("tfdock.wheelhouse-index/1", True, {"index": pages, "page": None, **as_document(indexed)})
        return
    console.result(pages)
    counts = f"{_wheels(len(indexed.wheels))}, {len(indexed.added)} new, {len(indexed.removed)} gone"
    console.say(f"{counts}, {len(indexed.left_out)} left out")


def _wheels(count: int) -> str:
    return f"{count} wheel{'s' if count != 1 else ''}"


# --- serve ----------------------------------------------------------------------------------------------------------


@group.command(epilog="Example: `tfdock wheelhouse serve --host 0.0.0.0`. Ctrl-C ends it, with exit status 0.")
@command("tfdock.wheelhouse-serve/1", "wheelhouse")
def serve(
    settings: Settings,
    host: Annotated[
        str,
        typer.Option(
            "--host",
            help="The address to listen on. Any address but loopback lets other machines read.",
            metavar="HOST",
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", help="The port to listen on. 0 chooses a free port.", min=0, max=65535)
    ] = 8080,
    as_json: AsJson = False,
) -> None:
    """Serve the index, the wheels and their constraints over HTTP.

    On loopback, only requests for `localhost` or an IP address are answered, so that no web page can read the wheels
    through your browser. With another `--host`, all requests are answered.
    """
    import asyncio  # only `serve` needs asyncio

    from tfdock.wheelhouse import server

    with _open_wheelhouse(settings) as house:
        index = WheelIndex(house)
        if not index.exists:
            making = f"tfdock wheelhouse index --wheelhouse {shlex.quote(str(house.root))}"
            raise ProfileError.of(
                "wheelhouse-not-indexed",
                f"{house.root} has no index",
                f"make the index: `{making}`; later builds and pulls update it",
            )
        wanted = _example(house.root, index.hashes())

    def ready(address: ServerAddress) -> None:
        if as_json:
            commands = dict(_installing(address, wanted)) if wanted else {}
            print_json("tfdock.wheelhouse-serve/1", True, {"url": f"{address.url}simple/", "commands": commands})
        else:
            console.result(f"{address.url}simple/")
        # Programs that start the server wait for this line.
        sys.stdout.flush()
        _show_address(address, wanted)

    def seen(line: str) -> None:
        console.say(console.clean(line))

    asyncio.run(server.serve(house, host, port, ready, seen))
    console.say("stopped")


def _example(folder: Path, files: Iterable[str]) -> str:
    """Return a requirement for a wheel of the index, such as `tensorflow[and-cuda]==2.18.0+cuda12.5.sm86`."""
    file = min(files, default="")
    if not file:
        return ""
    # The first line is a comment.
    name, _, version = constraints("", [file]).splitlines()[1].partition("==")
    return f"{name}{bracketed_extra(folder / file)}=={version}"


def _installing(address: ServerAddress, wanted: str) -> Iterator[tuple[str, str]]:
    """Yield the commands of pip and uv that install from the index, and the requirements from the usual index."""
    url = f"{address.url}simple/"
    # By default, pip accepts plain HTTP only from this machine.
    trusted = "" if address.loopback else f"--trusted-host {address.name} "
    yield "pip", f"pip install {trusted}--extra-index-url {url} {shlex.quote(wanted)}"
    yield "uv", f"uv pip install --index {url} {shlex.quote(wanted)}"


def _show_address(address: ServerAddress, wanted: str) -> None:
    for _, line in _installing(address, wanted or "NAME==VERSION"):
        console.say(f"  {line}")
    if not wanted:
        console.tell("note: there is no wheel in the index yet; builds and pulls add their wheels")
    if not address.loopback:
        console.tell("note: other machines can read the wheels without a password, over unencrypted connections")
    console.say("Ctrl-C ends it")


# --- prune ----------------------------------------------------------------------------------------------------------


@group.command(epilog="Example: `tfdock wheelhouse prune --older-than 90d --keep-latest 1 --dry-run`.")
@command("tfdock.wheelhouse-prune/1", "wheelhouse")
def prune(
    settings: Settings,
    older_than: Annotated[
        str | None, typer.Option("--older-than", help="Remove wheels that are older than this.", metavar="30d")
    ] = None,
    max_size: Annotated[
        str | None,
        typer.Option(
            "--max-size",
            help="Remove the oldest wheels until the others take no more than this size.",
            metavar="20GiB",
        ),
    ] = None,
    keep_latest: Annotated[
        int | None,
        typer.Option(
            "--keep-latest",
            help="Of each build id, keep the N newest builds and remove the others.",
            metavar="N",
            min=1,
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Remove nothing. Print what would be removed.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove a wheel if all given rules allow it.

    Leftovers of killed runs are removed too. Wheels of other programs and files of running builds are kept.
    """
    rules = Rules(
        before=None if older_than is None else time.time() - read_age(older_than),
        max_size=None if max_size is None else read_size(max_size),
        keep=keep_latest,
    )
    with _open_wheelhouse(settings) as house:
        pruned = wheelhouse_pruning.prune(house, settings.state_dir, rules, dry_run=dry_run)
        console.show_problems(unreadable_records(house))
    if as_json:
        print_json("tfdock.wheelhouse-prune/1", True, {"dry_run": dry_run, **_pruned_json(pruned)})
    else:
        _show_pruned(pruned, dry_run=dry_run)
    if not pruned.reached:
        held = f"the wheelhouse still holds {console.size(pruned.left)}"
        warning = Problem(
            "wheelhouse-size-not-reached",
            f"{held}, above the limit of {console.size(rules.max_size or 0)}",
            "move the remaining wheels yourself: tfdock did not build them, another rule keeps them, or a run uses "
            "them",
            severity="warning",
        )
        console.show_problems([warning])


def _pruned_json(pruned: PrunedWheelhouse) -> dict[str, Any]:
    return {
        "size": pruned.size,
        "left": pruned.left,
        "reached": pruned.reached,
        "wheels": [
            {
                "file": wheel.path.name,
                "size": wheel.size,
                "build_id": wheel.build_id,
                "fingerprint": wheel.fingerprint,
            }
            for wheel in pruned.wheels
        ],
        "leftovers": [
            {"path": orphan.path.inside, "what": orphan.kind, "size": orphan.size} for orphan in pruned.leftovers
        ],
        "busy": pruned.busy,
    }


def _show_pruned(pruned: PrunedWheelhouse, *, dry_run: bool) -> None:
    would = "would remove" if dry_run else "removed"
    for wheel in pruned.wheels:
        details = f"{console.size(wheel.size)}, made {console.ago(wheel.finished)}"
        console.result(f"{would} {_in_a_line(wheel.path.name)}  {details}")
    for orphan in pruned.leftovers:
        path = _in_a_line(orphan.path.inside)
        console.result(f"{would} {path}  {console.size(orphan.size)}, {orphan.kind}")
    for build_id in pruned.busy:
        console.tell(f"{console.clean(build_id)} skipped: a run uses it")
    console.result(f"{would} {console.size(pruned.size)}, {console.size(pruned.left)} of wheels remain")
