"""The knowledge that was read before: it says what the text says, whatever has become of what was kept of it."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tfdock.errors import ProfileError
from tfdock.host.untrusted_folders import UntrustedPath
from tfdock.knowledge import loader
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.profile import yaml_nodes

from ..desk import problem_of

# The attribute of the knowledge base where it is not the table's own name.
ATTRIBUTES = {"bazel": "bazel_options"}
CPU = 'schema: 1\ntensorflow: "2.18.0"\n'
# A date, a number as text, a fraction, a flag, a null, text beyond ASCII: what must not change on its way.
OVERLAY = """
checked: 2026-11-21
sources:
  here: {place}
rows:
  - gpu: {name}
    accelerator: cuda
    target: "12.0"
    names: ["Größe “Ω” 𝄞"]
    memory_gib: 23.7
    note: null
    unverified: true
    source: here
"""


def rows(knowledge: KnowledgeBase) -> dict[str, object]:
    return {table: getattr(knowledge, ATTRIBUTES.get(table, table)) for table in loader.TABLES}


@pytest.fixture
def overlay(tmp_path: Path) -> Callable[..., Path]:
    """Writes a folder with one GPU in it, and any further text."""

    def written(name: str = "wolpertinger", more: str = "") -> Path:
        folder = tmp_path / "overlay"
        folder.mkdir(exist_ok=True)
        (folder / "gpus.yaml").write_text(OVERLAY.format(name=name, place="a place") + more, "utf-8")
        return folder

    return written


def kept(cache: Path) -> list[Path]:
    return sorted((cache / "knowledge").iterdir())


@pytest.fixture
def no_yaml(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def refuse() -> None:
        def parse(_: str, file: str) -> yaml_nodes.Node:
            raise AssertionError(f"{file} is read as YAML once more")

        monkeypatch.setattr(yaml_nodes, "parse", parse)

    return refuse


# --- the same, and quicker ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_table_is_the_same_from_its_text_and_from_what_was_kept(
    tmp_path: Path, overlay: Callable[..., Path], no_yaml: Callable[[], None]
) -> None:
    folders, cache = [overlay()], tmp_path / "cache"
    from_text = rows(loader.read_knowledge(folders))
    assert rows(loader.read_knowledge(folders, cache)) == from_text, "the first call reads the text, and keeps it"
    no_yaml()
    assert rows(loader.read_knowledge(folders, cache)) == from_text


def test_a_text_that_has_changed_is_read(tmp_path: Path, overlay: Callable[..., Path]) -> None:
    for name in ("wolpertinger", "hippogriff"):
        gpus = loader.read_knowledge([overlay(name)], tmp_path / "cache").gpus
        assert name in gpus
    assert "wolpertinger" not in gpus


def test_without_a_cache_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert loader.read_knowledge().drivers
    assert list(tmp_path.iterdir()) == []


def test_what_is_kept_does_not_grow_for_ever(
    tmp_path: Path, overlay: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "_KEPT", 3)
    for number in range(5):
        assert loader.read_knowledge([overlay(f"gpu{number}")], tmp_path).gpus
        newest = max(kept(tmp_path), key=lambda file: file.stat().st_mtime_ns)
        assert f"gpu{number}".encode() in newest.read_bytes()
    assert len(kept(tmp_path)) == 3


def test_a_process_reads_the_same_folders_once_and_changed_ones_again(
    tmp_path: Path, overlay: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = loader.knowledge([overlay()], tmp_path / "cache")
    assert loader.knowledge([tmp_path / "overlay"], tmp_path / "cache") is first
    monkeypatch.chdir(tmp_path)
    assert loader.knowledge([Path("overlay")], tmp_path / "cache") is not first, "problems name the folder as given"
    assert "hippogriff" in loader.knowledge([overlay("hippogriff")], tmp_path / "cache").gpus
    assert loader.knowledge() is loader.knowledge()


def test_files_that_are_no_tables_are_not_looked_at(tmp_path: Path, overlay: Callable[..., Path]) -> None:
    """A user's folder of tables may be a repository, with a checkout of TensorFlow below it."""
    first = loader.knowledge([overlay()], tmp_path / "cache")
    (tmp_path / "overlay/checkout").mkdir()
    (tmp_path / "overlay/checkout/x.yaml").write_text("rows: []\n")
    assert loader.knowledge([tmp_path / "overlay"], tmp_path / "cache") is first


