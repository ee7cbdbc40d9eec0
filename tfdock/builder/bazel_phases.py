"""The phases that run Bazel: `fetch` downloads and analyses everything; `compile` compiles without a network."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tfdock.bazel.cache.cache_folder import check_writable, opened
from tfdock.bazel.cache.downloads import EVERYTHING, remove_changed_downloads, unchecked_since
from tfdock.bazel.cache.source_archives import HOW_TO_ADD, addresses, example_row, sum_beside
from tfdock.bazel.output import failed_download
from tfdock.builder.build_run import BuildRun, ImageResult, container_beside, phase_container, run_container
from tfdock.errors import BuildFailed, NetworkError, OutOfMemory, Problem, TfdockError
from tfdock.host.files import held, make_folder
from tfdock.host.untrusted_folders import open_up, remove_folder
from tfdock.knowledge.fits import source_archives_of
from tfdock.plan.build_plan import (
    EXTERNAL,
    GIVEN,
    REPOSITORY_CACHE,
    SOURCE,
    STAGING,
    BuildPlan,
    Phase,
    through_mirror,
    unpacking,
    with_resources,
)
from tfdock.plan.resources import after_memory
from tfdock.types import ExpectedFiles, Mount

_RULES = "--include=WORKSPACE* --include=*.bzl --include=*.bazel"
_MOST_RULES = 1 << 20  #: The most bytes of Bazel rules to read around an address.


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileResult:
    """The results of the compile phase, besides the files."""

    #: For each attempt to compile: its limits and its result. These are rows of the build record.
    attempts: tuple[Mapping[str, Any], ...]
    cache_was_empty: bool
    remote: Mapping[str, object] | None  #: The traffic to and from a remote cache and executor.


# --- fetch ----------------------------------------------------------------------------------------------------------


def fetch_downloads(run: BuildRun, image: ImageResult) -> None:
    """Run the fetch phase. If memory runs out, retry once, with more heap or fewer jobs.

    Only one build fetches at a time: several Bazels that fill the same cache disturb each other.
    """
    waiting = run.supervisor.waiting("fetch", "fetches into the same cache")
    lock = run.session.cache.root / "locks" / "repository"
    own, repository = run.request.repository is not None, run.request.repository or run.session.cache.repository
    with run.phase("fetch"), held(lock, "the repository cache", alone=True, waiting=waiting):
        if run.session.engine_info.local:  # an engine on another machine has its caches there
            # A build may have removed permissions. Three levels lead to `content_addressable/sha256/<hash>`.
            open_up(repository.resolve(), 3)
            check_writable(repository, 3)
        _unpack_external(run, image)
        _put_source_archives(run, image, repository)
        # The file remains if tfdock is killed before the check. The next fetch then also checks those downloads.
        unchecked = run.folders.own / "unchecked" if own else lock.with_suffix(".unchecked")
        began, attempt = unchecked_since(unchecked), run
        try:
            while True:
                try:
                    run_container(attempt, phase_container(attempt, image, _fetch_phase(attempt)), "fetch")
                    break
                except OutOfMemory as error:
                    if attempt is not run:
                        raise
                    attempt = _with_less(run, error, "fetching")
        except (BuildFailed, NetworkError) as error:
            if error.problems[0].code in ("fetch-failed", "download-failed"):
                _name_lost_archive(run, image, error)
            raise
        # Also check after a failed fetch: the next build would use its downloads.
        finally:
            # The host cannot check files on a remote engine; Bazel checks each entry before use.
            if run.session.engine_info.local:
                for name in remove_changed_downloads(repository, began):
                    why = (
                        "the cache has more names than fetches can leave"
                        if name == EVERYTHING
                        else "the content does not match the name"
                    )
                    message = f"removed {name} from the repository cache: {why}"
                    run.tell(str(Problem("repository-cache-changed", message)))
            # Remove the file only now: after a kill before this point, the next fetch checks again.
            unchecked.unlink()


def _put_source_archives(run: BuildRun, image: ImageResult, repository: Path) -> None:
    """Put archives whose own addresses are dead into the repository cache, before Bazel asks for them."""
    mirror, check = run.session.settings.archives, partial(run.supervisor.check, "fetch")
    rows = source_archives_of(run.session.knowledge, run.plan.resolution.release)
    # An archive without an address cannot be downloaded. A bundle already has these archives: a fetch made it.
    rows = tuple(row for row in rows if addresses(row, mirror))
    if not rows or run.request.inputs:
        return
    # Imported here: only a few releases have such archives, and other builds download nothing themselves.
    from tfdock.bazel.cache.archive_download import download, has_archive

    is_local, folder = run.session.engine_info.local, run.folders.own / "archives"
    place = repository.resolve() if is_local else folder
    make_folder(place)
    with opened(place) as cache:
        for row in rows:
            if not has_archive(cache, row):
                run.tell(f"{row.archive} is no longer at its own address: it is downloaded from another address")
                download(row, cache, mirror, check)
    if not is_local:
        # For an engine on another machine, only containers on that machine reach the cache.
        spec = phase_container(run, image, run.plan.fetch, network=False)
        copy = ("/bin/sh", "-c", f"cp -R {GIVEN}/. {REPOSITORY_CACHE}/")
        mounts = (*spec.mounts, Mount(source=str(folder), target=GIVEN, read_only=True, given=True))
        spec = replace(spec, name=f"{spec.name}-archives", command=copy, mounts=mounts)
        run_container(run, spec, "fetch", "archives with dead addresses")
        remove_folder(folder)


def _fetch_phase(run: BuildRun) -> Phase:
    """Return the fetch phase of the plan, through the mirror of this machine's settings."""
    fetch, mirror = run.plan.fetch, run.session.settings.archives
    # With a bundle, nothing is downloaded.
    if mirror is None or run.request.inputs:
        return fetch
    return through_mirror(fetch, mirror, run.plan.resolution.bazel, run.session.knowledge)


