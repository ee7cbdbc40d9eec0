"""Profile text -> `Profile`: typed, complete, or refused with every problem at its line and column.

Narrow types are the first wall against injection: nothing that reaches a Dockerfile, a shell or a command line
can hold a control character, a quote it should not, or a leading dash.
"""

from __future__ import annotations

import difflib
import re
import types
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from tfdock.errors import Problem, ProfileError
from tfdock.model import ImageRef
from tfdock.read import yamldoc

MAX_EXTENDS = 8
"""How many profiles may extend one another."""


def _pattern(expression: str, example: str) -> AfterValidator:
    compiled = re.compile(rf"(?:{expression})\Z")

    def check(text: str) -> str:
        if not compiled.match(text):
            raise ValueError(f"`{text}` does not look like {example}")
        return text

    return AfterValidator(check)


def _image(text: str) -> str:
    ImageRef.parse(text)
    return text


def _no_control_characters(text: str) -> str:
    if not text.isprintable():
        raise ValueError("holds a control character or line break")
    return text


_RELATIVE = r"(?!.*(?:^|/)\.\.?(?:/|$))[A-Za-z0-9_.+@-][A-Za-z0-9_.+@/-]*"

VersionText = Annotated[str, _pattern(r"\d+(\.\d+){0,3}(-?(rc|a|b|dev)\d+)?", "a version (`2.18.0`)")]
PythonText = Annotated[str, _pattern(r"[23]\.\d{1,2}", "a Python version (`3.11`)")]
Word = Annotated[str, _pattern(r"[A-Za-z0-9][A-Za-z0-9._+-]*", "a plain name")]
GitRef = Annotated[
    str,
    _pattern(r"(?!.*(\.\.|//|@\{|\.lock$|/$|\.$))[A-Za-z0-9_][A-Za-z0-9_./+-]{0,250}", "a git branch, tag or commit"),
]
GitUrl = Annotated[
    str,
    _pattern(
        r"(https?|git|ssh|file)://[A-Za-z0-9_.~:@%/+-]+|[A-Za-z0-9_.-]+@[A-Za-z0-9.-]+:[A-Za-z0-9_./~-]+",
        "a git address (`https://github.com/tensorflow/tensorflow.git`)",
    ),
]
Url = Annotated[str, _pattern(r"(https?|file)://[A-Za-z0-9_.~:@%/+=&?,-]+", "a web address")]
Sha256 = Annotated[str, _pattern(r"[0-9a-f]{64}", "64 hexadecimal digits")]
Path_ = Annotated[str, AfterValidator(_no_control_characters)]
ImageText = Annotated[str, AfterValidator(_image)]
Flag = Annotated[str, AfterValidator(_no_control_characters), _pattern(r"--[a-z0-9_@/:]+(=.*)?", "a Bazel flag")]
Copt = Annotated[str, AfterValidator(_no_control_characters), _pattern(r"-.+", "a compiler flag")]
Memory = Annotated[str, _pattern(r"\d+(\.\d+)?\s?([KMGT]i?B?)?", "an amount of memory (`24GiB`)")]
Duration = Annotated[str, _pattern(r"(\d+h)?(\d+m)?(\d+s)?", "a duration (`5h30m`)")]
Target = Annotated[str, _pattern(r"[a-z]+_?[0-9]+[a-z0-9]*", "a target such as `sm_86`, `compute_86` or `gfx90a`")]


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class TensorFlow(_Record):
    """Which source to build; `release` names the release whose rules it follows."""

    release: VersionText = Field(description="The release whose rules the source follows")
    git: GitUrl | None = Field(None, description="A git repository other than TensorFlow's own")
    ref: GitRef | None = Field(None, description="A branch, tag or commit; the release's tag by default")
    fallback: list[GitRef] = Field([], description="Refs to try when `ref` cannot be fetched, configured or analysed")
    archive: Url | None = Field(None, description="A source archive (.tar.gz or .zip); needs `sha256`")
    sha256: Sha256 | None = Field(None, description="The archive's sha256")
    path: Path_ | None = Field(None, description="A local checkout, relative to the profile")
    patches: list[Path_] = Field([], description="Patches to apply, in order, relative to the profile")

    @model_validator(mode="after")
    def _one_kind(self) -> TensorFlow:
        kinds = [name for name in ("git", "archive", "path") if getattr(self, name)]
        if len(kinds) > 1:
            raise ValueError(f"{' and '.join(f'`{kind}`' for kind in kinds)} exclude one another: keep one")
        if self.archive and not self.sha256:
            raise ValueError("`archive` needs its `sha256`: an archive is only as good as its hash")
        if self.sha256 and not self.archive:
            raise ValueError("`sha256` belongs to an `archive`")
        if (self.ref or self.fallback) and (self.archive or self.path):
            raise ValueError("`ref` and `fallback` belong to a git source")
        return self


