"""The `gpus`, `releases` and `explain` commands: query the knowledge base.

They need no engine and no network.
"""

from __future__ import annotations

import difflib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from tfdock.cli import console
from tfdock.cli.app import AsJson, app, command, knowledge_for, print_json
from tfdock.cli.gpu_text import requested_gpus, topic_lines
from tfdock.errors import Problem, ProfileError, TfdockError
from tfdock.gpu.devices import named, other_device, search, title, unknown_gpu
from tfdock.host.settings import Settings
from tfdock.knowledge.fits import glibc_of, goes_with, is_among, renamed, runs_with_later, toolkit_floor, versions_of
from tfdock.knowledge.gpu_rows import Gpu, PublishedBuild
from tfdock.knowledge.program_rows import ErrorCode
from tfdock.knowledge.release_rows import Release, Support, applies
from tfdock.knowledge.rows import Row, lies_within
from tfdock.knowledge.switch_rows import Switch, presets, release_span
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.resolve.gpu_support import (
    ReleaseFor,
    TargetFacts,
    python_spans,
    release_named,
    release_words,
    spans,
    target_facts,
    toolkit_words,
)
from tfdock.resolve.resolve import resolve_text
from tfdock.types import Version


def _print_list(lines: Iterable[str]) -> None:
    """Print a list. If it is longer than the terminal, use PAGER, as git does."""
    text = [part for line in lines for part in console.wrapped(line, console.width(sys.stdout))]
    fits = not sys.stdout.isatty() or len(text) < shutil.get_terminal_size().lines
    pager = os.environ.get("PAGER", "less" if shutil.which("less") else "")
    if fits or pager in ("", "cat") or os.environ.get("TERM") == "dumb":
        console.result(*text)
        return
    environment = {"LESS": "FRX", **os.environ}  # as in git: show colours, and keep a short text on the screen
    with subprocess.Popen(pager, shell=True, stdin=subprocess.PIPE, env=environment) as process:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the pager handles Ctrl-C
        process.communicate("".join(f"{line}\n" for line in text).encode(sys.stdout.encoding, "backslashreplace"))
    if process.returncode == 127:  # the shell has already reported the missing program
        console.result(*text)


# --- gpus ---------------------------------------------------------------------------------------------------------


