"""GPUs on the command line: read their names, and print how each runs a wheel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tfdock.cli.console import Style, clean
from tfdock.errors import ProfileError
from tfdock.gpu.compatibility import Compatibility, LibraryService
from tfdock.gpu.devices import joined_words, local_words, title
from tfdock.host import hardware
from tfdock.knowledge.gpu_rows import Gpu, OtherDevice
from tfdock.knowledge.release_rows import Estimate
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.resolve.advice import gpus_named
from tfdock.types import Host

ASIDE = " " * 5  #: The indent of a continued fix or reason.
_TARGETS = {"cuda": "compute_capability", "rocm": "gfx"}  #: The JSON key of a GPU's target.


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedGpus:
    """A GPU that the user named. `host` is this machine if the user wrote `local`."""

    gpu: Gpu
    host: Host | None = None


def requested_gpus(base: KnowledgeBase, words: Sequence[str]) -> tuple[RequestedGpus, ...]:
    """Return the GPUs that the words name, each once.

    A word is a name, a capability or `local`; commas may separate words. Raise ProfileError if a name is unknown
    (with the nearest names), or if `local` finds no GPU.
    """
    names = split_names(words)
    others = joined_words(base, [name for name in names if name != "local"])
    if "local" not in names:
        return tuple(RequestedGpus(gpu=gpu) for gpu in gpus_named(base, others))
    here = local_names(base)
    named = gpus_named(base, others) if others else ()
    gpus = gpus_named(base, [*others, *here])
    # This machine's driver is irrelevant for a GPU that the user named for another machine.
    return tuple(RequestedGpus(gpu=gpu, host=None if gpu in named else hardware.local_host()) for gpu in gpus)


def split_names(words: Sequence[str]) -> list[str]:
    """Return the names in words, which commas may separate."""
    return [name.strip() for word in words for name in word.split(",") if name.strip()]


def local_names(base: KnowledgeBase) -> tuple[str, ...]:
    """Return the names of this machine's GPUs, from its drivers. Raise ProfileError if there are none."""
    names = local_words(base, hardware.local_gpus())
    if not names:
        message, fix = "`local` found no GPU on this machine", "name the GPU, such as `rtx3080`"
        raise ProfileError.of("gpu-local-none", message, fix, field="gpu")
    return names


# --- for programs ---------------------------------------------------------------------------------------------------


def gpu_json(service: Compatibility, libraries: Sequence[LibraryService] | None = None) -> dict[str, Any]:
    """Return how a GPU runs a wheel, and how it runs each library in `libraries`, for a JSON document."""
    gpu = service.gpu
    document: dict[str, Any] = {
        "name": gpu.gpu,
        _TARGETS.get(gpu.accelerator, "target"): gpu.target,
        "runs": service.runs,
        "by": service.by,
        "reason": service.reason,
        "limits": service.all_limits,
    }
    if libraries is not None:
        document["libraries"] = libraries
    return document


# --- for people -----------------------------------------------------------------------------------------------------


def answer(
    base: KnowledgeBase,
    service: Compatibility,
    style: Style,
    *,
    wheel: str,
    release: str = "",
    jit: Estimate | None = None,
) -> str:
    """Return a sentence such as `RTX 5080 (12.0) with TensorFlow 2.19.1: the official wheel runs …`.

    `jit` is the time of a first start.
    """
    time = f", for {jit.value:g} {jit.unit}" if jit else ""
    words = {
        "native": style.good(f"{wheel} runs natively, by {service.by}"),
        "native-same-major": style.good(f"{wheel} runs on it without a build, because of {service.by}"),
        "ptx-jit": style.warn(f"{wheel} has no machine code for it: the driver compiles at the first start{time}"),
        "no": style.bad(f"{wheel} does not run on it"),
    }[service.runs]
    words = style.warn(f"{wheel} {service.unjudged}") if service.unjudged else words
    gpu = service.gpu
    name = title(base, gpu)
    target = "" if name == gpu.target else f" ({gpu.target})"
    return f"{style.strong(name)}{target}{f' with TensorFlow {release}' if release else ''}: {words}."


def reasons(service: Compatibility, style: Style) -> Iterator[tuple[str, str]]:
    """Yield (line, indent of its continuation): the reason, every limit, and the driver."""
    yield f"  {style.strong('why:')} {clean(service.reason)}", ASIDE
    for limit in service.limits:
        yield f"  {style.warn('limit:')} {clean(limit)}", " " * 7
    for driver in service.driver:
        yield f"  {style.strong('needs:')} {clean(driver)}", " " * 7


def topic_lines(base: KnowledgeBase, topic: OtherDevice, version: str | None = None) -> Iterator[str]:
    """Yield what is known about a topic, for each release or for the release of a version, and what to do."""
    yield f"{topic.device}: {topic.says}."
    yield from (f"  {fact}" for fact in base.facts(topic, version))
    yield ""
    yield f"{topic.instead[:1].upper()}{topic.instead[1:]}."
