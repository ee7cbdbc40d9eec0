"""The `inspect` command: the contents of a wheel, and how a GPU runs it.

It needs neither a GPU nor CUDA, and writes nothing.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from tfdock.cli import console
from tfdock.cli.app import AsJson, app, command, knowledge_for, print_json
from tfdock.cli.gpu_text import RequestedGpus, answer, gpu_json, reasons, requested_gpus
from tfdock.errors import ExitCode, as_document
from tfdock.gpu.compatibility import coverage, coverage_rows, library_verdicts, serve
from tfdock.gpu.gpu_facts import XLA_TRACE, brought_by, facts_of_wheel
from tfdock.gpu.opened_libraries import own_libraries, unsearched_limit
from tfdock.host.settings import Settings
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.verify.manylinux import audit
from tfdock.wheel.facts import GpuCode, Library, merged
from tfdock.wheel.inspection import Inspection
from tfdock.wheel.wheel_file import inspected

Wheel = Annotated[Path, typer.Argument(help="Any wheel: your own, an official one, or anybody's.", metavar="WHEEL")]


@app.command(
    name="inspect",
    epilog="Examples: `tfdock inspect tensorflow-2.18.0-….whl`, `tfdock inspect WHEEL --gpu rtx5090`, `--gpu 8.9`, "
    "`--gpu local`. Exit status: 0 an intact wheel (whatever the GPU), 2 no such file or GPU, 4 a damaged wheel.",
)
@command("tfdock.inspect/1", "knowledge")
def inspect_(
    settings: Settings,
    wheel: Wheel,
    gpu: Annotated[
        list[str] | None,
        typer.Option(
            "--gpu",
            help="Say how this GPU runs the wheel: a name, a compute capability, or `local`. Repeatable.",
            metavar="NAME",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the GPU code by architecture, and the libraries with their requirements."""
    base = knowledge_for(settings)
    gpus = requested_gpus(base, gpu) if gpu else ()  # report a misspelt name before long work
    with console.ReadProgress(sys.stderr, wheel.name) as reading:
        # Only the verdict on a GPU needs the traces, and the search takes time.
        inspection = inspected(wheel, traces=[XLA_TRACE.encode()] if gpus else (), progress=reading)
    sound = not _damages(inspection)
    if as_json:
        print_json("tfdock.inspect/1", sound, _document(base, inspection, gpus))
    else:
        _print(_answers(base, inspection, gpus) if gpus else _lines(base, inspection))
        bad = console.Style(sys.stdout).bad("error:")
        _print((f"{bad} {console.clean(damage)}", "  ") for damage in _first_of(_damages(inspection)))
    raise typer.Exit(ExitCode.OK if sound else ExitCode.VERIFICATION)


def _print(lines: Iterable[tuple[str, str]]) -> None:
    for line, indent in lines:
        console.result(line, indent=indent)


# A wheel whose RECORD is wrong may differ in thousands of files.
def _first_of(damages: list[str], most: int = 20) -> list[str]:
    more = len(damages) - most
    return damages if more <= 0 else [*damages[:most], f"and {more} more"]


def _damages(inspection: Inspection) -> list[str]:
    """Return the damage in a wheel: files that differ from RECORD, and broken libraries."""
    record = [problem.message for problem in inspection.wheel.record_problems]
    return record + [f"{library.path}: {problem}" for library in inspection.libraries for problem in library.problems]


def _clean_list(texts: Iterable[str]) -> str:
    """Return texts from an untrusted wheel in a form that is safe for a terminal."""
    return ", ".join(map(console.clean, texts))


# --- for programs ---------------------------------------------------------------------------------------------------


def _document(base: KnowledgeBase, inspection: Inspection, gpus: Sequence[RequestedGpus]) -> dict[str, Any]:
    wheel = as_document(inspection.wheel)
    record = {"ok": wheel.pop("record_ok"), "problems": wheel.pop("record_problems")}
    tag_problem = wheel.pop("tag_problem") or None
    facts = facts_of_wheel(base, inspection)
    answers = [
        gpu_json(serve(base, request.gpu, facts, request.host), library_verdicts(base, request.gpu, inspection))
        for request in gpus
    ]
    return {
        **wheel,
        "gpu_code": code_json(merged(library.loadable for library in own_libraries(base, inspection.libraries))),
        "unread": inspection.unread,
        "libraries": libraries_json(base, inspection),
        "build_info": inspection.build_info,
        "record": record,
        "tag_problem": tag_problem,
        "unsearched": facts.unsearched,
        "requires_python": inspection.metadata.requires_python,
        "requires_dist": inspection.metadata.requires_dist,
        "extras": _extras(inspection),
        "manylinux": _manylinux(base, inspection),
        **({"gpu": answers[0]} if len(answers) == 1 else {}),
        **({"gpus": answers} if answers else {}),
    }


