"""The page of a build in a real browser: it fits, can be read, and its bars stand where the profile says."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tfdock.bazel.trace_profile import TracedAction, TraceProfile, read_profile
from tfdock.cli.pages.build_page import build_page

from .browser import HOSTILE, Browser, assert_fits, assert_quiet, contrast, faint, overlap

RECORDED = Path(__file__).parents[1] / "unit/data/bazel"
WIDTHS = (1400, 800, 400)
SCHEMES = ("light", "dark")
KINDS = ("CppCompile", "CudaCompile", "CppLink", "Genrule", "TfWheel", "ProtoCompile", "PyCompile")


def recorded() -> tuple[dict[str, Any], TraceProfile]:
    """A build of 4.2.3."""
    profile = read_profile((RECORDED / "4.2.3-cold.profile.json").read_text("utf-8").splitlines())
    return record(profile), profile


def large() -> tuple[dict[str, Any], TraceProfile]:
    """A build of TensorFlow's size, on 64 processors."""
    chance = random.Random(5)
    actions, clock = [], [0.0] * 64
    for number in range(25_000):
        lane = clock.index(min(clock))
        seconds = chance.expovariate(0.2)
        how: Any = "executed" if number % 3 else "cached"
        kind = KINDS[int(len(KINDS) * chance.random() ** 3)] if how == "executed" else ""
        name = f"Compiling tensorflow/core/kernels/file_{number}.cc"
        actions.append(TracedAction(name=name, start=clock[lane], seconds=seconds, lane=lane, how=how, mnemonic=kind))
        clock[lane] += seconds
    profile = TraceProfile(actions=tuple(actions))
    return record(profile), profile


def hostile() -> tuple[dict[str, Any], TraceProfile]:
    """Names with markup in them, far too long."""
    text = HOSTILE + "x" * 400
    actions = [
        TracedAction(
            name=text, start=float(number), seconds=1.0, lane=number % 3, how="executed", mnemonic=f"{number}{text}"
        )
        for number in range(9)
    ]
    profile = TraceProfile(actions=tuple(actions))
    return record(profile) | {"build_id": text, "finished": text, "toolchain_key": text}, profile


def record(profile: TraceProfile) -> dict[str, Any]:
    cached = sum(one.how == "cached" for one in profile.actions)
    slowest = [
        {"name": one.name, "seconds": one.seconds, "mnemonic": one.mnemonic, "how": one.how}
        for one in profile.slowest(10)
    ]
    return {
        "build_id": "tf2.18.0-py3.11-cuda12.5.1-cudnn9.3.0-sm86-x86_64",
        "finished": "2026-11-21T22:34:09+00:00",
        "seconds": {"image": 30.0, "fetch": 61.5, "compile": 12345.6, "seal": 9.0, "verify": 42.0},
        "wheels": [{"file": "tensorflow-2.18.0+cuda12.5.sm86-cp311-cp311-linux_x86_64.whl"}],
        "toolchain_key": "e15ed4792ec563ec",
        "plan": {"resources": {"jobs": 16, "cpus": 16, "memory": 64 << 30}},
        "bazel": {
            "hits": cached,
            "executed": len(profile.actions) - cached,
            "sources": {"disk": cached} if cached else {},
            "executed_by_mnemonic": profile.by_mnemonic,
            "critical_path": {"seconds": sum(one["seconds"] for one in slowest), "actions": slowest[:6]},
            "slowest": slowest,
            "wall_seconds": 12000.0,
            "why": {
                "since": {"build_id": "x", "finished": "2026-11-20T22:34:09+00:00"},
                "sentences": ["`--copt=-O3` was added", "package g++-12 12.2.0-14 -> 12.2.0-15"],
                "not_compared": ["the files of the checkout"],
            },
        },
    }


def empty() -> tuple[dict[str, Any], TraceProfile]:
    """A record that says nothing."""
    return {}, TraceProfile()


BUILDS = {"recorded": recorded, "large": large, "hostile": hostile, "empty": empty}


@pytest.fixture(scope="module")
def builds() -> dict[str, tuple[dict[str, Any], TraceProfile]]:
    return {name: make() for name, make in BUILDS.items()}


