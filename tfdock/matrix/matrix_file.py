"""Matrix text -> `Matrix`: a base profile, axes over it, and rules, each value with its line.

A matrix names fields of profiles, nested ones with dots (`bazel.version`). The cells' profiles check the values of
these fields; this module checks the matrix itself.

Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from tfdock.errors import Problem, ProfileError
from tfdock.profile import profile as profiles
from tfdock.profile import yaml_nodes
from tfdock.profile.profile import Duration, ListOf, Path_, Pattern, Record, no_control_characters, wrong
from tfdock.profile.yaml_nodes import Node
from tfdock.types import ImageRef

#: Fields of a profile that do not describe the wheel. A matrix names the profile that it starts from as `base`.
_NOT_A_FIELD = ("schema", "extends")
_NAME = "[A-Za-z0-9_+-]+"
# A name may be nested as deep as a profile.
_FIELD = re.compile(rf"{_NAME}(\.{_NAME}){{0,{yaml_nodes.MAX_DEPTH - 1}}}")


def _repository(text: str) -> str:
    image = ImageRef.parse(text)  # ValueError says what is wrong
    # The pipeline adds a tag for each build. OCI distribution: names of repositories have no capitals.
    if image.tag or image.digest or text != text.lower():
        raise wrong(
            f"`{yaml_nodes.shown(text)}` is not a repository of a registry",
            "write `host/name`, such as `ghcr.io/me/wheels`: no `https://`, no tag, no capitals",
        )
    return text


def _some(rule: dict[str, Any]) -> dict[str, Any]:
    if not rule:
        raise wrong("the map is empty", "name at least one field and its value")
    return rule


Repository = Annotated[str, AfterValidator(_repository)]
# Few characters are allowed, because the label goes into the YAML file of a pipeline.
Label = Annotated[str, Pattern(r"[A-Za-z0-9][A-Za-z0-9._/=+-]{0,99}", "a runner's label (`ubuntu-24.04`)")]
Runner = Label | ListOf[Label]
Fields = Annotated[dict[str, Any], AfterValidator(_some)]
Line = Annotated[str, AfterValidator(no_control_characters)]
# A variable holds several folders, separated by colons.
Folder = Annotated[Path_, Pattern(r"[^:]+", "a folder (`knowledge`), without a colon in its name")]
# In GitHub's expressions, quotes enclose a branch, so a branch may not contain quotes.
Branch = Annotated[str, Pattern(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,99}", "a branch (`main`)")]
Cron = Annotated[
    str, Pattern(r"[0-9A-Za-z*/,-]{1,40}( [0-9A-Za-z*/,-]{1,40}){4}", "five fields of cron (`17 3 * * 1`)")
]


class Exclude(Record):
    """Cells that are not wanted."""

    when: Fields = Field(
        description="Fields and their values; cells that have all of them are left out",
        examples=[{"tensorflow": "2.17.0", "gpus": ["rtx5090"]}],
    )
    reason: Annotated[Line, Pattern(r".{1,500}", "a reason")] = Field(
        description="The reason, which every listing repeats", examples=["nobody uses it"]
    )


class Override(Record):
    """Overrides for some cells."""

    when: Fields = Field(description="Fields and their values; the rule is for cells that have all of them")
    set: Fields | None = Field(
        None, description="Fields merged over the cell's own, as a profile is merged over the profile that it extends"
    )
    runner: Runner | None = Field(
        None,
        description="The label or labels of the machine that builds these cells",
        examples=["gpu", ["self-hosted", "gpu"]],
    )


class Ci(Record):
    """Values for `tfdock ci render`; it needs `install`."""

    registry: Repository | None = Field(
        None, description="The repository that the wheel images are in", examples=["ghcr.io/me/wheels"]
    )
    cache: Repository | None = Field(
        None, description="The repository that Bazel's caches are in, as layers", examples=["ghcr.io/me/tfdock-cache"]
    )
    install: Line | None = Field(
        None,
        description="The shell command that installs tfdock in a job; required by `tfdock ci render`. Pin every "
        "package "
        "by its hash, or install a path or a commit: the owner of a bare name on the index can run code in your jobs",
        examples=["pip install --require-hashes -r ci/requirements.txt"],
    )
    knowledge: ListOf[Folder] | None = Field(
        None,
        description="Folders of further knowledge for jobs, relative to this file; jobs read no other folders",
        examples=[["../knowledge"]],
    )
    time_limit: Duration | None = Field(
        None, description="The time after which a job stops building and saves its cache", examples=["5h15m"]
    )
    continuations: Annotated[int, Field(ge=0, le=20)] = Field(
        2, description="How often to plan and build again for wheels that the time limit stopped", examples=[2]
    )
    branches: ListOf[Branch] = Field(
        ["main"], description="The branches whose jobs may push wheels and caches", examples=[["main"]]
    )
    jobs: Annotated[int, Field(ge=1, le=10_000)] | None = Field(
        None,
        description="How many jobs share the wheels of a round; by default each wheel has its own job",
        examples=[8],
    )
    schedule: Cron | None = Field(None, description="When to check for missing wheels", examples=["17 3 * * 1"])


class MatrixFile(Record):
    """Which wheels should exist: a base profile, axes over it, and the cells to exclude, add or change."""

    schema_: Literal[1] = Field(alias="schema", description="Version of this format")
    base: Path_ | None = Field(
        None, description="The profile to start from, relative to this file", examples=["rtx3080.yaml"]
    )
    profile: Fields | None = Field(
        None, description="Fields of the profile that every cell starts with; they override the fields of `base`"
    )
    axes: Annotated[dict[str, ListOf[Any]], AfterValidator(_some)] | None = Field(
        None,
        description="Fields of a profile, each with the values that it takes; every combination is a cell",
        examples=[{"tensorflow": ["2.18.0", "2.17.0"], "gpus": [["rtx3080"], ["rtx5090"]]}],
    )
    exclude: list[Exclude] = Field([], description="Combinations to exclude, each with a reason")
    include: list[Fields] = Field(
        [],
        description="Additional cells: fields over the base",
        examples=[[{"tensorflow": "2.16.2", "python": "3.11"}]],
    )
    overrides: list[Override] = Field([], description="Overrides for some cells; later ones win")
    runner: Runner = Field(
        "ubuntu-24.04", description="The label or labels of the machine that builds", examples=["ubuntu-24.04"]
    )
    ci: Ci = Field(Ci(), description="Values for `tfdock ci render`")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """An entry of `exclude` or `overrides`, for cells that have every value of `when` (dotted field -> value).

    `sets` is the map of fields merged over such a cell. `runner` has the cell's new labels. A value of None changes
    nothing. `place` is the entry's node in the file.
    """

    when: Mapping[str, Node]
    place: Node
    reason: str = ""
    sets: Node | None = None
    runner: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """A matrix as it stands in its file. Fields have dotted names; nodes know their file, line and column.

    `base` is the document of the profile to start from, with the profiles that it extends. `axes` and `include` are
    as in the file.
    """

    file: str
    base: Node
    axes: Mapping[str, tuple[Node, ...]]
    exclude: tuple[Rule, ...]
    include: tuple[Node, ...]
    overrides: tuple[Rule, ...]
    runner: tuple[str, ...]
    ci: Ci
    document: Node


def json_schema(names: Mapping[str, Sequence[str]] | None = None) -> dict[str, Any]:
    """Return the matrix's JSON Schema, for editors; fields of a profile have the types and `names` of profiles."""
    schema = MatrixFile.model_json_schema()
    profile = profiles.json_schema(names)
    fields = {name: field for name, field in profile["properties"].items() if name not in _NOT_A_FIELD}
    # The dotted name of a nested field. Editors do not know the type of its value.
    dotted = rf"^{_NAME}(\.{_NAME})+$"
    some = {"type": "object", "minProperties": 1, "additionalProperties": False}
    values = {"type": "array", "minItems": 1}
    axes = {name: {**values, "items": field} for name, field in fields.items()}
    defined = schema["$defs"]
    defined |= profile["$defs"]
    defined["Fields"] = {**some, "properties": fields, "patternProperties": {dotted: {}}}
    defined["Axes"] = {**some, "properties": axes, "patternProperties": {dotted: values}}
    there = {"$ref": "#/$defs/Fields"}
    for record, name, reference in (
        (schema, "profile", there),
        (schema, "axes", {"$ref": "#/$defs/Axes"}),
        (defined["Exclude"], "when", there),
        (defined["Override"], "when", there),
        (defined["Override"], "set", there),
    ):
        old = record["properties"][name]
        texts = {key: old[key] for key in ("description", "examples") if key in old}
        # Use `allOf`: in this draft, keys beside a `$ref` are ignored.
        record["properties"][name] = {"allOf": [reference], **texts}
    schema["properties"]["include"] |= {"items": there}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$id": "urn:tfdock:matrix:1",
        **schema,
        "title": "tfdock matrix",
        # A matrix needs a start (`base` or `profile`) and cells (`axes` or `include`).
        "allOf": [
            {"anyOf": [{"required": [name]} for name in names]}
            for names in (("base", "profile"), ("axes", "include"))
        ],
    }