_EXTRA = re.compile(r"""\bextra\s*==\s*["']([^"']*)["']""")


def _extras(inspection: Inspection) -> dict[str, list[str]]:
    """Return extra -> the requirements that it installs, according to METADATA."""
    extras: dict[str, list[str]] = {extra: [] for extra in inspection.metadata.provides_extra}
    for line in inspection.metadata.requires_dist:
        installed, _, marker = map(str.strip, line.partition(";"))
        # A marker may have more conditions than the extra, such as `and python_version < "3.12"`.
        for extra in extras.keys() & set(_EXTRA.findall(marker)):
            extras[extra].append(installed)
    return extras


def _manylinux(base: KnowledgeBase, inspection: Inspection) -> dict[str, Any]:
    """Return the manylinux tag that the libraries fit, and the obstacles to the tags in the file name."""
    fact = audit(inspection, brought_by(base, inspection))
    return {"fits": None, "reason": fact} if isinstance(fact, str) else asdict(fact)


def code_json(code: GpuCode) -> dict[str, Any]:
    """Return the GPU code of a wheel for a JSON document."""
    return {"sass": code.sass, "ptx": code.ptx, "amdgpu": code.amdgpu, **as_document(code)}


#: Field -> JSON key of a library's GPU code, where the two names differ.
_CODE_KEYS = {"loadable": "gpu_code", "relocatable": "relocatable_code", "embedded": "embedded_code"}


def libraries_json(base: KnowledgeBase, inspection: Inspection) -> list[dict[str, Any]]:
    """Return the libraries of a wheel for a JSON document."""
    own = {library.path for library in own_libraries(base, inspection.libraries)}
    return [{"own": library.path in own, **_library_json(library)} for library in inspection.libraries]


def _library_json(library: Library) -> dict[str, Any]:
    facts = {field.name: getattr(library, field.name) for field in fields(library) if field.name != "versions"}
    return {
        _CODE_KEYS.get(name, name): code_json(fact) if isinstance(fact, GpuCode) else None if fact == "" else fact
        for name, fact in facts.items()
    }


# --- for people -----------------------------------------------------------------------------------------------------


def _answers(base: KnowledgeBase, inspection: Inspection, gpus: Sequence[RequestedGpus]) -> Iterator[tuple[str, str]]:
    """Yield for each GPU how it runs the wheel, why, the limits, and the libraries that run differently."""
    style = console.Style(sys.stdout)
    facts = facts_of_wheel(base, inspection)
    wheel = f"{inspection.wheel.name} {inspection.wheel.version}"
    for request in gpus:
        service = serve(base, request.gpu, facts, request.host)
        yield answer(base, service, style, wheel=wheel), "  "
        if service.unjudged:
            continue
        yield from reasons(service, style)
        chosen = {library.path for libraries in facts.choices.values() for library in libraries}
        for library in library_verdicts(base, request.gpu, inspection):
            told = library.path in chosen or (library.own and service.refused)
            if library.runs != service.runs and not told:
                whose = "" if library.own else " (bundled)"
                yield f"  {style.strong('but')} {library.path}{whose}: {library.reason}", " " * 6


def _lines(base: KnowledgeBase, inspection: Inspection) -> Iterator[tuple[str, str]]:
    style = console.Style(sys.stdout)
    wheel = inspection.wheel
    tags = "-".join((wheel.python_tag, wheel.abi_tag, wheel.platform_tag))
    yield f"{style.strong(wheel.name)} {wheel.version}  {tags}", "  "
    yield from _table([(style.strong(name), text) for name, text in _facts(base, inspection, style)])
    own = own_libraries(base, inspection.libraries)
    code = merged(library.loadable for library in own)
    yield "", ""
    yield from _code(code, style)
    facts = facts_of_wheel(base, inspection)
    if facts.choices:
        yield _note(f"the wheel has libraries for {', '.join(facts.choices)}, and loads only one set", style)
    if facts.unsearched:
        yield _note(console.clean(unsearched_limit(facts.unsearched)), style)
    apart = merged(library.embedded for library in own if library.embedded)
    if apart.images:
        held = ", ".join((*apart.sass, *apart.ptx, *apart.amdgpu))
        count = sum(container.count for container in apart.containers)
        more = f"the constants of the libraries contain {count} more containers of GPU code"
        yield _note(f"{more}, as is usual for MLIR's kernels: {held}", style)
    covered = coverage(base, facts)
    if covered:
        yield "", ""
        head = tuple(map(style.strong, ("runs on", "", "how")))
        yield from _table([head, *coverage_rows(covered)])
        yield "  `--gpu NAME` shows the reasons and the limits.", "  "
    listed = [library for library in inspection.libraries if _has_code(library)]
    if listed:
        yield "", ""
        names = {library.path for library in own}
        rows = [_library_row(library, own=library.path in names) for library in listed]
        yield from _table([tuple(map(style.strong, ("library", "size", "GPU code"))), *rows])


