"""The `report` command: show what happened in a build, or pack a failed build for an issue tracker."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from tfdock.bazel.trace_profile import TraceProfile
from tfdock.builder.build_summary import load_profile
from tfdock.cli import console
from tfdock.cli.app import AsJson, app, command, print_result
from tfdock.cli.pages.build_page import build_page
from tfdock.cli.summary_text import tables
from tfdock.errors import ProfileError
from tfdock.host.files import write_text
from tfdock.host.settings import Settings
from tfdock.host.untrusted_folders import UntrustedPath
from tfdock.wheelhouse.build_record import LARGEST_RECORD, SCHEMA
from tfdock.wheelhouse.run_states import failed_runs
from tfdock.wheelhouse.store import Wheelhouse as House
from tfdock.wheelhouse.store import kept_files


def _file(text: str) -> Path:
    # `Path` drops the slash, so `folder/` would mean a file `folder`.
    if text.endswith("/"):
        raise typer.BadParameter(f"`{console.clean(text)}` is a folder: name a file in it")
    return Path(text)


@app.command(
    epilog="Examples: `tfdock report tf2.18.0-py3.11-cuda12.5.1-cudnn9.3.0-sm86-x86_64 -o page.html`; after a "
    "failure `tfdock report --bundle`, for an environment `tfdock report --bundle --python .venv`. Exit status: 0, "
    "or 2 if the record is not found, or there is nothing to report."
)
@command("tfdock.report/1", "wheelhouse", "cache_dir", "knowledge", "allow_paths", "allow_endpoints")
def report(
    settings: Settings,
    record: Annotated[
        str | None,
        typer.Argument(
            help="A record.json, its folder, or a build id in the wheelhouse. With --bundle also a log or a "
            "profile; the default is then the newest failed run.",
            metavar="RECORD",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="Write the report to FILE as an HTML page. With --bundle, write the bundle there.",
            metavar="FILE",
            parser=_file,
        ),
    ] = None,
    bundle: Annotated[
        bool,
        typer.Option(
            "--bundle",
            help="Pack a failed run for an issue tracker, without your known secrets and names. Nothing is sent.",
        ),
    ] = False,
    profile: Annotated[
        str | None, typer.Option("--profile", help="With --bundle, the profile that was built.", metavar="PROFILE")
    ] = None,
    python: Annotated[
        str | None,
        typer.Option(
            "--python",
            help="With --bundle, pack the result of `doctor` for this environment. No failed run is needed then.",
            metavar="PATH",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the phases, the use of the cache, the executed actions, and the cause of cache misses."""
    if bundle:
        # Packing a report loads the planner and the wheelhouse; the page of a record needs neither.
        from tfdock.cli.bundle_report import write_bundle

        return write_bundle(record, profile, python, settings, output, as_json=as_json)
    if record is None or profile or python:
        raise typer.BadParameter("name a record, or give `--bundle` for a run that failed")
    path = _find_record(record, settings.wheelhouse.absolute(), settings.state_dir)
    document = _load_record(path)
    try:
        lines, page = list(_lines(document)), _page(document, path.parent) if output else ""
    # A record may be damaged or untrusted: any field may be missing or have another type.
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise _unreadable(path) from error
    shown = {key: value for key, value in document.items() if key not in ("schema", "verification")}
    print_result("tfdock.report/1", {"record": str(path), **shown}, lines, as_json=as_json)
    if output:  # Write the page after the text, so that a failure loses no output.
        write_text(output, page, follow=True)
        console.say(f"page  {output}")
    return None


def _find_record(name: str, wheelhouse: Path, state: Path) -> UntrustedPath:
    """Return the file of the record that `name` names. Raises ProfileError if there is no record."""
    path = Path(name)
    if path.is_file():
        path = path.resolve()
        return UntrustedPath(path.parent, path.name)
    if (in_folder := UntrustedPath(path, "record.json")).is_file():
        return in_folder
    house = House(wheelhouse)
    # Without a fingerprint, the record's own folder is not known.
    records = [record for record in house.records() if isinstance(record.get("fingerprint"), str)]
    same_build = [record for record in records if record.get("build_id") == name]
    if same_build:
        newest = max(same_build, key=lambda record: str(record.get("finished")))
        return house.record_folder(newest["build_id"], newest["fingerprint"]) / "record.json"
    if failed_runs(house, state, name):
        raise ProfileError.of(
            "record-not-found",
            f"no build of `{name}` in {wheelhouse} succeeded, so there is no record",
            f"`tfdock report --bundle {name}` packs the newest failed run",
        )
    known = sorted({str(record.get("build_id")) for record in records})
    near = difflib.get_close_matches(name, known, n=1)
    others = f"did you mean `{near[0]}`? " if near else f"there are: {', '.join(known)}. " if known else ""
    raise ProfileError.of(
        "record-not-found",
        f"`{name}` is not a record, and not a build id in {wheelhouse}",
        f"{others}Give a record.json, its folder, or a build id together with its `--wheelhouse`",
    )


def _load_record(path: UntrustedPath) -> dict[str, Any]:
    document = path.load(dict[str, Any], LARGEST_RECORD) or {}
    if document.get("schema") == SCHEMA:
        return document
    raise _unreadable(path)


def _unreadable(path: UntrustedPath) -> ProfileError:
    return ProfileError.of(
        "record-unreadable",
        f"{path} is not the record of a build",
        "give the record.json of a build; it is in `.tfdock/` of the wheelhouse",
        file=str(path),
    )


def _lines(document: dict[str, Any]) -> Iterator[str]:
    style = console.Style(sys.stdout)
    for index, (title, rows) in enumerate((title, rows) for title, rows in tables(document) if rows):
        yield from [""] if index else []
        yield style.strong(title)
        yield from console.table([tuple(map(console.clean, row)) for row in rows])


def _page(document: dict[str, Any], folder: UntrustedPath) -> str:
    name = kept_files(document).get("profile")
    return build_page(document, load_profile(folder / name) if name else TraceProfile())
