"""What a stranger's profile or matrix may name: files of its own project, and no address that this machine calls."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from build.harness import Json, Outcome, Tfdock

from .rig import Ear, Heard, Victims, leaks, listening, state_of, with_ear

#: Why a file that a profile names is not read.
REFUSALS = {"path-outside", "file-not-plain", "file-too-large", "patch-malformed"}
PATCH = "--- a/MARK\n+++ b/MARK\n@@ -0,0 +1 @@\n+patched {}\n"
SPARSE = 20 << 30


# --- a project, and what a stranger put into it -------------------------------------------------------------------


@dataclass(frozen=True)
class Project:
    """A stranger's repository, and files of the user beside it."""

    command: Tfdock
    folder: Path
    victims: Victims

    def outside(self, name: str) -> Path:
        """A file of the user that looks like what the profile asks for."""
        folder = self.victims.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "fix.patch").write_text(PATCH.format(self.victims.secret))
        profile = {"schema": 1, "tensorflow": "99.18.0", "python": "3.11", "accelerator": "cpu"}
        (folder / "base.yaml").write_text(f"{json.dumps(profile)}\n# {self.victims.secret}\n")
        (folder / "configure").write_text(f"#!/bin/sh\n# {self.victims.secret}\n")
        return folder

    def run(self, *words: str | Path) -> tuple[Outcome, Heard]:
        (self.command.home / "heard").unlink(missing_ok=True)
        outcome = self.command.run(*words)
        return outcome, Heard.read(self.command.home / "heard")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    home, folder = tmp_path / "home", tmp_path / "home/project"
    (folder / ".git").mkdir(parents=True)
    # The tests of builds allow what a stranger may not have.
    nothing = {"TFDOCK_ALLOW_PATHS": "", "TFDOCK_ALLOW_ENDPOINTS": ""}
    command = Tfdock(home=home, cache=home / "cache").with_variables(**nothing)
    return Project(with_ear(command), folder, Victims(tmp_path / "user"))


@dataclass(frozen=True, slots=True)
class Payload:
    """A file that a profile names. `make` puts it into the project and returns the name."""

    name: str
    make: Callable[[Project, str], str]


def _absolute(project: Project, file: str) -> str:
    return str(project.outside("absolute") / file)


def _upwards(project: Project, file: str) -> str:
    return os.path.relpath(project.outside("upwards") / file, project.folder)


def _linked(project: Project, file: str) -> str:
    (project.folder / "linked").mkdir(exist_ok=True)
    (project.folder / "linked" / file).symlink_to(project.outside("linked") / file)
    return f"linked/{file}"


def _linked_relative(project: Project, file: str) -> str:
    folder = project.folder / "relative"
    folder.mkdir(exist_ok=True)
    (folder / file).symlink_to(os.path.relpath(project.outside("relative") / file, folder))
    return f"relative/{file}"


def _in_linked_folder(project: Project, file: str) -> str:
    if not (project.folder / "folder").is_symlink():
        (project.folder / "folder").symlink_to(project.outside("folder"))
    return f"folder/{file}"


def _chain(project: Project, file: str) -> str:
    """A link to a link, and so on; the last one leads out."""
    folder = project.folder / f"chain-{file}"
    folder.mkdir()
    for number in range(9):
        (folder / f"{number}").symlink_to(f"{number + 1}")
    (folder / "9").symlink_to(project.outside("chain") / file)
    return f"chain-{file}/0"


def _upwards_through_a_link(project: Project, file: str) -> str:
    """`..` after a link leads to what is above the link's aim."""
    inner = project.outside("through") / "inner"
    inner.mkdir(exist_ok=True)
    if not (project.folder / "through").is_symlink():
        (project.folder / "through").symlink_to(inner)
    return f"through/../{file}"


def _environment(project: Project, file: str) -> str:  # noqa: ARG001
    return "/proc/self/environ"


def _environment_linked(project: Project, file: str) -> str:
    (project.folder / f"environ-{file}").symlink_to("/proc/self/environ")
    return f"environ-{file}"


def _by_descriptor(project: Project, file: str) -> str:  # noqa: ARG001
    return "/proc/self/cwd/../../../../../../../../../etc/hostname"


def _device(project: Project, file: str) -> str:
    (project.folder / f"device-{file}").symlink_to("/dev/zero")
    return f"device-{file}"


def _fifo(project: Project, file: str) -> str:
    os.mkfifo(project.folder / f"fifo-{file}")
    return f"fifo-{file}"


def _huge(project: Project, file: str) -> str:
    with (project.folder / f"huge-{file}").open("wb") as sink:
        sink.truncate(SPARSE)
    return f"huge-{file}"


def _git(project: Project, file: str) -> str:  # noqa: ARG001
    """The repository's own settings may hold a token."""
    (project.folder / ".git/config").write_text(f"[http]\n\textraheader = {project.victims.secret}\n")
    return ".git/config"