def base_of(text: str, file: str) -> Node | None:
    """Return the value of a matrix's `base:`, which names the file of a profile; None if it is not a text."""
    node = yaml_nodes.parse(text, file).entries.get("base")
    return node if node and node.kind == "text" else None


def read(text: str, file: str, others: Mapping[str, str] | None = None, base_file: str | None = None) -> Matrix:
    """Read a matrix; raises ProfileError with all problems at once.

    `others` maps the base profile and the profiles that it extends, by their names as written, to their texts.
    Problems name the base profile as `base_file`.
    """
    document = yaml_nodes.parse(text, file)
    if document.kind != "map":
        message = f"a matrix is a map of `name: value` lines, this is a {document.kind}"
        fix = "start with `schema: 1`, `base: rtx3080.yaml` and `axes:`"
        raise ProfileError(document.problem(file, "profile-not-a-map", message, fix))
    # The user gave a profile instead of a matrix. Say so once, not that each of its keys is unknown.
    if "tensorflow" in document.keys and not {"axes", "include"} & document.keys.keys():
        line, column = document.keys["tensorflow"]
        message = "this is a profile, not a matrix: it has `tensorflow`"
        fix = "start a matrix from this profile: `base:` names it, and `axes:` lists the values to vary"
        raise ProfileError.of("matrix-is-profile", message, fix, file=file, line=line, column=column)
    written = profiles.checked(MatrixFile, document, file)
    _check(written, document, file)
    return Matrix(
        file=file,
        base=_base(written, document, others or {}, base_file or written.base or file),
        axes={name: node.items for name, node in _entries(document, "axes")},
        exclude=tuple(_rules(written.exclude, document, "exclude")),
        include=document.at(("include",)).items if "include" in document.entries else (),
        overrides=tuple(_rules(written.overrides, document, "overrides")),
        runner=_labels(written.runner),
        ci=written.ci,
        document=document,
    )


