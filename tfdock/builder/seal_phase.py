"""From what the compile phase left to a wheel that others see: sealed, verified, with its record."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfdock import __version__
from tfdock.builder.build_run import Run
from tfdock.host.beneath import remove_folder
from tfdock.host.files import write_atomically
from tfdock.plan.build_plan import BuildPlan, as_json, described_toolchain
from tfdock.plan.estimate import weight
from tfdock.plan.local_source import listing_hash, tree_listing
from tfdock.run.phases import announced
from tfdock.wheelhouse import build_record
from tfdock.wheelhouse.store import WheelFile

if TYPE_CHECKING:
    from tfdock.builder.build_summary import Account

Sealed = Mapping[Path, WheelFile]
"""Wheels that could be published, still in the staging folder."""


def sealed(run: Run) -> Sealed:
    """From what the container left to wheels that could be published."""
    # Here, not above: what is up to date is told without the modules that know wheels.
    from tfdock.builder import seal

    stopper = run.steps.stopper(gently=lambda: run.steps.give_up("seal"))
    wheels = run.steps.watch(
        run.title("seal"),
        lambda _: seal.sealed_wheels(run.plan, run.folders, run.name),
        stopper,
        on_engine=False,
    )
    for wheel in wheels.values():
        run.builder.wheelhouse.check_free(run.plan.build_id, wheel, run.plan.trust.name)
    return wheels


def published(run: Run, wheels: Sealed) -> dict[str, Any]:
    """Verify the wheels and make them visible; their record. A stop is obeyed until they are."""
    verification = _verified(run, wheels)
    record = _record(run, wheels, verification)
    account = _account(run, record)
    record |= {"bazel": account.bazel, "kept": dict(account.kept)}
    run.builder.stop.check()
    run.builder.wheelhouse.publish(run.plan.build_id, record, wheels, account.files)
    return record


def _verified(run: Run, wheels: Sealed) -> dict[str, Any]:
    """What was found of the wheels; those that fail are kept aside and refused."""
    from tfdock.verify import verification as verify
    from tfdock.verify.environment import MEMORY, Bench

    builder, began = run.builder, run.builder.clock()
    bench = Bench(
        steps=run.steps,
        info=builder.engine_info,
        settings=builder.settings,
        folder=run.folders.own / "verify",
        memory=min(MEMORY, run.plan.resources.memory),
        given=run.given.images if run.given else None,
        bundle=run.given.identity if run.given else "",
    )
    found = [verify.verified_build(bench, builder.knowledge, run.plan, path) for path in wheels]
    run.seconds["verify"] = round(builder.clock() - began, 3)
    verification = verify.combined(found)
    if not all(one.ok for one in found):
        raise verify.refusal(found, _kept(run, wheels, verification))
    for one in found:
        for problem in one.impossible.problems if one.impossible else ():
            ways = f"; {problem.fix}" if problem.fix else ""
            run.tell(f"the wheel was not tried in a container: {problem.message}{ways}")
    return verification


def _kept(run: Run, wheels: Sealed, verification: Mapping[str, object]) -> tuple[Path, ...]:
    """Keep wheels that were refused, with what was found: hours of work are for somebody to look at."""
    folder = run.builder.wheelhouse.record_folder(run.plan.build_id, run.plan.fingerprint) / "refused"
    remove_folder(folder)
    folder.mkdir(parents=True)
    text = json.dumps(verification, indent=1, sort_keys=True)
    write_atomically(folder / "verification.json", text.encode() + b"\n")
    return tuple(path.rename(folder / wheel.file) for path, wheel in wheels.items())


def _account(run: Run, record: Mapping[str, Any]) -> Account:
    """What happened in the build; an execution log takes its time to be read."""
    from tfdock.builder import build_summary

    traces = build_summary.Traces(
        run=run.name,
        results=run.folders.results,
        log=run.log,
        compiling=announced(run.title("compile")),
        toolchain=run.toolchain_file,
        context=run.plan.context.files,
        files=_listing(run),
        cache_was_empty=run.cache_was_empty,
    )
    stopper = run.steps.stopper(gently=lambda: run.steps.give_up("verify"))
    return run.steps.watch(
        run.title("account"),
        lambda _: build_summary.account(record, traces, run.builder.wheelhouse),
        stopper,
        on_engine=False,
    )


def _listing(run: Run) -> dict[str, str] | None:
    """The files of a local checkout, if they are still those that were built."""
    listing = tree_listing(run.tree) if run.tree else None
    return listing if listing and listing_hash(listing) == run.plan.resolution.source.sha256 else None


def _record(run: Run, wheels: Sealed, verification: Mapping[str, Any]) -> dict[str, Any]:
    """The build record: no secret, no path of this machine."""
    from tfdock.builder import seal

    plan, info = run.plan, run.builder.engine_info
    return {
        "schema": build_record.SCHEMA,
        "build_id": plan.build_id,
        "fingerprint": plan.fingerprint,
        "tfdock": __version__,
        "log": run.log.name,
        "wheels": [asdict(wheel) for wheel in wheels.values()],
        "plan": without_places(plan),
        "toolchain_key": run.toolchain,
        "toolchain": described_toolchain(run.toolchain_file),
        "base_digest": run.base_digest,
        "source": {"ref": run.source_ref, "found": run.source_found},
        "lock": run.lock.sha256 if run.lock else None,
        "seconds": dict(run.seconds),
        "attempts": run.attempts + len(run.compiled_with) - 1,
        "resources": run.compiled_with,
        "at_once": run.builder.at_once,
        "estimate": _estimated(run),
        "remote": run.remote,
        "machine": {"cpus": info.cpus, "memory": info.memory},
        "engine": {"name": info.name, "version": info.version, "local": info.local},
        "untested": [problem.message for problem in plan.resolution.untested],
        "deflate": seal.deflate_backend(),
        "verification": verification,
        "started": _utc(run.steps.started),
        "finished": _utc(time.time()),
    }


def _estimated(run: Run) -> dict[str, Any]:
    """What the build was expected to take when it began, and how much there was to compile beside a CPU build."""
    known = run.expected
    return {
        "seconds": dict(known.seconds) if known else None,
        "source": known.source if known else None,
        "weight": round(weight(run.plan, run.builder.knowledge), 3),
    }


_USER = re.compile(r"(?<=://)[^/@\s]*@")
"""User and password in a web address."""


def without_places(plan: BuildPlan) -> Any:
    """The plan as JSON, without where a local checkout lies on this machine, and without anybody's password."""
    source = plan.resolution.source
    local = json.dumps(source.location)[1:-1] if source.kind == "path" else None
    text = json.dumps(as_json(plan))
    return json.loads(_USER.sub("", text.replace(f'"{local}"', '"local checkout"') if local else text))


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