def _note(text: str, style: console.Style) -> tuple[str, str]:
    return f"  {style.warn('note:')} {text}", " " * 8


def _table(rows: Sequence[Sequence[str]]) -> Iterator[tuple[str, str]]:
    yield from ((line, "") for line in console.table(rows))


def _facts(base: KnowledgeBase, inspection: Inspection, style: console.Style) -> Iterator[tuple[str, str]]:
    wheel = inspection.wheel
    yield "sha256", wheel.sha256
    yield "size", f"{console.size(wheel.size)}, {wheel.members} files, {len(inspection.libraries)} libraries"
    for kind in sorted({*inspection.unread.values()}):
        paths = [path for path, other in inspection.unread.items() if other == kind]
        yield "", f"libraries for {kind}, which cannot be read: {_clean_list(_first_of(paths, 3))}"
    wrong = len(wheel.record_problems)
    yield "RECORD", style.bad(f"{wrong} files differ from it") if wrong else style.good("every file matches RECORD")
    debuggable = [library.path for library in inspection.libraries if library.debug_info]
    if debuggable:
        yield "symbols", f"debug information in {_clean_list(_first_of(debuggable, 3))}"
    if wheel.tag_problem:
        yield "tags", style.warn(console.clean(wheel.tag_problem))
    if inspection.build_info:
        yield "build", ", ".join(f"{key} {_plain(value)}" for key, value in sorted(inspection.build_info.items()))
    glibc = _newest(library.glibc for library in inspection.libraries)
    libstdcxx = _newest(library.libstdcxx for library in inspection.libraries)
    needed = [f"{title} {version}" for title, version in (("glibc", glibc), ("GLIBCXX", libstdcxx)) if version]
    yield "needs", ", ".join(needed) or "neither glibc nor GLIBCXX"
    fact = _manylinux(base, inspection)
    yield "fits", fact["fits"] or console.clean(fact["reason"])
    for tag, obstacles in fact.get("obstacles", {}).items():
        yield "", style.warn(f"not {tag}, which the name claims: {_clean_list(_first_of(list(obstacles), 3))}")
    brought = brought_by(base, inspection)
    for requirement in dict.fromkeys(brought.values()):
        names = [needed for needed, line in brought.items() if line == requirement]
        yield "", f"with {console.clean(requirement)} comes {_clean_list(_first_of(names, 6))}"
    always = [line for line in inspection.metadata.requires_dist if not _EXTRA.search(line)]
    yield "requires", _clean_list(dict.fromkeys(always)) or "nothing"
    for extra, installed in _extras(inspection).items():
        yield f"[{console.clean(extra)}]", _clean_list(dict.fromkeys(installed)) or "installs nothing more"


def _plain(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _newest(versions: Iterator[str]) -> str:
    # As numbers: as texts, 2.4 would be newer than 2.17.
    return max(filter(None, versions), key=lambda version: tuple(map(int, version.split("."))), default="")


def _has_code(library: Library) -> bool:
    return bool(library.loadable.images or library.relocatable.images or library.problems)


def _code(code: GpuCode, style: console.Style) -> Iterator[tuple[str, str]]:
    """Yield a table of the GPU code in all of TensorFlow's own libraries."""
    if not code.images:
        yield "The libraries that were read contain no GPU code.", "  "
        return
    rows = [
        (
            image.target,
            f"{image.count}",
            console.size(image.size),
            "/".join(image.packing),
            {"sass": "SASS", "ptx": f"PTX, ISA {image.isa}", "amdgpu": "code objects"}.get(image.kind, image.kind),
        )
        for image in code.images
    ]
    head = tuple(map(style.strong, ("GPU code", "images", "size", "packed", "kind")))
    yield from _table([head, *rows])
    for held in code.containers:
        if code.ptx and not held.ptx and not held.stub:
            count = f"{held.count} containers" if held.count > 1 else "1 container"
            have = ", ".join(held.sass) or "nothing known"
            yield _note(f"{count} ({console.size(held.size)}) without PTX, with {have} only", style)


def _library_row(library: Library, *, own: bool) -> tuple[str, str, str]:
    code = library.loadable
    held = " ".join((*code.sass, *code.ptx, *code.amdgpu)) or "-"
    apart = library.relocatable
    if apart.images:
        held += f"; relocatable, never loaded: {' '.join((*apart.sass, *apart.ptx))}"
    return library.path if own else f"{library.path} (bundled)", console.size(library.size), held
