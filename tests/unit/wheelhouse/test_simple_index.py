"""The static index: pages as the standards have them, the same every time; pip and uv install from them."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import venv
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdock.errors import ProfileError
from tfdock.wheel.facts import WheelError
from tfdock.wheelhouse.index import WheelIndex
from tfdock.wheelhouse.simple_index import API_VERSION, IndexedWheel, pages, quoted, read_indexed_wheel
from tfdock.wheelhouse.store import Wheelhouse

from .. import houses
from ..command_line import run


class Links(HTMLParser):
    """The links of a page, and its meta tags."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.links: list[dict[str, str | None]] = []
        self.texts: list[str] = []
        self.metas: list[dict[str, str | None]] = []
        self.feed(page.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.links.append(dict(attrs))
        elif tag == "meta":
            self.metas.append(dict(attrs))

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append(data)


SHA = "ab" * 32
FILES = [
    IndexedWheel(file="tensorflow_cpu-2.18.0-cp311-cp311-linux_x86_64.whl", sha256=SHA),
    IndexedWheel(
        file="tensorflow-2.18.0+cuda12.5.sm86-cp311-cp311-linux_x86_64.whl",
        sha256=SHA,
        requires_python=">=3.9,<3.13",
        metadata_sha256="cd" * 32,
    ),
    IndexedWheel(file="tensorflow-2.17.0-cp311-cp311-linux_x86_64.whl", sha256=SHA, requires_python='">&<script>'),
]


def test_the_root_names_each_project_once_by_its_normal_name() -> None:
    found = pages(FILES)
    assert set(found) == {"index.html", "tensorflow/index.html", "tensorflow-cpu/index.html"}
    root = Links(found["index.html"])
    assert [link["href"] for link in root.links] == ["tensorflow/", "tensorflow-cpu/"]
    assert {"name": "pypi:repository-version", "content": API_VERSION} in root.metas


def test_a_file_is_named_with_its_hash_its_python_and_its_metadata() -> None:
    page = Links(pages(FILES, wheels="../../wheels/")["tensorflow/index.html"])
    old, new = page.links
    assert new == {
        "href": f"../../wheels/tensorflow-2.18.0%2Bcuda12.5.sm86-cp311-cp311-linux_x86_64.whl#sha256={SHA}",
        "data-requires-python": ">=3.9,<3.13",
        "data-core-metadata": f"sha256={'cd' * 32}",
        "data-dist-info-metadata": f"sha256={'cd' * 32}",
    }
    assert old["data-requires-python"] == '">&<script>'
    assert "data-core-metadata" not in old
    assert FILES[1].file in page.texts
    assert {"name": "pypi:repository-version", "content": "1.0"} in page.metas


def test_pip_before_23_2_is_given_no_metadata_of_a_name_that_it_may_find_spelt_otherwise() -> None:
    # It compares `tensorflow-cpu` with the Name `tensorflow_cpu` as they stand, and then refuses the wheel.
    two = IndexedWheel(file="tensorflow_cpu-2.18.0-cp311-cp311-linux_x86_64.whl", sha256=SHA, metadata_sha256=SHA)
    (link,) = Links(pages([two])["tensorflow-cpu/index.html"]).links
    assert link["data-core-metadata"] == f"sha256={SHA}"
    assert "data-dist-info-metadata" not in link


def test_what_stands_in_metadata_is_text_only() -> None:
    page = pages(FILES)["tensorflow/index.html"]
    assert b"<script>" not in page
    assert b"&gt;=3.9,&lt;3.13" in page


@given(st.permutations(FILES))
def test_the_order_in_which_files_are_named_does_not_matter(files: list[IndexedWheel]) -> None:
    assert pages(files) == pages(FILES)


@given(st.text(alphabet=st.characters(codec="utf-8")))
def test_a_quoted_name_is_read_back_as_it_was(name: str) -> None:
    from urllib.parse import unquote

    assert unquote(quoted(name)) == name
    assert not set(quoted(name)) & set("+#?/ \"'<>&")


def test_a_wheel_is_listed_by_its_own_metadata() -> None:
    file, data = houses.wheel()
    row, metadata = read_indexed_wheel(io.BytesIO(data), file, "00" * 32)
    assert row == IndexedWheel(
        file=file,
        sha256="00" * 32,
        requires_python=">=3.9",
        metadata_sha256=hashlib.sha256(metadata).hexdigest(),
    )
    assert metadata.startswith(b"Metadata-Version: 2.1\nName: tensorflow\n")
    assert row.project == "tensorflow"


@pytest.mark.parametrize(
    "file", ["other-2.18.0+cuda12.5.sm86-py3-none-any.whl", "tensorflow-2.19.0-py3-none-any.whl"]
)
def test_a_wheel_under_another_name_is_not_listed(file: str) -> None:
    with pytest.raises(WheelError):
        read_indexed_wheel(io.BytesIO(houses.wheel()[1]), file, "00" * 32)


# --- the index of a wheelhouse ------------------------------------------------------------------------------------


@pytest.fixture
def house(tmp_path: Path) -> Wheelhouse:
    return houses.house(tmp_path / "house")


def named(house: Wheelhouse) -> dict[str, dict[str, str]]:
    """What the index names, each held against what lies there: file -> the attributes of its link."""
    root = Links((house.root / "simple" / "index.html").read_bytes())
    found = {}
    for project in root.links:
        page = Links((house.root / "simple" / str(project["href"]) / "index.html").read_bytes())
        for link, file in zip(page.links, page.texts[2:], strict=True):
            href, _, digest = str(link["href"]).partition("#sha256=")
            assert href == f"../../{quoted(file)}"
            assert hashlib.sha256((house.root / file).read_bytes()).hexdigest() == digest
            metadata = (house.root / f"{file}.metadata").read_bytes()
            assert link["data-core-metadata"] == f"sha256={hashlib.sha256(metadata).hexdigest()}"
            found[file] = {key: str(value) for key, value in link.items()}
    folders = {one.name for one in (house.root / "simple").iterdir() if one.is_dir()}
    assert folders == {str(link["href"]).rstrip("/") for link in root.links}
    return found


def contents(house: Wheelhouse) -> dict[str, bytes]:
    return {
        path.relative_to(house.root).as_posix(): path.read_bytes()
        for path in house.root.rglob("*")
        if path.is_file() and ".tfdock" not in path.parts
    }


def test_the_index_names_what_is_whole_and_leaves_out_the_rest(house: Wheelhouse, tmp_path: Path) -> None:
    own = houses.publish(house).name
    foreign, data = houses.wheel("other", "1.0")
    (house.root / foreign).write_bytes(data)
    (house.root / "cut-1.0-py3-none-any.whl").write_bytes(houses.wheel("cut", "1.0")[1][:-40])
    changed = bytearray(houses.wheel("changed", "1.0", salt="as it was")[1])
    changed[changed.index(b"as it was")] ^= 1
    (house.root / "changed-1.0-py3-none-any.whl").write_bytes(changed)
    (house.root / "no name.whl").write_bytes(data)
    (tmp_path / foreign).write_bytes(data)
    (house.root / "linked-1.0-py3-none-any.whl").symlink_to(tmp_path / foreign)
    found = WheelIndex(house).update()
    assert found.wheels == found.added == (foreign, own)
    assert {problem.file: problem.code for problem in found.left_out} == {
        "changed-1.0-py3-none-any.whl": "wheel-corrupt-member",
        "cut-1.0-py3-none-any.whl": "wheel-not-a-zip",
        "linked-1.0-py3-none-any.whl": "file-error",
        "no name.whl": "wheel-bad-name",
    }
    assert set(named(house)) == {foreign, own}


def test_a_second_time_nothing_is_read_and_nothing_is_written(house: Wheelhouse) -> None:
    houses.publish(house)
    read: list[str] = []
    WheelIndex(house).update(read.append)
    before = {path: path.stat().st_ino for path in house.root.rglob("*")}
    assert len(read) == 1
    WheelIndex(house).update(read.append)
    assert len(read) == 1
    assert {path: path.stat().st_ino for path in house.root.rglob("*")} == before


def test_from_nothing_and_step_by_step_the_index_is_the_same(house: Wheelhouse, tmp_path: Path) -> None:
    WheelIndex(house).update()
    for gpu in ("sm86", "sm89", "sm90"):
        houses.publish(house, f"2.18.0+cuda12.5.{gpu}", name=houses.build_id(gpu))
    houses.publish(house, "1.0", project="other", name=houses.build_id("gone")).unlink()
    WheelIndex(house).update()
    other = houses.house(tmp_path / "other")
    for gpu in ("sm90", "sm86", "sm89"):
        houses.publish(other, f"2.18.0+cuda12.5.{gpu}", name=houses.build_id(gpu))
    WheelIndex(other).update()
    (house.constraints(houses.build_id("gone")).path).unlink()
    assert contents(house) == contents(other)


def test_what_has_gone_leaves_the_index_with_its_page_and_its_metadata(house: Wheelhouse) -> None:
    houses.publish(house)
    gone = houses.publish(house, "1.0", project="other", name=houses.build_id("other"))
    WheelIndex(house).update()
    gone.unlink()
    found = WheelIndex(house).update()
    assert found.removed == (gone.name,)
    assert not gone.with_name(f"{gone.name}.metadata").exists()
    assert not (house.root / "simple" / "other").exists()
    assert gone.name not in named(house)


def test_a_replaced_wheel_is_read_again_and_a_lost_page_is_written_again(house: Wheelhouse) -> None:
    path = houses.publish(house)
    WheelIndex(house).update()
    before = named(house)[path.name]["href"]
    path.write_bytes(houses.wheel(salt="other bytes")[1])
    (house.root / "simple" / "index.html").unlink()
    path.with_name(f"{path.name}.metadata").unlink()
    assert WheelIndex(house).update().added == (path.name,)
    assert named(house)[path.name]["href"] != before


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ((), []), ((), 3), (("schema",), "tfdock.index/9"), (("wheels",), None), (("wheels",), [1, "x", None, []]),
        (("wheels", 0, "listed"), []), (("wheels", 0, "listed", "file"), "a\0b"),
        (("wheels", 0, "listed", "file"), "../x-1.0-py3-none-any.whl"), (("wheels", 0, "listed", "file"), ["x"]),
        (("wheels", 0, "listed", "sha256"), None), (("wheels", 0, "listed", "sha256"), '"><script>'),
        (("wheels", 0, "listed", "requires_python"), 3), (("wheels", 0, "listed", "metadata_sha256"), []),
        (("wheels", 0, "signature"), [1]),
        (("wheels", 0, "metadata_size"), "x"),
    ],
)  # fmt: skip
def test_what_was_known_may_be_anything(house: Wheelhouse, path: tuple[Any, ...], value: Any) -> None:
    def spoil(state: Path) -> None:
        document: Any = {"all": json.loads(state.read_text())}
        *folders, last = ("all", *path)
        node = document
        for key in folders:
            node = node[key]
        node[last] = value
        state.write_text(json.dumps(document["all"]))

    assert_made_anew(house, spoil)


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda state: state.unlink(), id="gone"),
        pytest.param(lambda state: state.write_text("{"), id="cut"),
        pytest.param(lambda state: state.write_text("[" * 100_000), id="deeper than can be read"),
    ],
)
def test_what_was_known_may_be_lost(house: Wheelhouse, spoil: Callable[[Path], Any]) -> None:
    assert_made_anew(house, spoil)


