"""The report of a matrix: JSON, JUnit's XML and the page say the same thing, whatever stands in it."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import xmlschema
from hypothesis import given
from hypothesis import strategies as st

from tfdock.cli.pages.matrix_page import counts, junit, page, table
from tfdock.errors import Problem, as_document, document_text
from tfdock.matrix.matrix_report import OUTCOMES, fields_text, report_document

SCHEMA = xmlschema.XMLSchema(Path(__file__).parents[1] / "data/junit.xsd")
HOSTILE = """]]><script>x=1</script>"'&amp;&\x00\x1b[31m\ud800\ufffe\u202e\r\n\t{{ 1 }}| ::error::"""


def cell(status: str, number: int = 0, **fields: Any) -> dict[str, Any]:
    """A row, as `matrix_report.row` makes it."""
    named = status not in ("impossible", "excluded")
    problems = [
        Problem(code="some-code", message="a message", why="it is", fixes=("this", "that"), file="m.yaml", line=3)
    ]
    problems = problems if OUTCOMES[status].kind == "failed" or status == "impossible" else []
    return {
        "build_id": f"tf2.{number}.0-py3.11-cpu-x86_64" if named else None,
        "name": f"tf2.{number}.0-py3.11-cpu-x86_64" if named else f"tensorflow=2.{number}.0",
        "fields": {"tensorflow": f"2.{number}.0", "gpus": ["rtx3080"]},
        "runner": ["ubuntu-24.04"],
        "status": status,
        "place": "matrix.yaml:7:5" if status in ("impossible", "excluded") else None,
        "code": problems[0].code if problems else "matrix-excluded" if status == "excluded" else None,
        "reason": problems[0].message if problems else "nobody wants it" if status == "excluded" else None,
        "problems": problems,
        "origin": "ghcr.io/me/wheels:x" if status == "pulled" else None,
        "wheels": [{"path": "a.whl", "sha256": "0" * 64, "size": 12_000_000}] if status == "built" else [],
        "log": ".tfdock/x/y/z.log" if status == "failed" else None,
        "record": None,
        "seconds": {"fetch": 2.5, "compile": 90.0} if status == "built" else {},
        "cache": {"hits": 3, "executed": 18} if status == "built" else None,
        "attempts": 1,
        "exit_code": 1 if OUTCOMES[status].kind == "failed" else 0,
    } | fields


def told(*cells: dict[str, Any], file: str = "profiles/matrix.yaml") -> dict[str, Any]:
    code = max((one["exit_code"] for one in cells), default=0)
    return dict(
        report_document(
            file, cells, exit_code=code, seconds=95.1234, finished="2026-01-31T09:30:00", by="tfdock build"
        )
    )


ALL = [cell(status, number) for number, status in enumerate(OUTCOMES)]


def test_the_document_counts_and_says_how_it_ended() -> None:
    found = told(*ALL)
    assert list(found)[:2] == ["schema", "ok"]
    assert found["schema"] == "tfdock.matrix-report/1"
    assert found["ok"] is False
    assert found["counts"] == dict.fromkeys(OUTCOMES, 1)
    assert told(cell("built"), cell("impossible", 1))["ok"] is True
    assert json.loads(document_text(found))["cells"][0]["problems"] == [
        json.loads(json.dumps(as_document(ALL[0]["problems"][0])))
    ]


def test_every_telling_has_the_same_cells_with_the_same_outcome() -> None:
    found = told(*ALL)
    outcomes = {one["name"]: one["status"] for one in json.loads(document_text(found))["cells"]}
    words = {name: OUTCOMES[status] for name, status in outcomes.items()}
    assert {name: word for word, name, _ in table(found)} == {name: one.word for name, one in words.items()}
    suite = ElementTree.fromstring(junit(found))
    kinds = {case.get("name"): case[0].tag if len(case) else "passed" for case in suite.iter("testcase")}
    xml = {"failed": "failure", "skipped": "skipped", "passed": "passed"}
    assert kinds == {name: xml[one.kind] for name, one in words.items()}
    shown = re.findall(
        r'<tr data-status="([a-z-]+)">.*?<th scope="row">(?:<a [^>]*>)?([^<]+)', page(found), re.DOTALL
    )
    assert {name: status for status, name in shown} == outcomes


def test_junit_counts_what_is_in_it() -> None:
    suite = ElementTree.fromstring(junit(told(*ALL)))
    kinds = Counter(one.kind for one in OUTCOMES.values())
    assert [suite.get(name) for name in ("tests", "failures", "errors", "skipped")] == [
        str(len(ALL)), str(kinds["failed"]), "0", str(kinds["skipped"]),
    ]  # fmt: skip
    case = next(case for case in suite.iter("testcase") if case.get("time") != "0.000")
    assert (case.get("classname"), case.get("time")) == ("tf2.3.0", "92.500")
    failure = suite.find("testcase/failure")
    assert failure is not None
    assert failure.get("type") == "some-code"
    assert failure.text is not None
    assert failure.text.splitlines()[-1] == "log: .tfdock/x/y/z.log"


@pytest.mark.parametrize("cells", [ALL, [], [cell("built")]], ids=["all", "none", "one"])
def test_junit_is_valid(cells: list[dict[str, Any]]) -> None:
    SCHEMA.validate(junit(told(*cells)))


def test_the_schema_refuses_what_is_not_valid() -> None:
    text = junit(told(*ALL))
    for old, new in (
        ('tests="10"', ""),
        ('name="tf', 'title="tf'),
        ("<system-err />", ""),
        ("T09:30", " 09:30"),
        ("failure", "failed"),
    ):
        assert old in text
        assert not SCHEMA.is_valid(text.replace(old, new)), old


@pytest.mark.slow
@given(text=st.text() | st.just(HOSTILE))
def test_nothing_that_stands_in_a_cell_is_more_than_text(text: str) -> None:
    problem = Problem(code="some-code", message=f"m{text}", why=text, fixes=text, file=text, line=1)
    strange = {"name": f"n{text}", "fields": {text: text}, "problems": [problem], "reason": f"m{text}", "log": text}
    strange |= {"origin": text, "wheels": [{"path": text, "sha256": "0", "size": 1}]}
    found = told(*(cell(status, number, **strange) for number, status in enumerate(OUTCOMES)), file=f"m{text}")
    plain = told(*(cell(status, number) for number, status in enumerate(OUTCOMES)))
    xml = junit(found)
    SCHEMA.validate(xml)
    assert [one.tag for one in ElementTree.fromstring(xml.encode()).iter()] == [
        one.tag for one in ElementTree.fromstring(junit(plain)).iter()
    ]
    json.loads(document_text(found).encode())
    html = page(found)
    html.encode()
    assert re.findall("<(script|img|a href=//)", html) == []


def test_the_same_document_is_the_same_page() -> None:
    assert page(told(*ALL)) == page(told(*ALL))
    assert "No cell was asked for." in page(told())
    assert counts(told()) == "no cells"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "the base"),
        ({"tensorflow": "2.18.0", "gpus": ["a", "b"]}, "tensorflow=2.18.0 gpus=a,b"),
        ({"bazel.copts": [], "xla": False, "debug": {"mode": "dbg"}}, 'bazel.copts= xla=false debug={"mode": "dbg"}'),
    ],
)
def test_a_cell_without_a_name_is_called_by_its_fields(fields: dict[str, Any], text: str) -> None:
    assert fields_text(fields) == text
