"""From an image to what Bazel built: downloads, then the compile phase; each once more where memory was short."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tfdock.bazel.cache.cache_folder import check_writable, opened
from tfdock.bazel.cache.downloads import EVERYTHING, remove_changed_downloads, unchecked_since
from tfdock.bazel.cache.source_archives import (
    HOW_TO_ADD,
    addresses,
    download,
    example_row,
    has_archive,
    sum_beside,
)
from tfdock.bazel.output import failed_download
from tfdock.builder import image_phase
from tfdock.builder.build_run import BuildContainers, BuildRun, ContainerResult, ImageResult
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

_OF_THE_SOURCE = {"source-unreachable", "image-step-failed", "download-failed", "fetch-failed"}
"""Codes of failures that another source ref may not have."""


_RULES = "--include=WORKSPACE* --include=*.bzl --include=*.bazel"
_MOST_RULES = 1 << 20
"""Bytes of the rules beside an address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResult:
    """An image whose build has all its downloads. `seconds` are those of the phases until now."""

    image: ImageResult
    seconds: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileResult:
    """What the compile phase left, beside the files. `seconds` are those of the phases until now."""

    image: ImageResult
    attempts: tuple[Mapping[str, Any], ...]
    """The limits of each attempt to compile, and how it ended: rows of the build record."""
    cache_was_empty: bool
    remote: Mapping[str, object] | None
    """What went over to a remote cache and executor."""
    seconds: Mapping[str, float]


# --- fetch ----------------------------------------------------------------------------------------------------------


def compile_source(run: BuildRun) -> CompileResult:
    """Fetch and compile the first source ref that works; one that does not compile is left if the profile says so."""
    tried, refs = 0, run.plan.source_refs
    while True:
        fetched = prepare_source(run, after=tried, compiles=True)
        tried = fetched.image.source_number
        try:
            return _compile_wheel(run, fetched)
        except BuildFailed as error:
            leaves = run.plan.resolution.source.leaves_failed_compile and tried < len(refs)
            # A bundle has one ref.
            if not leaves or run.request.inputs or error.problems[0].code != "compile-failed":
                raise
            reason = error.problems[0].message.partition("\n")[0]
            run.tell(f"source {refs[tried - 1]} does not compile ({reason}); trying {refs[tried]}")
        # Neither its results nor its errors are those of the next one.
        run.folders.staging.remove()
        run.runner.output.clear()


def prepare_source(run: BuildRun, after: int = 0, *, compiles: bool = False) -> FetchResult:
    """Run the image and the fetch phase for the first source ref that can be had, configured and analysed.

    The first `after` refs are left out. `compiles`: see `make_image`.
    """
    inputs = run.request.inputs
    refs = (inputs.source_ref,) if inputs else run.plan.source_refs
    for number, ref in [*enumerate(refs, start=1)][after:]:
        try:
            image = image_phase.make_image(run, ref, number, compiles=compiles)
            _, seconds = run.timed("fetch", partial(_fetch, run, image))
            return FetchResult(image=image, seconds={"image": image.seconds, "fetch": seconds})
        except (BuildFailed, NetworkError) as error:
            if number == len(refs) or error.problems[0].code not in _OF_THE_SOURCE:
                raise
            reason = error.problems[0].message.partition("\n")[0]
            run.tell(f"source {ref} does not work ({reason}); trying {refs[number]}")
    raise AssertionError("a plan has a source ref to try")