class Bazel(_Record):
    """Bazel itself, and what is added to its command line."""

    version: VersionText | None = Field(None, description="Bazel's version; the release's own by default")
    configs: list[Word] = Field([], description="Further `--config=` names")
    copts: list[Copt] = Field([], description="Further compiler options, for every C++ file")
    flags: list[Flag] = Field([], description="Further flags of `bazel build`")
    startup: list[Flag] = Field([], description="Further startup options")

    @model_validator(mode="after")
    def _not_ours(self) -> Bazel:
        for flag in [*self.flags, *self.startup]:
            name = flag.removeprefix("--").split("=")[0]
            if name in _OWN_FLAGS:
                raise ValueError(f"`--{name}` is tfdock's own: {_OWN_FLAGS[name]}")
        return self


_OWN_FLAGS = {
    "bazelrc": "the build's flags must all be in the plan",
    "output_base": "every run has an output base of its own",
    "output_user_root": "every run has an output base of its own",
    "disk_cache": "set `--cache-dir` or TFDOCK_CACHE_DIR",
    "repository_cache": "set `--cache-dir` or TFDOCK_CACHE_DIR",
    "jobs": "set `resources: {jobs: …}`",
    "local_ram_resources": "set `resources: {memory: …}`",
    "script_path": "it would run a program outside the build",
    "build_event_json_file": "the build record is made from it",
}


class Resources(_Record):
    """Limits; `auto` sizes from the machine or its cgroup."""

    jobs: Annotated[int, Field(ge=1, le=4096)] | Literal["auto"] = Field("auto", description="Compile jobs at once")
    memory: Memory | Literal["auto"] = Field("auto", description="Memory limit of the build container")
    cpus: Annotated[int, Field(ge=1, le=4096)] | Literal["auto"] = Field("auto", description="Cores")
    disk: Memory | Literal["auto"] = Field("auto", description="Free disk that a build must find")
    time_limit: Duration | None = Field(None, description="Stop cleanly, keeping the cache, after this long")


class PerFile(_Record):
    """Compiler options for the files that match a Bazel label pattern."""

    files: Annotated[str, AfterValidator(_no_control_characters)]
    copts: list[Copt]


class Debug(_Record):
    """A debug build: compilation mode, symbols, options per file."""

    mode: Literal["opt", "dbg", "fastbuild"] = Field("dbg", description="Bazel's compilation mode")
    symbols: bool = Field(True, description="Keep debug information")
    per_file: list[PerFile] = Field([], description="Options for some files only")


class HostCompiler(_Record):
    """The compiler of the C++ code."""

    name: Literal["gcc", "clang"]
    version: VersionText | None = None
    path: Path_ | None = Field(None, description="Where it stands in the base image")


class WheelNaming(_Record):
    """What the wheel is called."""

    name: Word | None = Field(None, description="Project name instead of `tensorflow`")
    local_version: (
        Annotated[str, _pattern(r"[a-z0-9]+(\.[a-z0-9]+)*", "a local version (`cuda12.5.sm86`)")] | None
    ) = Field(None, description="Local version; made from the toolkit and capabilities by default")


