"""The page of a wheelhouse in a real browser: each cell is the verdict of `inspect --gpu`, and can be read."""

from __future__ import annotations

import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from waits import FETCH, first_line

from tfdock.cli.pages.coverage_page import coverage_page
from tfdock.gpu.compatibility import Evidence, evidence_of_release, serve
from tfdock.gpu.coverage import coverage
from tfdock.gpu.devices import find_gpu
from tfdock.knowledge import loader
from tfdock.knowledge.tables import KnowledgeBase

from .browser import HOSTILE, Browser, faint

WIDTHS = (1400, 800, 360)
SCHEMES = ("light", "dark")
COLOURS = {"native": "--native", "native-same-major": "--akin", "ptx-jit": "--jit", "no": "--no"}
LETTERS = {"native": "N", "native-same-major": "M", "ptx-jit": "J", "no": "–", "none": "", "cpu": "✓"}


@pytest.fixture(scope="module")
def knowledge() -> KnowledgeBase:
    return loader.knowledge()


def official(knowledge: KnowledgeBase, release: str, accelerator: str = "cuda") -> Evidence:
    return evidence_of_release(knowledge, knowledge.releases[release], knowledge.accelerators[accelerator])


def row(knowledge: KnowledgeBase, release: str, python: str, accelerator: str | None = "cuda") -> dict[str, Any]:
    """What is told of the official wheel of a release, as `covered` tells it of one that lies there."""
    tag = f"cp{python.replace('.', '')}"
    evidence = official(knowledge, release, accelerator) if accelerator else None
    return {
        "file": f"tensorflow-{release}.0+{accelerator}-{tag}-{tag}-linux_x86_64.whl",
        "sha256": "0" * 64,
        "tensorflow": f"{release}.0",
        "name": "tensorflow",
        "version": f"{release}.0+{accelerator}",
        "python_tag": tag,
        "abi_tag": tag,
        "platform_tag": "linux_x86_64",
        "size": 615_000_000,
        "machine": "x86_64",
        "accelerator": accelerator,
        "coverage": [asdict(one) for one in coverage(knowledge, evidence)] if evidence else [],
    }


AMD = {
    "name": "Instinct MI250X",
    "accelerator": "rocm",
    "target": "gfx90a",
    "architecture": "CDNA 2",
    "embedded": False,
    "runs": "native",
    "reason": "it has code for gfx90a",
    "limits": [],
}


@pytest.fixture(scope="module")
def documents(knowledge: KnowledgeBase) -> Mapping[str, list[dict[str, Any]]]:
    text = HOSTILE + "x" * 400
    strange = row(knowledge, "2.18", "3.11")
    return {
        "many": [
            row(knowledge, "2.18", "3.10"),
            row(knowledge, "2.18", "3.11"),
            row(knowledge, "2.18", "3.12", None),
            row(knowledge, "2.15", "3.9"),
            row(knowledge, "2.15", "3.9", "rocm") | {"coverage": [AMD]},
        ],
        "hostile": [
            strange
            | {"file": text, "name": text, "machine": text}
            | {"coverage": [{**one, "name": text, "reason": text, "limits": [text]} for one in strange["coverage"]]}
        ],
        "empty": [],
    }


