"""The page of a verification, looked at in a real browser: what is painted, where, in which colours."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tfdock.cli.pages.verification_page import verify_page
from tfdock.gpu.devices import title
from tfdock.gpu.verdict import runs, runs_gfx
from tfdock.knowledge import loader
from tfdock.types import Capability

from .browser import HOSTILE, Browser, contrast, overlap

# --- what is looked at ----------------------------------------------------------------------------------------------

CODE = {
    "cuda": {"sass": ["sm_60", "sm_70", "sm_80", "sm_89"], "ptx": ["compute_90"], "amdgpu": []},
    "both": {
        "sass": ["sm_50", "sm_90", "sm_90a", "sm_100f"],
        "ptx": ["compute_70", "compute_90a", "compute_100"],
        "amdgpu": ["gfx900", "gfx90a:xnack+", "gfx1030", "gfx1100"],
    },
}


def coverage(code: Mapping[str, list[str]]) -> Iterator[dict[str, Any]]:
    """Every target there is, judged by the code alone; some with a limit."""
    knowledge = loader.knowledge()
    for row in knowledge.architectures:
        capabilities = knowledge.accelerators[row.accelerator].capabilities
        for target in row.targets if capabilities or code["amdgpu"] else ():
            found = (
                runs(Capability.of_gpu(target), code["sass"], code["ptx"], embedded=row.embedded)
                if capabilities
                else runs_gfx(target, code["amdgpu"])
            )
            limits = ["`NCCL` has no code for it: one GPU works, collectives do not"] if target.endswith("0") else []
            yield {
                "name": title(knowledge, knowledge.gpus[row.examples[target]]) if target in row.examples else target,
                "target": target,
                "architecture": row.architecture,
                "accelerator": row.accelerator,
                "embedded": target in row.embedded,
                "runs": found.runs,
                "reason": found.reason,
                "limits": limits,
            }


def verified(code: Mapping[str, list[str]]) -> dict[str, Any]:
    """A document such as `verify` writes."""
    images = [
        {"kind": kind, "target": target, "count": 1200, "size": 61_200_000, "isa": "8.3" if kind == "ptx" else ""}
        for kind, targets in code.items()
        for target in targets
    ]
    checks = [
        {
            "name": f"check-{number}",
            "status": status,
            "expected": "sm_86",
            "found": code["sass"],
            "reason": "so " * 40,
        }
        for number, status in enumerate(["passed", "failed", "skipped"] * 4)
    ]
    return {
        "schema": "tfdock.verify/1",
        "ok": False,
        "wheel": "tensorflow-2.18.0-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
        "name": "tensorflow",
        "version": "2.18.0",
        "sha256": "0123456789abcdef" * 4,
        "size": 615_412_345,
        "platform_tag": "manylinux_2_17_x86_64.manylinux2014_x86_64",
        "checks": checks,
        "gpu_code": code,
        "libraries": [
            {
                "path": "tensorflow/libtensorflow_cc.so.2",
                "size": 1_100_000_000,
                "gpu_code": {**code, "images": images},
            },
            {"path": f"tensorflow/{'long_' * 40}.so", "size": 1, "gpu_code": {}},
        ],
        "coverage": list(coverage(code)),
    }


def hostile() -> dict[str, Any]:
    """Whatever a stranger's wheel may bring: too long, too much, and with markup in it."""
    text = HOSTILE + "x" * 400
    library = {"path": text, "gpu_code": {"images": [{"kind": "sass", "target": text}] * 50}}
    targets = [text, "8.6", "gfx90a", *(f"{major}.{minor}" for major in range(20, 30) for minor in range(9))]
    return {
        "ok": True,
        **dict.fromkeys(("wheel", "name", "version", "sha256", "profile", "platform_tag"), text),
        "checks": [dict.fromkeys(("name", "status", "expected", "found", "reason"), text)] * 40
        + [{"name": text, "status": "failed", "reason": text}] * 20,
        "gpu_code": {"sass": [text, "sm_86"], "ptx": ["compute_900"], "amdgpu": [text, f"gfx90a:{text}"]},
        "libraries": [library] * 3,
        "coverage": [
            {
                "target": target,
                "runs": way,
                "limits": [text],
                **dict.fromkeys(("name", "architecture", "reason"), text),
            }
            for target, way in zip(targets, itertools.cycle(("native", "no", text, "ptx-jit", "native-same-major")))
        ],
    }


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each document's page, as a file."""
    documents = {name: verified(code) for name, code in CODE.items()} | {"hostile": hostile(), "empty": {}}
    folder = tmp_path_factory.mktemp("pages")
    for name, document in documents.items():
        (folder / f"{name}.html").write_text(verify_page(document), "utf-8")
    return {name: folder / f"{name}.html" for name in documents}


NAMES = ("cuda", "both", "hostile", "empty")
DRAWN = ("cuda", "both")
WIDTHS = (1280, 800, 360)
SCHEMES = ("light", "dark")
everywhere = pytest.mark.parametrize(("width", "scheme"), [*itertools.product(WIDTHS, SCHEMES)])


# --- layout ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@everywhere
def test_nothing_is_wider_than_the_window(
    browser: Browser, pages: dict[str, Path], name: str, width: int, scheme: str
) -> None:
    browser.open(pages[name], width, scheme)
    seen = browser.run("look()")
    assert seen["window"] == seen["page"] == width
    assert seen["wide"] == []


