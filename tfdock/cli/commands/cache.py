"""The `cache list`, `verify`, `prune` and `clean` commands: Bazel's caches on this machine."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from tfdock.bazel.cache import maintenance as cache_care
from tfdock.bazel.cache.cache_folder import CacheFolder, DiskCache
from tfdock.bazel.cache.cache_pruning import read_age, read_size
from tfdock.bazel.cache.maintenance import Listing, PrunedCache, VerifiedCache, verify_cache
from tfdock.cli import console
from tfdock.cli.app import AsJson, command, local_engine, print_json, stoppable
from tfdock.cli.lazy_commands import cache_group
from tfdock.engine.address import remote_engine_address
from tfdock.engine.protocol import IMAGE_LABEL, Engine, ImageInfo
from tfdock.errors import EngineError, ExitCode, Locked, Problem, ProfileError
from tfdock.host.files import held
from tfdock.host.settings import Settings
from tfdock.host.untrusted_folders import folder_size
from tfdock.run.journal import living_runs

Toolchain = Annotated[
    str | None, typer.Option("--toolchain", help="Only the disk caches with this toolchain key.", metavar="KEY")
]


@cache_group.callback()
def _of_this_machine() -> None:
    # No docstring: typer would print it in the help of the group.
    where = remote_engine_address()
    if where:
        console.tell(
            f"note: the engine runs on another machine, {where}. Its caches are in volumes there (`docker volume ls "
            f"--filter label=io.tfdock.cache`). This command shows the cache on this machine"
        )


# --- list -----------------------------------------------------------------------------------------------------------


@cache_group.command("list", epilog="Example: `tfdock cache list`.")
@command("tfdock.cache-list/1", "cache_dir")
def list_(settings: Settings, as_json: AsJson = False) -> None:
    cache = CacheFolder.existing(settings.cache_dir)
    document: dict[str, Any] = {
        "cache": str(settings.cache_dir.absolute()),
        "size": 0,
        "parts": cache.parts() if cache else {},
        "toolchains": [_toolchain(cache_care.listing(disk)) for disk in cache.disks()] if cache else [],
        "outputs": _outputs(settings, cache) if cache else [],
    }
    document["size"] = sum(document["parts"].values())
    if as_json:
        print_json("tfdock.cache-list/1", True, document)
    else:
        _show(document)


def _toolchain(listing: Listing) -> dict[str, Any]:
    described = dict(listing.disk.description())
    trust = described.pop("trust", None)
    return {
        "key": listing.disk.key,
        "domain": listing.disk.domain,
        # The reason why the domain is not `release`, or the source that shares `release` on purpose.
        "reasons": trust.get("reasons", []) if isinstance(trust, dict) else [],
        "toolchain": described,
        "size": listing.size,
        "actions": len(listing.actions),
        "blobs": len(listing.blobs),
        "used": None if listing.used is None else console.moment(listing.used),
        "builds": [],
    }


def _outputs(settings: Settings, cache: CacheFolder) -> list[dict[str, Any]]:
    outputs = cache_care.outputs(cache)
    alive = living_runs(settings.state_dir) if outputs else set()
    return [
        {
            "run": output.run,
            "size": output.size,
            "changed": console.moment(output.changed),
            "in_use": output.run in alive or _is_held(cache.output_lock(output.run)),
        }
        for output in outputs
    ]


def _is_held(lock: Path) -> bool:
    """Return whether a build works in an output base that outlives its run."""
    if not lock.exists():
        return False
    try:
        # A shared lock: several commands may look at the same time.
        with held(lock, "", alone=False):
            return False
    except Locked:
        return True
    except OSError:  # a cache that is not writable cannot be in use by a build
        return False


def _show(document: dict[str, Any]) -> None:
    style = console.Style(sys.stdout)
    console.result(f"{style.strong(document['cache'])}  {console.size(document['size'])}")
    for row in document["toolchains"]:
        _show_toolchain(row, style)
    rows = [
        ("build", output["run"], console.size(output["size"]), _output_state(output))
        for output in document["outputs"]
    ]
    if rows:
        console.result(f"\n{style.strong('output bases')}")
        _table(rows)
    others = [
        (name, console.size(size)) for name, size in document["parts"].items() if name not in ("disk", "output")
    ]
    if others:
        console.result("")
        _table(others)


def _output_state(output: dict[str, Any]) -> str:
    return "in use" if output["in_use"] else f"changed {_ago(output['changed'])}; `tfdock cache prune` removes it"


def _show_toolchain(row: dict[str, Any], style: console.Style) -> None:
    toolchain = row["toolchain"]
    known = toolchain.get("bazel") and toolchain.get("base")
    description = console.clean(f"Bazel {toolchain['bazel']} in {toolchain['base']}") if known else "not described"
    size = console.size(row["size"])
    title = f"\n{style.strong(row['key'])}  {size}, {row['actions']} actions, used {_ago(row['used'])}: {description}"
    console.result(title)
    if row["reasons"]:
        reasons = console.clean("; ".join(map(str, row["reasons"])))
        shared = row["domain"] == "release"
        console.result(
            f"  shared by `--trust`: {reasons}" if shared else f"  trust domain {row['domain']}: {reasons}"
        )


def _table(rows: Iterable[tuple[str, ...]]) -> None:
    console.say(*console.table([tuple(map(console.clean, row)) for row in rows]), stream=sys.stdout)


def _ago(moment: str | None) -> str:
    return "never" if moment is None else console.ago(datetime.fromisoformat(moment).timestamp())


# --- verify ---------------------------------------------------------------------------------------------------------


@cache_group.command(epilog="Example: `tfdock cache verify --repair`.")
@command("tfdock.cache-verify/1", "cache_dir")
def verify(
    settings: Settings,
    toolchain: Toolchain = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Remove damaged entries, and the entries that need them.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print each damaged entry. The exit status is 4 if an entry is damaged."""
    cache = CacheFolder.existing(settings.cache_dir)
    results = []
    with stoppable(kept="the entries checked so far are unchanged") as stop:
        for disk in _select_disks(cache, toolchain):
            # Builds may run while entries are read, but not while entries are removed.
            with disk.held(alone=repair):
                console.say(f"hashing {console.size(folder_size(disk.folder))} of {disk.key}")
                results.append(verify_cache(disk, repair=repair, check=stop.check))
    findings = [finding for result in results for finding in result.findings]
    # With `--repair`, all damaged entries have been removed.
    ok = repair or not any(finding.harms for finding in findings)
    if as_json:
        rows = [
            {**asdict(result), "findings": [_finding(finding) for finding in result.findings]} for result in results
        ]
        print_json("tfdock.cache-verify/1", ok, {"repaired": repair, "toolchains": rows})
    else:
        for result in results:
            _show_verified(result, repair=repair)
        if not results:
            console.tell(f"{settings.cache_dir} has no disk cache yet")
        else:
            console.tell(
                "note: this check finds damaged entries, but not results that a build forged. Only builds of the "
                "same trust domain use forged results"
            )
    raise typer.Exit(ExitCode.OK if ok else ExitCode.VERIFICATION)