@pytest.fixture(scope="module")
def pages(documents: Mapping[str, list[dict[str, Any]]], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    for name, wheels in documents.items():
        (folder / f"{name}.html").write_text(coverage_page(wheels), "utf-8")
    return {name: folder / f"{name}.html" for name in documents}


CELLS = """[...document.querySelectorAll("table.matrix td")].map(one => ({
  runs: one.dataset.runs, target: one.dataset.target, python: one.dataset.python, title: one.title,
  label: one.getAttribute("aria-label"), text: one.firstChild?.data ?? "",
  limits: one.querySelector("sup")?.textContent ?? null,
  release: one.closest("figure").querySelector("figcaption b").textContent,
  colour: getComputedStyle(one).backgroundColor, ...box(one),
}))"""


@pytest.mark.parametrize("width", WIDTHS)
def test_each_cell_is_what_the_gpu_question_answers(
    browser: Browser, pages: dict[str, Path], knowledge: KnowledgeBase, width: int
) -> None:
    browser.open(pages["many"], width, "light")
    cells = {(one["release"], one["target"], one["python"]): one for one in browser.run(CELLS)}
    for release, target, gpu, python in (
        ("2.18", "8.6", "rtx3080", "3.11"),
        ("2.18", "8.9", "rtx4090", "3.10"),
        ("2.18", "12.0", "rtx5090", "3.11"),
        ("2.18", "5.2", "gtx980", "3.11"),
        ("2.15", "9.0", "h100", "3.9"),
    ):
        known = find_gpu(knowledge, gpu)
        assert known
        answer = serve(knowledge, known, official(knowledge, release))
        cell = cells[f"TensorFlow {release}.0", target, python]
        assert (cell["runs"], cell["text"]) == (answer.runs, LETTERS[answer.runs])
        assert answer.reason in cell["title"]
        assert cell["label"] == cell["title"]
        assert cell["limits"] == (str(len(answer.limits)) if answer.limits else None)
    assert cells["TensorFlow 2.15.0", "gfx90a", "3.9"]["runs"] == "native"
    assert cells["TensorFlow 2.15.0", "9.0", "3.9"]["title"].startswith(
        "9.0, Python 3.9: by JIT from PTX by tensorflow-2.15"
    )
    assert {one["runs"] for key, one in cells.items() if key[2] == "3.12"} == {"no", "cpu"}
    assert len({one["runs"] for one in cells.values()}) >= 5
    # One row a target and one column a Python: cells stand in lines and do not lie upon each other.
    for one in cells.values():
        assert one["width"] >= 30
        assert one["height"] >= 18


@pytest.mark.parametrize("name", ["many", "hostile", "empty"])
@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_wider_than_the_window(browser: Browser, pages: dict[str, Path], name: str, width: int) -> None:
    browser.open(pages[name], width, "light")
    seen = browser.run("look()")
    assert seen["window"] == seen["page"] == width
    assert seen["wide"] == []


@pytest.mark.parametrize("scheme", SCHEMES)
def test_each_verdict_has_its_colour(browser: Browser, pages: dict[str, Path], scheme: str) -> None:
    browser.open(pages["many"], 1400, scheme)
    colours = {one["runs"]: one["colour"] for one in browser.run(CELLS)}
    assert len({colours[kind] for kind in COLOURS}) == 4
    for kind, variable in COLOURS.items():
        wanted = browser.run(
            "(() => { const one = document.body.appendChild(document.createElement('i'));"
            f"one.style.color = 'var({variable})'; return getComputedStyle(one).color }})()"
        )
        assert colours[kind] == wanted


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
    browser.open(pages[name], 1400, "light")
    assert browser.run("[typeof hacked, document.querySelectorAll('script, img, iframe').length]") == ["undefined", 0]
    assert [one["request"]["url"] for one in browser.seen("Network.requestWillBeSent")] in (
        [pages[name].as_uri()],
        [pages[name].as_uri(), "data:,"],
    )
    assert not browser.seen("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled")


def test_each_wheel_is_named_once_and_leads_to_its_file(
    browser: Browser, pages: dict[str, Path], documents: Mapping[str, list[dict[str, Any]]]
) -> None:
    browser.open(pages["many"], 800, "light")
    links = browser.run("[...document.querySelectorAll('article a')].map(one => [one.textContent, one.href])")
    assert [text for text, _ in links] == [one["file"] for one in documents["many"]]
    folder = pages["many"].parent.as_uri()
    assert all(href == f"{folder}/{text.replace('+', '%2B')}" for text, href in links)


@pytest.fixture
def served(official_wheels: Callable[..., Path], tmp_path: Path) -> Iterator[str]:
    """The root of the server of a wheelhouse with an official wheel in it, whose page the command has made."""
    wheel = official_wheels("tensorflow==2.18.0", python="3.11")
    try:
        (tmp_path / wheel.name).hardlink_to(wheel)
    except OSError:  # on another disk
        shutil.copy(wheel, tmp_path)
    tfdock = Path(sys.executable).with_name("tfdock")
    where = ("--wheelhouse", tmp_path)
    subprocess.run((tfdock, "wheelhouse", "index", "--html", *where), check=True, capture_output=True)
    command = (tfdock, "wheelhouse", "serve", "--port", "0", *where)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        yield first_line(server).strip().removesuffix("simple/")
        server.terminate()


@pytest.mark.limit(FETCH)
def test_the_page_that_the_command_makes_and_serves_tells_of_the_wheel_that_lies_there(
    browser: Browser, served: str, knowledge: KnowledgeBase
) -> None:
    browser.open(f"{served}index.html", 1400, "light")
    cells = {one["target"]: one for one in browser.run(CELLS)}
    assert {(one["release"], one["python"]) for one in cells.values()} == {("TensorFlow 2.18.0", "3.11")}
    for target, gpu in (("8.6", "rtx3080"), ("9.0", "h100"), ("12.0", "rtx5090"), ("5.2", "gtx980")):
        known = find_gpu(knowledge, gpu)
        assert known
        assert cells[target]["runs"] == serve(knowledge, known, official(knowledge, "2.18")).runs
    links = browser.run("[...document.querySelectorAll('article a')].map(one => one.href)")
    (link,) = [link for link in links if link.endswith(".whl")]
    with urllib.request.urlopen(urllib.request.Request(link, method="HEAD")) as answer:
        assert int(answer.headers["Content-Length"]) > 500_000_000
    assert not browser.seen("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled")
