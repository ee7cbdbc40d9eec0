"""From an image to what Bazel built: downloads, then the compile phase, once more where memory was short."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tfdock.decide.plan import EXTERNAL, BuildPlan, unpacking, with_resources
from tfdock.decide.sizing import after_memory
from tfdock.do.build import image
from tfdock.do.build.run import Run
from tfdock.do.cache import DiskCache, check_writable
from tfdock.do.cache import use as cache_use
from tfdock.do.failures import make_folder
from tfdock.do.locking import held
from tfdock.do.workspace import remove_folder
from tfdock.errors import BuildFailed, NetworkError, OutOfMemory

_OF_THE_SOURCE = {"source-unreachable", "image-step-failed", "download-failed", "fetch-failed"}
"""Codes of failures that another source ref may not have."""


def prepared(run: Run) -> None:
    """Have the image, and fetch, for the first source ref that can be had, configured and analysed."""
    refs = (run.given.build.source_ref,) if run.given else run.plan.source_refs
    for number, ref in enumerate(refs, start=1):
        run.source_ref, run.attempts = ref, number
        try:
            run.timed("image", lambda: image.have(run))
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
    lock = run.builder.cache.root / "locks" / "repository"
    with held(lock, "the repository cache", alone=True, waiting=waiting):
        if run.builder.engine_info.local:  # an engine elsewhere has its caches there
            check_writable(run.repository or run.builder.cache.repository, 3)
        _external(run)
        run.carry_out(run.plan.phases[0])


def _external(run: Run) -> None:
    """Put what repository rules fetched past Bazel's cache where they put it: a container unpacks it."""
    archive = run.given.external() if run.given else None
    if archive is None:
        return
    make_folder(run.staging)
    file = run.staging / EXTERNAL
    with file.open("wb") as sink:
        for chunk in archive:
            sink.write(chunk)
    spec = run.container_spec(run.plan.phases[1])
    unpack = replace(spec, name=f"{spec.name}-unpack", command=unpacking())
    run.contain(unpack, "fetch", "what repository rules fetched")
    file.unlink()


def in_cache(run: Run) -> None:
    """Compile, and note what of the disk cache that used, where it lies on this machine."""
    builder = run.builder
    if not builder.engine_info.local:
        _compiled(run)
        return
    with cache_use.watched(DiskCache(builder.cache.root, run.toolchain), run.plan.build_id, run.name) as watch:
        if not watch.seen:
            run.tell(f"{builder.cache.root} keeps no times of access: {cache_use.UNSEEN}")
        _compiled(run)
        watch.ok = True


def _compiled(run: Run) -> None:
    """Compile; once more, with half the jobs and from the cache, if something was killed for memory."""
    from tfdock.do import happened

    builder = run.builder
    # Asked again: other builds may have ended, or begun, since this one did.
    plan = builder.fitted(run.plan)
    run.cache_was_empty = builder.engine_info.local and happened.is_empty(builder.cache.disk(run.toolchain).folder)
    try:
        _attempt(run, plan)
    except OutOfMemory as error:
        less = after_memory(plan.resources, of_bazel=error.of_bazel)
        if less is None:
            raise
        run.tell(f"{error.problems[0].message}; compiling again with {less.jobs}, from the cache")
        remove_folder(run.staging)
        run.steps.forget()
        _attempt(run, with_resources(plan, less, builder.knowledge))


def _attempt(run: Run, plan: BuildPlan) -> None:
    limits = plan.resources
    tried: dict[str, Any] = {"jobs": limits.jobs, "cpus": limits.cpus, "memory": limits.memory}
    run.compiled_with.append(tried | {"heap": limits.heap, "ended": "well"})
    try:
        run.carry_out(plan.phases[1], plan)
    except OutOfMemory as error:
        run.compiled_with[-1]["ended"] = error.problems[0].message
        raise