@app.command(epilog="Examples: `tfdock gpus`, `tfdock gpus rtx 3080`, `tfdock gpus 8.6`, `tfdock gpus gfx1100`.")
@command("tfdock.gpus/1", "knowledge")
def gpus(
    settings: Settings,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            help="Names, parts of names, or compute capabilities. `local` lists this machine's GPUs.", metavar="WORD"
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """For a single GPU, also print the toolkits and releases that compile for it."""
    base = knowledge_for(settings)
    is_local = words == ["local"]
    exact = tuple(row.gpu for row in requested_gpus(base, ["local"])) if is_local else named(base, words or [])
    rows = exact or search(base, words or [])
    if not rows:
        raise ProfileError(unknown_gpu(base, " ".join(words or [])))
    own = {gpu.gpu: target_facts(base, base.accelerators[gpu.accelerator], gpu.target, gpu.gpu) for gpu in rows}
    if as_json:
        documents = [{**gpu.model_dump(mode="json"), **asdict(own[gpu.gpu])} for gpu in rows]
        print_json("tfdock.gpus/1", True, {"gpus": documents})
    elif exact or len(rows) == 1:
        for index, gpu in enumerate(rows):
            console.result(*([""] if index else []), *_gpu_lines(base, gpu, own[gpu.gpu]))
    else:
        _print_list(_gpu_list(base, rows))


def _gpu_list(base: KnowledgeBase, gpus: Sequence[Gpu]) -> Iterator[str]:
    """Yield the GPUs by target, each group below what it shares: compilers, releases and driver."""
    style = console.Style(sys.stdout)
    for index, key in enumerate(dict.fromkeys((gpu.accelerator, gpu.target) for gpu in gpus)):
        target = target_facts(base, base.accelerators[key[0]], key[1])
        if index:
            yield ""
        heading = f"{_target(target)}{f', {target.architecture}' if target.architecture else ''}"
        driver = _driver(base, target)
        notes = [toolkit_words(base, target), release_words(base, target), *([f"driver {driver}"] if driver else [])]
        yield f"{style.strong(heading)}: {'; '.join(notes)}"
        rows = [gpu for gpu in gpus if (gpu.accelerator, gpu.target) == key]
        yield from console.table([(gpu.gpu, _memory(gpu), _names(base, gpu)) for gpu in rows])


def _names(base: KnowledgeBase, gpu: Gpu) -> str:
    """Return the driver's names, or else the marketing name; empty if tfdock uses the same name."""
    name = ", ".join(gpu.names) or title(base, gpu)
    return "" if name == gpu.gpu else name


def _gpu_lines(base: KnowledgeBase, gpu: Gpu, facts: TargetFacts) -> Iterator[str]:
    style = console.Style(sys.stdout)
    accelerator = base.accelerators[gpu.accelerator]
    yield f"{style.strong(gpu.gpu)}  {_names(base, gpu)}".rstrip()
    rows = [
        ("capability" if accelerator.capabilities else "target", _target(facts)),
        ("architecture", facts.architecture or ""),
        ("memory", _memory(gpu)),
        ("machine", _machine(base, gpu)),
        ("compilers", toolkit_words(base, facts)),
        ("releases", release_words(base, facts)),
        *(("reported", report) for report in facts.reports),
        ("driver", _driver(base, facts)),
        ("embedded", "runs only its own code; no other GPU runs that code" if facts.embedded else ""),
        ("note", gpu.note or ""),
        ("unverified", _unverified(gpu)),
        ("profile", f"`gpus: [{gpu.gpu}]`"),
        ("source", base.cited("gpus", gpu) + (f" (checked {gpu.checked})" if gpu.checked else "")),
    ]
    yield from console.table([row for row in rows if row[1]])
    if facts.releases:
        elsewhere = gpu.machine is not None or facts.embedded
        yield ""
        yield style.strong(f"releases that can target {facts.written}, and the {accelerator.title} to use with each")
        lines = [(row.release, _range(row.toolkits), _notes(row, elsewhere=elsewhere)) for row in facts.releases]
        yield from console.table(lines)


def _range(versions: Sequence[str]) -> str:
    return versions[0] if len(versions) == 1 else f"{versions[0]} to {versions[-1]}"


def _notes(release: ReleaseFor, *, elsewhere: bool) -> str:
    """Return notes on a release.

    `elsewhere` means another kind of CPU, for which the official wheel does not work.
    """
    wheel = {"native": "official wheel runs", "native-same-major": "official wheel runs", "ptx-jit": "JIT"}
    notes = [] if release.tested else ["not the tested version"]
    notes += [] if release.xla else ["with `xla: false`"]
    if release.wheel_runs in wheel and not elsewhere:
        notes.append(f"{wheel[release.wheel_runs]} ({release.wheel_by})")
    return ", ".join(notes)


def _target(facts: TargetFacts) -> str:
    return facts.target if facts.written == facts.target else f"{facts.target} ({facts.written})"


def _driver(base: KnowledgeBase, facts: TargetFacts) -> str:
    """Return the driver that both the GPU and its first toolkit accept: `570.86.16 or newer (WSL2: 570)`."""
    if facts.embedded:
        return "part of the board's operating system"
    known = f"{facts.driver_max} is the last driver that supports the GPU" if facts.driver_max else ""
    if not facts.needs_driver:
        return known
    windows = f" (WSL2: {facts.needs_driver_windows})" if facts.needs_driver_windows else ""
    title = base.accelerators[facts.accelerator].title
    whose = f" with {title} {facts.toolkits[0]}" if facts.needs_driver == facts.toolkit_driver else ""
    modules = "; only the open kernel modules support the GPU" if facts.open_modules else ""
    return f"{facts.needs_driver} or newer{whose}{windows}{modules}{f'; {known}' if known else ''}"


def _machine(base: KnowledgeBase, gpu: Gpu) -> str:
    if gpu.machine is None or any(row.machine == gpu.machine for row in base.images):
        return gpu.machine or ""
    return f"{gpu.machine}: no base image is known for it, so the releases below need your own base image"


def _memory(gpu: Gpu) -> str:
    return f"{gpu.memory_gib:g} GiB" if gpu.memory_gib else ""


def _unverified(row: Row) -> str:
    return "yes" if row.unverified is True else row.unverified or ""


# --- releases -----------------------------------------------------------------------------------------------------


@app.command(epilog="Examples: `tfdock releases`, `tfdock releases 2.18`, `tfdock releases cuda 11.2`.")
@command("tfdock.releases/1", "knowledge")
def releases(
    settings: Settings,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            help="A release, such as 2.18, or a part and its version: `cuda 11.2`, `driver 470`, `numpy 2.1`.",
            metavar="[RELEASE | PART VERSION]",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    base = knowledge_for(settings)
    rows = sorted(base.releases.values(), key=lambda row: Version(row.release))
    floors = list[str]()
    early = [row for row in base.published_builds if _is_early(base, row)]
    # A part and its version may be one argument, in quotes.
    text = " ".join(words or [])
    release = text if text[-1:].isdecimal() else None
    if not as_json and text and (topic := other_device(base, f"tensorflow-{release}" if release else text)):
        console.result(*topic_lines(base, topic, release))
        return
    match words := text.split():
        case []:
            pass
        case [release]:
            rows = [release_named(base, release)[0]]
        case [*part, version] if version[:1].isdecimal():
            name, number = renamed(base, " ".join(part).lower(), version)
            rows, early, floors = _made_with(base, rows, name, number)
            floors = [*([] if number == version else [f"{text} is {name} {number} in these tables"]), *floors]
        case _:
            raise typer.BadParameter("name a release, or a part and its version: `cuda 11.2`")
    if as_json:
        document = {"releases": [row.model_dump(mode="json") for row in rows], "sources": base.sources("releases")}
        print_json("tfdock.releases/1", True, document)
    elif len(words) == 1:
        console.result(*_release_lines(base, rows[0]))
    else:
        console.result(*_release_list(base, rows, early), *floors)


def _made_with(
    base: KnowledgeBase, rows: Sequence[Release], part: str, version: str
) -> tuple[list[Release], list[PublishedBuild], list[str]]:
    """Return the releases and published builds that are made with a version of a part, and remarks on the part.

    Of a driver, a glibc, a distribution or a PyPI package, these are the releases whose official wheels run with it.
    Raises ProfileError if there are none.
    """
    facts = base.facts(topic) if (topic := other_device(base, part)) else []
    remarks = floors = [f"`tfdock advise {part}` says more about each release"] if facts else []
    floors += [f"driver for {floor}" for floor in _driver_floors(base, {part: version})]
    if part == "driver":
        remarks = ["The wheels for Linux run with this driver; a GPU may need a newer one: `tfdock advise GPU`."]
    elif glibc := glibc_of(base, part, version):
        # A wheel for another Python may need a newer glibc.
        rows = [_with_pythons(base, row, part, version) for row in rows]
        remarks = [f"The official wheels run with glibc {glibc}, if the system has a Python for them."]
    elif any(part in row.requires for row in rows):
        remarks = ["The official wheels work with this version: their METADATA allows it."]
    found = [row for row in rows if goes_with(base, row, part, version)]
    accepting = [row for row in rows if is_among(version, row.components.get(part, Support()).accepted)]
    # For ROCm, there are wheels of a release for several versions.
    if found and any(part in base.accelerators[row.accelerator].components for row in base.forks):
        found = [row for row in rows if row in (*found, *accepting)]
    builds = [row for row in base.published_builds if _works_with(row, part, version)]
    early = [row for row in builds if _is_early(base, row)]
    if found or early:
        return found, early, remarks
    none = f"no release from {rows[0].release} on is made with {part} {version}"
    if found := [row for row in rows if runs_with_later(base, row, part, version)]:
        note = f"{none}; these wheels for Linux, of an earlier minor version, run with it"
        return found, [], [*floors, f"{note}, and with their cuDNN or a later minor version of it"]
    if builds:
        return [], builds, [*floors, f"{none}, but these builds by others are: `tfdock advise GPU` names them"]
    found = accepting
    if part == "bazel":
        found = [row for row in rows if row.bazel_max and lies_within(version, row.bazel_min or "", row.bazel_max)]
    if found:
        return found, [], [*floors, f"{none}; the source of these lists it: `tfdock check` tries a build"]
    why = [*floors, *(fact for fact in facts if version in fact)]
    known = f"known are {', '.join(_known_versions(base, rows, part))}"
    raise ProfileError.of("release-unknown", none, known, why="; ".join(why))


def _with_pythons(base: KnowledgeBase, row: Release, part: str, version: str) -> Release:
    """Return a release with only the Pythons whose official wheel goes with a version of a part."""
    fitting = tuple(one for one in row.pythons if goes_with(base, row, part, version, one))
    return row.model_copy(update={"pythons": fitting})


def _known_versions(base: KnowledgeBase, rows: Sequence[Release], part: str) -> list[str]:
    """Return the versions of a part that releases are made with or, of a package, accept; else the known parts."""
    made: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        pairs = [*versions_of(row).items(), *row.requires.items(), *(("python", one) for one in row.pythons)]
        for name, one in pairs:
            made.setdefault((name.lower(), one), []).append(row.release)
    known = sorted((one for name, one in made if name == part), key=Version)
    if any(part in row.requires for row in rows):
        runs = {one: spans(made[part, one], base.releases) for one in known}
        known = [f"{one} ({', '.join('-'.join(dict.fromkeys(run)) for run in runs[one])})" for one in known]
    return known or sorted({"driver", "glibc", *(name for name, _ in made)})


def _is_early(base: KnowledgeBase, row: PublishedBuild) -> bool:
    """Return whether a published build is of a release from before the first known one."""
    return str(Version(row.tensorflow).minor) not in base.releases


def _works_with(row: PublishedBuild, part: str, version: str) -> bool:
    """Return whether a published build works with a version of a part."""
    known = row.pythons if part == "python" else [one for name, one in row.components.items() if name.lower() == part]
    return is_among(version, known) or row.is_for(part, version)


def _release_list(base: KnowledgeBase, rows: Sequence[Release], early: Sequence[PublishedBuild]) -> Iterator[str]:
    named = [base.titles.get(name, name) for name in base.components]
    heading = ("", "Python", "Bazel", "compiler", *named, "official wheel")
    lines = [tuple(map(console.Style(sys.stdout).strong, heading))]
    lines += [
        (row.tensorflow, _pythons(row.pythons), "", "", *(row.components.get(title, "") for title in named), "")
        for row in early
    ]
    lines += [
        (
            row.release,
            _pythons(row.pythons),
            row.bazel,
            " ".join(next(iter(row.compilers.items()), ())),
            *(versions_of(row).get(name, "") for name in base.components),
            " ".join(target for targets in row.official_targets.values() for target in targets),
        )
        for row in rows
    ]
    yield from console.table(lines, indent="")


def _pythons(versions: Sequence[str]) -> str:
    """Return a text such as `2.7 3.3-3.6`."""
    return " ".join(first if first == last else f"{first}-{last}" for first, last in python_spans(versions))


def _release_lines(base: KnowledgeBase, row: Release) -> Iterator[str]:
    """Yield every field of the row that has a value, what a user asks for first, then its sources."""
    style = console.Style(sys.stdout)
    yield style.strong(f"TensorFlow {row.release}")
    fields = row.model_dump(exclude={"release", "components", "note", "unverified", "checked", "source"})
    first = {name: fields.pop(name) for name in ("patches", "pythons", "official_targets")}
    systems = [(one.device, fact) for one in base.other_devices for fact in base.facts(one, row.release)[:1]]
    drivers = [("driver", floor) for floor in _driver_floors(base, versions_of(row))]
    rows = [
        *first.items(),
        *((name, support.model_dump()) for name, support in row.components.items()),
        *drivers,
        *((name, fields.pop(name)) for name in ("built_with", "bazel", "compilers")),
        *((title, fact.partition(": ")[2]) for title, fact in systems if "none is known" not in fact),
        *((p.title, p.about) for p in base.log_parts.values() if any(applies(row, span) for span in p.made_with)),
        *fields.items(),
        *(("note", row.note or ""), ("unverified", _unverified(row)), ("checked", row.checked)),
    ]
    yield from console.table([(name.replace("_", " "), _value(value)) for name, value in rows if _value(value)])
    yield ""
    yield style.strong("sources")
    texts = base.sources("releases")
    yield from console.table([(key, texts.get(key, "")) for key in row.sources])


def _driver_floors(base: KnowledgeBase, versions: Mapping[str, str]) -> Iterator[str]:
    """Yield the oldest driver for each toolkit: `CUDA 10.0: 410.48 or newer, on Windows 411.31`."""
    for accelerator in base.accelerators.values():
        toolkit = accelerator.toolkit
        if version := versions.get(toolkit):
            floors = [toolkit_floor(base, toolkit, Version(version), wsl=wsl) for wsl in (False, True)]
            if floors[0]:
                windows = f", on Windows and in WSL 2 {floors[1]}" if floors[1] else ""
                yield f"{accelerator.title_of(toolkit)} {version}: {floors[0]} or newer{windows}"


def _value(value: object) -> str:
    """Return a field's value for people: lists with commas, records as `name: value`."""
    if isinstance(value, dict):
        pairs = [(name, part) for name, part in value.items() if part not in (None, (), False)]
        return "; ".join(f"{name.replace('_', ' ')}: {_value(part)}" for name, part in pairs)
    if isinstance(value, tuple):
        return ", ".join(_value(part) for part in value)
    return str(value).lower() if isinstance(value, bool) else str(value or "")


# --- explain ------------------------------------------------------------------------------------------------------


@app.command(
    epilog="Examples: `tfdock explain`, `tfdock explain target-not-in-toolkit`, `tfdock explain MIOPEN_LOG_LEVEL`, "
    "`tfdock explain deterministic`.",
    # A flag of XLA begins with `--`, but is an argument.
    context_settings={"ignore_unknown_options": True},
)
@command("tfdock.explain/1", "knowledge")
def explain(
    settings: Settings,
    name: Annotated[
        str | None,
        typer.Argument(
            help="The code of an error (shown in brackets), a switch, a preset, or a topic.", metavar="CODE|SWITCH"
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """An error shows its code in brackets. Each code has an example and fixes. Without a name, list all names."""
    document, lines = _explained(knowledge_for(settings), name)
    if as_json:
        print_json("tfdock.explain/1", True, document)
    else:
        _print_list(lines)


def _explained(base: KnowledgeBase, name: str | None) -> tuple[dict[str, Any], Iterable[str]]:
    """Return the meaning of a name as a document and as lines; without a name, the list of all names.

    Raises ProfileError.
    """
    if name is None:
        codes = sorted(base.codes.values(), key=lambda row: row.code)
        switches, sets = base.switches.values(), presets(base.switches)
        rows = [(row.code, row.title) for row in codes] + [(row.switch, row.use) for row in switches]
        rows += [(name, f"a preset of {len(values)} switches") for name, values in sorted(sets.items())]
        rows += [(row.device, "a topic") for row in base.topics if other_device(base, row.device) == row]
        document = {
            "codes": [_row_json(row) for row in codes],
            "switches": [_switch_json(base, row) for row in switches],
            "presets": [{"preset": name, "sets": values} for name, values in sorted(sets.items())],
        }
        return document, console.table(rows, indent="")
    # Errors show codes in brackets, and users copy the brackets too.
    code = base.codes.get(name.strip("[]").lower())
    if code:
        problems = _problems_of(base, code)
        return {**_row_json(code), "problems": problems}, _code_lines(code, problems)
    spellings = (name.lower(), f"--{name.lower()}")
    switch = next((row for row in base.switches.values() if row.switch.lower() in spellings), None)
    if switch:
        return _switch_json(base, switch), _switch_lines(base, switch)
    sets = presets(base.switches)
    if (preset := name.lower()) in sets:
        return {"preset": preset, "sets": sets[preset]}, _preset_lines(base, preset, sets[preset])
    if (topic := other_device(base, name)) in base.topics and topic:
        told = {"topic": topic.device, "says": base.about(topic).says, "instead": topic.instead}
        return told, topic_lines(base, topic)
    raise _unknown(name, [*base.codes, *base.switches, *sets])


def _unknown(name: str, known: Sequence[str]) -> ProfileError:
    begun = sorted(one for one in known if name and one.lower().startswith(name.lower()))
    near = begun or difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    asks = "one of these:" if begun else "did you mean"
    names = f"{asks} {' or '.join(f'`{one}`' for one in near)}{'' if begun else '?'}"
    fix = names if near else "`tfdock explain` lists all"
    return ProfileError.of("code-unknown", f"no code, switch or preset is called `{name}`", fix)


def _switch_json(base: KnowledgeBase, row: Switch) -> dict[str, Any]:
    return {**_row_json(row), "variable": row.variable, "sources": _sources(base, row)}


def _sources(base: KnowledgeBase, row: Switch) -> list[str]:
    return [base.sources("switches")[key] for key in row.sources]


def _switch_lines(base: KnowledgeBase, row: Switch) -> Iterator[str]:
    kinds = {"variable": "a variable", "flag": f"a flag in `{row.variable}`", "setting": "a setting of the program"}
    yield f"{console.Style(sys.stdout).strong(row.switch)}: {kinds[row.kind]}, read by {row.reads}"
    yield ""
    yield from console.wrapped(row.does, console.width(sys.stdout), "")
    yield ""
    facts = [
        ("use", row.use),
        ("values", row.values),
        ("default", row.default),
        ("write", f"`{row.variable}={row.switch}=VALUE`" if row.kind == "flag" else row.python),
        ("TensorFlow", f"{release_span(row.releases)}, according to the official wheels" if row.releases else ""),
        ("since", row.since),
        ("until", row.until),
        *(("preset", f"`{preset}` sets {value}") for preset, value in row.presets.items()),
        *(("source", text) for text in _sources(base, row)),
        ("note", row.note or ""),
    ]
    yield from console.table([fact for fact in facts if fact[1]])


def _preset_lines(base: KnowledgeBase, name: str, sets: Mapping[str, str]) -> Iterator[str]:
    yield f"{console.Style(sys.stdout).strong(name)}: a preset, for `--switch {name}`"
    yield ""
    yield from console.table([(f"{switch}={value}", base.switches[switch].does) for switch, value in sets.items()])


def _row_json(row: Row) -> dict[str, Any]:
    return row.model_dump(mode="json", exclude={"source", "checked", "note", "unverified"})


def _problems_of(base: KnowledgeBase, row: ErrorCode) -> tuple[Problem, ...]:
    """Return the current problems of the row's example profile, not the recorded problems."""
    # No profile can show an error of an engine or a registry.
    if row.profile is None:
        return ()
    try:
        resolution = resolve_text(row.profile, base, file="profile.yaml")
    except TfdockError as error:
        return error.problems
    return (*resolution.untested, *resolution.warnings)


def _code_lines(row: ErrorCode, problems: Sequence[Problem]) -> Iterator[str]:
    style = console.Style(sys.stdout)
    yield f"{style.strong(row.code)}: {row.title}"
    yield ""
    yield from console.wrapped(row.cause, console.width(sys.stdout), "")
    yield ""
    if row.profile is not None:
        yield style.strong("example: this profile.yaml")
        yield from (f"  {console.clean(line)}" for line in row.profile.splitlines())
        if problems:
            yield style.strong("is answered with")
            columns = console.width(sys.stdout) - 2
            yield from (f"  {line}" for line in console.problem_lines(problems, style, columns))
        yield ""
    elif row.example is not None:
        yield style.strong("example")
        yield from (f"  {line}" for line in row.example.rstrip().splitlines())
        yield ""
    yield style.strong("ways out")
    yield from console.table([("-", way) for way in row.ways])