Word_ = Word
Cpu = Annotated[str, _pattern(r"[a-z0-9._]+", "a CPU feature such as `avx2`")]


class Profile(_Record):
    """One wheel to build."""

    schema_: Literal[1] = Field(alias="schema", description="Version of this format")
    extends: Path_ | None = Field(None, description="A profile to start from: maps merge, lists replace")
    tensorflow: VersionText | TensorFlow = Field(description="A release, or a source and the release it follows")
    python: PythonText | None = Field(
        None, description="Python of the wheel; the newest the release knows by default"
    )
    accelerator: Word | None = Field(None, description="cuda, rocm or cpu; by what else is asked when left out")
    gpus: list[Word] | Literal["local"] | None = Field(None, description="GPU names, or `local` for this machine's")
    compute_capabilities: list[Target] | None = Field(
        None, description="`sm_86` for SASS, `compute_86` for SASS and PTX; instead of `gpus`"
    )
    amdgpu_targets: list[Target] | None = Field(None, description="gfx targets; instead of `gpus`")
    targets: list[Target] | None = Field(None, description="Targets of any other accelerator; instead of `gpus`")
    cuda: VersionText | None = Field(None, description="CUDA version; the tested one by default")
    cudnn: VersionText | None = Field(None, description="cuDNN version; the tested one by default")
    rocm: VersionText | None = Field(None, description="ROCm version")
    components: dict[Word, VersionText] = Field({}, description="Versions of other components, by name")
    compiler: Literal["clang", "nvcc"] | None = Field(None, description="Who compiles the GPU code")
    host_compiler: HostCompiler | Literal["gcc", "clang"] | None = None
    xla: bool = Field(True, description="Build XLA")
    optimize: Literal["portable", "native"] | list[Cpu] = Field(
        "portable", description="CPU code: portable, this machine's only, or named features"
    )
    debug: bool | Debug = False
    base: ImageText | None = Field(None, description="Base image instead of the known one")
    bazel: Bazel = Bazel()
    resources: Resources = Resources()
    wheel: WheelNaming = WheelNaming()
    allow_untested: bool = Field(False, description="Build combinations nobody is known to have tested")

    @property
    def source(self) -> TensorFlow:
        """The long form of `tensorflow`."""
        return self.tensorflow if isinstance(self.tensorflow, TensorFlow) else TensorFlow(release=self.tensorflow)

    @property
    def debugging(self) -> Debug | None:
        """The long form of `debug`, or None."""
        if isinstance(self.debug, Debug):
            return self.debug
        return Debug() if self.debug else None

    @model_validator(mode="after")
    def _one_list(self) -> Profile:
        given = [name for name in _TARGET_FIELDS if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(f'`{name}`' for name in given)} say the same thing: keep one")
        return self


_TARGET_FIELDS = ("gpus", "compute_capabilities", "amdgpu_targets", "targets")


def json_schema() -> dict[str, Any]:
    """The profile's JSON Schema, for editors."""
    schema = Profile.model_json_schema()
    return {"$schema": "http://json-schema.org/draft-07/schema#", "title": "tfdock profile", **schema}


def read(text: str, file: str, others: Mapping[str, str] | None = None) -> tuple[Profile, yamldoc.Node]:
    """Read a profile; `others` holds the texts of the profiles it extends, by their name as written.

    Returns the profile and the merged document, whose nodes know the line of each value. Raises ProfileError with
    all problems at once.
    """
    document = _merged(text, file, others or {}, ())
    problems = [*_unquoted_versions(document, file)]
    flagged = {problem.field for problem in problems}
    try:
        profile = Profile.model_validate(document.value)
    except ValidationError as error:
        found = [_problem(item, document, file) for item in error.errors(include_url=False)]
        problems = _without_echoes([*problems, *(item for item in found if item.field not in flagged)])
        raise ProfileError(*sorted(problems, key=lambda item: (item.line or 0, item.column or 0))) from error
    if problems:
        raise ProfileError(*problems)
    return profile, document