def _finding(finding: Any) -> dict[str, Any]:
    return {**asdict(finding), "path": str(finding.path), "harms": finding.harms}


def _select_disks(cache: CacheFolder | None, toolchain: str | None) -> list[DiskCache]:
    disks = cache.disks() if cache else []
    # A toolchain key without a domain means the caches of all domains.
    chosen = [disk for disk in disks if toolchain in (None, disk.key, disk.toolchain)]
    if toolchain and not chosen:
        raise ProfileError.of(
            "cache-toolchain-unknown",
            f"the cache has no entries of the toolchain {console.clean(toolchain)}",
            f"choose one of {', '.join(disk.key for disk in disks)}" if disks else "build something first",
        )
    return chosen


def _show_verified(result: VerifiedCache, *, repair: bool) -> None:
    style = console.Style(sys.stdout)
    bad = [finding for finding in result.findings if finding.harms]
    word = style.bad("not sound") if bad else style.good("sound")
    counts = f"{result.actions} actions, {result.blobs} blobs, {console.size(result.size)}"
    console.result(f"{result.toolchain}  {word}: {counts}")
    for finding in result.findings:
        console.result(f"  {finding.kind}: {console.clean(str(finding.path))}: {console.clean(finding.text)}")
    if result.removed:
        console.result(f"  removed {result.removed} entries; the next build creates them again")
    elif bad and not repair:
        console.tell(f"  fix: `tfdock cache verify --repair --toolchain {result.toolchain}` removes them")


# --- prune ----------------------------------------------------------------------------------------------------------


