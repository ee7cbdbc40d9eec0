"""From what the compile phase left to a wheel that others see: sealed, verified, with its record."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from tfdock import __version__
from tfdock.builder import build_summary
from tfdock.builder.build_run import Run
from tfdock.errors import BuildFailed, Problem, WheelRefused
from tfdock.host.files import file_sha256, write_atomically
from tfdock.host.untrusted_folders import remove_folder
from tfdock.plan.build_plan import EPOCH, BuildPlan, as_json, described_toolchain
from tfdock.plan.estimate import weight
from tfdock.plan.local_source import listing_hash, tree_listing
from tfdock.run.phases import announced
from tfdock.run.results import RunFolders
from tfdock.verify import verification as verify
from tfdock.verify.trial_container import MEMORY, TrialEnvironment
from tfdock.wheel import wheel as wheel_files
from tfdock.wheelhouse import build_record
from tfdock.wheelhouse.publication import publish
from tfdock.wheelhouse.store import WheelFile

Sealed = Mapping[Path, WheelFile]
"""Wheels that could be published, still in the staging folder."""


def sealed(run: Run) -> Sealed:
    """From what the container left to wheels that could be published."""
    stopper = run.steps.stopper(gently=lambda: run.steps.give_up("seal"))
    wheels = run.steps.watch(
        run.title("seal"),
        lambda _: sealed_wheels(run.plan, run.folders, run.name),
        stopper,
        on_engine=False,
    )
    for wheel in wheels.values():
        run.session.wheelhouse.check_free(run.plan.build_id, wheel, run.plan.trust.name)
    return wheels


def sealed_wheels(plan: BuildPlan, folders: RunFolders, run: str) -> dict[Path, WheelFile]:
    """Check the marker and the sums, normalise each wheel, and check it against its own RECORD.

    Returns where each sealed wheel lies, outside the wheelhouse. Raises BuildFailed without a marker of this run, and
    WheelRefused for a wheel that is not sound or not the one asked for.
    """
    results = folders.results
    if _text(results / "done").strip() != run:
        raise _unfinished("the compile container exited without writing its completion marker")
    sums = {name: digest for digest, _, name in (line.partition("  ") for line in _lines(results / "SHA256SUMS"))}
    sealed = {}
    for raw in sorted((results / "raw").glob("*.whl")):
        if file_sha256(raw) != sums.get(raw.name):
            message = f"{raw.name} changed after it was built"
            raise WheelRefused(Problem(code="wheel-changed", message=message, fix="build again"))
        path, wheel = _sealed(plan, raw, folders.sealed)
        sealed[path] = wheel
    if not sealed:
        raise _unfinished("the compile container left no wheel")
    return sealed


def _unfinished(message: str) -> BuildFailed:
    fix = "run the same command again: it goes on from the cache"
    return BuildFailed(Problem(code="build-unfinished", message=message, fix=fix))


def _sealed(plan: BuildPlan, raw: Path, folder: Path) -> tuple[Path, WheelFile]:
    folder.mkdir(0o700, exist_ok=True)
    target = folder / "wheel"
    try:
        name = _normalized(plan, raw, target)
        with target.open("rb") as file:
            facts = wheel_files.read_wheel(file, name)
    except InvalidWheelFilename as error:
        raise WheelRefused(
            Problem(code="wheel-bad-name", message=str(error), fix="report this with the log")
        ) from error
    except wheel_files.WheelError as error:
        raise WheelRefused(Problem(code=error.code, message=f"{raw.name}: {error.message}", fix=error.fix)) from error
    _check(plan, name, facts)
    return target.rename(folder / name), WheelFile(file=name, sha256=facts.sha256, size=facts.size)


def _normalized(plan: BuildPlan, raw: Path, target: Path) -> str:
    """Write the wheel anew, byte for byte repeatable, with its local version; returns its name."""
    local = plan.resolution.local_version
    version = f"{parse_wheel_filename(raw.name)[1].public}+{local}" if local else None
    with raw.open("rb") as source, target.open("w+b") as sink:
        return wheel_files.normalize(source, raw.name, sink, epoch=EPOCH, version=version)


def _check(plan: BuildPlan, name: str, facts: wheel_files.WheelFacts) -> None:
    python = plan.resolution.python
    tags = facts.python_tag.split(".")
    if f"cp{python.replace('.', '')}" not in tags and not any(tag in ("py3", "py2") for tag in tags):
        raise WheelRefused(
            Problem(
                code="wheel-wrong-python",
                message=f"{name} is for {facts.python_tag}, the profile asks for Python {python}",
                fix="the release chooses its Python in another way: report this with the plan and the log",
            )
        )
    if not facts.record_ok:
        first = facts.record_problems[0]
        message = f"{name}: {first.path}: {first.message}"
        raise WheelRefused(Problem(code=first.code, message=message, fix="build again; if it stays, report it"))


def _text(path: Path) -> str:
    return path.read_text("utf-8", "replace") if path.is_file() else ""


def _lines(path: Path) -> list[str]:
    return _text(path).splitlines()


# --- verify ---------------------------------------------------------------------------------------------------------


def published(run: Run, wheels: Sealed) -> dict[str, Any]:
    """Verify the wheels and make them visible; their record. A stop is obeyed until they are."""
    verification = _verified(run, wheels)
    record = _record(run, wheels, verification)
    account = _account(run, record)
    record |= {"bazel": account.bazel, "kept": dict(account.kept)}
    run.session.stop.check()
    publish(run.session.wheelhouse, run.plan.build_id, record, wheels, account.files)
    return record


def _verified(run: Run, wheels: Sealed) -> dict[str, Any]:
    """What was found of the wheels; those that fail are kept aside and refused."""
    session, inputs, began = run.session, run.request.inputs, run.session.clock()
    bench = TrialEnvironment(
        steps=run.steps,
        info=session.engine_info,
        settings=session.settings,
        folder=run.folders.own / "verify",
        memory=min(MEMORY, run.plan.resources.memory),
        given=inputs.images if inputs else None,
        bundle=inputs.identity if inputs else "",
    )
    found = [verify.verified_build(bench, session.knowledge, run.plan, path) for path in wheels]
    run.seconds["verify"] = round(session.clock() - began, 3)
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
    folder = run.session.wheelhouse.record_folder(run.plan.build_id, run.plan.fingerprint) / "refused"
    remove_folder(folder)
    folder.mkdir(parents=True)
    text = json.dumps(verification, indent=1, sort_keys=True)
    write_atomically(folder / "verification.json", text.encode() + b"\n")
    return tuple(path.rename(folder / wheel.file) for path, wheel in wheels.items())


def _account(run: Run, record: Mapping[str, Any]) -> build_summary.Account:
    """What happened in the build; an execution log takes its time to be read."""
    traces = build_summary.RunTraces(
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
        lambda _: build_summary.account(record, traces, run.session.wheelhouse),
        stopper,
        on_engine=False,
    )


def _listing(run: Run) -> dict[str, str] | None:
    """The files of a local checkout, if they are still those that were built."""
    tree = run.request.prepared.tree
    listing = tree_listing(tree) if tree else None
    return listing if listing and listing_hash(listing) == run.plan.resolution.source.sha256 else None


def _record(run: Run, wheels: Sealed, verification: Mapping[str, Any]) -> dict[str, Any]:
    """The build record: no secret, no path of this machine."""
    plan, info, lock = run.plan, run.session.engine_info, run.request.prepared.lock
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
        "lock": lock.sha256 if lock else None,
        "seconds": dict(run.seconds),
        "attempts": run.attempts + len(run.compiled_with) - 1,
        "resources": run.compiled_with,
        "at_once": run.session.at_once,
        "estimate": _estimated(run),
        "remote": run.remote,
        "machine": {"cpus": info.cpus, "memory": info.memory},
        "engine": {"name": info.name, "version": info.version, "local": info.local},
        "untested": [problem.message for problem in plan.resolution.untested],
        # Equal contents are equal bytes only from the same implementation.
        "deflate": wheel_files.deflate_backend(),
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
        "weight": round(weight(run.plan, run.session.knowledge), 3),
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