# --- what was kept is of no use -------------------------------------------------------------------------------------


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-40])


def _other_data(file: Path) -> None:
    digest = file.read_bytes().partition(b"\n")[0]
    file.write_bytes(digest + b"\n" + json.dumps({"rows": []}).encode())


def _no_access(file: Path) -> None:
    file.chmod(0)


def _folder_in_its_place(file: Path) -> None:
    file.unlink()
    (file / "deep").mkdir(parents=True)


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda file: file.write_bytes(b""), id="empty"),
        pytest.param(lambda file: file.write_bytes(b"\xff\x00" * 99), id="garbage"),
        pytest.param(lambda file: file.write_bytes(b"\n"), id="one line"),
        pytest.param(_cut, id="cut"),
        pytest.param(_other_data, id="other data"),
        pytest.param(_no_access, id="no access"),
        pytest.param(_folder_in_its_place, id="a folder in its place"),
    ],
)
def test_what_was_kept_and_is_spoilt_is_as_good_as_none(
    tmp_path: Path, spoil: Callable[[Path], object], capfd: pytest.CaptureFixture[str]
) -> None:
    right = loader.read_knowledge((), tmp_path).drivers
    (file,) = kept(tmp_path)
    spoil(file)
    for _ in range(2):
        assert loader.read_knowledge((), tmp_path).drivers == right
    assert capfd.readouterr() == ("", "")
    assert kept(tmp_path) == [file], "nothing half written is left"


def test_what_was_spoilt_is_kept_anew(tmp_path: Path, no_yaml: Callable[[], None]) -> None:
    right = loader.read_knowledge((), tmp_path).drivers
    _cut(kept(tmp_path)[0])
    assert loader.read_knowledge((), tmp_path).drivers == right
    no_yaml()
    assert loader.read_knowledge((), tmp_path).drivers == right


def test_where_nothing_can_be_kept_the_text_is_read(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    for cache in (tmp_path / "file", tmp_path / "file" / "deeper", Path("/proc/nowhere")):
        assert loader.read_knowledge((), cache).drivers == loader.knowledge().drivers
    assert capfd.readouterr() == ("", "")


def test_nobody_makes_a_folder_in_another_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    assert loader.read_knowledge((), tmp_path / "cache").drivers
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("inside", [".", "knowledge"])
def test_what_another_user_could_have_kept_is_neither_believed_nor_written(tmp_path: Path, inside: str) -> None:
    cache = tmp_path / "cache"
    right = loader.read_knowledge((), cache).drivers
    (file,) = kept(cache)
    data = json.dumps({"rows": []}).encode()
    file.write_bytes(hashlib.sha256(data).hexdigest().encode() + b"\n" + data)
    assert loader.read_knowledge((), cache).drivers != right, "what only this user can write is believed"
    (cache / inside).chmod(0o777)
    forged = file.read_bytes()
    assert loader.read_knowledge((), cache).drivers == right
    assert file.read_bytes() == forged


# --- mistakes keep their place --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "column"),
    [
        pytest.param("  - {gpu: b, accelerator: cuda, target: 9, source: here}\n", 41, id="a wrong value"),
        pytest.param('  - {gpu: b, accelerator: cuda, target: "9.0", source: there}\n', 56, id="an unknown source"),
        pytest.param('  - {gpu: a, accelerator: cuda, target: "9.0", source: here}\n', 5, id="a second row"),
    ],
)
def test_a_wrong_row_has_its_place_however_often_it_was_read(
    tmp_path: Path, overlay: Callable[..., Path], more: str, column: int
) -> None:
    folder, found = overlay("a", more), []
    for cache in (None, tmp_path / "cache", tmp_path / "cache"):
        with pytest.raises(ProfileError) as caught:
            _ = loader.read_knowledge([folder], cache).gpus
        found.append(caught.value.problems)
    (problem,) = found[0]
    line = (folder / "gpus.yaml").read_text("utf-8").count("\n")
    assert problem.where == f"{folder / 'gpus.yaml'}:{line}:{column}"
    assert found[1:] == [found[0]] * 2


