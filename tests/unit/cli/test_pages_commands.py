"""What the pages show was run: each command that needs no engine prints what stands below it; `…` is anything."""

from __future__ import annotations

import contextlib
import doctest
import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tfdock.knowledge import loader

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SHOWN = re.compile(r"tfdock (advise|check|plan|gpus|releases|init|matrix|render)\b")
#: Profiles that the README speaks of: two slips of the pen, and a GPU that is newer than the CUDA.
FILES = {
    "typo.yaml": 'schema: 1\ntensorflow: "2.18.0"\npython: 3.10\ngpus: [rtx3080]\ncdua: "12.5.1"\n',
    "my.yaml": 'schema: 1\ntensorflow: "2.4.0"\npython: "3.8"\ngpus: [rtx3080]\ncuda: "11.0"\n',
}
#: What depends on the machine.
MACHINE = re.compile(
    r"\d+ at once, on \d+ of \d+ cores|[\d.]+ GiB of [\d.]+ GiB, [\d.]+ GiB of it|about \d+ (days|h|min)|"
    r"and \d+ jobs?:"
)


def shown() -> list[tuple[str, str, str]]:
    """Return (page, command, what it prints) of each command with output."""
    found = []
    for page in PAGES:
        for block in re.findall(r"^```console\n(.*?)^```", page.read_text("utf-8"), re.S | re.M):
            for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
                line, _, printed = part.partition("\n")
                command = re.sub(r"\s+#.*", "", line)
                if SHOWN.match(command) and printed.strip():
                    found.append((page.name, command, printed.strip()))
    return found


@pytest.mark.parametrize(("page", "command", "printed"), shown(), ids=lambda part: part[:40].splitlines()[0])
def test_a_page_shows_what_the_command_prints(tmp_path: Path, page: str, command: str, printed: str) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    # A matrix of one's own, and none of the shipped names.
    (tmp_path / "profiles").mkdir()
    for name in (loader.MATRIX, "rtx3080.yaml"):
        shutil.copy(loader.profiles() / name, tmp_path / "profiles")
    start = f"{sys.executable} -m tfdock"
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "COLUMNS": "100", "DOCKER_HOST": "unix:///nope"}
    result = subprocess.run(
        command.replace("tfdock", start, 1), shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    seen = MACHINE.sub("~", result.stdout + result.stderr)
    wanted = "(?s:.*)".join(map(re.escape, re.split(r"\s*…\s*", MACHINE.sub("~", printed))))
    assert re.search(wanted, seen), f"{page}\n{seen}"


def test_the_pages_show_enough() -> None:
    assert len(shown()) > 12


def test_the_page_about_python_is_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs/python.md").read_text("utf-8")
    test = doctest.DocTestParser().get_doctest(text.replace("```", ""), {}, "docs/python.md", None, 0)
    found: list[str] = []
    assert doctest.DocTestRunner().run(test, out=found.append).attempted > 5
    assert found == []


def test_the_notebook_prints_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    cells = json.loads((ROOT / "docs/machines.ipynb").read_text("utf-8"))["cells"]
    for cell in (cell for cell in cells if cell["cell_type"] == "code"):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
        assert [line for output in cell["outputs"] for line in output["text"]] == printed.getvalue().splitlines(True)
