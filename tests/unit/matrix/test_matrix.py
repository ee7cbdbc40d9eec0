"""A matrix: reading it, its cells against a reference that tries everything, and a small set that touches all."""

from __future__ import annotations

import importlib
import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tfdock.errors import Problem
from tfdock.knowledge import loader
from tfdock.matrix import matrix_file as matrices
from tfdock.matrix.cells import MOST_CELLS, CellCombination, cover, expand, idle
from tfdock.matrix.matrix_file import Matrix
from tfdock.profile import profile as profiles

from ..desk import problem_of, problems_of
from ..steps import steps

jsonschema: Any = importlib.import_module("jsonschema")  # has no types

FILE = "profiles/m.yaml"
BASE = 'schema: 1\ntensorflow: "2.18.0"\npython: "3.11"\ngpus: [rtx3080]\nbazel: {version: "6.5.0", copts: [-O2]}\n'
HEAD = "schema: 1\nbase: base.yaml\n"


def read(text: str, base: str = BASE) -> Matrix:
    return matrices.read(text, FILE, {"base.yaml": base}, "profiles/base.yaml")


def refused(text: str, base: str = BASE) -> list[Problem]:
    return problems_of(lambda: read(text, base))


def documents(matrix: Matrix) -> list[dict[str, Any]]:
    """The profiles of all cells that are not excluded."""
    return [plain(cell) for cell in expand(matrix) if not cell.excluded]


def plain(cell: CellCombination) -> dict[str, Any]:
    found = cell.document.value
    assert isinstance(found, dict)
    return found


# --- against a reference --------------------------------------------------------------------------------------------

# Fields of each kind: plain, of a map, the map itself, and two of the device fields, which drive each other out.
VALUES: dict[str, list[Any]] = {
    "tensorflow": ["2.18.0", "2.17.0", "2.16.2"],
    "python": ["3.11", "3.12", None],
    "xla": [True, False],
    "gpus": [["rtx3080"], ["rtx3090"], ["rtx3080", "rtx3090"]],
    "compute_capabilities": [["sm_86"], ["sm_90", "compute_90"]],
    "bazel.version": ["6.5.0", "7.0.0"],
    "bazel.copts": [["-O3"], ["-g"]],
    "wheel": [{"name": "a"}, {"local_version": "b"}],
    "wheel.name": ["c", "d"],
}
DEVICES = ("gpus", "compute_capabilities", "amdgpu_targets", "targets")


def some_names(least: int, most: int) -> st.SearchStrategy[list[str]]:
    names = st.lists(st.sampled_from(sorted(VALUES)), min_size=least, max_size=most, unique=True)
    return names.filter(lambda some: not {"wheel", "wheel.name"} <= set(some))  # one is part of the other


def some_fields(least: int = 1, most: int = 3) -> st.SearchStrategy[dict[str, Any]]:
    return some_names(least, most).flatmap(
        lambda some: st.fixed_dictionaries({name: st.sampled_from(VALUES[name]) for name in some})
    )


def some_axes() -> st.SearchStrategy[dict[str, list[Any]]]:
    return some_names(0, 4).flatmap(
        lambda some: st.fixed_dictionaries(
            {
                name: st.lists(st.sampled_from(VALUES[name]), min_size=1, max_size=3, unique_by=json.dumps)
                for name in some
            }
        )
    )


rules = st.fixed_dictionaries({"when": some_fields(most=2)})
exclusions = st.lists(rules, max_size=3).map(lambda some: [{**one, "reason": "no"} for one in some])
changes = st.fixed_dictionaries({"when": some_fields(most=2), "set": some_fields(), "runner": st.sampled_from("xyz")})
written = st.fixed_dictionaries(
    {
        "axes": some_axes(),
        "include": st.lists(some_fields(), max_size=3),
        "exclude": exclusions,
        "overrides": st.lists(changes, max_size=3),
    }
).filter(lambda one: one["axes"] or one["include"])