def assert_made_anew(house: Wheelhouse, spoil: Callable[[Path], Any]) -> None:
    """Nothing of a spoilt state is believed, and the index comes out the same."""
    houses.publish(house)
    WheelIndex(house).update()
    before = contents(house)
    spoil(house.root / ".tfdock" / "index.json")
    assert WheelIndex(house).hashes() == {}
    WheelIndex(house).update()
    assert contents(house) == before


def test_another_programs_index_is_neither_replaced_nor_followed(house: Wheelhouse) -> None:
    page = house.root / "simple" / "index.html"
    page.parent.mkdir()
    page.write_text("<!DOCTYPE html>\n<title>Simple index</title>")
    before = contents(house)
    houses.publish(house)
    assert before.items() <= contents(house).items()
    with pytest.raises(ProfileError, match="tfdock did not write it"):
        WheelIndex(house).update()
    assert before.items() <= contents(house).items()
    assert not list(house.root.glob("*.metadata"))


def test_what_somebody_else_keeps_in_the_index_or_links_into_it_stays(house: Wheelhouse, tmp_path: Path) -> None:
    houses.publish(house)
    WheelIndex(house).update()
    theirs = tmp_path / "theirs"
    for folder in (theirs, house.root / "simple" / "mine"):
        folder.mkdir()
        (folder / "index.html").write_text("mine")
    ours = house.root / "simple" / "tensorflow" / "index.html"
    (house.root / "simple" / "linked").symlink_to(theirs)
    (theirs / "own").mkdir()
    (theirs / "own" / "index.html").write_bytes(ours.read_bytes())
    (house.root / "simple" / "tensorflow-linked").symlink_to(theirs / "own")
    houses.publish(house, salt="built again")
    WheelIndex(house).update()
    assert (theirs / "index.html").read_text() == (house.root / "simple/mine/index.html").read_text() == "mine"
    assert (theirs / "own" / "index.html").exists()


