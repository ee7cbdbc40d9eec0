"""The seal and verify phases: from the compile phase's files to a visible wheel with its record."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from tfdock import __version__
from tfdock.builder import build_summary
from tfdock.builder.bazel_phases import CompileResult
from tfdock.builder.build_run import BuildRun, ImageResult
from tfdock.errors import BuildFailed, WheelRefused
from tfdock.gpu.opened_libraries import unsearched_limit
from tfdock.host.files import file_sha256
from tfdock.plan.build_plan import EPOCH, BuildPlan, as_json, described_toolchain
from tfdock.plan.estimate import weight
from tfdock.plan.local_source import listing_hash, tree_listing
from tfdock.run.results import RunFolders
from tfdock.run.supervisor import step_heading
from tfdock.verify import verification as verify
from tfdock.verify.trial_container import MEMORY, TrialEnvironment
from tfdock.wheel import wheel as wheel_files
from tfdock.wheel.facts import WheelError
from tfdock.wheel.zip_archive import deflate_backend
from tfdock.wheelhouse import build_record
from tfdock.wheelhouse.publication import publish
from tfdock.wheelhouse.store import WheelFile


def seal_wheels(run: BuildRun) -> dict[Path, WheelFile]:
    """Run the seal phase. Return the wheels that can be published; they are still in the run's own folder."""
    with run.phase("seal"):
        wheels = run.supervisor.watch_until_stopped(
            run.title("seal"), "seal", lambda _: sealed_wheels(run.plan, run.folders, run.name), on_engine=False
        )
        # Refuse a wheel that may not be replaced now, before the trial of some minutes.
        for wheel in wheels.values():
            run.session.wheelhouse.check_replaceable(run.plan.build_id, wheel, run.plan.trust.name)
        return wheels


def sealed_wheels(plan: BuildPlan, folders: RunFolders, run: str) -> dict[Path, WheelFile]:
    """Check the marker and the checksums. Normalise each wheel, and check the wheel against its own RECORD.

    Return the sealed wheels by path, outside the wheelhouse. Raises BuildFailed if this run wrote no marker, and
    WheelRefused for a damaged wheel, or another wheel than requested.
    """
    results = folders.results
    # The marker is the last file of the phase, with the run's name: a killed container leaves none.
    if _text(results / "done").strip() != run:
        raise _unfinished("the compile container exited without writing its completion marker")
    # sha256sum(1) separates digest and name by two characters.
    sums = {name: digest for digest, _, name in (line.partition("  ") for line in _lines(results / "SHA256SUMS"))}
    sealed = {}
    for raw in sorted((results / "raw").glob("*.whl")):
        # A process of the source may outlive Bazel, and change the wheel after its sum was taken.
        if file_sha256(raw) != sums.get(raw.name):
            message = f"{raw.name} changed after it was built"
            raise WheelRefused.of("wheel-changed", message, "build again")
        path, wheel = _seal_wheel(plan, raw, folders.sealed)
        sealed[path] = wheel
    if not sealed:
        raise _unfinished("the compile container wrote no wheel")
    return sealed


def _unfinished(message: str) -> BuildFailed:
    fix = "run the same command again: the build resumes from the cache"
    return BuildFailed.of("build-unfinished", message, fix)


def _seal_wheel(plan: BuildPlan, raw: Path, folder: Path) -> tuple[Path, WheelFile]:
    folder.mkdir(0o700, exist_ok=True)
    target = folder / "wheel"
    try:
        name = _normalize(plan, raw, target)
        with target.open("rb") as file:
            facts = wheel_files.read_wheel(file, name)
    except InvalidWheelFilename as error:
        raise WheelRefused.of("wheel-bad-name", str(error), "report this error, with the log") from error
    except WheelError as error:
        raise WheelRefused.of(error.code, f"{raw.name}: {error.message}", error.fix) from error
    _check(plan, name, facts)
    return target.rename(folder / name), WheelFile(file=name, sha256=facts.sha256, size=facts.size)