def _fetch(run: BuildRun, image: ImageResult) -> None:
    """Fetch, one build after the other: Bazels that fill one repository cache get in each other's way."""
    waiting = run.runner.waiting("fetch", "fetches into the same cache")
    lock = run.session.cache.root / "locks" / "repository"
    own, repository = run.request.repository is not None, run.request.repository or run.session.cache.repository
    containers = BuildContainers(run, image)
    with held(lock, "the repository cache", alone=True, waiting=waiting):
        if run.session.engine_info.local:  # an engine elsewhere has its caches there
            # A build may have shut folders of the cache. Three levels lead to `content_addressable/sha256/<hash>`.
            open_up(repository.resolve(), 3)
            check_writable(repository, 3)
        _unpack_external(containers)
        _put_source_archives(containers, repository)
        # It outlives a tfdock that is killed before it has looked: the next fetch looks at what that one left too.
        unchecked = run.folders.own / "unchecked" if own else lock.with_suffix(".unchecked")
        began = unchecked_since(unchecked)
        try:
            _run_fetch(containers)
        # Also after a failed fetch: what it left would be there for the next build.
        finally:
            # On an engine elsewhere the host cannot look; Bazel checks each entry before it uses it.
            if run.session.engine_info.local:
                for name in remove_changed_downloads(repository, began):
                    why = "it holds more than fetches leave" if name == EVERYTHING else "it is not what its name says"
                    message = f"removed {name} from the repository cache: {why}"
                    run.tell(str(Problem("repository-cache-changed", message)))
            # Only now: until here, a kill leaves the file, and the next fetch looks again.
            unchecked.unlink()


def _put_source_archives(containers: BuildContainers, repository: Path) -> None:
    """Put archives whose own addresses are dead into the repository cache, before Bazel asks for them."""
    run = containers.run
    mirror, check = run.session.settings.archives, partial(run.runner.check, "fetch")
    rows = source_archives_of(run.session.knowledge, run.plan.resolution.release)
    # Nobody is known to have an archive without an address. A bundle has them all: it was made by a fetch.
    rows = tuple(row for row in rows if addresses(row, mirror))
    if not rows or run.request.inputs:
        return
    is_local, folder = run.session.engine_info.local, run.folders.own / "archives"
    place = repository.resolve() if is_local else folder
    make_folder(place)
    with opened(place) as cache:
        for row in rows:
            if not has_archive(cache, row):
                run.tell(f"{row.archive} is no longer at its own address; downloading it from another one")
                download(row, cache, mirror, check)
    if not is_local:
        # The cache of an engine elsewhere is reached through its containers alone.
        fetch = containers.spec(run.plan.phases[0])
        copy = ("/bin/sh", "-c", f"cp -R {GIVEN}/. {REPOSITORY_CACHE}/")
        mounts = (*fetch.mounts, Mount(source=str(folder), target=GIVEN, read_only=True, given=True))
        spec = replace(fetch, name=f"{fetch.name}-archives", command=copy, mounts=mounts, network="none")
        containers.run_container(spec, "fetch", "archives whose own addresses are dead").raise_failure()
        remove_folder(folder)


def _run_fetch(containers: BuildContainers) -> None:
    """Run the fetch phase; once more, with more heap or fewer jobs, if it had too little memory."""
    run = containers.run
    failure = containers.run_phase(_phase(run, run.plan), run.plan).failure
    if isinstance(failure, OutOfMemory):
        plan = _with_less(run, run.plan, failure, "fetching")
        failure = containers.run_phase(_phase(run, plan), plan).failure
    if failure:
        raise _with_lost_archive(containers, failure)


def _phase(run: BuildRun, plan: BuildPlan) -> Phase:
    """Return the fetch phase of a plan, through the mirror of this machine's settings."""
    fetch, mirror = plan.phases[0], run.session.settings.archives
    # With a bundle nothing comes from a network.
    if mirror is None or run.request.inputs:
        return fetch
    return through_mirror(fetch, mirror, plan.resolution.bazel, run.session.knowledge)


def _with_lost_archive(containers: BuildContainers, failure: TfdockError) -> TfdockError:
    """Return a failed fetch; if a download failed, with the archive, its sum, and how to name another address."""
    run = containers.run
    found = failed_download((*run.runner.output.errors, *run.runner.output.tail))
    if found is None or not isinstance(failure, BuildFailed | NetworkError):
        return failure
    url, sha256 = found
    sha256 = sha256 or _sum_in_source(containers, url)
    row = example_row(url, sha256, run.plan.resolution.release.release)
    problem, *others = failure.problems
    message = f"{problem.message}\n  archive: {url}, sha256 {sha256 or 'beside the address in the source'}"
    # Only after what may help at once: the server may be back soon.
    fix = f"if the address is dead for good, add {HOW_TO_ADD}: `{row}`"
    failure.problems = (replace(problem, message=message, fixes=(*problem.fixes, fix)), *others)
    return failure