@pytest.mark.parametrize("name", ["_foo", "foo_", "_", "__foo", "foo."])
def test_what_no_installer_can_ask_for_is_left_out(house: Wheelhouse, name: str) -> None:
    own = houses.publish(house).name
    long, data = houses.wheel("l" * 230, "1.0")
    taken, data = houses.wheel("taken", "1.0")
    for other in (long, taken):
        (house.root / other).write_bytes(houses.wheel(other.partition("-")[0], "1.0")[1])
    (house.root / f"{taken}.metadata").mkdir()
    file, data = houses.wheel(name, "1.0")
    (house.root / file).write_bytes(data)
    found = WheelIndex(house).update()
    codes = {problem.file: problem.code for problem in found.left_out}
    assert codes == {file: "wheel-bad-name", long: "file-error", taken: "file-error"}
    assert set(named(house)) == {own}


@pytest.mark.parametrize(
    "name", [b"bad\xff-1.0-py3-none-any.whl", b"new\nline-1.0-py3-none-any.whl", b"\xd9\xa3-1.0-py3-none-any.whl"]
)
def test_a_name_that_is_no_text_is_left_out_and_listed_in_a_line(house: Wheelhouse, name: bytes) -> None:
    (house.root / os.fsdecode(name)).write_bytes(houses.wheel()[1])
    (problem,) = WheelIndex(house).update().left_out
    assert problem.code == "wheel-bad-name"
    result = run("wheelhouse", "list", "--wheelhouse", house.root)
    assert (result.exit_code, len(result.stdout.splitlines())) == (0, 3)


