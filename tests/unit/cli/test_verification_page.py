"""The page of a verification: what it says, and that nothing of a stranger's wheel becomes more than text in it."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import os
import re
import subprocess
import sys
import unicodedata
from collections.abc import Mapping
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdock.cli.pages.verification_page import verify_page

VOID = {"meta", "link", "br", "img", "hr", "input"}


class Page(HTMLParser):
    """A page's elements, each with its attributes and all the text in it. Refuses what is not well formed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []
        self.texts: list[list[str]] = []
        self._open: list[int] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"{tag} has an attribute twice"
        self.found.append((tag, {name: value or "" for name, value in attrs}))
        self.texts.append([])
        if tag not in VOID:
            self._open.append(len(self.found) - 1)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.found[self._open.pop()][0] == tag

    def handle_data(self, data: str) -> None:
        for index in self._open:
            self.texts[index].append(data)

    def elements(self, tag: str, **attributes: str) -> list[tuple[dict[str, str], str]]:
        """Attributes and text of the elements that have those attributes; `class_` needs one class of theirs."""
        class_ = attributes.pop("class_", "")
        return [
            (held, " ".join("".join(text).split()))
            for (name, held), text in zip(self.found, self.texts, strict=True)
            if name == tag
            and all(held.get(key) == value for key, value in attributes.items())
            and (not class_ or class_ in held.get("class", "").split())
        ]

    def text(self, tag: str, **attributes: str) -> str:
        """The text of the only such element."""
        ((_, text),) = self.elements(tag, **attributes)
        return text

    @property
    def tags(self) -> list[tuple[str, tuple[str, ...]]]:
        """Every tag with the names of its attributes: what the page is, without what it says."""
        return [(tag, tuple(attributes)) for tag, attributes in self.found]


def row(target: str, how: str, architecture: str = "Zeta", **more: object) -> dict[str, object]:
    return {
        "name": f"GPU of {target}",
        "target": target,
        "architecture": architecture,
        "accelerator": "zeta",
        "embedded": False,
        "runs": how,
        "reason": f"so it is with {target}",
        "limits": [],
        **more,
    }


DOCUMENT: dict[str, Any] = {
    "schema": "tfdock.verify/1",
    "ok": False,
    "wheel": "tensorflow-9.9.0-cp311-cp311-linux_x86_64.whl",
    "sha256": "ab" * 32,
    "size": 615_412_345,
    "name": "tensorflow",
    "version": "9.9.0",
    "python_tag": "cp311",
    "abi_tag": "cp311",
    "platform_tag": "linux_x86_64",
    "profile": "rtx3080",
    "build_id": "tf9.9.0-py3.11-cuda12.5.1-x86_64",
    "problems": [{"code": "engine-lost", "severity": "error", "message": "no engine answers"}],
    "checks": [
        {"name": "file-integrity", "status": "passed", "expected": "as in RECORD", "found": "18 files", "reason": ""},
        {"name": "gpu-code", "status": "failed", "expected": "sm_86", "found": "sm_80", "reason": "no `sm_86` in it"},
        {"name": "import", "status": "skipped", "expected": "", "found": "", "reason": "no engine answers"},
    ],
    "gpu_code": {"sass": ["sm_70", "sm_80", "sm_90a"], "ptx": ["compute_75"], "amdgpu": []},
    "libraries": [
        {
            "path": "tensorflow/libtensorflow_cc.so.2",
            "size": 1_100_000_000,
            "own": True,
            "gpu_code": {
                "sass": ["sm_70"],
                "ptx": ["compute_75"],
                "images": [
                    {"kind": "sass", "target": "sm_70", "count": 1412, "size": 61_200_000, "isa": ""},
                    {"kind": "ptx", "target": "compute_75", "count": 1, "size": 1000, "isa": "8.3"},
                    {"kind": "unknown", "target": "sm_99", "count": 2, "size": 20, "isa": ""},
                ],
            },
            "embedded_code": {
                "images": [{"kind": "ptx", "target": "compute_90a", "count": 3, "size": 8, "isa": "8.3"}]
            },
            "relocatable_code": {"images": [{"kind": "sass", "target": "sm_35", "count": 7, "size": 9}]},
        },
        {"path": "tensorflow/librccl.so", "size": 5, "own": False, "gpu_code": {"amdgpu": ["gfx90a"]}},
        {"path": "tensorflow/plain.so", "size": 4_200_000, "gpu_code": {"sass": [], "ptx": []}},
    ],
    "coverage": [
        row("7.0", "native", limits=["the library is too new for it", "`NCCL` lacks it"]),
        row("7.2", "no", embedded=True),
        row("7.5", "native-same-major", limits=["the library is too new for it"]),
        row("8.0", "native", "Eta"),
        row("8.6", "native-same-major", "Eta"),
        row("9.0", "native", "Theta"),
        row("10.0", "ptx-jit", "Iota"),
        row("6.0", "no", "Delta"),
    ],
}
AMD = [
    row("gfx803", "no", "GCN 3 and 4", accelerator="rocm"),
    row("gfx90a", "native", "CDNA 2", accelerator="rocm"),
    row("gfx1030", "no", "RDNA 2", accelerator="rocm"),
]