def extended_by(text: str, file: str) -> str | None:
    """The file a profile's `extends:` names, or None."""
    node = yamldoc.parse(text, file).entries.get("extends")
    return node.raw if node and node.kind == "text" else None


def _merged(text: str, file: str, others: Mapping[str, str], seen: tuple[str, ...]) -> yamldoc.Node:
    node = yamldoc.parse(text, file)
    if node.kind != "map":
        raise ProfileError(
            Problem(
                code="profile-not-a-map",
                message=f"a profile is a list of `name: value` lines, this is a {node.kind}",
                fix='start with `schema: 1` and `tensorflow: "2.18.0"`',
                file=file,
                line=node.line,
                column=node.column,
            )
        )
    parent = node.entries.get("extends")
    if parent is None or parent.kind != "text":
        return node
    if parent.raw in seen or len(seen) >= MAX_EXTENDS:
        message = f"`{parent.raw}` extends itself" if parent.raw in seen else f"more than {MAX_EXTENDS} profiles deep"
        raise ProfileError(
            Problem(
                code="profile-extends-cycle",
                message=f"`extends:` goes in a circle or too far: {message}",
                fix="let one profile of the chain stand alone",
                file=file,
                line=parent.line,
                column=parent.column,
                field="extends",
            )
        )
    base = _merged(others[parent.raw], parent.raw, others, (*seen, parent.raw))
    return _overlaid(base, node)


def _overlaid(base: yamldoc.Node, node: yamldoc.Node) -> yamldoc.Node:
    """Maps merge, everything else replaces. A list of targets replaces whichever list of targets the base had."""
    entries = dict(base.entries)
    if any(name in node.entries for name in _TARGET_FIELDS):
        entries = {key: child for key, child in entries.items() if key not in _TARGET_FIELDS}
    for key, child in node.entries.items():
        old = entries.get(key)
        entries[key] = _overlaid(old, child) if old and old.kind == child.kind == "map" else child
    return yamldoc.Node(
        kind="map",
        line=node.line,
        column=node.column,
        file=node.file,
        entries=entries,
        keys={**base.keys, **node.keys},
    )


# --- from pydantic's findings to ours -----------------------------------------------------------------------------


def _unquoted_versions(document: yamldoc.Node, file: str) -> list[Problem]:
    """Versions written as YAML numbers, the first mistake of every user: 3.10 is the number 3.1."""
    found = []
    for path in _version_paths(Profile, document, ()):
        node = document.at(path)
        if node.kind not in ("number", "date"):
            continue
        name = _dotted(path)
        lost = f" (the number {node.value})" if str(node.value) != node.raw else ""
        found.append(
            Problem(
                code="version-not-text",
                message=f"`{name}` is a number{lost}, but versions are text",
                fix=f'write it in quotes: `{path[-1]}: "{node.raw}"`'
                if isinstance(path[-1], str)
                else f'write it in quotes: `"{node.raw}"`',
                file=node.file or file,
                line=node.line,
                column=node.column,
                field=name,
            )
        )
    return found


def _version_paths(
    model: type[BaseModel], node: yamldoc.Node, path: tuple[str | int, ...]
) -> list[tuple[str | int, ...]]:
    """The paths of the document's scalars for which the model wants text."""
    paths: list[tuple[str | int, ...]] = []
    for name, info in model.model_fields.items():
        key = info.alias or name
        child = node.entries.get(key)
        if child is None:
            continue
        models, text, number = _kinds(info.annotation)
        here = (*path, key)
        if child.kind == "map":
            for inner in models:
                paths += _version_paths(inner, child, here)
            paths += [(*here, name) for name in child.entries] if text and not models else []
        elif child.kind == "list" and text:
            paths += [(*here, index) for index in range(len(child.items))]
        elif text and not number:
            paths.append(here)
    return paths


