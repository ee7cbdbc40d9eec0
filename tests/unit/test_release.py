"""A release: the wheel's content, its description, the changelog, and the version in the pages."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest

from tfdock import __version__

ROOT = Path(__file__).parents[2]
#: Where the wheel holds what lies elsewhere in the repository.
FOLDERS = {
    "tfdock": "tfdock",
    "dockerfiles": "tfdock/dockerfiles",
    "profiles": "tfdock/profiles",
    "ci/templates": "tfdock/ci/templates",
}
METADATA = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"}
LONGEST_VERSION = 60


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel of this tree, or the one that `make dist` has built."""
    built = os.environ.get("TFDOCK_TESTS_WHEEL")
    if built is None:
        folder = tmp_path_factory.mktemp("dist")
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        (path,) = folder.iterdir()
        built = str(path)
    return zipfile.ZipFile(built)


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    return message_from_bytes(wheel.read(f"tfdock-{__version__}.dist-info/METADATA"))


def test_the_wheel_holds_each_file_of_the_program_and_no_other(wheel: zipfile.ZipFile) -> None:
    expected = {f"tfdock-{__version__}.dist-info/{name}" for name in METADATA}
    for folder, inside in FOLDERS.items():
        files = [path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
        expected |= {f"{inside}/{path.relative_to(ROOT / folder).as_posix()}" for path in files}
    assert set(wheel.namelist()) == expected


def test_the_description_is_the_readme_without_links_that_lead_nowhere(metadata: Message) -> None:
    text = str(metadata.get_payload())
    assert text.startswith("# tfdock\n")
    assert "docs/engines.md says which engines are tested" in text
    assert [link for link in re.findall(r"\]\(([^)]+)\)", text) if not link.startswith("https://")] == []
    assert len(text.splitlines()) >= len((ROOT / "README.md").read_text("utf-8").splitlines()) - 10


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        pytest.param(None, "See the page (x). [Site](https://a.example/#b).\n", id="no address of the source"),
        pytest.param(
            "https://h.example/me/tfdock/blob/v1.0.0",
            "See [the page](https://h.example/me/tfdock/blob/v1.0.0/docs/a.md#b) (x). [Site](https://a.example/#b).\n",
            id="an address of the source",
        ),
    ],
)
def test_a_relative_link_leads_into_the_source_or_is_plain_words(source: str | None, expected: str) -> None:
    text = "![A picture](docs/a.svg)\n\nSee [the page](docs/a.md#b) (x). [Site](https://a.example/#b).\n"
    described = runpy.run_path(str(ROOT / "ci/described.py"))["described"]
    assert described(text, source) == expected


def test_the_changelog_has_this_version_below_what_is_unreleased_and_few_lines_for_each() -> None:
    _, *parts = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text("utf-8"), flags=re.MULTILINE)
    headings = [part.partition("\n")[0] for part in parts]
    assert headings[0] == "Unreleased"
    assert re.fullmatch(rf"{re.escape(__version__)} \(\d{{4}}-\d\d-\d\d\)", headings[1])
    lengths = {heading: len(part.strip().splitlines()) for heading, part in zip(headings, parts, strict=True)}
    assert {heading: length for heading, length in lengths.items() if length > LONGEST_VERSION} == {}


def test_pages_and_examples_name_this_version() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "ci/action").iterdir()]
    named = {version for page in pages for version in re.findall(r"(?:@|rev: )v(\d[\d.]*)", page.read_text("utf-8"))}
    assert named == {__version__}