@pytest.mark.parametrize("text", ["- a\n", "rows: {a: b}\n", "a: b\n", "rows: text\n"])
def test_a_table_without_rows_is_refused_however_often_it_was_read(tmp_path: Path, text: str) -> None:
    folder = tmp_path / "overlay"
    folder.mkdir()
    (folder / "drivers.yaml").write_text(text)
    for _ in range(2):
        problem = problem_of(lambda: loader.read_knowledge([folder], tmp_path / "cache").drivers)
        assert (problem.code, problem.where) == ("knowledge-table", f"{folder / 'drivers.yaml'}:1:1")


def test_what_is_no_yaml_is_not_kept(tmp_path: Path, overlay: Callable[..., Path]) -> None:
    folder = overlay("a", "  - {gpu: b\n")
    assert loader.read_knowledge((), tmp_path / "cache").gpus
    shipped = kept(tmp_path / "cache")
    for _ in range(2):
        assert problem_of(lambda: loader.read_knowledge([folder], tmp_path / "cache").gpus).code == "yaml-syntax"
    assert kept(tmp_path / "cache") == shipped, "the shipped tables, and no other"


# --- a check waits for nothing it does not use ----------------------------------------------------------------------


@pytest.mark.slow
def test_check_loads_nothing_that_renders_locks_or_asks_an_engine(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(CPU)
    program = """
import json, sys
from tfdock.cli.app import app
import tfdock.cli.main
app(["check", sys.argv[1]], standalone_mode=False)
print(json.dumps(sorted(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "x.yaml")],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "TFDOCK_CACHE_DIR": str(tmp_path / "cache")},
    )
    answer, *_, modules = done.stdout.splitlines()
    assert answer.startswith(f"{tmp_path / 'x.yaml'}: ok, ")
    loaded = {name.partition(".")[0] for name in json.loads(modules)}
    assert "pydantic" in loaded
    assert loaded & {"docker", "jinja2", "requests", "rich", "tenacity"} == set()


def test_what_python_leaves_beside_a_script_is_no_template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, left = tmp_path / "verify" / "run.py", tmp_path / "verify" / "__pycache__" / "run.cpython-311.pyc"
    left.parent.mkdir(parents=True)
    script.write_text("print()\n")
    left.write_bytes(b"\xa7\r\r\n")
    monkeypatch.setattr(loader, "_shipped", lambda _: tmp_path)
    assert loader.templates() == {"verify/run.py": "print()\n"}


def test_threads_that_keep_the_same_table_do_not_write_into_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As builds side by side do."""
    both, sync, file = threading.Barrier(2, timeout=60), os.replace, UntrustedPath(tmp_path, "knowledge/x.json")

    def together(*words: Any, **more: Any) -> None:
        both.wait()
        sync(*words, **more)

    monkeypatch.setattr(os, "replace", together)
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(loader._keep, file, b"{}") for _ in range(2)]:
            done.result()
    assert kept(tmp_path) == [file.path]


@pytest.mark.slow
def test_the_docs_have_the_table_of_evidence_as_it_is_counted_now() -> None:
    root = Path(__file__).parents[3]
    counted = subprocess.run(
        [sys.executable, root / "ci/evidence"], capture_output=True, text=True, check=True
    ).stdout
    assert counted in (root / "docs/knowledge.md").read_text("utf-8")


def test_the_texts_of_all_shipped_rows_pass_the_checks_of_rows_of_a_folder() -> None:
    assert rows(loader.read_knowledge(checks_shipped=True)) == rows(loader.read_knowledge())


def test_every_shipped_table_takes_rows_of_a_folder() -> None:
    folder = Path(loader.__file__).parent
    assert {*loader.TABLES} == {"failures", *(file.stem for file in folder.glob("*.yaml"))}