def page(**changes: object) -> Page:
    return Page(verify_page({**DOCUMENT, **changes}))


# --- what it says ---------------------------------------------------------------------------------------------------


def test_the_page_begins_with_the_wheel_the_verdict_and_what_failed() -> None:
    found = page()
    assert found.elements("title")[0][1] == "tensorflow 9.9.0: failed"
    assert found.text("h1") == "tensorflow 9.9.0"
    assert found.text("p", class_="verdict") == "✗ failed"
    assert "3 checks: 1 passed, 1 failed, 1 skipped." in [text for _, text in found.elements("p")]
    assert found.text("ul", class_="failures") == "no engine answers gpu-code: no sm_86 in it"
    ((link, _),) = found.elements("a")
    assert found.elements("tr", id=link["href"].removeprefix("#"))[0][1].startswith("✗ failed gpu-code")


FAILED_CHECK = {"name": "import", "status": "failed"}


@pytest.mark.parametrize(
    ("ok", "checks", "told"),
    [
        (True, [], "✓ passed"),
        (False, [FAILED_CHECK], "✗ failed"),
        (False, [], "– not tried"),
        (None, [FAILED_CHECK], "– no verdict"),
    ],
)
def test_the_verdict_is_the_documents_own(ok: bool | None, checks: list[dict[str, str]], told: str) -> None:
    assert page(ok=ok, checks=checks).text("p", class_="verdict") == told


def test_every_check_is_a_row_with_all_that_is_known_of_it() -> None:
    rows = page().text("table", class_="checks")
    for check in DOCUMENT["checks"]:
        for key in ("name", "status", "expected", "found"):
            assert check[key] in rows
        assert check["reason"].replace("`", "") in rows
    assert [text for _, text in page().elements("td", class_="status")] == ["✓ passed", "✗ failed", "– skipped"]


def test_of_many_failures_the_first_stand_at_the_top() -> None:
    checks = [{"name": f"check-{number}", "status": "failed"} for number in range(12)]
    told = page(checks=checks, problems=[]).text("ul", class_="failures")
    assert told.split() == [*(f"check-{number}" for number in range(8)), "and", "4", "more"]


def test_why_nothing_could_be_tried_stands_at_the_top() -> None:
    document = {"ok": False, "checks": [], "problems": [{"code": "engine-lost", "message": "no `docker` answers"}]}
    assert Page(verify_page(document)).text("ul", class_="failures") == "no docker answers"


def test_values_of_any_kind_are_written_for_people() -> None:
    check = {
        "name": "x",
        "status": "passed",
        "expected": ["sm_80", "sm_86"],
        "found": {"a": True, "b": None, "c": [1, 2.5]},
    }
    values = [text for _, text in page(checks=[check]).elements("td", class_="value")]
    assert values == ["sm_80, sm_86", "a: yes b: c: 1, 2.5"]


def test_a_status_that_is_none_of_ours_is_not_taken_for_one() -> None:
    found = page(checks=[{"name": "x", "status": "fine"}])
    assert found.text("td", class_="status") == "? fine"
    assert "1 check: 1 unknown." in [text for _, text in found.elements("p")]


def test_what_identifies_the_wheel_is_there() -> None:
    told = page().text("dl")
    for key in ("wheel", "sha256", "name", "version", "python_tag", "platform_tag", "profile", "build_id"):
        assert DOCUMENT[key] in told
    assert "615.4 MB (615,412,345 bytes)" in told


def test_libraries_are_listed_with_their_images() -> None:
    found = page()
    (cc, rccl) = [text for _, text in found.elements("tr")][-2:]
    assert cc == (
        "tensorflow/libtensorflow_cc.so.2 1.1 GB SASS sm_70 1,412 images, 61.2 MB "
        "PTX compute_75 1 image, 1.0 kB, ISA 8.3 of a kind that is not known sm_99 2 images, 20 B "
        "PTX, which the program itself hands to the driver compute_90a 3 images, 8 B, ISA 8.3 "
        "SASS, relocatable: never run as it is sm_35 7 images, 9 B"
    )
    assert rccl == "tensorflow/librccl.so 5 B from elsewhere: not TensorFlow's own kernels AMD gfx90a"
    assert found.elements("details")[-1][1] == "Without GPU code (1) tensorflow/plain.so 4.2 MB"


