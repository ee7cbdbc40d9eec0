"""What a stranger's checkout may hold in the place of our own folders and files: a wheelhouse, a cache, a report.

Git keeps links. Nobody needs an engine for these attacks: a clone and one command are enough.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from build.harness import Outcome, Tfdock

from tfdock.bazel.cache.cache_folder import CacheFolder

from .rig import Heard, Victims, state_of, with_ear

LONG_AGO = time.time() - 3 * 86_400


@dataclass(frozen=True)
class Checkout:
    """A stranger's repository with a wheelhouse in it, and files of the user beside it."""

    command: Tfdock
    folder: Path
    victims: Victims

    def link(self, name: str, to: Path) -> None:
        """A link as git keeps it, to something of the user's that is old enough to be tidied up."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(os.path.relpath(to, path.parent))
        for victim in (to, *to.rglob("*")) if to.is_dir() else ():
            os.utime(victim, (LONG_AGO, LONG_AGO))

    def run(self, *words: str | Path) -> tuple[Outcome, Heard]:
        outcome = self.command.run(*words)
        return outcome, Heard.read(self.command.home / "heard")


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    home, folder = tmp_path / "home", tmp_path / "home/checkout"
    (folder / "wheelhouse").mkdir(parents=True)
    command = Tfdock(home=home, cache=home / "cache").with_variables(TFDOCK_WHEELHOUSE=str(folder / "wheelhouse"))
    return Checkout(with_ear(command), folder, Victims(tmp_path / "user"))


OWN = "wheelhouse/.tfdock"
ZERO = Path("/dev/zero")
Target = Callable[[Victims], Path]


def folder(plant: str) -> Target:
    """A folder of the user, with names that our commands would take for their own."""

    def made(victims: Victims) -> Path:
        place = victims.inner(plant)
        for name in NAMES_OF_OURS:
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text("precious")
        return place

    return made


#: Half-written files, logs, pages, and folders of runs.
NAMES_OF_OURS = (
    "settings.json",
    f"{'a' * 64}.json",
    ".index.json.12-34",
    "other-1-py3-none-any.whl.metadata",
    "20261101-000001-bbbbbb/thesis",
    "20261101-000001-bbbbbb.log",
    "0123456789ab/record.json",
    "tf2.18/0123456789ab/20261101-000001-bbbbbb.log",
    "index.html",
    "lock",
)
#: Links at places of ours, and what they lead to.
PLANTS: dict[str, dict[str, Target]] = {
    "folders": {
        f"{OWN}/staging": folder("staging"),
        f"{OWN}/tf2.18": folder("build"),
        f"{OWN}/tf2.19/0123456789ab": folder("fingerprint"),
        f"{OWN}/coverage": folder("coverage"),
        "wheelhouse/simple": folder("simple"),
    },
    "our own folder": {OWN: folder("own")},
    "a project's page": {"wheelhouse/simple/tensorflow": folder("project")},
    "files": {
        f"{OWN}/index.json": lambda victims: victims.file("facts"),
        f"{OWN}/tf2.18/lock": lambda victims: victims.file("build"),
        f"{OWN}/tf2.18/0123456789ab/record.json": lambda victims: victims.file("record"),
        "wheelhouse/tf2.18.constraints.txt": lambda victims: victims.file("pins"),
        "wheelhouse/index.html": lambda victims: victims.absent("page"),
        "wheelhouse/simple/index.html": lambda victims: victims.file("root"),
    },
    "the lock": {f"{OWN}/lock": lambda victims: victims.file("lock")},
    "files without an end": {
        f"{OWN}/index.json": lambda _: ZERO,
        f"{OWN}/tf2.18/0123456789ab/record.json": lambda _: ZERO,
        "wheelhouse/demo-1.0-py3-none-any.whl": lambda _: ZERO,
        "wheelhouse/index.html": lambda _: ZERO,
    },
    "the root page without an end": {"wheelhouse/simple/index.html": lambda _: ZERO},
}
COMMANDS = (
    ("wheelhouse", "list"),
    ("wheelhouse", "prune", "--older-than", "1d"),
    ("wheelhouse", "index"),
    ("doctor", "--fix"),
    ("report", "--bundle"),
)


@pytest.mark.parametrize("plants", PLANTS.values(), ids=PLANTS)
def test_no_command_changes_what_links_in_a_wheelhouse_lead_to(checkout: Checkout, plants: dict[str, Target]) -> None:
    checkout.victims.folder.mkdir()
    for name, target in plants.items():
        checkout.link(name, target(checkout.victims))
    before = checkout.victims.state()
    for words in COMMANDS:
        outcome, heard = checkout.run(*words)
        assert checkout.victims.state() == before, (words, outcome.told)
        assert outcome.code != 70, outcome.told
        assert [where for _, where in heard.changed if Path(where).is_relative_to(checkout.victims.folder)] == []


def test_no_command_waits_for_a_pipe_in_the_place_of_a_file_of_ours(checkout: Checkout) -> None:
    for name in ("tf2.18/0123456789ab/record.json", "index.json", "../index.html"):
        (checkout.folder / OWN / name).parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(checkout.folder / OWN / name)
    for words in COMMANDS:
        outcome, _ = checkout.run(*words)
        assert outcome.code != 70, outcome.told


@pytest.mark.parametrize("words", ["prune", "prune --max-size 1M", "clean --yes", "verify --repair"])
def test_a_folder_that_has_names_of_ours_is_no_cache(checkout: Checkout, words: str) -> None:
    data = checkout.folder / "data"
    for name in ("output/thesis", "disk/photos", "disk/0123456789abcdef/cas"):
        (data / name).mkdir(parents=True)
        (data / name / "x").write_text("precious")
    before = state_of(data)
    outcome, _ = checkout.run("cache", *words.split(), "--cache-dir", data)
    assert (outcome.code, "[cache-foreign]" in outcome.stderr) == (2, True), outcome.told
    assert state_of(data) == before


#: Parts of a cache, and a command that removes what is old in there.
REMOVERS = {
    "knowledge": "check rtx3080",
    "dependencies": "cache prune --older-than 1d",
    "repository": "cache prune --older-than 1d",
}


@pytest.mark.parametrize("linked", [True, False], ids=["a link", "a folder"])
@pytest.mark.parametrize("part", REMOVERS)
def test_of_what_is_old_in_a_cache_only_names_of_ours_go(checkout: Checkout, part: str, linked: bool) -> None:
    cache = CacheFolder.opened(checkout.folder / "cache").root
    data = checkout.victims.inner("data") if linked else cache / part
    for number in range(120):
        for name in (f"{number}.json", f"thesis-{number}/x", f"content_addressable/sha256/thesis-{number}/x"):
            (data / name).parent.mkdir(parents=True, exist_ok=True)
            (data / name).write_text("precious")
    if linked:
        checkout.link(f"cache/{part}", data)
    for path in (*data.rglob("*"), data):
        os.utime(path, (LONG_AGO, LONG_AGO))
    before = set(data.rglob("*"))
    command = checkout.command.with_variables(TFDOCK_CACHE_DIR=str(cache))
    command.run(*REMOVERS[part].split(), code=0)
    assert set(data.rglob("*")) >= before


MATRIX = """schema: 1
profile: {tensorflow: "99.18.0", python: "3.11", accelerator: cpu}
axes: {tensorflow: ["99.18.0"]}
exclude: [{when: {tensorflow: "99.18.0"}, reason: "not needed $(id > $HOME/PWNED)"}]
"""


@pytest.mark.parametrize("name", ["report.json", "report.html", "junit.xml"])
def test_the_files_of_a_report_are_written_through_no_link(checkout: Checkout, name: str) -> None:
    report = checkout.folder / "report"
    checkout.link(f"report/{name}", checkout.victims.file(name))
    (checkout.folder / "m.yaml").write_text(MATRIX)
    before = checkout.victims.state()
    outcome, _ = checkout.run("build", "--matrix", checkout.folder / "m.yaml", "--report", report)
    assert outcome.code == 0, outcome.told
    assert checkout.victims.state() == before
    assert not (report / name).is_symlink()
    assert json.loads((report / "report.json").read_text())["ok"]