def _normalize(plan: BuildPlan, raw: Path, target: Path) -> str:
    """Write the wheel again, reproducible byte for byte, with its local version and platform. Return its name."""
    local, platform = plan.resolution.local_version, plan.resolution.platform
    # PEP 440 allows one local version, so ours replaces the source's.
    version = f"{parse_wheel_filename(raw.name)[1].public}+{local}" if local else None
    with raw.open("rb") as source, target.open("w+b") as sink:
        return wheel_files.normalize(source, raw.name, sink, epoch=EPOCH, version=version, platform=platform)


def _check(plan: BuildPlan, name: str, facts: wheel_files.WheelFacts) -> None:
    python = plan.resolution.python
    tags = facts.python_tag.split(".")
    if f"cp{python.replace('.', '')}" not in tags and not any(tag in ("py3", "py2") for tag in tags):
        raise WheelRefused.of(
            "wheel-wrong-python",
            f"{name} is for {facts.python_tag}, but the profile has Python {python}",
            "the build of this release used another Python than requested: report this with the plan and the log",
        )
    if not facts.record_ok:
        first = facts.record_problems[0]
        message = f"{name}: {first.path}: {first.message}"
        raise WheelRefused.of(first.code, message, "build again; if the error occurs again, report it")


def _text(path: Path) -> str:
    return path.read_text("utf-8", "replace") if path.is_file() else ""


def _lines(path: Path) -> list[str]:
    return _text(path).splitlines()


# --- verify ---------------------------------------------------------------------------------------------------------


def verify_wheels(run: BuildRun, image: ImageResult, wheels: Mapping[Path, WheelFile]) -> Mapping[str, Any]:
    """Verify the wheels; return the document. If one is bad, move the wheels aside and raise VerificationFailed."""
    session, inputs, began = run.session, run.request.inputs, run.session.clock()
    environment = TrialEnvironment(
        supervisor=run.supervisor,
        info=session.engine_info,
        settings=session.settings,
        folder=run.folders.own / "verify",
        memory=min(MEMORY, run.plan.resources.memory),
        given=inputs.images if inputs else None,
        bundle=inputs.identity if inputs else "",
    )
    verifications = [verify.verify_build(environment, session.knowledge, run.plan, path, image.id) for path in wheels]
    # Note the time before the phase ends: the record is made within the phase.
    run.seconds["verify"] = round(session.clock() - began, 3)
    _refuse_failed(run, wheels, verifications)
    return verify.combined_document(verifications)


def _refuse_failed(
    run: BuildRun, wheels: Mapping[Path, WheelFile], verifications: Sequence[verify.Verification]
) -> None:
    """Raise VerificationFailed if a wheel failed its checks; the wheels are kept aside. Report the other findings."""
    if not all(verification.ok for verification in verifications):
        kept = _keep_refused(run, wheels, verify.combined_document(verifications))
        raise verify.refusal(verifications, kept)
    for verification in verifications:
        if verification.unsearched:
            run.tell(unsearched_limit(verification.unsearched))
        for problem in verification.impossible.problems if verification.impossible else ():
            fix = f"; {problem.fix}" if problem.fix else ""
            run.tell(f"the wheel was not tried in a container: {problem.message}{fix}")


def _keep_refused(
    run: BuildRun, wheels: Mapping[Path, WheelFile], verification: Mapping[str, object]
) -> tuple[Path, ...]:
    """Keep refused wheels with their verification, so that hours of work can be examined. Return their paths."""
    folder = run.session.wheelhouse.record_folder(run.plan.build_id, run.plan.fingerprint) / "refused"
    # The folder may hold an earlier refused build of the same plan.
    folder.remove_folder()
    text = json.dumps(verification, indent=1, sort_keys=True)
    (folder / "verification.json").write(text.encode() + b"\n")
    # The run's folder is on the wheelhouse's file system, so that no gigabytes are copied.
    for path, wheel in wheels.items():
        (folder / wheel.file).receive(path)
    return tuple((folder / wheel.file).path for wheel in wheels.values())