@pytest.mark.parametrize(
    ("document", "told"),
    [
        pytest.param({}, "What GPU code the wheel has is not known.", id="empty"),
        pytest.param({"gpu_code": None}, "What GPU code the wheel has is not known.", id="not read"),
        pytest.param({"gpu_code": {"sass": [], "ptx": []}}, "the wheel runs on the CPU alone", id="cpu"),
        pytest.param({"gpu_code": {"sass": ["sm_86"]}}, "Which GPUs run it was not asked.", id="not asked"),
        pytest.param({"gpu_code": {"sass": ["sm_86"]}, "coverage": []}, "No GPU that is known runs it.", id="none"),
        pytest.param({"checks": []}, "No check was made.", id="no checks"),
    ],
)
def test_what_there_is_nothing_of_is_said_or_left_out(document: dict[str, object], told: str) -> None:
    found = Page(verify_page(document))
    assert told in found.text("main")
    assert found.elements("figure") == found.elements("table") == found.elements("dl") == []
    assert found.text("h1") == "A wheel"


# --- the picture ----------------------------------------------------------------------------------------------------


def cells(found: Page, kind: str) -> dict[str, str]:
    """The verdicts of the first picture of that kind, in order."""
    every = [held for held, _ in found.elements("g", class_="cell")]
    half = len(every) // 2
    lying, standing = every[:half], every[half:]
    return {held["data-target"]: held["data-runs"] for held in (lying if kind == "lying" else standing)}


