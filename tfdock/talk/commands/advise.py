"""`advise`: whether an official wheel runs on a GPU, and which profile would do better."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tfdock.errors import Problem, ProfileError
from tfdock.talk import console
from tfdock.talk.app import AsJson, Knowledge, app, command, knowledge_for, print_json, settings_for

if TYPE_CHECKING:
    from tfdock.decide.advise import Advice, GpuAdvice, SizePlan, Wheel
    from tfdock.read.knowledge import Estimate, Gpu, KnowledgeBase

_MARK = "# Written by `tfdock advise`"


@app.command(epilog="Example: `tfdock advise --gpu rtx5080 --tensorflow 2.19 -o rtx5080.yaml`.")
@command("tfdock.advise/1")
def advise(
    more: Annotated[
        list[str] | None, typer.Argument(help="More GPUs.", metavar="[NAME]…", show_default=False)
    ] = None,
    gpu: Annotated[
        list[str] | None,
        typer.Option("--gpu", help="A GPU's name; may be repeated; `local`: this machine's.", metavar="NAME"),
    ] = None,
    tensorflow: Annotated[
        str | None, typer.Option(help="A release; the newest by default.", metavar="X", show_default=False)
    ] = None,
    python: Annotated[
        str | None, typer.Option(help="The Python the wheel is for.", metavar="Y", show_default=False)
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the profile to this file.", metavar="FILE")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that advise did not write.")] = False,
    knowledge: Knowledge = None,
    as_json: AsJson = False,
) -> None:
    """Say how an official wheel runs on a GPU, and which profile would do better."""
    from tfdock.decide.advise import advise as advice_for
    from tfdock.decide.advise import gpus_named

    base = knowledge_for(settings_for(knowledge=knowledge))
    gpus = gpus_named(base, _names([*(gpu or []), *(more or [])]))
    _check_versions(tensorflow=tensorflow, python=python)
    advice = advice_for(base, gpus, tensorflow=tensorflow, python=python)
    if output is not None and advice.offer is not None:
        _write(output, advice.offer.text, force=force)
        console.tell(f"wrote {output}")
    elif output is not None:
        console.tell(f"wrote no {output}: there is no profile that `tfdock check` would accept")
    if as_json:
        print_json("tfdock.advise/1", True, _document(base, advice, output))
        return
    columns = console.width(sys.stdout)
    for line, indent in _lines(base, advice, output):
        for part in console.wrapped(line, columns, indent):
            console.say(part, stream=sys.stdout)


def _names(words: Sequence[str]) -> list[str]:
    """The names asked for, commas between them or not; `local` is what this machine's drivers tell."""
    names = [name.strip() for word in words for name in word.split(",") if name.strip()]
    if "local" not in names:
        return names
    from tfdock.do.machine import local_gpus

    found = list(dict.fromkeys(local_gpus()))
    if not found:
        message, fix = "`--gpu local` found no GPU on this machine", "name it: `--gpu rtx3080`"
        raise ProfileError(Problem(code="gpu-local-none", message=message, fix=fix, field="gpu"))
    return [*(name for name in names if name != "local"), *found]


def _check_versions(**versions: str | None) -> None:
    """What is no version cannot be looked up, and shall not come into a profile."""
    import re

    for name, text in versions.items():
        if text is not None and not re.fullmatch(r"\d+\.\d+(\.\d+)?", text, re.ASCII):
            fix = "write it as `2.19` or `2.19.1`" if name == "tensorflow" else "write it as `3.11`"
            raise ProfileError(
                Problem(code="profile-bad-value", message=f"`--{name} {text}` is no version", fix=fix, field=name)
            )


# --- the file -------------------------------------------------------------------------------------------------------


def _write(path: Path, text: str, *, force: bool) -> None:
    """Write the profile; what nobody wrote but us, and nobody changed since, is replaced."""
    from tfdock.do.workspace import write_atomically

    if path.exists() and not path.is_file():
        message, fix = f"cannot write {path}: it is no regular file", "give the name of a file"
        raise ProfileError(Problem(code="file-error", message=message, fix=fix))
    taken = path.exists() or path.is_symlink()
    if taken and not force and not _is_ours(path):
        message = f"`{path}` is there already, and not as `tfdock advise` wrote it"
        fix = "give another name, or replace it with `--force`"
        raise ProfileError(Problem(code="advise-file-exists", message=message, fix=fix, file=str(path)))
    try:
        # Through a link, if it is one: what is replaced is the file.
        write_atomically(path.resolve(), f"{_MARK} ({_digest(text)}).\n{text}".encode())
    except OSError as error:
        message, fix = f"cannot write {path}: {error.strerror}", "check the folder, its owner and its mode"
        raise ProfileError(Problem(code="file-error", message=message, fix=fix)) from error