def _name_lost_archive(run: BuildRun, image: ImageResult, failure: TfdockError) -> None:
    """Add the archive, its sha256 and a way to set another address to the error of a failed download."""
    found = failed_download((*run.supervisor.output.errors, *run.supervisor.output.tail))
    if found is None:
        return
    url, sha256 = found
    sha256 = sha256 or _sum_in_source(run, image, url)
    row = example_row(url, sha256, run.plan.resolution.release.release)
    problem, *others = failure.problems
    message = f"{problem.message}\n  archive: {url}, sha256 {sha256 or 'unknown: see the source, near this URL'}"
    # This fix comes last: the server may be back soon.
    fix = f"if the address never works again, add {HOW_TO_ADD}: `{row}`"
    failure.problems = (replace(problem, message=message, fixes=(*problem.fixes, fix)), *others)


def _sum_in_source(run: BuildRun, image: ImageResult, url: str) -> str:
    """Return the sha256 for an address in the image's source; empty if it is not found."""
    script = f'cd {SOURCE} && grep -rhF -B20 -A20 {_RULES} -e "$0" . | head -c {_MOST_RULES} >{STAGING}/rules'
    expected = ExpectedFiles(pattern="rules", size=_MOST_RULES)
    spec = container_beside(run, image, "rules", ("/bin/sh", "-c", script, url), expected)
    # Report the failed download, whatever happens here.
    with suppress(TfdockError, OSError):
        run_container(run, spec, "fetch", "the sha256 of an archive")
        return sum_beside((run.folders.results / "rules").read_text("utf-8", "replace"), url)
    return ""


def _unpack_external(run: BuildRun, image: ImageResult) -> None:
    """Unpack, in a container, the downloads that repository rules keep outside Bazel's cache."""
    inputs = run.request.inputs
    archive = inputs.external() if inputs else None
    if archive is None:
        return
    folder = run.folders.own / "given"
    make_folder(folder)
    with (folder / EXTERNAL.pattern).open("wb") as sink:
        for chunk in archive:
            sink.write(chunk)
    unpack = container_beside(run, image, "unpack", unpacking(), given=folder)
    run_container(run, unpack, "fetch", "the downloads of repository rules")
    remove_folder(folder)


# --- compile --------------------------------------------------------------------------------------------------------


def compile_wheel(run: BuildRun, image: ImageResult) -> CompileResult:
    """Run the compile phase. If memory runs out, retry once from the cache, with half the jobs."""
    with run.phase("compile"):
        session = run.session
        # Compute the share again: other builds may have ended or started meanwhile.
        attempt = replace(run, plan=session.fitted(run.plan, run.supervisor.listen))
        disk = run.disk_cache(image.toolchain)
        disk.note_build(run.plan.build_id)
        # A domain also reads the cache of `release`, so the build is cold only if both caches are empty.
        caches = [cache for cache in (disk, disk.release) if cache]
        cache_was_empty = session.engine_info.local and all(cache.is_empty() for cache in caches)
        attempts: list[Mapping[str, Any]] = []
        while True:
            try:
                remote = run_container(attempt, phase_container(attempt, image, attempt.plan.compile), "compile")
                break
            except OutOfMemory as error:
                if attempts:
                    raise
                attempts.append(_attempt_row(attempt.plan, error.problems[0].message))
                attempt = _with_less(attempt, error, "compiling")
                # Remove the results of the killed attempt, so that they do not count for the second attempt.
                run.folders.container_results.remove()
        attempts.append(_attempt_row(attempt.plan, "well"))
        return CompileResult(attempts=tuple(attempts), cache_was_empty=cache_was_empty, remote=remote)


def _attempt_row(plan: BuildPlan, ended: str) -> dict[str, Any]:
    """Return the limits of an attempt and how it ended, as the build record has them."""
    limits = plan.resources
    return {
        "jobs": limits.jobs,
        "cpus": limits.cpus,
        "memory": limits.memory,
        "heap": limits.heap,
        "ended": ended,
    }


def _with_less(run: BuildRun, error: OutOfMemory, doing: str) -> BuildRun:
    """Report and return the run with the plan of a second attempt. Raise the error if nothing can shrink."""
    less = after_memory(run.plan.resources, of_bazel=error.of_bazel)
    if less is None:
        raise error
    run.tell(f"{error.problems[0].message}; {doing} again with {less.jobs} from the cache")
    # Errors of the first attempt must not explain a failure of the second.
    run.supervisor.output.clear()
    return replace(run, plan=with_resources(run.plan, less, run.session.knowledge))
