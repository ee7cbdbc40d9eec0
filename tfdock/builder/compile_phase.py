"""From an image to what Bazel built: downloads, then the compile phase, once more where memory was short."""

from __future__ import annotations

from typing import Any

from tfdock.bazel.cache import cache_usage as cache_use
from tfdock.bazel.cache.cache_folder import check_writable
from tfdock.bazel.cache.downloads import EVERYTHING, removed_downloads, unchecked_since
from tfdock.builder import image_phase
from tfdock.builder.build_run import Run
from tfdock.errors import BuildFailed, NetworkError, OutOfMemory, Problem
from tfdock.host.files import held, make_folder
from tfdock.host.untrusted_folders import open_up, remove_folder
from tfdock.plan.build_plan import EXTERNAL, BuildPlan, unpacking, with_resources
from tfdock.plan.resources import after_memory

_OF_THE_SOURCE = {"source-unreachable", "image-step-failed", "download-failed", "fetch-failed"}
"""Codes of failures that another source ref may not have."""


def prepared(run: Run) -> None:
    """Have the image, and fetch, for the first source ref that can be had, configured and analysed."""
    inputs = run.request.inputs
    refs = (inputs.source_ref,) if inputs else run.plan.source_refs
    for number, ref in enumerate(refs, start=1):
        run.source_ref, run.attempts = ref, number
        try:
            run.timed("image", lambda: image_phase.have(run))
            run.timed("fetch", lambda: _fetched(run))
            return
        except (BuildFailed, NetworkError) as error:
            if number == len(refs) or error.problems[0].code not in _OF_THE_SOURCE:
                raise
            said = error.problems[0].message.partition("\n")[0]
            run.tell(f"source {ref} does not work ({said}); trying {refs[number]}")


def _fetched(run: Run) -> None:
    """Fetch, one build after the other: Bazels that fill one repository cache get in each other's way."""
    waiting = run.steps.waiting("fetch", "fetches into the same cache")
    lock = run.session.cache.root / "locks" / "repository"
    own, repository = run.request.repository is not None, run.request.repository or run.session.cache.repository
    with held(lock, "the repository cache", alone=True, waiting=waiting):
        if run.session.engine_info.local:  # an engine elsewhere has its caches there
            open_up(repository.resolve(), 3)
            check_writable(repository, 3)
        _external(run)
        # It outlives a tfdock that is killed before it has looked: the next fetch looks at what that one left too.
        unchecked = run.folders.own / "unchecked" if own else lock.with_suffix(".unchecked")
        began = unchecked_since(unchecked)
        try:
            run.carry_out(run.plan.phases[0])
        finally:
            if run.session.engine_info.local:
                for name in removed_downloads(repository, began):
                    why = "it holds more than fetches leave" if name == EVERYTHING else "it is not what its name says"
                    message = f"removed {name} from the repository cache: {why}"
                    run.tell(str(Problem(code="repository-cache-changed", message=message)))
            unchecked.unlink()


def _external(run: Run) -> None:
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
    unpack = run.beside("unpack", unpacking(), given=folder)
    run.contain(unpack, "fetch", "what repository rules fetched")
    remove_folder(folder)


def in_cache(run: Run) -> None:
    """Compile, and note what of the disk cache that used, where it lies on this machine."""
    session = run.session
    if not session.engine_info.local:
        _compiled(run)
        return
    with cache_use.watched(run.disk, run.plan.build_id, run.name) as watch:
        if not watch.seen:
            run.tell(f"{session.cache.root} keeps no times of access: {cache_use.UNSEEN}")
        _compiled(run)
        watch.ok = True


def _compiled(run: Run) -> None:
    """Compile; once more, with half the jobs and from the cache, if something was killed for memory."""
    session = run.session
    # Asked again: other builds may have ended, or begun, since this one did.
    plan = session.fitted(run.plan)
    caches = [one for one in (run.disk, run.disk.release) if one]
    run.cache_was_empty = session.engine_info.local and all(one.is_empty() for one in caches)
    try:
        _attempt(run, plan)
    except OutOfMemory as error:
        less = after_memory(plan.resources, of_bazel=error.of_bazel)
        if less is None:
            raise
        run.tell(f"{error.problems[0].message}; compiling again with {less.jobs}, from the cache")
        run.folders.staging.remove()
        run.steps.forget()
        _attempt(run, with_resources(plan, less, session.knowledge))


def _attempt(run: Run, plan: BuildPlan) -> None:
    limits = plan.resources
    tried: dict[str, Any] = {"jobs": limits.jobs, "cpus": limits.cpus, "memory": limits.memory}
    run.compiled_with.append(tried | {"heap": limits.heap, "ended": "well"})
    try:
        run.carry_out(plan.phases[1], plan)
    except OutOfMemory as error:
        run.compiled_with[-1]["ended"] = error.problems[0].message
        raise
