"""The report of a matrix in a real browser: every cell can be read, on any screen, and nothing runs or is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tfdock.cli.pages.matrix_page import MARKS, page
from tfdock.errors import Problem
from tfdock.matrix.matrix_report import OUTCOMES, report_document

from .browser import HOSTILE, Browser, assert_fits, assert_quiet, faint

WIDTHS = (1400, 800, 360)
SCHEMES = ("light", "dark")
CELLS = """[...document.querySelectorAll("table.cells tbody tr")].map(one => ({
  status: one.dataset.status, word: one.querySelector("td.status").textContent,
  name: one.querySelector("th").firstChild.textContent, what: one.querySelector("td.value").firstChild?.data ?? "",
}))"""


def cell(number: int, status: str, text: str = "") -> dict[str, Any]:
    failed = OUTCOMES[status].kind == "failed"
    name = text or f"tf2.18.0-py3.{number}-cuda12.5.1-cudnn9.3.0-sm80-sm86-sm89-ptx90-x86_64"
    message = (
        text or "Bazel failed in phase compile: `tensorflow/core/kernels/relu_op.cc:12:1: error: expected a thing`"
    )
    problem = Problem(
        code="compile-failed", message=message, why=text, fixes=text or "see the log", file=text or None
    )
    return {
        "build_id": name,
        "name": name,
        "fields": {"tensorflow": text or "2.18.0", "gpus": ["rtx3080", "rtx4090"]},
        "status": status,
        "place": "matrix.yaml:7:5" if status in ("impossible", "excluded") else None,
        "code": "compile-failed" if failed else "matrix-excluded" if status == "excluded" else None,
        "reason": message if failed else text or "nobody wants it",
        "problems": [problem, problem] if failed else [],
        "origin": text or "ghcr.io/me/wheels:tf2.18.0-py3.11-cuda12.5.1-cudnn9.3.0-sm80-sm86-sm89-ptx90-x86_64",
        "wheels": [{"path": f"{name}.whl", "sha256": "0" * 64, "size": 1_000_000}] if status == "built" else [],
        "log": text or ".tfdock/tf2.18.0-py3.11-cuda12.5.1-cudnn9.3.0-sm86-x86_64/0123456789ab/x.log",
        "seconds": {"compile": 4321.0} if status == "built" else {},
        "cache": None,
        "exit_code": int(failed),
    }


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    hostile = HOSTILE + "x" * 400
    told = {
        "many": [cell(number, status) for number, status in enumerate([*OUTCOMES, "built", "failed"], start=3)],
        "hostile": [cell(number, status, hostile) for number, status in enumerate(OUTCOMES)],
        "empty": [],
    }
    for name, rows in told.items():
        file = hostile if name == "hostile" else "profiles/matrix.yaml"
        found = report_document(
            file,
            rows,
            exit_code=int(name != "empty"),
            seconds=4400,
            finished="2026-01-31T09:30:00",
            by="tfdock build",
        )
        (folder / f"{name}.html").write_text(page(found), "utf-8")
    return {name: folder / f"{name}.html" for name in told}


def test_each_cell_is_shown_with_its_outcome_and_failures_come_first(
    browser: Browser, pages: dict[str, Path]
) -> None:
    browser.open(pages["many"], 1400, "light")
    cells = browser.run(CELLS)
    assert [one["status"] for one in cells][:2] == ["failed", "failed"]
    assert {one["status"] for one in cells} == set(OUTCOMES)
    for one in cells:
        assert one["word"] == f"{MARKS[OUTCOMES[one['status']].kind]} {OUTCOMES[one['status']].word}"
        assert one["name"].startswith("tf2.18.0-py3.")
        assert one["what"]


def test_a_failure_leads_to_what_is_known_of_it(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["many"], 1400, "light")
    links = browser.run(
        "[...document.querySelectorAll('table.cells a')].map(one => "
        "[one.textContent, document.querySelector(one.getAttribute('href')).textContent])"
    )
    assert len(links) == len([one for one in OUTCOMES.values() if one.kind == "failed"]) + 1
    for name, told in links:
        assert name in told
        assert "relu_op.cc:12:1" in told
        assert "x.log" in told


@pytest.mark.parametrize("name", ["many", "hostile", "empty"])
@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_wider_than_the_window(browser: Browser, pages: dict[str, Path], name: str, width: int) -> None:
    assert_fits(browser, pages[name], width)


@pytest.mark.parametrize("name", ["many", "hostile"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_text_stands_out_from_what_is_behind_it(
    browser: Browser, pages: dict[str, Path], name: str, scheme: str
) -> None:
    browser.open(pages[name], 1400, scheme)
    assert faint(browser) == {}


@pytest.mark.parametrize("name", ["many", "hostile", "empty"])
def test_the_page_runs_nothing_loads_nothing_and_complains_of_nothing(
    browser: Browser, pages: dict[str, Path], name: str
) -> None:
    assert_quiet(browser, pages[name], "script, img, iframe")
