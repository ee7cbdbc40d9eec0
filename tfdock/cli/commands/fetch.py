"""The `fetch` command: download what builds need, into the caches or into one file for another machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from tfdock.builder.locking import prepare_locked
from tfdock.builder.session import BuildSession
from tfdock.cli import console
from tfdock.cli.app import (
    AllowUntested,
    AsJson,
    SomeProfiles,
    app,
    command,
    preparer_for,
    print_result,
    profile_names,
    stoppable,
)
from tfdock.cli.build_progress import session_for, shown_progress
from tfdock.errors import TfdockError, combined_exit_code
from tfdock.events import Listener
from tfdock.host.settings import Settings
from tfdock.offline.bundle_writer import WrittenBundle
from tfdock.offline.fetch import Bundler, warm
from tfdock.plan.prepare import Preparer
from tfdock.plan.wish import Wish


@app.command(
    epilog="Example: `tfdock fetch rtx3080 -o rtx3080.tar`; on the other machine `tfdock build --from rtx3080.tar`. "
    "Bazel analyses everything and compiles nothing, so a changed download is found within minutes."
)
@command("tfdock.fetch/1", "wheelhouse", "cache_dir", "knowledge", "allow_paths", "allow_endpoints")
def fetch(
    settings: Settings,
    wish: Wish,
    profiles: SomeProfiles = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write everything into this file.", metavar="FILE")
    ] = None,
    allow_untested: AllowUntested = False,
    locked: Annotated[
        bool, typer.Option("--locked", help="Fetch exactly what the lock pins. Stop if a pin has moved.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """The images are built too. A build from a bundle needs no network."""
    names = profile_names(profiles, wish)
    preparer = preparer_for(settings, allow_untested=allow_untested, wish=wish)
    with stoppable(kept="finished downloads stay in the cache") as stop, shown_progress() as listen:
        session = session_for(settings, preparer.knowledge, stop)
        if output is None:
            # The exit status combines the codes of all profiles.
            _warm(names, preparer, session, listen, locked=locked, as_json=as_json)
        bundle = Bundler(output, preparer, session, listen, locked=locked).make(names)
    _show_bundle(bundle)
    builds = [_fetched_row(build.build_id, build.profile.file) for build in bundle.index.builds]
    file = {"path": str(bundle.path), "size": bundle.size, "sha256": bundle.sha256}
    print_result("tfdock.fetch/1", {"builds": builds, "bundle": file}, [str(bundle.path)], as_json=as_json)


def _warm(
    profiles: list[str], preparer: Preparer, session: BuildSession, listen: Listener, *, locked: bool, as_json: bool
) -> NoReturn:
    """Fetch each profile by itself, so that one failure does not stop the others."""
    results, codes = [], []
    for name in dict.fromkeys(profiles):
        try:
            # After Ctrl-C the next profile does not begin.
            session.stop.check()
            warning = console.show_problems
            prepared = prepare_locked(name, preparer, session.settings, warning) if locked else preparer.prepare(name)
            warm(prepared, session, listen)
            console.say(f"{console.Style(sys.stderr).good('fetched')}  {prepared.plan.build_id}")
            results.append(_fetched_row(prepared.plan.build_id, name))
        except TfdockError as error:
            codes.append(int(error.exit_code))
            console.show_problems(error.problems)
            results.append(_fetched_row(None, name) | {"status": "failed", "problems": error.problems})
    print_result("tfdock.fetch/1", {"builds": results, "bundle": None}, (), as_json=as_json, ok=not codes)
    raise typer.Exit(combined_exit_code(codes))


def _fetched_row(build_id: str | None, profile: str) -> dict[str, Any]:
    return {"build_id": build_id, "profile": profile, "status": "fetched", "problems": []}


def _show_bundle(bundle: WrittenBundle) -> None:
    console.say(f"{console.Style(sys.stderr).good('fetched')}  {bundle.path}  {console.size(bundle.size)}")
    for build in bundle.index.builds:
        console.say(f"  build    {build.build_id}")
    console.say(f"  sha256   {bundle.sha256}")
    console.say(f"  use      tfdock build --from {bundle.path}")
