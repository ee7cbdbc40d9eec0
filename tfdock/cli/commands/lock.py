"""The `lock` command: pin what a build downloads, in a file beside the profile."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Annotated, Any

import typer

from tfdock.builder.locking import WrittenLock, check_lock, check_names, write_lock
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
from tfdock.host.settings import Settings
from tfdock.plan.lock_file import Lock
from tfdock.plan.wish import Wish


@app.command(epilog="Example: `tfdock lock my.yaml`, commit my.lock, then `tfdock build --locked my.yaml`.")
@command("tfdock.lock/1", "wheelhouse", "cache_dir", "knowledge", "allow_paths", "allow_endpoints")
def lock(
    settings: Settings,
    wish: Wish,
    profiles: SomeProfiles = None,
    check: Annotated[bool, typer.Option("--check", help="Only check whether a pin has moved.")] = False,
    allow_untested: AllowUntested = False,
    as_json: AsJson = False,
) -> None:
    """Builds the image, compiles nothing."""
    # Check before the first lock is written: two profiles with one lock file would overwrite each other's pins.
    names = profile_names(profiles, wish)
    check_names(names)
    preparer = preparer_for(settings, allow_untested=allow_untested, wish=wish)
    results, codes = [], []
    with stoppable() as stop, shown_progress() as listen:
        session = session_for(settings, preparer.knowledge, stop)
        for name in names:
            try:
                stop.check()
                if check:
                    file = check_lock(name, preparer, settings)
                    console.say(f"{console.Style(sys.stderr).good('up to date')}  {file.lock.build_id}")
                    results.append(_row(name, file.path, file.lock))
                else:
                    written = write_lock(name, preparer, session, listen)
                    _show(written)
                    results.append(_row(name, str(written.path), written.lock) | {"moved": written.differences})
            except TfdockError as error:
                codes.append(int(error.exit_code))
                console.show_problems(error.problems)
                results.append(_refusal_row(name, error))
                continue
            if not as_json:
                console.say(results[-1]["file"], stream=sys.stdout)
    print_result("tfdock.lock/1", {"locks": results}, (), as_json=as_json, ok=not codes)
    raise typer.Exit(combined_exit_code(codes))


def _row(name: str, file: str, lock: Lock) -> dict[str, Any]:
    return {
        "profile": name,
        "file": file,
        "ok": True,
        "build_id": lock.build_id,
        "fingerprint": lock.fingerprint,
        "knowledge": lock.knowledge,
        "pins": [{"pin": pin.kind, "name": pin.name, "value": pin.value, "from": pin.origin} for pin in lock.pins],
        "moved": [],
        "problems": [],
    }


def _refusal_row(name: str, error: TfdockError) -> dict[str, Any]:
    unknown = dict.fromkeys(("file", "build_id", "fingerprint", "knowledge"))
    return {"profile": name, "ok": False, **unknown, "pins": [], "moved": [], "problems": error.problems}


def _show(written: WrittenLock) -> None:
    style = console.Style(sys.stderr)
    console.say(f"{style.good('locked')}  {written.lock.build_id}")
    counts = Counter(pin.kind for pin in written.lock.pins)
    console.say(*console.table([(kind, str(count)) for kind, count in counts.items()]))
    if written.differences:
        console.say(f"  {style.warn('moved')} since the last lock:")
        for difference in written.differences:
            text = console.clean(
                f"{difference.pin}: {difference.locked or 'not there'} → {difference.found or 'gone'}"
            )
            console.tell(f"    {text}", indent="      ")