@pytest.mark.parametrize("text", ["\">'<&", ">=3\n .9", "", "\N{SNOWMAN}"])
def test_whatever_python_is_required_stays_in_its_attribute(house: Wheelhouse, text: str) -> None:
    file, data = houses.wheel(headers=f"Requires-Python: {text}\n")
    (house.root / file).write_bytes(data)
    WheelIndex(house).update()
    assert named(house)[file]["data-requires-python"] == text


def test_a_wheel_that_is_written_over_and_keeps_its_size_and_time_is_read_again(house: Wheelhouse) -> None:
    path = houses.publish(house, salt="one")
    WheelIndex(house).update()
    old = path.stat()
    path.write_bytes(houses.wheel(salt="two")[1])
    os.utime(path, ns=(old.st_atime_ns, old.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_ino) == (old.st_size, old.st_ino)
    assert WheelIndex(house).hashes() == {}
    assert WheelIndex(house).update().added == (path.name,)
    assert set(named(house)) == {path.name}


def test_metadata_that_is_no_document_any_more_is_left_out(house: Wheelhouse) -> None:
    for number, headers in enumerate(("Summary: " + "x" * (1 << 20) + "\n", "X: y\n" * 6000)):
        file, data = houses.wheel(version=f"2.{number}", headers=headers)
        (house.root / file).write_bytes(data)
    codes = [problem.code for problem in WheelIndex(house).update().left_out]
    assert codes == ["wheel-too-large", "wheel-bad-metadata"]
    assert named(house) == {}


def test_two_at_once_make_the_same_index(house: Wheelhouse) -> None:
    for gpu in ("sm80", "sm86", "sm89"):
        houses.publish(house, f"2.18.0+cuda12.5.{gpu}", name=houses.build_id(gpu))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: WheelIndex(house).update().wheels, range(8)))
    assert set(found) == {tuple(sorted(named(house)))}
    assert len(named(house)) == 3


