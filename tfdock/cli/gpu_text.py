"""GPUs on the command line: read their names, and print how each runs a wheel."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tfdock.cli.console import Style, clean
from tfdock.errors import ProfileError, joined
from tfdock.gpu.compatibility import Compatibility, LibraryService
from tfdock.gpu.devices import local_words, title
from tfdock.host import hardware
from tfdock.knowledge.gpu_rows import Gpu
from tfdock.knowledge.release_rows import Estimate
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.resolve.advice import AdvisedWheel, gpus_named, same_official
from tfdock.types import Host

if TYPE_CHECKING:
    from tfdock.plan.prepare import Preparer, WrittenProfile
    from tfdock.profile.profile import Profile
    from tfdock.resolve.resolution import Resolution

ASIDE = " " * 5  #: The indent of a continued fix or reason.
_TARGETS = {"cuda": "compute_capability", "rocm": "gfx"}  #: What a GPU's target is called in JSON.


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedGpus:
    """A GPU that the user named. `host` is this machine if the GPU was only named as `local`."""

    gpu: Gpu
    host: Host | None = None


def requested_gpus(base: KnowledgeBase, words: Sequence[str]) -> tuple[RequestedGpus, ...]:
    """Return the GPUs that the words name (names, capabilities, `local`, also separated by commas), each once.

    Raise ProfileError for an unknown name, with the nearest names, and where `local` finds no GPU.
    """
    names = [name.strip() for word in words for name in word.split(",") if name.strip()]
    if "local" not in names:
        return tuple(RequestedGpus(gpu=gpu) for gpu in gpus_named(base, names))
    others = [name for name in names if name != "local"]
    here = _local_names(base)
    named = gpus_named(base, others) if others else ()
    gpus = gpus_named(base, [*others, *here])
    # The driver here says nothing of a GPU that the user named for another machine.
    return tuple(RequestedGpus(gpu=gpu, host=None if gpu in named else hardware.local_host()) for gpu in gpus)


def _local_names(base: KnowledgeBase) -> tuple[str, ...]:
    """Return the names of this machine's GPUs, from its drivers. Raise ProfileError if there are none."""
    names = local_words(base, hardware.local_gpus())
    if not names:
        message, fix = "`local` found no GPU on this machine", "name it, such as `rtx3080`"
        raise ProfileError.of("gpu-local-none", message, fix, field="gpu")
    return names


def pip_install(wheel: AdvisedWheel) -> str:
    """Return the `pip` command that installs an official wheel."""
    return shlex.join(["pip", "install", wheel.requirement, *wheel.pins])


def official_note(base: KnowledgeBase, profile: Profile, resolution: Resolution) -> str:
    """Return the line which says that an official wheel makes a build needless; empty where none does."""
    same = same_official(base, profile, resolution)
    if not same:
        return ""
    wheel = same.wheel
    beside = f"; {' and '.join(wheel.needs)} must be installed beside it" if wheel.needs else ""
    asked = ["tfdock", "advise", "--gpu", ",".join(same.gpus), "--tensorflow", wheel.version]
    more = f"; `{shlex.join(asked)}` says its limits, and what it needs to see the GPU" if same.limited else ""
    runs = f"the official wheel of TensorFlow {wheel.version} runs on {joined(same.gpus)}"
    return f"no build is needed: {runs}: `{pip_install(wheel)}`{beside}{more}"


def python_note(preparer: Preparer, written: WrittenProfile, resolution: Resolution) -> str:
    """Return the line which says that a wheel is for another Python than this one; empty if the user chose it."""
    here = "{}.{}".format(*sys.version_info)
    chosen = not preparer.chose_python(written.file) or here not in resolution.release.pythons
    if chosen or resolution.python == here:
        return ""
    newest = f"Python {resolution.python}, the newest that TensorFlow {resolution.version} takes"
    return f"the wheel is for {newest}; tfdock itself runs with Python {here}: `--python {here}` builds for that"


def notes_of(preparer: Preparer, written: WrittenProfile, resolution: Resolution) -> Iterator[str]:
    """Yield notes before a build: an official wheel is enough, or the wheel is for another Python."""
    official = official_note(preparer.knowledge, written.profile, resolution)
    yield from filter(None, (official, python_note(preparer, written, resolution)))


# --- for programs ---------------------------------------------------------------------------------------------------


def gpu_json(service: Compatibility, libraries: Sequence[LibraryService] | None = None) -> dict[str, Any]:
    """Return how a GPU runs a wheel, for a JSON document; `libraries` has each library."""
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
    """Return such as `RTX 5080 (12.0) with TensorFlow 2.19.1: the official wheel runs …`.

    `jit` is how long a first start takes.
    """
    time = f", for {jit.value:g} {jit.unit}" if jit else ""
    words = {
        "native": style.good(f"{wheel} runs natively, by {service.by}"),
        "native-same-major": style.good(f"{wheel} runs on it without a build, by {service.by}"),
        "ptx-jit": style.warn(f"{wheel} has no machine code for it and compiles at its first start{time}"),
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