@pytest.fixture(scope="module")
def pages(
    builds: dict[str, tuple[dict[str, Any], TraceProfile]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    for name, (document, profile) in builds.items():
        (folder / f"{name}.html").write_text(build_page(document, profile), "utf-8")
    return {name: folder / f"{name}.html" for name in builds}


@pytest.mark.parametrize("name", BUILDS)
@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_wider_than_the_window_and_labels_do_not_run_together(
    browser: Browser, pages: dict[str, Path], name: str, width: int
) -> None:
    seen = assert_fits(browser, pages[name], width)
    for text in seen["texts"]:
        picture = text["picture"]
        assert text["size"] >= 9, text
        assert text["x"] >= picture["x"] - 1, text
        assert text["x"] + text["width"] <= picture["x"] + picture["width"] + 1, text
        assert text["y"] + text["height"] <= picture["y"] + picture["height"] + 1, text
    for one, other in itertools.combinations(seen["texts"], 2):
        assert not overlap(one, other), (one, other)


BARS = """[...document.querySelectorAll("svg.chart rect[data-kind]")].map(one => ({
  kind: one.dataset.kind, title: one.parentNode.querySelector("title").textContent,
  label: one.parentNode.getAttribute("aria-label"), fill: getComputedStyle(one).fill,
  ...one.getBoundingClientRect().toJSON(), chart: one.ownerSVGElement.getBoundingClientRect().toJSON(),
}))"""


@pytest.mark.parametrize("width", WIDTHS)
def test_bars_stand_where_the_profile_says(
    browser: Browser, pages: dict[str, Path], builds: dict[str, tuple[dict[str, Any], TraceProfile]], width: int
) -> None:
    browser.open(pages["recorded"], width, "light")
    bars = {one["title"].partition(":")[0]: one for one in browser.run(BARS)}
    actions = [one for one in builds["recorded"][1].actions if one.how != "own"]
    begin = min(one.start for one in actions)
    span = max(one.start + one.seconds for one in actions) - begin
    assert {one.name.partition(":")[0] for one in actions} == set(bars)
    for one in actions:
        bar = bars[one.name.partition(":")[0]]
        chart = bar["chart"]
        assert bar["label"] == bar["title"]
        assert bar["x"] - chart["x"] == pytest.approx(chart["width"] * (one.start - begin) / span, abs=1)
        assert bar["width"] == pytest.approx(chart["width"] * one.seconds / span, abs=1)
        assert chart["y"] <= bar["y"] <= bar["y"] + bar["height"] <= chart["y"] + chart["height"]
    fills = {one["kind"]: one["fill"] for one in bars.values()}
    assert len(fills) == len(set(fills.values())) == 3, "a colour a mnemonic"


def test_the_longest_of_a_large_build_are_drawn_and_that_is_said(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["large"], 1400, "light")
    bars = browser.run(BARS)
    assert len(bars) == 3000
    counted = Counter(one["kind"] for one in bars)
    assert set(counted) == {"kind-0", "kind-1", "kind-2", "kind-3", "kind-4", "kind-other", "cached"}
    assert "The 3,000 longest of 25,000 actions are drawn." in browser.run("document.body.textContent")
    assert pages["large"].stat().st_size < 3_000_000


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_bar_of_hits_is_as_wide_as_their_share(browser: Browser, pages: dict[str, Path], scheme: str) -> None:
    browser.open(pages["large"], 800, scheme)
    parts = browser.run(BARS.replace("svg.chart", "svg.hits"))
    chart = parts[0]["chart"]
    assert sum(one["width"] for one in parts) == pytest.approx(chart["width"], abs=2)
    assert parts[0]["kind"] == "cached"
    assert parts[0]["width"] == pytest.approx(chart["width"] / 3, abs=2)
    assert parts[0]["title"] == "8,334 from the disk cache"


@pytest.mark.parametrize("name", BUILDS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_text_stands_out_from_what_is_behind_it(
    browser: Browser, pages: dict[str, Path], name: str, scheme: str
) -> None:
    browser.open(pages[name], 1400, scheme)
    assert faint(browser) == {}


@pytest.mark.parametrize("name", BUILDS)
def test_the_page_runs_nothing_loads_nothing_and_complains_of_nothing(
    browser: Browser, pages: dict[str, Path], name: str
) -> None:
    assert_quiet(browser, pages[name], "script, img, iframe, a, link[href^=http]")


def test_the_page_would_complain_of_a_script_or_a_style_that_got_in(
    browser: Browser, pages: dict[str, Path], tmp_path: Path
) -> None:
    page, text = tmp_path / "page.html", pages["empty"].read_text("utf-8")
    page.write_text(
        text.replace("</body>", "<script>hacked=1</script><style>body{color:red}</style></body>"), "utf-8"
    )
    browser.open(page, 1400, "light")
    assert browser.run("[typeof hacked, getComputedStyle(document.body).color]") == ["undefined", "rgb(28, 36, 43)"]
    assert len(browser.seen("Log.entryAdded")) == 2


def test_the_contrast_is_that_of_the_guidelines() -> None:
    assert contrast("rgb(0, 0, 0)", "rgb(255, 255, 255)") == pytest.approx(21)
    assert contrast("rgb(118, 118, 118)", "rgb(255, 255, 255)") == pytest.approx(4.54, abs=0.01)