PAYLOADS = (
    Payload("absolute", _absolute),
    Payload("upwards", _upwards),
    Payload("linked", _linked),
    Payload("linked relative", _linked_relative),
    Payload("in a linked folder", _in_linked_folder),
    Payload("chain of links", _chain),
    Payload("upwards through a link", _upwards_through_a_link),
    Payload("environment", _environment),
    Payload("environment linked", _environment_linked),
    Payload("working folder", _by_descriptor),
    Payload("device", _device),
    Payload("FIFO", _fifo),
    Payload("20 GiB", _huge),
)

PROFILE: Json = {"schema": 1, "python": "3.11", "accelerator": "cpu", "verify": {"run": False}}
#: Fields that name a file: what the file would be called, and the profile.
FIELDS: dict[str, tuple[str, Callable[[str], Json]]] = {
    "patches": ("fix.patch", lambda name: {"tensorflow": {"release": "99.18.0", "patches": [name]}}),
    "extends": ("base.yaml", lambda name: {"tensorflow": "99.18.0", "extends": name}),
}


def _profiles(project: Project, field_name: str) -> dict[str, Path]:
    file, make = FIELDS[field_name]
    found = {}
    for payload in PAYLOADS:
        path = project.folder / f"{payload.name.replace(' ', '-')}.yaml"
        path.write_text(json.dumps(PROFILE | make(payload.make(project, file))))
        found[payload.name] = path
    return found


def assert_nothing_told(project: Project, outcome: Outcome, heard: Heard) -> None:
    told = outcome.stdout + outcome.stderr
    assert leaks(told.encode(), {"a file of the user": project.victims.secret}) == []
    assert "Traceback" not in told, told
    assert "internal" not in told, told
    assert outcome.code == 2, outcome.told
    assert heard.called == ()
    assert heard.outside([project.command.cache, project.command.state]) == []


@pytest.mark.parametrize("field_name", FIELDS)
def test_a_profile_names_no_file_outside_its_project(project: Project, field_name: str) -> None:
    profiles = _profiles(project, field_name)
    if field_name == "patches":
        path = project.folder / "no-patch.yaml"
        path.write_text(json.dumps(PROFILE | FIELDS["patches"][1](_git(project, ""))))
        profiles["no patch"] = path
    before = state_of(project.victims.folder)
    outcome, heard = project.run("check", "--json", *profiles.values())
    assert state_of(project.victims.folder) == before
    assert_nothing_told(project, outcome, heard)
    found = {one["file"]: one for one in outcome.document["profiles"]}
    taken = [name for name, path in profiles.items() if found[str(path)]["ok"]]
    assert taken == []
    problems = {name: found[str(path)]["problems"] for name, path in profiles.items()}
    assert {name: codes(told) for name, told in problems.items() if not codes(told) <= REFUSALS} == {}
    assert [name for name, told in problems.items() if not all(one["fix"] and one["file"] for one in told)] == []


def codes(problems: list[Json]) -> set[str]:
    return {problem["code"] for problem in problems}


@pytest.mark.parametrize("command", ["plan", "render", "lock", "build", "shell", "fetch"])
def test_no_command_reads_what_check_refuses(project: Project, command: str, tmp_path: Path) -> None:
    path = project.folder / "profile.yaml"
    name = _linked(project, "fix.patch")
    path.write_text(json.dumps(PROFILE | FIELDS["patches"][1](name)))
    words: list[str | Path] = ["-o", tmp_path / "written"] if command == "render" else []
    outcome, heard = project.run(command, path, *words)
    assert_nothing_told(project, outcome, heard)
    assert not (tmp_path / "written").exists() or list((tmp_path / "written").iterdir()) == []


def test_a_checkout_outside_is_named_by_nobody_but_the_user(project: Project) -> None:
    places = {
        "absolute": str(project.outside("absolute")),
        "upwards": os.path.relpath(project.outside("upwards"), project.folder),
        "linked": "linked-tree",
        "root": "/",
        "processes": "/proc/self/cwd/../..",
    }
    (project.folder / "linked-tree").symlink_to(project.outside("linked"))
    profiles = {}
    for name, place in places.items():
        profiles[name] = project.folder / f"{name}.yaml"
        source = {"release": "99.18.0", "path": place}
        profiles[name].write_text(json.dumps(PROFILE | {"tensorflow": source}))
    outcome, heard = project.run("check", "--json", *profiles.values())
    assert_nothing_told(project, outcome, heard)
    assert [one["file"] for one in outcome.document["profiles"] if one["ok"]] == []
    assert {problem["code"] for one in outcome.document["profiles"] for problem in one["problems"]} == {
        "path-outside"
    }