def test_once_there_is_an_index_it_follows_what_is_published(house: Wheelhouse) -> None:
    houses.publish(house)
    assert not (house.root / "simple").exists()
    WheelIndex(house).update()
    houses.publish(house, "2.18.0+cuda12.5.sm89", name=houses.build_id("sm89"))
    houses.publish(house, salt="built again")
    assert len(named(house)) == 2


def test_while_a_wheel_is_replaced_the_index_does_not_name_it(
    house: Wheelhouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = houses.publish(house)
    WheelIndex(house).update()
    monkeypatch.setattr(WheelIndex, "add", lambda *_: None)  # as if killed before that
    houses.publish(house, salt="built again")
    assert named(house) == {}
    monkeypatch.undo()
    WheelIndex(house).update()
    assert set(named(house)) == {path.name}


@pytest.mark.parametrize("spoil", [lambda path: path.write_text("{}"), lambda path: path.unlink()])
def test_whoever_was_killed_between_page_and_state_leaves_no_page_that_names_other_bytes(
    house: Wheelhouse, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Path], Any]
) -> None:
    houses.publish(house)
    WheelIndex(house).update()
    spoil(house.root / ".tfdock" / "index.json")  # the page is there, and nobody knows of it
    monkeypatch.setattr(WheelIndex, "add", lambda *_: None)  # the next one is killed as well
    houses.publish(house, salt="built again")
    assert named(house) == {}


# --- real installers ----------------------------------------------------------------------------------------------

UV = Path(sys.executable).with_name("uv")
REQUEST = "tensorflow==2.18.0+cuda12.5.sm86"


def environment() -> dict[str, str]:
    """Without the settings of this machine: indexes, constraints."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
    return own | {"PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "UV_NO_CONFIG": "1"}


def install(program: str, folder: Path, url: str, request: str = REQUEST) -> subprocess.CompletedProcess[str]:
    """Install from an index into a fresh environment."""
    venv.create(folder, symlinks=True)
    python = str(folder / "bin" / "python")
    if program == "pip":
        command = [sys.executable, "-m", "pip", "--python", python, "install", "--no-cache-dir", "-v"]
        command += ["--index-url", url, request]
    else:
        command = [str(UV), "pip", "install", "--python", python, "--no-cache", "--default-index", url, request]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment(), timeout=120)


def installed(folder: Path) -> dict[str, str]:
    program = "import json, tensorflow; print(json.dumps([tensorflow.version, tensorflow.salt]))"
    command = [str(folder / "bin" / "python"), "-c", program]
    version, salt = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return {"version": version, "salt": salt}


@pytest.mark.slow
@pytest.mark.parametrize("program", ["pip", "uv"])
def test_pip_and_uv_install_from_the_folder(house: Wheelhouse, tmp_path: Path, program: str) -> None:
    houses.publish(house, salt="ours")
    WheelIndex(house).update()
    done = install(program, tmp_path / "env", f"{house.root.as_uri()}/simple/")
    assert done.returncode == 0, done.stdout + done.stderr
    assert installed(tmp_path / "env") == {"version": "2.18.0+cuda12.5.sm86", "salt": "ours"}


@pytest.mark.slow
@pytest.mark.parametrize("program", ["pip", "uv"])
def test_pip_and_uv_refuse_bytes_that_the_index_does_not_name(
    house: Wheelhouse, tmp_path: Path, program: str
) -> None:
    path = houses.publish(house)
    WheelIndex(house).update()
    path.write_bytes(houses.wheel(salt="somebody else's")[1])
    done = install(program, tmp_path / "env", f"{house.root.as_uri()}/simple/")
    assert done.returncode != 0
    assert "hash" in (done.stdout + done.stderr).lower()


@pytest.mark.slow
@pytest.mark.parametrize("program", ["pip", "uv"])
def test_pip_and_uv_do_not_take_a_wheel_for_another_python(house: Wheelhouse, tmp_path: Path, program: str) -> None:
    file, data = houses.wheel(headers="Requires-Python: >=4\n")
    (house.root / file).write_bytes(data)
    WheelIndex(house).update()
    done = install(program, tmp_path / "env", f"{house.root.as_uri()}/simple/")
    assert done.returncode != 0
    assert ">=4" in done.stdout + done.stderr