def _summarize(
    run: BuildRun, image: ImageResult, compiled: CompileResult, record: Mapping[str, Any]
) -> build_summary.BuildSummary:
    """Return the summary of the build. Reading Bazel's files takes time, so it can be stopped."""
    traces = build_summary.RunTraces(
        run=run.name,
        results=run.folders.results,
        log=run.log,
        compiling=step_heading(run.title("compile")),
        toolchain=image.toolchain_file,
        context=run.plan.context.files,
        files=_listing(run),
        cache_was_empty=compiled.cache_was_empty,
    )
    return run.supervisor.watch_until_stopped(
        run.title("account"),
        "verify",
        lambda _: build_summary.summarize(record, traces, run.session.wheelhouse),
        on_engine=False,
    )


def _listing(run: BuildRun) -> dict[str, str] | None:
    """Return the files of a local checkout; None if they changed since the build."""
    tree = run.request.prepared.tree
    listing = tree_listing(tree) if tree else None
    # A checkout edited meanwhile would be compared with files that were not part of this build.
    return listing if listing and listing_hash(listing) == run.plan.resolution.source.sha256 else None


def publish_wheels(
    run: BuildRun,
    image: ImageResult,
    compiled: CompileResult,
    wheels: Mapping[Path, WheelFile],
    verification: Mapping[str, Any],
) -> dict[str, Any]:
    """Publish the wheels with their record, and return the record. Before that, the run can be stopped."""
    record = _record(run, image, compiled, wheels, verification)
    account = _summarize(run, image, compiled, record)
    record |= {"bazel": account.bazel, "kept": dict(account.kept)}
    run.session.stop.check()
    publish(run.session.wheelhouse, run.plan.build_id, record, wheels, account.files)
    return record


def _record(
    run: BuildRun,
    image: ImageResult,
    compiled: CompileResult,
    wheels: Mapping[Path, WheelFile],
    verification: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the build record. It holds no secret and no path of this machine."""
    plan, info, lock = run.plan, run.session.engine_info, run.request.prepared.lock
    return {
        "schema": build_record.SCHEMA,
        "build_id": plan.build_id,
        "fingerprint": plan.fingerprint,
        "tfdock": __version__,
        "log": run.log.name,
        "wheels": [asdict(wheel) for wheel in wheels.values()],
        "plan": shareable_plan(plan),
        "toolchain_key": image.toolchain,
        "toolchain": described_toolchain(image.toolchain_file),
        "base_digest": image.base_digest,
        "source": {"ref": image.source_ref, "found": image.source_commit},
        "lock": lock.sha256 if lock else None,
        "seconds": dict(run.seconds),
        "attempts": image.source_number + len(compiled.attempts) - 1,
        "resources": list(compiled.attempts),
        "at_once": run.session.at_once,
        "estimate": _estimate_row(run),
        "remote": compiled.remote,
        "machine": {"cpus": info.cpus, "memory": info.memory},
        "engine": {"name": info.name, "version": info.version, "local": info.local},
        "untested": [problem.message for problem in plan.resolution.untested],
        # Equal contents give equal bytes only with the same implementation of deflate.
        "deflate": deflate_backend(),
        "verification": verification,
        "started": _utc(run.started),
        "finished": _utc(time.time()),
    }


def _estimate_row(run: BuildRun) -> dict[str, Any]:
    """Return the estimate from before the build, and its compile work as a multiple of a CPU build."""
    expected = run.expected
    return {
        "seconds": dict(expected.seconds) if expected else None,
        "source": expected.source if expected else None,
        "weight": round(weight(run.plan.resolution, run.session.knowledge), 3),
    }


_USER = re.compile(r"(?<=://)[^/@\s]*@")  #: User and password in a URL.


def shareable_plan(plan: BuildPlan) -> Any:
    """Return the plan as JSON, without paths of a local checkout and without passwords."""
    source = plan.resolution.source
    # The text as in JSON, with escapes and without the quotes.
    local = json.dumps(source.location)[1:-1] if source.kind == "path" else None
    text = json.dumps(as_json(plan))
    return json.loads(_USER.sub("", text.replace(f'"{local}"', '"local checkout"') if local else text))


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
