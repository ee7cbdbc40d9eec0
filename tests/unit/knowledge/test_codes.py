"""Every code that the program can print is explained, and every explanation's example is what it says."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from tfdock.errors import Incompatible, Problem, ProfileError
from tfdock.knowledge import loader

from ..desk import FILE, Desk
from ..program_sources import MODULES, walk
from ..resolve.test_impossible import changed

CODE = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
WORDS = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*")
CODES = loader.knowledge().codes
# A code made from a name, and what the name may be.
COMPOSED = {"{self.phase}-failed": ("fetch-failed", "compile-failed")}


# --- every code is explained --------------------------------------------------------------------------------------


Places = Mapping[str, Mapping[str, int]]


@cache
def places() -> Places:
    """Callable -> module -> at which position it takes a code: functions and records with a name `code`."""
    found: dict[str, dict[str, int]] = {}
    for module, tree in MODULES.items():
        for node in walk(tree):
            parameters = parameters_of(node)
            if "code" in parameters:
                found.setdefault(getattr(node, "name", ""), {})[module] = parameters.index("code")
    return found


def parameters_of(node: ast.AST) -> list[str]:
    """What a function takes, or what a class is made with, in order."""
    if isinstance(node, ast.ClassDef):
        made = [one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
        fields = [one.target for one in node.body if isinstance(one, ast.AnnAssign)]
        return names_of(made[0]) if made else [one.id for one in fields if isinstance(one, ast.Name)]
    return names_of(node) if isinstance(node, ast.FunctionDef) and node.name != "__init__" else []


def names_of(function: ast.FunctionDef) -> list[str]:
    names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
    return names[1:] if names[:1] in (["self"], ["cls"]) else names


def given_codes(module: str, tree: ast.AST, taking: Places) -> Iterator[str]:
    """The codes that a module hands over or keeps. By position a code must look like one: it has a dash."""
    for node in walk(tree):
        if isinstance(node, ast.Call):
            for keyword in node.keywords:
                yield from texts(keyword.value) if _takes_code(keyword.arg) else ()
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            # What begins with an underscore belongs to its own module.
            homes = taking.get(name, {})
            for place in {place for home, place in homes.items() if home == module or not name.startswith("_")}:
                yield from (text for one in node.args[place : place + 1] for text in texts(one) if "-" in text)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                yield from (text for one in assigned(target, node.value) for text in texts(one))
        elif isinstance(node, ast.FunctionDef):
            defaults = zip(reversed(node.args.args), reversed(node.args.defaults), strict=False)
            yield from (text for one, value in defaults if one.arg == "code" for text in texts(value))
        # Code, message and fix, to be unpacked: a message has blanks.
        elif isinstance(node, ast.Tuple) and len(node.elts) == 3 and " " in ast.unparse(node.elts[1]):
            yield from (text for text in texts(node.elts[0]) if "-" in text)


def _takes_code(name: str | None) -> bool:
    """Whether a keyword takes a code: `code`, or `malformed_code` among several."""
    return name == "code" or (name or "").endswith("_code")


def assigned(target: ast.expr, value: ast.expr) -> Iterator[ast.expr]:
    """What a name `code` is given, alone or among others."""
    if isinstance(target, ast.Name) and target.id == "code":
        yield value
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for one, part in zip(target.elts, value.elts, strict=False):
            yield from assigned(one, part)


def texts(node: ast.expr) -> Iterator[str]:
    """The codes that an expression may be."""
    if isinstance(node, ast.JoinedStr):
        yield from COMPOSED.get(ast.unparse(node)[2:-1], ())
    elif isinstance(node, ast.IfExp):
        yield from (*texts(node.body), *texts(node.orelse))
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and CODE.fullmatch(node.value):
        yield node.value


@cache
def printed_codes() -> dict[str, str]:
    """Code -> a module that gives it."""
    taking = places()
    return {code: module for module, tree in MODULES.items() for code in given_codes(module, tree, taking)}


@pytest.mark.slow
def test_every_code_that_can_be_printed_is_explained() -> None:
    printed = printed_codes()
    missing = {code: module for code, module in sorted(printed.items()) if code not in CODES}
    assert missing == {}, "codes without a row in knowledge/codes.yaml"


@pytest.mark.slow
def test_no_code_is_explained_that_is_never_printed() -> None:
    assert sorted(set(CODES) - set(printed_codes())) == []


def test_the_scan_finds_codes_in_whatever_way_they_are_given() -> None:
    lines = {
        "Problem(code='a-b', message='')": {"a-b"},
        "Problem(code='a-b' if x else 'c-d')": {"a-b", "c-d"},
        "self.refuse('a-b', 'path', 'message')": {"a-b"},
        "code, message = 'a-b', 'something'": {"a-b"},
        "code = 'a-b'": {"a-b"},
        "def f(message, code='a-b'): pass": {"a-b"},
        "_DEEP = ('a-b', 'a message', FIX)": {"a-b"},
        "_means(r'x', Error, 'a-b', 'message', 'fix')": {"a-b"},
        "Problem(code=f'{self.phase}-failed')": {"fetch-failed", "compile-failed"},
        "ArtifactKind(malformed_code='a-b', other_code='c-d')": {"a-b", "c-d"},
        "style.warn('untested')": set(),
    }
    taking = {"refuse": {"x": 0}, "_means": {"here": 2, "there": 0}, "warn": {"x": 0}}
    for line, expected in lines.items():
        assert set(given_codes("here", ast.parse(line), taking)) == expected, line
    assert {"refuse", "_means"} <= set(places()), "the program still gives codes by position"


# --- every code is provoked ---------------------------------------------------------------------------------------

WITH_PROFILE = {code: row.profile for code, row in CODES.items() if row.profile is not None}


@cache
def quoted() -> set[str]:
    """The words of all texts in other tests."""
    return {
        text
        for path in (Path(__file__).parents[2]).rglob("test_*.py")
        if path != Path(__file__)
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for text in WORDS.findall(node.value)
    }


def answer(desk: Desk, text: str) -> list[Problem]:
    """What a profile is answered with, warnings included."""
    try:
        resolution = desk.resolve(text)
    except (ProfileError, Incompatible) as error:
        return list(error.problems)
    return [*resolution.untested, *getattr(resolution, "warnings", ())]


@pytest.mark.parametrize("code", sorted(WITH_PROFILE))
def test_a_profile_that_explains_a_code_provokes_that_code_and_no_other(desk: Desk, code: str) -> None:
    assert {problem.code for problem in answer(desk, WITH_PROFILE[code])} == {code}


QUESTIONS = {"gpu-ambiguous", "gpu-unknown"}  #: Which GPU is meant only the person knows.
WARNINGS = {"bazel-disputed", "component-disputed", "gpu-jit", "image-holds-other"}


@pytest.mark.parametrize("code", sorted(set(WITH_PROFILE) - WARNINGS))
def test_each_way_out_of_an_example_is_one(desk: Desk, code: str) -> None:
    with pytest.raises((ProfileError, Incompatible)) as caught:
        desk.resolve(WITH_PROFILE[code])
    problems = caught.value.problems
    assert all(problem.fix for problem in problems)
    # What is malformed says how to write it instead; no change of a field could be tried.
    assert bool(problems[0].ways) is (isinstance(caught.value, Incompatible) and code not in QUESTIONS)
    for way in problems[0].ways:
        desk.resolve(changed(WITH_PROFILE[code], way.change))  # raises what it refuses


@pytest.mark.slow
def test_a_code_that_no_profile_provokes_has_an_example_and_a_test_that_names_it() -> None:
    others = set(CODES) - set(WITH_PROFILE)
    assert {code for code in others if not CODES[code].example} == set()
    assert others - quoted() == set(), "no test provokes them"


# --- the explanations read well -----------------------------------------------------------------------------------


def test_an_explanation_is_made_of_sentences() -> None:
    for row in CODES.values():
        assert CODE.fullmatch(row.code)
        assert row.title[0].islower() or row.title[0] in "`ABCDEFGHIJKLMNOPQRSTUVWXYZ", row.code
        assert not row.title.endswith("."), f"{row.code}: a title is no sentence"
        assert row.cause.rstrip().endswith("."), row.code
        assert row.ways, row.code
        assert all(way.rstrip()[-1] not in ".," for way in row.ways), row.code


def test_the_examples_stand_in_files_of_their_own() -> None:
    assert FILE not in "".join(WITH_PROFILE.values())