def marks(found: Page) -> list[str]:
    """What is said of each mark that is no verdict, in the picture that lies."""
    said = [held["aria-label"] for held, _ in found.elements("g", role="img") if "class" not in held]
    return said[: len(said) // 2]


@pytest.mark.parametrize("kind", ["lying", "standing"])
def test_every_target_has_its_verdict_in_order_of_its_number(kind: str) -> None:
    expected = {one["target"]: one["runs"] for one in DOCUMENT["coverage"]}
    assert cells(page(), kind) == expected
    assert list(cells(page(), kind)) == ["6.0", "7.0", "7.2", "7.5", "8.0", "8.6", "9.0", "10.0"]


def test_a_verdict_says_all_of_itself() -> None:
    (held, *_) = [held for held, _ in page().elements("g", class_="cell") if held["data-target"] == "7.0"]
    assert held["aria-label"] == (
        "7.0 (GPU of 7.0, Zeta): natively; so it is with 7.0; limit: the library is too new for it; "
        "limit: `NCCL` lacks it"
    )
    assert len([text for _, text in page().elements("title") if text == held["aria-label"]]) == 2


def test_code_is_marked_where_it_is_and_where_it_reaches() -> None:
    assert marks(page()) == [
        "7.0: the wheel has sm_70",
        "7.5: sm_70 serves it",
        "7.5: the wheel has compute_75",
        "8.0: the wheel has sm_80",
        "8.0: compute_75 serves it",
        "8.6: sm_80 serves it",
        "8.6: compute_75 serves it",
        "9.0: the wheel has sm_90a",
        "9.0: compute_75 serves it",
        "10.0: compute_75 serves it",
    ]


def test_threads_lead_from_code_to_the_last_that_it_serves() -> None:
    found = page()
    at = {text: float(held["x"]) for held, text in found.elements("text", class_="middle") if "." in text}
    drawn = [held["d"] for held, _ in found.elements("path", class_="thread")]
    lying = [tuple(map(float, match.groups())) for one in drawn if (match := re.fullmatch(r"M(\S+) \S+H(\S+)", one))]
    sass_70, sass_80, ptx, _ = lying  # the last is the legend's
    assert sass_70 == (at["7.0"], at["7.5"])
    assert sass_80 == (at["8.0"], at["8.6"])
    assert ptx[0] == at["7.5"]
    assert ptx[1] > at["10.0"]
    assert len([one for one in drawn if "V" in one]) == 3


@pytest.mark.parametrize(
    ("ptx", "tips"),
    [
        pytest.param(["compute_75"], 1, id="to all newer ones"),
        pytest.param(["compute_70", "compute_80"], 1, id="the newest alone goes on"),
        pytest.param(["compute_90a"], 0, id="for one GPU"),
        pytest.param(["compute_100f"], 0, id="for a family"),
        pytest.param([], 0, id="none"),
    ],
)
def test_ptx_goes_on_to_gpus_to_come(ptx: list[str], tips: int) -> None:
    found = page(gpu_code={"sass": ["sm_70"], "ptx": ptx})
    assert (
        len(found.elements("path", class_="tip")) == 2 * tips
    )  # in the picture that lies and in the one that stands


@pytest.mark.parametrize(
    ("sass", "letters", "explained"),
    [
        (["sm_90"], [], []),
        (["sm_90a"], ["a"], ["a"]),
        (["sm_90", "sm_90a"], ["+a"], ["a", "+"]),
        (["sm_100f", "sm_100a"], ["af"], ["a", "f"]),
    ],
)
def test_letters_of_targets_are_shown_and_explained(
    sass: list[str], letters: list[str], explained: list[str]
) -> None:
    found = page(gpu_code={"sass": sass}, coverage=[row("9.0", "native"), row("10.0", "no")])
    half = found.elements("text", class_="letter")
    assert [text for _, text in half] == letters * 2
    assert [text for _, text in found.elements("b") if len(text) == 1] == explained


def test_code_for_a_target_that_nobody_asked_about_has_a_column() -> None:
    found = page(gpu_code={"sass": ["sm_52", "sm_86"], "ptx": []}, coverage=[row("8.6", "native")])
    assert cells(found, "lying") == {"5.2": "unknown", "8.6": "native"}
    assert "and 1 were not judged" in found.text("figcaption")


def test_what_cannot_be_read_as_a_target_is_not_drawn() -> None:
    odd = {"sass": ["sm_86", "nonsense", "compute_80"], "ptx": ["sm_90", "compute_"], "amdgpu": []}
    found = page(gpu_code=odd, coverage=[row("8.6", "native")])
    assert marks(found) == ["8.6: the wheel has sm_86"]


def test_amd_targets_have_a_picture_of_their_own() -> None:
    code = {**DOCUMENT["gpu_code"], "amdgpu": ["gfx90a:xnack+"]}
    found = page(gpu_code=code, coverage=[*DOCUMENT["coverage"], *AMD])
    assert len(found.elements("figure")) == 2
    said = [held["aria-label"] for held, _ in found.elements("g", role="img") if "class" not in held]
    assert said.count("gfx90a: the wheel has gfx90a:xnack+") == 2
    assert found.elements("figcaption")[1][1] == "Of 3 known targets the wheel runs natively on 1, not on 2."


def test_the_picture_says_in_a_sentence_what_it_shows() -> None:
    told = "Of 8 known compute capabilities the wheel runs natively on 5 (2 by code of the same major version), "
    assert page().text("figcaption") == told + "by JIT from PTX on 1, not on 2."
    for held, _ in page().elements("svg", role="group"):
        assert held["aria-label"] == told + "by JIT from PTX on 1, not on 2."


def test_limits_are_told_once_with_all_their_targets() -> None:
    told = next(text for _, text in page().elements("ul", class_="limits"))
    assert told == "7.0, 7.5: the library is too new for it 7.0: NCCL lacks it"
    assert "NCCL" in [text for _, text in page().elements("code")]


def test_limits_that_differ_in_the_target_alone_are_one() -> None:
    rows = [row(target, "native", limits=[f"no code for {target}", f"CUDA 1{target}"]) for target in ("8.0", "8.6")]
    told = next(text for _, text in page(coverage=rows).elements("ul", class_="limits"))
    assert told == "8.0, 8.6: no code for it 8.0: CUDA 18.0 8.6: CUDA 18.6"


def test_a_verdict_counts_its_limits() -> None:
    found = page()
    assert [text for _, text in found.elements("text", class_="count")] == ["2", "1"] * 2
    assert "so many limits" in found.text("ul", class_="legend")
    none = page(coverage=[row("8.6", "native")])
    assert none.elements("text", class_="count") == []
    assert "so many limits" not in none.text("ul", class_="legend")


def test_a_picture_of_too_many_targets_stands_on_every_screen() -> None:
    many = [row(f"{major}.{minor}", "no") for major in range(5, 9) for minor in range(9)]
    assert [held["class"] for held, _ in page(coverage=many[:30]).elements("svg", role="group")] == [
        "lying",
        "standing",
    ]
    assert [held["class"] for held, _ in page(coverage=many).elements("svg", role="group")] == ["standing"]


# --- what it is -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_page_is_the_same_bytes_every_time() -> None:
    program = (
        "import json, sys; from tfdock.cli.pages.verification_page import verify_page; "
        "print(verify_page(json.load(sys.stdin)))"
    )
    text = json.dumps({**DOCUMENT, "coverage": [*DOCUMENT["coverage"], *AMD]})
    written = {
        subprocess.run(
            [sys.executable, "-c", program],
            input=text,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONUTF8": "1"},
            capture_output=True,
            encoding="utf-8",
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(written) == 1
    assert written.pop().endswith("</html>\n\n")


def test_the_page_names_nothing_outside_itself() -> None:
    text = verify_page({**DOCUMENT, "coverage": [*DOCUMENT["coverage"], *AMD]})
    found = Page(text)
    references = [held[key] for _, held in found.found for key in ("href", "src", "action", "data") if key in held]
    assert {one for one in references if not one.startswith("#")} == {"data:,"}
    assert not re.search(r"//|@import|@font-face|url\((?!#)", text.replace("<!DOCTYPE", ""))
    assert {tag for tag, _ in found.found} & {"script", "img", "iframe", "object", "embed", "form"} == set()


def test_every_name_in_the_page_is_one_elements_and_every_reference_finds_it() -> None:
    found = page(coverage=[*DOCUMENT["coverage"], *AMD])
    names = [held["id"] for _, held in found.found if "id" in held]
    assert len(names) == len(set(names))
    wanted = {held["href"][1:] for _, held in found.found if held.get("href", "").startswith("#")}
    wanted |= {held["aria-labelledby"] for _, held in found.found if "aria-labelledby" in held}
    wanted |= {match[1] for _, held in found.found if (match := re.fullmatch(r"url\(#(.+)\)", held.get("fill", "")))}
    assert wanted <= set(names)
    assert any("lying" in one for one in wanted)


def test_only_the_pages_own_style_is_allowed() -> None:
    found = page()
    (policy,) = [held["content"] for held, _ in found.elements("meta") if "http-equiv" in held]
    text = verify_page(DOCUMENT)
    style = text[text.index("<style>") + len("<style>") : text.index("</style>")]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    nothing_else = "base-uri 'none'; form-action 'none'"  # the two that `default-src` does not stand for
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; {nothing_else}"
    assert not any("style" in held or any(key.startswith("on") for key in held) for _, held in found.found)


# --- strangers ------------------------------------------------------------------------------------------------------


@functools.cache
def benign_tags() -> list[tuple[str, tuple[str, ...]]]:
    return Page(verify_page(filled(DOCUMENT, " x"))).tags


def filled(value: Any, text: str) -> Any:
    """A document with every text in it followed by `text`, but for those that say what kind of thing something is."""
    match value:
        case str():
            return value + text
        case Mapping():
            kept = ("status", "runs", "kind", "schema")
            return {
                key: one if key in kept or is_target(key, one) else filled(one, text) for key, one in value.items()
            }
        case list():
            return [filled(one, text) for one in value]
        case _:
            return value


def is_target(key: object, value: object) -> bool:
    """Of another one other marks would be drawn."""
    return key in ("target", "gpu_code", "relocatable_code", "architecture") and value is not None


HOSTILE = [
    "</title><script>alert(1)</script>",
    '" onmouseover="alert(1)',
    "' autofocus onfocus='alert(1)",
    "</style></svg><svg onload=alert(1)>",
    "{{ 7 * 7 }}{% for x in y %}",
    "&lt;b&gt; &#x3c;b>",
    "]]><!-- <![CDATA[",
    "\x00\x1b[31m\u202e\u2066\ud800\u200b",
    "שלום مرحبا",
    "x" * 100_000,
]


@pytest.mark.slow
@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_no_text_becomes_a_tag_or_an_attribute(text: str) -> None:
    check_is_text(text)


@pytest.mark.slow
@settings(max_examples=40)
@given(st.text(max_size=60) | st.text("<>\"'&/=`!-{}%#", max_size=40))
def test_no_text_at_all_becomes_one(text: str) -> None:
    check_is_text(text.replace("`", ""))


def check_is_text(text: str) -> None:
    written = verify_page(filled(DOCUMENT, f" x{text}x"))
    found = Page(written)
    assert found.tags == benign_tags()
    assert found.text("h1").startswith("tensorflow x")
    assert written.encode("utf-8")
    controls = {one for one in written if unicodedata.category(one) in ("Cc", "Cf", "Cs") and one != "\n"}
    assert controls == set()


def test_hostile_targets_are_written_and_not_drawn_wrongly() -> None:
    text = HOSTILE[0] * 20
    coverage = [row(text, text, text, limits=[text])]
    found = page(coverage=coverage, gpu_code={"sass": [text], "ptx": [text], "amdgpu": [text]})
    assert cells(found, "lying") == {text: "unknown"}
    assert found.elements("script") == []
