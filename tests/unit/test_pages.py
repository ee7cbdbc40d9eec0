"""The pages for readers: their links lead somewhere, and the README stays short and names every page."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = sorted(
    {*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("tests/**/README.md"), *ROOT.glob("ci/**/README.md")}
)
LONGEST_README = 200
FENCE = re.compile(r"^ *(```+|~~~+).*?^ *\1", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"(`+)(?:(?!\n\n).)+?\1", re.DOTALL)
LINK = re.compile(r"\]\(<?([^)>\s]+)|^ *\[[^\]]+\]: *(\S+)|\bhref=\"([^\"]+)", re.MULTILINE)
ELSEWHERE = re.compile(r"[a-z]+:")


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    found: list[str] = []
    for heading in re.findall(r"^#+ +(.*)", FENCE.sub("", page.read_text("utf-8")), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        found.append(re.sub(r"[^\w\- ]", "", text).replace(" ", "-"))
    return {f"{name}-{before}" if (before := found[:at].count(name)) else name for at, name in enumerate(found)}


def broken(page: Path, root: Path) -> list[str]:
    """Return the links of a page that lead to no file below `root`, or to no heading of a page."""
    text = CODE.sub("", FENCE.sub("", page.read_text("utf-8")))
    wrong = []
    for link in ("".join(groups) for groups in LINK.findall(text)):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not ELSEWHERE.match(link) and not (
            target.is_relative_to(root) and target.exists() and (not anchor or anchor in anchors(target))
        ):
            wrong.append(link)
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_to_a_file_or_a_heading_of_the_repository(page: Path) -> None:
    assert broken(page, ROOT) == []


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "outside.md").touch()
    other = "# A `page` of [links](x.md): this, that_one\n## Twice\n## Twice\n```\n# a comment\n```\n"
    (root / "other.md").write_text(other, "utf-8")
    good = ["other.md", "#here", "other.md#a-page-of-links-this-that_one", "other.md#twice-1", "https://a.example/#b"]
    bad = ["gone.md", "#gone", "other.md#twice-2", "other.md#a-comment", "../outside.md", "/other.md"]
    links = [f"[`code`]({link})\n" for link in [*good, *bad]]
    code = "```\n[x](in-a-block.md)\n```\n`[x](in-code.md)`\n"
    (root / "page.md").write_text(f'# Here\n{code}{"".join(links)}[x]: named.md\n<a href="tag.md">', "utf-8")
    assert broken(root / "page.md", root) == [*bad, "named.md", "tag.md"]


def test_the_site_has_every_page_and_command_and_no_link_that_leads_nowhere(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "ci/docs", "true", tmp_path], check=True, stdout=subprocess.DEVNULL)
    made = {page.name: page.read_text("utf-8") for page in (tmp_path / "pages").iterdir()}
    assert {page.name for page in ROOT.glob("docs/*.md")} <= {*made}
    listed = set(re.findall(r"\w+\.md", (tmp_path / "zensical.toml").read_text("utf-8")))
    assert listed | {"screenshot.svg"} == {*made}
    assert "](screenshot.svg)" in made["index.md"]
    assert "### tfdock cache prune\n" in made["commands.md"]
    assert "| `resources.memory` |" in made["fields.md"]
    assert "## target-not-in-toolkit\n" in made["codes.md"]
    assert {
        name: broken(tmp_path / "pages" / name, tmp_path)
        for name in made
        if broken(tmp_path / "pages" / name, tmp_path)
    } == {}


def test_the_picture_of_the_readme_shows_what_the_commands_print(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "ci/screenshot", tmp_path / "now.svg"], check=True)
    shown, now = (
        re.findall(r"<text [^>]*>([^<]*)<", file.read_text("utf-8"))
        for file in (ROOT / "docs/screenshot.svg", tmp_path / "now.svg")
    )
    assert "my.yaml:4:8" in now
    assert shown == now, "`ci/screenshot` makes it anew"


def test_the_readme_is_short() -> None:
    assert len(README.read_text("utf-8").splitlines()) <= LONGEST_README


def test_the_readme_ends_with_one_line_for_each_page() -> None:
    listed = re.findall(
        r"^\| \[(docs/\S+)\]\(\1\) \|", README.read_text("utf-8").partition("\n## Where to read on\n")[2], re.M
    )
    assert sorted(listed) == sorted(page.relative_to(ROOT).as_posix() for page in ROOT.glob("docs/**/*.md"))
