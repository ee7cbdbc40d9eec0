"""`doctor`: what this machine lacks."""

from __future__ import annotations

import sys
from dataclasses import asdict

import typer

from tfdock.errors import combined_exit_code
from tfdock.talk import console
from tfdock.talk.app import AsJson, CacheDir, Wheelhouse, app, command, local_engine, print_json, settings_for


@app.command(epilog="Exit status: 0 nothing lacks, 6 no engine, 8 too little memory or disk.")
@command("tfdock.doctor/1")
def doctor(wheelhouse: Wheelhouse = None, cache_dir: CacheDir = None, as_json: AsJson = False) -> None:
    """Say what this machine lacks for building, and how to get it."""
    from tfdock.do.doctor import examine

    checks = list(examine(settings_for(wheelhouse=wheelhouse, cache_dir=cache_dir), local_engine()))
    failed = [check for check in checks if check.status == "failed"]
    if as_json:
        print_json("tfdock.doctor/1", not failed, {"checks": [asdict(check) for check in checks]})
    else:
        style = console.Style(sys.stdout)
        paint = {"ok": style.good, "warning": style.warn, "failed": style.bad}
        for one in checks:
            console.say(f"{paint[one.status](f'{one.status:<7}')}  {one.name}: {one.found}", stream=sys.stdout)
            if one.status != "ok":
                console.say(f"         fix: {one.fix}", stream=sys.stdout)
    raise typer.Exit(combined_exit_code(check.exit_code for check in failed))
