"""What a base image has not: which archives bring it, and how the Dockerfile says so."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest

from tfdock.knowledge.fits import archives_of
from tfdock.knowledge.image_rows import ArchiveRow, ImageRow, Interpreter
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.plan.render import BuildContext, render
from tfdock.resolve.resolution import Resolution

from ..desk import Desk
from ..plan.test_render import hadolint

ARCHIVES = """
rows:
  - {component: kit, version: "5.0.2", url: "https://x/kit.run", sha256: x, arguments: ["--to={prefix}"], source: x}
  - {component: kit, version: "5.1.0", url: "https://x/kit-5.1.run", sha256: x, source: x}
  - {component: lib, version: "7.4.2", components: {kit: "5.0"}, url: "https://x/lib.tgz", sha256: x, source: x}
  - {component: lib, version: "7.6.5", components: {kit: "5.0"}, url: "https://x/new.tgz", sha256: x, source: x}
"""
OLD = """
schema: 1
tensorflow: "1.12.3"
python: "3.4"
gpus: [k80]
cuda: "9.0"
cudnn: "7"
"""


def image(*archives: str) -> ImageRow:
    return ImageRow(image="x:1", releases="1.4..", template="ubuntu-devel", archives=archives, source="x")


def found(image: ImageRow, **components: str) -> list[str] | None:
    knowledge = KnowledgeBase({"archives": [("archives.yaml", ARCHIVES)]})
    rows = archives_of(knowledge, image, components)
    return None if rows is None else [f"{row.component} {row.version}" for row in rows]


@pytest.mark.parametrize(
    ("components", "rows"),
    [
        ({"kit": "5.0.2", "lib": "7"}, ["kit 5.0.2", "lib 7.4.2"]),
        ({"kit": "5.0", "lib": "7.6"}, ["kit 5.0.2", "lib 7.6.5"]),
        ({"kit": "5.0.2", "lib": "7.6.5"}, ["kit 5.0.2", "lib 7.6.5"]),
        ({"kit": "5.0.2", "lib": "7.6.5.1"}, None),
        ({"kit": "5.0.1", "lib": "7"}, None),
        ({"kit": "5.1.0", "lib": "7"}, None),
        ({"kit": "5.0.2"}, None),
    ],
    ids=["major", "minor", "exact", "more exact", "other patch", "for another toolkit", "nothing asked"],
)
def test_the_first_archive_of_the_asked_version_is_taken_and_no_other_version(
    components: dict[str, str], rows: list[str] | None
) -> None:
    assert found(image("kit", "lib"), **components) == rows


def test_an_image_that_has_everything_needs_no_archive() -> None:
    assert found(image(), kit="9.9") == []


@dataclass(frozen=True, kw_only=True)
class _Given(Resolution):
    """A resolution that is told its archives and Python."""

    archives: tuple[ArchiveRow, ...] = ()


def given(desk: Desk, *archives: ArchiveRow, interpreter: Interpreter | None) -> BuildContext:
    resolution = desk.resolve(OLD)
    values: dict[str, Any] = {one.name: getattr(resolution, one.name) for one in fields(resolution)}
    return render(_Given(**{**values, "archives": archives, "interpreter": interpreter}), desk.templates)


@pytest.fixture(scope="module")
def old(desk: Desk) -> BuildContext:
    resolution = desk.resolve(OLD)
    archives = archives_of(desk.knowledge, resolution.image, resolution.components)
    assert archives
    return given(desk, *archives, interpreter=desk.knowledge.interpreters["3.4"])


def runs(context: BuildContext) -> list[str]:
    return re.findall(r"^RUN ((?:.*\\\n)*.*)$", context.files["Dockerfile"].decode(), re.MULTILINE)


def test_archives_come_before_the_interpreter_and_both_before_what_runs_on_it(old: BuildContext) -> None:
    steps = ["apt-get update", "archive.sh", "interpreter.sh", "command -v python", "-m pip", "toolchain.sh"]
    places = [next(place for place, run in enumerate(runs(old)) if step in run) for step in steps]
    assert places == sorted(places)
    assert sum("archive.sh" in run for run in runs(old)) == 2


def test_an_archive_is_told_its_sum_its_place_and_its_own_words(old: BuildContext) -> None:
    toolkit, library = (run for run in runs(old) if "archive.sh" in run)
    sum_and_place = r'", "[0-9a-f]{64}", "/usr/local/cuda-9\.0"'
    assert re.search(rf'cuda_9\.0\.176\S*{sum_and_place}, "--silent".*=/usr/local/cuda-9\.0"\]$', toolkit)
    assert re.search(rf"cudnn-9\.0\S*{sum_and_place}\]$", library)


def test_the_compiled_python_is_the_one_that_everything_else_uses(old: BuildContext) -> None:
    (step,) = (run for run in runs(old) if "interpreter.sh" in run)
    assert '"3.4.10", "https://www.python.org/' in step
    assert any(run.startswith("/usr/local/bin/python3.4 -m pip install") for run in runs(old))


def test_only_an_image_that_needs_them_gets_the_scripts(desk: Desk, old: BuildContext) -> None:
    scripts = {"tfdock/archive.sh", "tfdock/interpreter.sh"}
    assert scripts <= set(old.files)
    plain = given(desk, interpreter=None)
    assert not scripts & set(plain.files)
    assert not re.search(r"archive\.sh|interpreter\.sh", plain.files["Dockerfile"].decode())


def test_hadolint_has_nothing_to_say_about_them(old: BuildContext, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_bytes(old.files["Dockerfile"])
    result = subprocess.run([hadolint(), "Dockerfile"], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (result.returncode, result.stdout) == (0, "")


@pytest.mark.parametrize("field", ["url", "version"])
def test_what_a_row_says_is_a_word_and_never_an_instruction(desk: Desk, field: str) -> None:
    row = replace_row(desk.knowledge.interpreters["3.4"], **{field: 'x" && touch /pwn #'})
    (step,) = (run for run in runs(given(desk, interpreter=row)) if "interpreter.sh" in run)
    assert r"x\" && touch /pwn #" in step
    with pytest.raises(ValueError, match="control character"):
        given(desk, interpreter=replace_row(row, **{field: "x\nRUN touch /pwn"}))


def replace_row(row: Interpreter, **values: str) -> Interpreter:
    return row.model_copy(update=values)


# --- laws of the shipped rows ---------------------------------------------------------------------------------------


def downloads(desk: Desk) -> list[ArchiveRow | Interpreter]:
    return [*desk.knowledge.archives, *desk.knowledge.interpreters.values()]


def test_shipped_archives_have_a_sum_each_and_a_safe_address(desk: Desk) -> None:
    rows = downloads(desk)
    assert all(re.fullmatch(r"[0-9a-f]{64}", row.sha256) and row.url.startswith("https://") for row in rows)
    for values in ([row.url for row in rows], [row.sha256 for row in rows]):
        assert len(set(values)) == len(values)


def test_a_single_source_is_confessed(desk: Desk) -> None:
    for row in downloads(desk):
        sources = {row.source} if isinstance(row.source, str) else {*row.source}
        if len(sources - {"dockerfiles"}) == 1:  # which name a version and give no sum
            assert row.unverified, row.url


def test_an_interpreter_is_a_release_of_its_python_and_some_image_wants_it(desk: Desk) -> None:
    wanted = {python for row in desk.knowledge.images if row.interpreter for python in row.pythons}
    assert wanted == set(desk.knowledge.interpreters)
    for row in desk.knowledge.interpreters.values():
        assert row.version.startswith(f"{row.python}.")
        assert f"/{row.version}/Python-{row.version}." in row.url


def test_an_image_with_archives_or_a_compiled_python_says_where_they_go(desk: Desk) -> None:
    for row in desk.knowledge.images:
        if row.interpreter:
            assert row.paths["python"] == "/usr/local/bin/python{python}", row.image
            assert {"libbz2-dev", "libffi-dev", "zlib1g-dev"} <= set(row.packages)
            # Ubuntu 18.04 has both, and 3.3 and 3.4 cannot use the newer one.
            old = row.image == "ubuntu:18.04" and {*row.pythons} <= {"3.3", "3.4"}
            assert [one for one in row.packages if "ssl" in one] == ["libssl1.0-dev" if old else "libssl-dev"]
        if row.archives:
            assert "cuda" in row.paths, row.image
        assert row.template == "ubuntu-devel" or not (row.interpreter or row.archives)