def _kinds(annotation: Any) -> tuple[list[type[BaseModel]], bool, bool]:
    """Models, whether text, and whether numbers are among what a field takes."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation], False, False
    if annotation is str:
        return [], True, False
    if annotation is int or annotation is bool:
        return [], False, True
    origin = get_origin(annotation)
    if origin is Literal:
        return [], False, False
    if origin in (Annotated, Union, types.UnionType, list, dict):
        arguments = get_args(annotation)
        parts = [_kinds(part) for part in (arguments[:1] if origin is Annotated else arguments)]
        models = [model for part in parts for model in part[0]]
        return models, any(part[1] for part in parts), any(part[2] for part in parts)
    return [], False, False


def _problem(item: Any, document: yamldoc.Node, file: str) -> Problem:
    path = tuple(part for part in item["loc"] if isinstance(part, int) or not _UNION_ARM.search(part))
    kind = item["type"]
    node = document.at(path)
    line, column, where = node.line, node.column, node.file or file
    name = _dotted(path)
    if kind == "extra_forbidden":
        parent = document.at(path[:-1])
        line, column = parent.keys.get(str(path[-1]), (line, column))
        known = _known_keys(path[:-1])
        near = difflib.get_close_matches(str(path[-1]), known, n=1, cutoff=0.6)
        return Problem(
            code="profile-unknown-key",
            message=f"unknown key `{name}`",
            fix=f"did you mean `{near[0]}`?" if near else f"known here: {', '.join(known)}",
            file=where,
            line=line,
            column=column,
            field=name,
        )
    if kind == "missing":
        missing = name
        example = {"schema": "schema: 1", "tensorflow": 'tensorflow: "2.18.0"'}.get(missing, f"{missing}: …")
        return Problem(
            code="profile-missing-key",
            message=f"`{missing}` is missing",
            fix=f"add `{example}`",
            file=where,
            line=line,
            column=column,
            field=missing,
        )
    message = item["msg"].removeprefix("Value error, ").replace("Input should be", "should be")
    return Problem(
        code="profile-bad-value",
        message=f"`{name}`: {message}" if name else message,
        fix=_fix(item, node, path),
        file=where,
        line=line,
        column=column,
        field=name or None,
    )


# What pydantic adds to a path for the arms of a union: `TensorFlow`, `list[constrained-str]`, `literal['auto']`.
_UNION_ARM = re.compile(r"[\[\]()A-Z-]|^(str|int|bool|float)$")


def _fix(item: Any, node: yamldoc.Node, path: tuple[str | int, ...]) -> str:
    kind = item["type"]
    if kind == "literal_error":
        near = difflib.get_close_matches(node.raw, re.findall(r"'([^']+)'", item["ctx"]["expected"]), n=1)
        return f"did you mean `{near[0]}`?" if near else f"use {item['ctx']['expected']}"
    if kind == "list_type":
        return f"write a list: `[{node.raw}]`" if node.raw else "write a list: `[a, b]`"
    if kind == "bool_type":
        return "write `true` or `false`"
    if kind == "string_type":
        return "write text, in quotes where it looks like a number"
    info = Profile.model_fields.get(str(path[0])) if path else None
    return f"`{path[0]}` is: {info.description}" if info and info.description else "correct the value"


def _known_keys(path: tuple[str | int, ...]) -> list[str]:
    model: type[BaseModel] = Profile
    for part in path:
        info = model.model_fields.get(str(part))
        models = _kinds(info.annotation)[0] if info else []
        if models:
            model = models[0]
    return [info.alias or name for name, info in model.model_fields.items()]


def _without_echoes(problems: list[Problem]) -> list[Problem]:
    """A union reports each of its arms: keep one finding for each place, and the deepest place."""
    best: dict[str, Problem] = {}
    for problem in problems:
        best.setdefault(problem.field or "", problem)
    return [
        problem
        for field, problem in best.items()
        if not any(other != field and other.startswith((f"{field}.", f"{field}[")) for other in best)
    ]


def _dotted(path: tuple[str | int, ...]) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