def nested(
    fields: Mapping[str, Node], place: Node, keys: Mapping[str, tuple[int, int]] = MappingProxyType({})
) -> Node:
    """Turn fields with dotted names into the nested map of a profile. `keys` maps names to their known places."""
    entries: dict[str, Node] = {}
    places: dict[str, tuple[int, int]] = {}
    for name, value in fields.items():
        where = keys.get(name, (value.line, value.column))
        head, *rest = name.split(".")
        # Build from the inside out: `a.b.c` becomes maps of one entry each, one in the other.
        for part in reversed(rest):
            value = Node(
                kind="map",
                line=value.line,
                column=value.column,
                file=value.file,
                entries={part: value},
                keys={part: where},
            )
        old = entries.get(head)
        entries[head] = profiles.overlaid(old, value) if old and old.kind == value.kind == "map" else value
        places[head] = where
    return Node(kind="map", line=place.line, column=place.column, file=place.file, entries=entries, keys=places)


def same(value: Node | None) -> str:
    """Return the same text for equal values only: `1` and `true` differ. A missing field is null."""
    # Compare as JSON, because in Python `1 == True`.
    return json.dumps(value.value if value else None, sort_keys=True)


def _base(written: MatrixFile, document: Node, others: Mapping[str, str], base_file: str) -> Node:
    base = Node(kind="map", line=1, column=1, file=document.file)
    if written.base is not None:
        place = document.entries["base"]
        if written.base not in others:
            message, fix = f"the profile `{written.base}` does not exist", "the path is relative to the matrix"
            raise ProfileError(place.problem(document.file, "profile-not-found", message, fix))
        base = profiles.merged(others[written.base], base_file, others)
    if written.profile is not None:
        node = document.entries["profile"]
        base = profiles.overlaid(base, nested(node.entries, node, node.keys))
    # The extended profiles are merged already.
    entries = {"schema": document.entries["schema"], **base.entries}
    entries.pop("extends", None)
    return base._replace(entries=entries)