def test_links_in_a_checkout_stay_links(project: Project, tmp_path: Path) -> None:
    """What a link in a checkout leads to does not go to the engine; a folder of links does not either."""
    tree = project.folder / "tree"
    (tree / "inner").mkdir(parents=True)
    (tree / "configure").write_text("#!/bin/sh\n")
    (tree / "file").symlink_to(project.outside("tree") / "fix.patch")
    (tree / "folder").symlink_to(project.outside("tree"))
    (tree / "inner/environ").symlink_to("/proc/self/environ")
    path = project.folder / "profile.yaml"
    path.write_text(json.dumps(PROFILE | {"tensorflow": {"release": "99.18.0", "path": "tree"}}))
    outcome, _ = project.run("render", path, "-o", tmp_path / "context")
    assert outcome.code == 0, outcome.told
    for found in (tmp_path / "context").rglob("*"):
        if found.is_file() and not found.is_symlink():
            assert leaks(found.read_bytes(), {"a file of the user": project.victims.secret}) == [], found


def test_a_matrix_names_no_file_outside_its_project(project: Project) -> None:
    for payload in PAYLOADS[::3]:
        path = project.folder / "m.yaml"
        name = payload.make(project, "base.yaml")
        path.write_text(json.dumps({"schema": 1, "base": name, "axes": {"python": ["3.11"]}}))
        outcome, heard = project.run("matrix", path, "--format", "json")
        assert_nothing_told(project, outcome, heard)
        assert any(f"[{code}]" in outcome.stderr for code in REFUSALS), outcome.told


# --- addresses ----------------------------------------------------------------------------------------------------


@pytest.fixture
def ear() -> Iterator[Ear]:
    with listening() as ear:
        yield ear


ENDPOINTS: dict[str, Callable[[str], Json]] = {
    "cache": lambda address: {"cache": {"remote": f"http://{address}/cache"}},
    "cache by gRPC": lambda address: {"cache": {"remote": f"grpc://{address}"}},
    "executor": lambda address: {"cache": {"executor": f"grpc://{address}"}},
    "git": lambda address: {"tensorflow": {"git": f"http://{address}/x.git", "ref": "main", "release": "99.18.0"}},
    "archive": lambda address: {
        "tensorflow": {"archive": f"http://{address}/x.tar.gz", "sha256": "0" * 64, "release": "99.18.0"}
    },
    "base": lambda address: {"base": f"{address}/attacker/base:1"},
    "runtime": lambda address: {"runtime": f"{address}/attacker/runtime:1"},
}


def test_no_address_of_a_profile_is_called_by_this_machine(project: Project, ear: Ear) -> None:
    profiles = {}
    for name, make in ENDPOINTS.items():
        profiles[name] = project.folder / f"{name.replace(' ', '-')}.yaml"
        profiles[name].write_text(json.dumps({**PROFILE, "tensorflow": "99.18.0"} | make(ear.address)))
    for words in (["check", "--json"], ["build", "--json"]):
        outcome, heard = project.run(*words, *profiles.values())
        assert "Traceback" not in outcome.stderr, outcome.told
        assert [call for call in heard.called if ear.port in call] == []
        assert outcome.code != 70, outcome.told
    assert ear.came == []


@pytest.mark.parametrize(("name", "scheme"), [("cache", "http"), ("executor", "grpc")])
def test_an_address_is_allowed_by_the_user_alone(project: Project, ear: Ear, name: str, scheme: str) -> None:
    path = project.folder / "profile.yaml"
    path.write_text(json.dumps({**PROFILE, "tensorflow": "99.18.0"} | ENDPOINTS[name](ear.address)))
    refused, _ = project.run("check", path)
    assert (refused.code, "[endpoint-not-allowed]" in refused.stderr) == (2, True), refused.told
    others = [f"{scheme}://{ear.address}1", f"{scheme}s://{ear.address}", f"{scheme}://{ear.address}/other"]
    elsewhere, _ = project.run("check", path, *(word for other in others for word in ("--allow-endpoint", other)))
    assert elsewhere.code == 2, elsewhere.told
    allowed, _ = project.run(
        "check", path, "--allow-endpoint", f"{scheme}://{ear.address}{'/cache' * (name == 'cache')}"
    )
    assert allowed.code == 0, allowed.told


def test_wheels_come_from_no_registry_that_a_matrix_names(project: Project, ear: Ear) -> None:
    path = project.folder / "m.yaml"
    profile = {**PROFILE, "tensorflow": "99.18.0"}
    del profile["schema"]
    ci = {"registry": f"{ear.address}/attacker/wheels", "cache": f"{ear.address}/attacker/cache"}
    text = {"schema": 1, "profile": profile, "axes": {"python": ["3.11"]}, "ci": ci}
    path.write_text(json.dumps(text))
    for words in (["build", "--matrix"], ["pull", "--matrix"], ["matrix", "--format", "json"]):
        outcome, heard = project.run(*words, path)
        assert "Traceback" not in outcome.stderr, outcome.told
        assert [call for call in heard.called if ear.port in call] == [], words
    assert ear.came == []
    assert project.command.visible == []