@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.parametrize("width", WIDTHS)
def test_one_picture_a_family_is_seen_whole_and_can_be_read(
    browser: Browser, pages: dict[str, Path], name: str, width: int
) -> None:
    browser.open(pages[name], width, "light")
    seen = browser.run("look()")
    shown = [one for one in seen["pictures"] if one["shown"]]
    assert [one["kind"] for one in shown] == ["lying" if width > 1000 else "standing"] * (1 + (name == "both"))
    assert all(one["width"] > 300 and one["height"] > 120 for one in shown)
    for text in seen["texts"]:
        picture = text["picture"]
        assert text["size"] >= 9, text
        assert picture["x"] - 1 <= text["x"], text
        assert text["x"] + text["width"] <= picture["x"] + picture["width"] + 1, text
        assert picture["y"] - 1 <= text["y"], text
        assert text["y"] + text["height"] <= picture["y"] + picture["height"] + 1, text
    for one, other in itertools.combinations(seen["texts"], 2):
        assert not overlap(one, other), (one, other)


@pytest.mark.parametrize("media", ["screen", "print"])
def test_paper_takes_the_picture_that_lies_in_light_colours(
    browser: Browser, pages: dict[str, Path], media: str
) -> None:
    browser.open(pages["cuda"], 794, "dark", media)
    shown = [one["kind"] for one in browser.run("look()")["pictures"] if one["shown"]]
    page = browser.run("getComputedStyle(document.body).backgroundColor")
    assert (shown, page) == {
        "screen": (["standing"], "rgb(18, 23, 28)"),
        "print": (["lying"], "rgb(251, 251, 249)"),
    }[media]


# --- colours --------------------------------------------------------------------------------------------------------

COLOURS = {"native": "--native", "native-same-major": "--akin", "ptx-jit": "--jit", "no": "--no"}
LETTERS = {"native": "N", "native-same-major": "M", "ptx-jit": "J", "no": "–"}


@pytest.mark.parametrize("name", DRAWN)
@everywhere
def test_each_cell_is_painted_in_the_colour_of_its_verdict(
    browser: Browser, pages: dict[str, Path], name: str, width: int, scheme: str
) -> None:
    browser.open(pages[name], width, scheme)
    cells = browser.run("look()")["cells"]
    expected = {one["target"]: one["runs"] for one in coverage(CODE[name])}
    assert {one["target"]: one["runs"] for one in cells} == expected
    assert set(expected.values()) == set(COLOURS)
    colours = {kind: colour_of(browser, name) for kind, name in (*COLOURS.items(), ("stripe", "--jit-stripe"))}
    assert len(set(colours.values())) == len(colours)
    rows = browser.run(f"painted('{browser.picture()}', {json.dumps(cells)})")
    for cell, pixels in zip(cells, rows, strict=True):
        kind = cell["runs"]
        assert (cell["letter"], cell["title"].startswith(cell["target"])) == (LETTERS[kind], True)
        assert min(cell["width"], cell["height"]) >= 20, cell
        share = sum(tuple(one) == colours[kind] for one in pixels) / len(pixels)
        if kind == "ptx-jit":
            # Striped: told apart from the other light one without its colour as well.
            assert 0.1 < share < 0.9, cell
            assert colours["stripe"] in map(tuple, pixels), cell
        else:
            assert share == 1, (cell, pixels)


def colour_of(browser: Browser, name: str) -> tuple[int, ...]:
    """A colour of the page by its name in the style."""
    text = browser.run(f"getComputedStyle(document.documentElement).getPropertyValue('{name}')").strip()
    return tuple(bytes.fromhex(text.removeprefix("#")))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", [1280, 360])
def test_every_text_stands_out_from_what_is_behind_it(
    browser: Browser, pages: dict[str, Path], name: str, width: int, scheme: str
) -> None:
    browser.open(pages[name], width, scheme)
    texts = browser.run("texts()")
    assert len(texts) > (5 if name == "empty" else 100)
    faint = {
        (one["text"], ground): contrast(one["colour"], ground)
        for one in texts
        for ground in one["grounds"]
        if contrast(one["colour"], ground) < 4.5
    }
    assert faint == {}


def test_the_contrast_is_that_of_the_guidelines() -> None:
    assert contrast("rgb(0, 0, 0)", "rgb(255, 255, 255)") == pytest.approx(21)
    assert contrast("rgb(118, 118, 118)", "rgb(255, 255, 255)") == pytest.approx(4.54, abs=0.01)


# --- nothing else ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_the_page_runs_nothing_loads_nothing_and_complains_of_nothing(
    browser: Browser, pages: dict[str, Path], name: str
) -> None:
    browser.open(pages[name], 1280, "light")
    assert browser.run(
        "[typeof hacked, document.querySelectorAll('script, img, iframe, link[href^=http]').length]"
    ) == [
        "undefined",
        0,
    ]
    loaded = {one["request"]["url"] for one in browser.seen("Network.requestWillBeSent")}
    assert loaded - {"data:,"} == {pages[name].as_uri()}
    assert browser.seen("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown") == []
    assert browser.seen("Page.javascriptDialogOpening") == []


def test_the_page_would_complain_of_a_script_or_a_style_that_got_in(
    browser: Browser, pages: dict[str, Path], tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    text = pages["empty"].read_text("utf-8")
    page.write_text(
        text.replace("</body>", "<script>hacked=1</script><style>body{color:red}</style></body>"), "utf-8"
    )
    browser.open(page, 1280, "light")
    assert browser.run("[typeof hacked, getComputedStyle(document.body).color]") == ["undefined", "rgb(28, 36, 43)"]
    assert len(browser.seen("Log.entryAdded")) == 2