def _sum_in_source(containers: BuildContainers, url: str) -> str:
    """Return the sum that the source in the image gives an address; empty if it cannot be found."""
    script = f'cd {SOURCE} && grep -rhF -B20 -A20 {_RULES} -e "$0" . | head -c {_MOST_RULES} >{STAGING}/rules'
    expected = ExpectedFiles(pattern="rules", size=_MOST_RULES)
    spec = containers.beside("rules", ("/bin/sh", "-c", script, url), expected)
    # The failed download is the error to tell, whatever happens here.
    with suppress(TfdockError, OSError):
        containers.run_container(spec, "fetch", "the sum of an archive").raise_failure()
        return sum_beside((containers.run.folders.results / "rules").read_text("utf-8", "replace"), url)
    return ""


def _unpack_external(containers: BuildContainers) -> None:
    """Unpack, in a container, the downloads that repository rules keep outside Bazel's cache."""
    run = containers.run
    inputs = run.request.inputs
    archive = inputs.external() if inputs else None
    if archive is None:
        return
    folder = run.folders.own / "given"
    make_folder(folder)
    with (folder / EXTERNAL.pattern).open("wb") as sink:
        for chunk in archive:
            sink.write(chunk)
    unpack = containers.beside("unpack", unpacking(), given=folder)
    containers.run_container(unpack, "fetch", "what repository rules fetched").raise_failure()
    remove_folder(folder)


# --- compile --------------------------------------------------------------------------------------------------------


def _compile_wheel(run: BuildRun, fetched: FetchResult) -> CompileResult:
    """Run the compile phase; return its attempts and its figures."""
    result, seconds = run.timed("compile", partial(_compile, run, fetched))
    return replace(result, seconds={**fetched.seconds, "compile": seconds})


def _compile(run: BuildRun, fetched: FetchResult) -> CompileResult:
    """Compile; once more, with half the jobs and from the cache, if something was killed for memory."""
    session, image = run.session, fetched.image
    # Asked again: other builds may have ended, or begun, since this one did.
    plan = session.fitted(run.plan)
    disk = run.disk_cache(image.toolchain)
    disk.note_build(plan.build_id)
    # A domain reads the cache of `release` as well, so that the build is cold only if both are empty.
    caches = [cache for cache in (disk, disk.release) if cache]
    cache_was_empty = session.engine_info.local and all(cache.is_empty() for cache in caches)
    containers = BuildContainers(run, image)
    last = containers.run_phase(plan.phases[1], plan)
    attempts = [_attempt(plan, last)]
    if isinstance(error := last.failure, OutOfMemory):
        plan = _with_less(run, plan, error, "compiling")
        # Nothing that the killed attempt left may count as a result of the second.
        run.folders.staging.remove()
        last = containers.run_phase(plan.phases[1], plan)
        attempts.append(_attempt(plan, last))
    last.raise_failure()
    return CompileResult(
        image=image,
        attempts=tuple(attempts),
        cache_was_empty=cache_was_empty,
        remote=last.remote,
        seconds=fetched.seconds,
    )


def _with_less(run: BuildRun, plan: BuildPlan, error: OutOfMemory, doing: str) -> BuildPlan:
    """Return the plan of a second attempt, and tell it. Raise the error if nothing can shrink."""
    less = after_memory(plan.resources, of_bazel=error.of_bazel)
    if less is None:
        raise error
    run.tell(f"{error.problems[0].message}; {doing} again with {less.jobs}, from the cache")
    # Errors of the first attempt must not explain a failure of the second.
    run.runner.output.clear()
    return with_resources(plan, less, run.session.knowledge)


def _attempt(plan: BuildPlan, result: ContainerResult) -> dict[str, Any]:
    """Return the limits of an attempt and how it ended, as the build record has them."""
    limits, failure = plan.resources, result.failure
    ended = failure.problems[0].message if failure else "well"
    return {
        "jobs": limits.jobs,
        "cpus": limits.cpus,
        "memory": limits.memory,
        "heap": limits.heap,
        "ended": ended,
    }