@cache_group.command(epilog="Example: `tfdock cache prune --max-size 20GiB --older-than 30d`.")
@command("tfdock.cache-prune/1", "cache_dir")
def prune(
    settings: Settings,
    max_size: Annotated[
        str | None,
        typer.Option(
            "--max-size", help="Remove entries until the whole cache takes no more than this size.", metavar="20GiB"
        ),
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", help="Remove entries that were not used for this long.", metavar="30d"),
    ] = None,
    images: Annotated[
        bool, typer.Option("--images", help="Also remove unnamed images that failed or replaced builds left.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Remove nothing. Print what would be removed.")] = False,
    as_json: AsJson = False,
) -> None:
    limit = None if max_size is None else read_size(max_size)
    before = None if older_than is None else time.time() - read_age(older_than)
    cache = CacheFolder.existing(settings.cache_dir)
    # Only images need an engine: caches can be pruned without one.
    engine = local_engine() if images else None
    with ExitStack() as locks:
        pruned = None
        if cache:
            locks.enter_context(cache_care.alone(cache, cache.disks()))
            pruned = cache_care.prune(cache, max_size=limit, before=before, dry_run=dry_run)
        gone = _prune_images(engine, dry_run=dry_run) if engine else []
    if as_json:
        document = {"dry_run": dry_run, "images": gone, **_pruned_json(pruned)}
        print_json("tfdock.cache-prune/1", True, document)
    else:
        _show_pruned(pruned, gone, dry_run=dry_run)
    if pruned and not pruned.reached:
        held = f"the cache still holds {console.size(pruned.left)}, above the limit of {console.size(limit or 0)}"
        fix = "remove old downloads with `--older-than`, or everything with `tfdock cache clean`"
        warning = Problem("cache-size-not-reached", f"{held}: downloads stay", fix, severity="warning")
        console.show_problems([warning])


def _prune_images(engine: Engine, *, dry_run: bool) -> list[ImageInfo]:
    """Remove our images without a name, except those that a container uses; return the removed ones."""
    gone = []
    for image in engine.dangling(IMAGE_LABEL):
        try:
            if not dry_run:
                engine.remove_image(image.id)
        # An engine refuses to remove an image that a container uses.
        except EngineError as error:
            console.tell(f"{image.id[:19]} stays: {error.problems[0].message}")
        else:
            gone.append(image)
    return gone


def _pruned_json(pruned: PrunedCache | None) -> dict[str, Any]:
    if pruned is None:
        return {"size": 0, "left": 0, "reached": True, "toolchains": [], "outputs": [], "downloads": 0}
    return {
        "size": pruned.size,
        "left": pruned.left,
        "reached": pruned.reached,
        "toolchains": [
            {
                "key": disk.toolchain,
                "size": disk.size,
                "actions": len(disk.actions),
                "blobs": len(disk.blobs),
                "builds": [],
            }
            for disk in pruned.disks
        ],
        "outputs": [{"run": output.run, "size": output.size} for output in pruned.outputs],
        "downloads": pruned.downloads,
    }


def _show_pruned(pruned: PrunedCache | None, images: list[ImageInfo], *, dry_run: bool) -> None:
    document = _pruned_json(pruned)
    would = "would remove" if dry_run else "removed"
    for row in document["toolchains"]:
        if row["size"]:
            removed = f"{row['actions']} actions and {row['blobs']} blobs, {console.size(row['size'])}"
            console.result(f"{row['key']}  {would} {removed}")
    for row in document["outputs"]:
        console.result(f"output of {row['run']}  {would} {console.size(row['size'])}")
    if document["downloads"]:
        console.result(f"downloads  {would} {console.size(document['downloads'])}")
    if images:
        console.result(f"{would} {len(images)} images without a name")
    left = f", {console.size(document['left'])} are left" if pruned else ""
    console.result(f"{would} {console.size(document['size'])}{left}")


# --- clean ----------------------------------------------------------------------------------------------------------


@cache_group.command(epilog="Example: `tfdock cache clean --toolchain 0123456789abcdef --yes`.")
@command("tfdock.cache-clean/1", "cache_dir")
def clean(
    settings: Settings,
    toolchain: Toolchain = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """The next build compiles everything again."""
    cache = CacheFolder.existing(settings.cache_dir)
    chosen = _select_disks(cache, toolchain)
    size = 0
    if cache and toolchain:
        size = sum(folder_size(disk.folder) for disk in chosen)
        named = ", ".join(str(disk.folder) for disk in chosen)
        _confirm(f"remove {named}, {console.size(size)}?", yes=yes)  # before the lock: builds do not wait for it
        with ExitStack() as locks:
            # Take all locks before the first removal, so that a running build stops the command in time.
            for disk in chosen:
                locks.enter_context(disk.held(alone=True))
            for disk in chosen:
                cache_care.remove_disk(disk)
    elif cache:
        size = sum(cache.parts().values())
        _confirm(f"remove everything in {cache.root}, {console.size(size)}?", yes=yes)
        with cache_care.alone(cache, chosen):
            cache_care.clean(cache)
    if as_json:
        print_json("tfdock.cache-clean/1", True, {"toolchain": toolchain, "size": size})
    else:
        console.result(f"removed {console.size(size)}")


def _confirm(question: str, *, yes: bool) -> None:
    """Ask the user, and exit if the answer is no. Without a terminal, raise ProfileError unless `--yes` is given."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise ProfileError.of("cache-clean-unasked", "no terminal to ask for confirmation", "add `--yes`")
    # Standard output is for results.
    console.release()
    if not typer.confirm(question, err=True):
        raise typer.Exit(ExitCode.OK)