def _is_ours(path: Path) -> bool:
    if path.is_symlink():
        return False
    try:
        first, _, rest = path.read_text("utf-8").partition("\n")
    except (OSError, UnicodeDecodeError):
        return False
    return first == f"{_MARK} ({_digest(rest)})."


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


# --- for programs ---------------------------------------------------------------------------------------------------


def _document(base: KnowledgeBase, advice: Advice, output: Path | None) -> dict[str, Any]:
    gpus = [_gpu_json(one) for one in advice.gpus]
    offer = advice.offer
    return {
        "tensorflow": advice.version,
        "python": advice.python,
        "build_needed": not advice.needs_no_build,
        "gpus": gpus,
        **({"gpu": gpus[0]} if len(gpus) == 1 else {}),
        "wheel": _wheel_json(advice.wheel),
        "native_wheel": _wheel_json(advice.native) if advice.native else None,
        "profile": offer.text if offer else None,
        "profile_tensorflow": str(offer.resolution.version) if offer else None,
        "build_id": offer.resolution.build_id if offer else None,
        "profile_file": str(output) if output and offer else None,
        "plan": asdict(advice.plan) if advice.plan else None,
        "alternative_plan": asdict(advice.alternative) if advice.alternative else None,
        "untested_profile": advice.untested.text if advice.untested else None,
        "refused": [asdict(problem) for problem in advice.refused],
        "jit": _figure_json(base, advice.jit) if advice.jit else None,
        "figures": [_figure_json(base, row) for row in advice.figures],
    }


def _gpu_json(one: GpuAdvice) -> dict[str, Any]:
    target = "compute_capability" if one.capability else "gfx"
    return {
        "name": one.gpu.gpu,
        target: one.gpu.target,
        "runs": one.runs,
        "by": one.by,
        "reason": one.reason,
        "limits": list(one.limits),
    }


def _wheel_json(wheel: Wheel) -> dict[str, Any]:
    return {**asdict(wheel), "install": _install(wheel) if wheel.targets else None}


def _figure_json(base: KnowledgeBase, row: Estimate) -> dict[str, Any]:
    return {
        "estimate": row.estimate,
        "value": row.value,
        "unit": row.unit,
        "source": _sources(base, row),
        "unverified": row.unverified,
    }


def _sources(base: KnowledgeBase, row: Estimate) -> str:
    named = base.sources("estimates")
    names = (row.source,) if isinstance(row.source, str) else row.source
    return "; ".join(named.get(name, name) for name in names)


def _install(wheel: Wheel) -> str:
    import shlex

    return shlex.join(["pip", "install", wheel.requirement, *wheel.pins])


# --- for people -----------------------------------------------------------------------------------------------------


def _lines(base: KnowledgeBase, advice: Advice, output: Path | None) -> Iterator[tuple[str, str]]:
    """(line, indentation of what is wrapped): the answer, why, what to build, and what to do."""
    style = console.Style(sys.stdout)
    for one in advice.gpus:
        yield _answer(base, advice, one, style), "  "
        yield f"  {style.strong('why:')} {one.reason}", " " * 5
        for limit in one.limits:
            yield f"  {style.warn('limit:')} {limit}", " " * 7
    if advice.python and advice.python not in advice.wheel.pythons:
        pythons = ", ".join(advice.wheel.pythons)
        text = f"there is no official wheel for Python {advice.python}, but for {pythons}"
        yield f"  {style.warn('limit:')} {text}", " " * 7
    if advice.offer is not None:
        yield "", ""
        yield from ((line, "  ") for line in _profile(advice, style))
    if advice.plan is not None:
        yield from ((line, " " * 6) for line in _size(base, advice, advice.plan, style))
    yield "", ""
    for line in _fixes(advice, output):
        yield f"{style.good('fix:')} {line}", " " * 5