def _rules(written: Iterable[Exclude | Override], document: Node, name: str) -> Iterator[Rule]:
    for rule, node in zip(written, document.entries[name].items if written else (), strict=True):
        when = node.entries["when"].entries
        if isinstance(rule, Exclude):
            yield Rule(when=when, place=node, reason=rule.reason)
        else:
            fields = node.entries["set"] if rule.set is not None else None
            runner = None if rule.runner is None else _labels(rule.runner)
            yield Rule(when=when, place=node, sets=fields, runner=runner)


def _labels(runner: str | list[str]) -> tuple[str, ...]:
    return (runner,) if isinstance(runner, str) else tuple(runner)


# --- what the matrix itself may say -------------------------------------------------------------------------------


def _check(written: MatrixFile, document: Node, file: str) -> None:
    problems = [*_check_names(document, file), *_check_axes(document, file)]
    if written.axes is None and not written.include:
        message, fix = "the matrix has no cells", "name `axes:`, or cells under `include:`"
        problems.append(document.problem(file, "matrix-empty", message, fix))
    if written.base is None and written.profile is None:
        fix = "name a profile, `base: rtx3080.yaml`, or write its fields: `profile:`"
        problems.append(document.problem(file, "matrix-empty", "the matrix starts from no profile", fix))
    if problems:
        # Sort by place in the file, the order in which a reader corrects them.
        raise ProfileError(*sorted(problems, key=lambda problem: (problem.line or 0, problem.column or 0)))


def _check_names(document: Node, file: str) -> Iterator[Problem]:
    """Check the names of fields, except for unknown names: the profiles of the cells report them."""
    for place in _maps_of_fields(document):
        for name, (line, column) in place.keys.items():
            message, fix = _name_error(name, place.entries)
            if message:
                yield Problem("matrix-field", message, fix, file=file, line=line, column=column, field=name)


def _name_error(name: str, others: Collection[str]) -> tuple[str, str]:
    """Return what is wrong with a name beside `others`, and the fix; two empty texts if nothing is wrong."""
    # Report the name once here. Otherwise the profiles of thousands of cells would report it.
    if name.partition(".")[0] in _NOT_A_FIELD or not _FIELD.fullmatch(name):
        fix = "write a field of profiles, with dots if nested: `bazel.version`; `base:` names the starting profile"
        return f"`{yaml_nodes.shown(name)}` is not a field that a matrix can set", fix
    parts = name.split(".")
    outer = (".".join(parts[:end]) for end in range(1, len(parts)))
    # It would be unclear which of the two values counts.
    parent = next((field for field in outer if field in others), None)
    if parent is None:
        return "", ""
    message = f"`{yaml_nodes.shown(name)}` is part of `{yaml_nodes.shown(parent)}`, which is also set"
    return message, "write it into the value of the other field"


def _maps_of_fields(document: Node) -> Iterator[Node]:
    entries = document.entries
    yield from (entries[name] for name in ("profile", "axes") if name in entries)
    yield from entries["include"].items if "include" in entries else ()
    for rules in ("exclude", "overrides"):
        for rule in entries[rules].items if rules in entries else ():
            yield from (rule.entries[name] for name in ("when", "set") if name in rule.entries)


def _check_axes(document: Node, file: str) -> Iterator[Problem]:
    for name, values in _entries(document, "axes"):
        seen: dict[str, Node] = {}
        for value in values.items:
            first = seen.setdefault(same(value), value)
            if first is not value:
                message = f"the axis `{name}` has this value twice, first in line {first.line}"
                yield value.problem(file, "matrix-value-twice", message, "keep one of them")


def _entries(document: Node, name: str) -> Iterable[tuple[str, Node]]:
    return document.entries[name].entries.items() if name in document.entries else ()