def text_of(matrix: Mapping[str, Any]) -> str:
    """JSON is YAML, and has no aliases."""
    return json.dumps({"schema": 1, "base": "base.yaml", **{k: v for k, v in matrix.items() if v}}, indent=1)


def reference(matrix: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """The cells by the words of the documentation, on plain data: profile and runner of each."""
    base = yaml.safe_load(BASE)
    names = list(matrix["axes"])
    cells = []
    if names:
        for chosen in itertools.product(*(matrix["axes"][name] for name in names)):
            cell = laid_over(base, dict(zip(names, chosen, strict=True)))
            if not any(has(cell, rule["when"]) for rule in matrix["exclude"]):
                cells.append(cell)
    cells += [laid_over(base, one) for one in matrix["include"]]
    for before in cells:
        cell, runner = before, "ubuntu-24.04"
        for rule in matrix["overrides"]:
            if has(before, rule["when"]):
                cell, runner = laid_over(cell, rule["set"]), rule["runner"]
        yield cell, runner


def laid_over(profile: dict[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """A new profile: of two maps every key, of anything else the new value; devices replace devices."""
    found: dict[str, Any] = json.loads(json.dumps(profile))
    if any(name in DEVICES for name in fields):
        found = {name: value for name, value in found.items() if name not in DEVICES}
    for dotted, value in fields.items():
        *outer, last = dotted.split(".")
        holder = found
        for name in outer:
            holder = holder.setdefault(name, {})
        if isinstance(value, dict) and isinstance(holder.get(last), dict):
            holder[last] = {**holder[last], **value}
        else:
            holder[last] = json.loads(json.dumps(value))
    return found


def has(profile: Mapping[str, Any], fields: Mapping[str, Any]) -> bool:
    for dotted, value in fields.items():
        found: Any = profile
        for name in dotted.split("."):
            found = found.get(name) if isinstance(found, dict) else None
        if found != value:
            return False
    return True


@pytest.mark.slow
@given(written)
def test_the_cells_are_those_of_a_reference_that_tries_everything(matrix: dict[str, Any]) -> None:
    found = [(plain(cell), *cell.runner) for cell in expand(read(text_of(matrix))) if not cell.excluded]
    assert found == list(reference(matrix))


@pytest.mark.slow
@given(written, st.randoms(use_true_random=False))
def test_the_order_of_axes_values_and_exclusions_changes_no_cell(matrix: dict[str, Any], dice: Any) -> None:
    axes = [(name, dice.sample(values, len(values))) for name, values in matrix["axes"].items()]
    turned = {
        "axes": dict(dice.sample(axes, len(axes))),
        "include": dice.sample(matrix["include"], len(matrix["include"])),
        "exclude": dice.sample(matrix["exclude"], len(matrix["exclude"])),
        "overrides": matrix["overrides"],
    }
    assert counted(read(text_of(turned))) == counted(read(text_of(matrix)))


def counted(matrix: Matrix) -> Counter[str]:
    cells = expand(matrix)
    return Counter(json.dumps([plain(cell), cell.runner, bool(cell.excluded)], sort_keys=True) for cell in cells)


@pytest.mark.slow
@given(written)
def test_fields_are_what_a_cell_has_and_a_rule_is_idle_where_it_means_nobody(matrix: dict[str, Any]) -> None:
    found = read(text_of(matrix))
    cells = expand(found)
    for cell in cells:
        # Of a map a cell may have more than it says: maps merge.
        said = {name: node.value for name, node in cell.fields.items() if name != "wheel"}
        assert has(plain(cell), said)
    used = {json.dumps(rule.place.value, sort_keys=True) for cell in cells for rule in cell.rules}
    lines = {problem.line for problem in idle(found, cells)}
    for rule in (*found.exclude, *found.overrides):
        assert (rule.place.line in lines) is (json.dumps(rule.place.value, sort_keys=True) not in used)


# --- a small set that touches everything ----------------------------------------------------------------------------


@given(st.lists(st.frozensets(st.sampled_from("abcdefgh"), max_size=4), max_size=12), st.data())
def test_a_cover_has_every_value_and_none_of_it_for_nothing(
    values: Sequence[frozenset[str]], data: st.DataObject
) -> None:
    costs = data.draw(st.lists(st.floats(0, 9), min_size=len(values), max_size=len(values)))
    chosen = cover(values, costs)
    everything = frozenset().union(*values)
    assert frozenset().union(*(values[place] for place in chosen)) == everything
    assert list(chosen) == sorted(set(chosen))
    for place in chosen:
        others = frozenset().union(*(values[other] for other in chosen if other != place))
        assert values[place] - others, "others have everything that it has"
    # Greedy finds no more than the harmonic sum of the largest set times the fewest that do.
    fewest = next(
        size
        for size in range(len(values) + 1)
        if any(frozenset().union(*some) == everything for some in itertools.combinations(values, size))
    )
    assert len(chosen) <= fewest * sum(1 / part for part in range(1, max(map(len, values), default=0) + 1))


def test_a_cover_takes_the_cheaper_of_two_that_do_as_much() -> None:
    assert cover([{"a", "b"}, {"a", "b"}, {"c"}], [2.0, 1.0, 5.0]) == (1, 2)


def test_a_cover_of_an_axis_twice_as_long_takes_twice_the_steps() -> None:
    def covered(length: int) -> int:
        values = [{f"a{number}", f"b{number % 7}"} for number in range(length)]
        return steps(lambda: cover(values, [1.0] * length))

    assert covered(4000) < 2.1 * covered(2000)


def test_a_cover_of_three_axes_needs_as_many_cells_as_the_longest_has_values() -> None:
    matrix = read(
        HEAD + "axes: {tensorflow: ['2.18.0', '2.17.0', '2.16.2'], python: ['3.11', '3.12'], xla: [true, false]}"
    )
    cells = expand(matrix)
    assert len(cells) == 12
    assert len(cover([cell.values for cell in cells], [1.0] * 12)) == 3


# --- places ---------------------------------------------------------------------------------------------------------


def test_every_value_of_a_cell_knows_the_line_of_the_file_that_says_it() -> None:
    (cell,) = expand(read(HEAD + 'axes:\n  python: ["3.12"]\n  bazel.version:\n    - "7.0.0"\n'))
    entries = cell.document.entries
    assert (entries["tensorflow"].file, entries["tensorflow"].line) == ("profiles/base.yaml", 2)
    assert (entries["python"].file, entries["python"].line, entries["python"].column) == (FILE, 4, 12)
    version = cell.document.at_field("bazel.version")
    assert (version.file, version.line, version.column) == (FILE, 6, 7)
    assert cell.document.at_field("bazel.copts").file == "profiles/base.yaml"


def test_a_profile_with_a_mistake_is_refused_at_the_line_of_the_matrix_that_makes_it() -> None:
    (cell,) = expand(
        read(HEAD + "axes: {xla: [true]}\noverrides:\n  - when: {xla: true}\n    set: {bazel.versoin: '7.0'}\n")
    )
    problem = problem_of(lambda: profiles.checked(profiles.Profile, cell.document, FILE))
    assert (problem.code, problem.where) == ("profile-unknown-key", f"{FILE}:6:11")
    assert problem.fix == "did you mean `version`?"


def test_the_base_may_extend_others_and_the_profile_stands_over_it() -> None:
    others = {"base.yaml": "extends: all.yaml\npython: '3.11'\n", "all.yaml": BASE}
    text = HEAD + "profile: {bazel.version: '7.1.0', wheel: {name: mine}}\naxes: {xla: [false]}\n"
    (cell,) = expand(matrices.read(text, FILE, others))
    expected = {"version": "7.1.0", "copts": ["-O2"]}
    assert plain(cell) == {**yaml.safe_load(BASE), "bazel": expected, "wheel": {"name": "mine"}, "xla": False}


def test_a_matrix_without_a_base_has_its_profile_inline() -> None:
    text = "schema: 1\nprofile: {tensorflow: '2.18.0'}\ninclude:\n  - {python: '3.12'}\n"
    assert documents(read(text)) == [{"schema": 1, "tensorflow": "2.18.0", "python": "3.12"}]


# --- what is refused ------------------------------------------------------------------------------------------------

AXES = HEAD + "axes: {python: ['3.11']}\n"


@pytest.mark.parametrize(
    ("text", "code", "place"),
    [
        pytest.param("- a\n", "profile-not-a-map", "1:1", id="a list"),
        pytest.param(BASE, "matrix-is-profile", "2:1", id="a profile"),
        pytest.param(AXES + "tensorflow: '2.18.0'\n", "profile-unknown-key", "4:1", id="a field at the top"),
        pytest.param(HEAD, "matrix-empty", "1:1", id="no cells"),
        pytest.param("schema: 1\naxes: {python: ['3.11']}\n", "matrix-empty", "1:1", id="no profile"),
        pytest.param("base: base.yaml\naxes: {python: ['3.11']}\n", "profile-missing-key", "1:1", id="no schema"),
        pytest.param(AXES + "exlude: []\n", "profile-unknown-key", "4:1", id="a misspelt key"),
        pytest.param(HEAD + "axes: {python: []}\n", "profile-bad-value", "3:16", id="an axis without values"),
        pytest.param(HEAD + "axes: {}\n", "profile-bad-value", "3:7", id="no axes"),
        pytest.param(HEAD + "axes: {python: '3.11'}\n", "profile-bad-value", "3:16", id="an axis that is no list"),
        pytest.param(HEAD + "axes: {gpus: [[a], [a]]}\n", "matrix-value-twice", "3:20", id="a value twice"),
        pytest.param(HEAD + "axes: {extends: [a.yaml]}\n", "matrix-field", "3:8", id="extends"),
        pytest.param(HEAD + "axes: {schema: [1]}\n", "matrix-field", "3:8", id="schema"),
        pytest.param(HEAD + "axes: {bazel..version: ['1']}\n", "matrix-field", "3:8", id="two dots"),
        pytest.param(HEAD + f"axes: {{{'.'.join(['a'] * 500)}: [1]}}\n", "matrix-field", "3:8", id="endless"),
        pytest.param(HEAD + "include: [{'a b': 1}]\n", "matrix-field", "3:12", id="a blank"),
        pytest.param(HEAD + "include: [{a: {}, a.b: 1}]\n", "matrix-field", "3:19", id="a field and a part of it"),
        pytest.param(HEAD + "include: [{}]\n", "profile-bad-value", "3:11", id="a cell without fields"),
        pytest.param(AXES + "exclude: [{when: {xla: true}}]\n", "profile-missing-key", "4:11", id="no reason"),
        pytest.param(AXES + "exclude: [{when: {xla: true}, reason: ''}]\n", "profile-bad-value", "4:39", id="empty"),
        pytest.param(AXES + "exclude: [{when: {}, reason: x}]\n", "profile-bad-value", "4:18", id="everything"),
        pytest.param(AXES + "overrides: [{when: {extends: x}}]\n", "matrix-field", "4:21", id="a rule on extends"),
        pytest.param(AXES + "runner: []\n", "profile-bad-value", "4:9", id="no label"),
        pytest.param(AXES + "runner: ${{secrets.x}}\n", "profile-bad-value", "4:9", id="an expression for a label"),
        pytest.param(AXES + "ci: {registry: 'ghcr.io/me/x:latest'}\n", "profile-bad-value", "4:16", id="a tag"),
        pytest.param(AXES + "ci: {time_limit: 5}\n", "profile-bad-value", "4:18", id="a number for a duration"),
        pytest.param(AXES + 'ci: {install: "a\\nb"}\n', "profile-bad-value", "4:15", id="two lines"),
        pytest.param(AXES + "ci: {schedule: often}\n", "profile-bad-value", "4:16", id="no cron"),
        pytest.param(AXES + "ci: {continuations: 99}\n", "profile-bad-value", "4:21", id="no end"),
        pytest.param("schema: 1\nbase: x.yaml\naxes: {xla: [true]}\n", "profile-not-found", "2:7", id="no base"),
    ],
)  # fmt: skip
def test_a_malformed_matrix_is_refused_at_its_place(text: str, code: str, place: str) -> None:
    problem = refused(text)[0]
    assert (problem.code, problem.where) == (code, f"{FILE}:{place}")
    assert problem.fix


def test_a_matrix_starts_from_no_matrix() -> None:
    (problem,) = refused(AXES, base=AXES)
    assert (problem.code, problem.where) == ("profile-is-matrix", "profiles/base.yaml:3:7")


def test_a_matrix_that_nobody_could_build_is_refused_before_it_is_made() -> None:
    axes = "\n".join(f"  components.c{number}: {[str(value) for value in range(10)]}" for number in range(12))
    problem = problem_of(lambda: expand(read(f"{HEAD}axes:\n{axes}\n")))
    assert problem.code == "matrix-too-large"
    assert problem.message == f"the matrix has 1000000000000 cells; at most {MOST_CELLS} are allowed"


def test_more_rules_than_can_be_held_against_all_cells_are_refused() -> None:
    rules = "".join(f"  - {{when: {{bazel.a{number}: x}}, reason: r}}\n" for number in range(201))
    problem = problem_of(lambda: expand(read(f"{AXES}exclude:\n{rules}")))
    assert problem.code == "matrix-too-large"
    assert "201 rules" in problem.message


# --- the schema for editors -----------------------------------------------------------------------------------------

SCHEMA = matrices.json_schema({"gpus": ["rtx3080"]})


def complaints(text: str) -> list[str]:
    return [error.message for error in jsonschema.Draft7Validator(SCHEMA).iter_errors(yaml.safe_load(text))]


def test_the_schema_is_valid_and_the_shipped_matrix_satisfies_it() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    assert complaints((loader.profiles() / loader.MATRIX).read_text("utf-8")) == []
    assert SCHEMA["$defs"]["Fields"]["properties"]["gpus"]["anyOf"][0]["items"]["examples"] == ["rtx3080"]


@given(written)
def test_what_is_read_satisfies_the_schema(matrix: dict[str, Any]) -> None:
    assert complaints(text_of(matrix)) == []


@pytest.mark.parametrize(
    "text",
    [
        "base: base.yaml\naxes: {python: ['3.11']}\n",
        HEAD,
        "schema: 1\naxes: {python: ['3.11']}\n",
        HEAD + "axes: {python: [3.11]}\n",
        HEAD + "axes: {pyhton: ['3.11']}\n",
        HEAD + "axes: {gpus: [rtx3080]}\n",
        HEAD + "include: [{extends: x}]\n",
        HEAD + "include: [{}]\n",
        AXES + "exclude: [{when: {python: 3.11}, reason: x}]\n",
        AXES + "overrides: [{when: {python: '3.11'}, set: {xla: maybe}}]\n",
        AXES + "ci: {cahce: x}\n",
    ],
)
def test_editors_underline_what_is_wrong(text: str) -> None:
    assert complaints(text)


@pytest.mark.parametrize("record", [matrices.MatrixFile, matrices.Exclude, matrices.Override, matrices.Ci])
def test_what_is_shown_to_be_written_is_taken(record: Any) -> None:
    from pydantic import TypeAdapter

    for name, info in record.model_fields.items():
        assert info.description, name
        for example in info.examples or ():
            TypeAdapter(info.rebuild_annotation()).validate_python(example, strict=True)


def test_the_shipped_matrix_is_read_with_its_base() -> None:
    folder = loader.profiles()
    text = (folder / loader.MATRIX).read_text("utf-8")
    base = matrices.base_of(text, "x")
    assert base is not None
    assert (folder / Path(base.raw)).is_file()