def _answer(base: KnowledgeBase, advice: Advice, one: GpuAdvice, style: console.Style) -> str:
    jit = f", for {advice.jit.value:g} {advice.jit.unit}" if advice.jit else ""
    words = {
        "native": style.good(f"the official wheel runs natively, by {one.by}"),
        "native-same-major": style.good(f"the official wheel runs as it is, by {one.by}"),
        "ptx-jit": style.warn(f"the official wheel has no machine code for it and compiles at its first start{jit}"),
        "no": style.bad("the official wheel does not run on it"),
    }[one.runs]
    return f"{style.strong(_label(base, one.gpu))} ({one.gpu.target}) with TensorFlow {advice.version}: {words}."


def _label(base: KnowledgeBase, gpu: Gpu) -> str:
    """The name on the box: `GeForce RTX 5080`."""
    vendor = base.accelerators[gpu.accelerator].vendor
    return (gpu.names[0] if gpu.names else gpu.gpu).removeprefix(f"{vendor} ")


def _profile(advice: Advice, style: console.Style) -> Iterator[str]:
    offer = advice.offer
    assert offer is not None
    version = str(offer.resolution.version)
    yield f"{style.strong('profile')} for TensorFlow {version}: {offer.resolution.build_id}"
    if offer.untested:
        doubts = "; ".join(dict.fromkeys(problem.message for problem in offer.untested))
        yield f"  {style.warn('untested:')} {doubts}"
    if version != advice.version:
        reasons = "; ".join(dict.fromkeys(problem.message for problem in advice.refused))
        yield f"  not {advice.version}: {reasons}"
    for line in offer.text.splitlines():
        yield f"    {style.faint(line)}"


def _size(base: KnowledgeBase, advice: Advice, plan: SizePlan, style: console.Style) -> Iterator[str]:
    if plan.wheel_mb is None:
        yield f"{style.strong('size')}  no figure is known for such wheels"
        return
    figures = {row.estimate: row for row in advice.figures}
    parts = [f"{figures['wheel-base'].value:g} MB without GPU code"] if "wheel-base" in figures else []
    parts += [f"{entry.wheel_mb:g} MB {entry.target} ({', '.join(entry.serves)})" for entry in plan.entries]
    yield f"{style.strong('size')}  about {plan.wheel_mb:g} MB: {', '.join(parts)}"
    if plan.compile_percent is not None:
        each = figures["compile-time-per-sass"]
        total = f"about {plan.compile_percent:g} {each.unit} more"
        yield f"{style.strong('time')}  {total}: {each.value:g} for each target"
    if advice.alternative and advice.alternative.wheel_mb is not None:
        listed, size = ", ".join(advice.alternative.targets), advice.alternative.wheel_mb
        yield f"{style.strong('or')}    each GPU its own code: [{listed}], about {size:g} MB, no faster start"
    used = [row for row in advice.figures if row.estimate.startswith(("wheel-", "compile-"))]
    for row in {row.source: row for row in used}.values():
        doubt = f" ({row.unverified})" if isinstance(row.unverified, str) else ""
        yield style.faint(f"from  {_sources(base, row)}{doubt}")


def _fixes(advice: Advice, output: Path | None) -> Iterator[str]:
    offer = advice.offer
    name = str(output) if output else f"{'-'.join(one.gpu.gpu for one in advice.gpus)[:40]}.yaml"
    build = (
        f"`tfdock build {name}`" if output else f"add `-o {name}` to write the profile, then `tfdock build {name}`"
    )
    if advice.needs_no_build:
        yield f"no build is needed: `{_install(advice.wheel)}`"
        return
    yield build if offer else _nothing(advice)
    if advice.native and advice.native.release != advice.release.release:
        yield f"or take TensorFlow {advice.native.version}, whose official wheel runs: `{_install(advice.native)}`"
    if advice.python and advice.python not in advice.wheel.pythons and all(one.starts_at_once for one in advice.gpus):
        yield f"or take Python {advice.wheel.pythons[-1]}, for which there is a wheel: `{_install(advice.wheel)}`"
    if advice.untested:
        yield (
            f"or stay with {advice.version}, which nobody is known to have tested: `allow_untested: true` "
            f'and `tensorflow: "{advice.version}"` in the same profile'
        )


def _nothing(advice: Advice) -> str:
    if advice.mixed:
        return "one wheel serves one accelerator: ask for each alone"
    if advice.elsewhere:
        return "take what is published for its own kind of machine: wheels are built for the kind that builds them"
    reasons = [problem.fix or problem.message for problem in advice.refused]
    return "; ".join(dict.fromkeys(reasons)) or "no release is known that takes these GPUs"
