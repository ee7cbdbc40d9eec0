"""One build and the next: what a hostile source leaves in the caches reaches no build of another source."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from build.harness import Json, copy_tree, record_of, write_profile

from .conftest import Benign
from .rig import FIELDS, HERE, After, Machine, Range, attacked, state_of

pytestmark = pytest.mark.engine

PACKER = "tensorflow/tools/pip_package/build_pip_package.py"
RULE = "third_party/py/python_repository.bzl"
RUN = "python3 /tf/tensorflow/poison.py"
MARK = "neighbour"
MOST_PROCESSES = 8192  #: What a step of the source may have running, so that the machine stays usable.


def _rule(text: str) -> str:
    """The repository rule runs the program, and prints what it says."""
    text = text.replace('_QUESTION = "', f'_QUESTION = "import os; os.system(\'{RUN} fetch 1>&2\');" + "')
    return text.replace("    include, tag = answer", "    print(answer.stderr)\n    include, tag = answer")


def _packer(text: str) -> str:
    """The last action runs the program, and puts what it says into the wheel, which names no folder of its build."""
    run = f'subprocess.run("{RUN} compile", shell=True, capture_output=True).stdout.hex()'
    text = text.replace("def main():\n", f"def main():\n    told = {run}\n")
    return text.replace(
        "        command = [", '        (folder / "tensorflow/told.py").write_text(told)\n        command = ['
    )


EDITS = {
    "configure": lambda text: text.replace("\n", f"\n{RUN} image || true\n", 1),
    RULE: _rule,
    PACKER: _packer,
}


@dataclass(frozen=True)
class Poisoned:
    """The cache that the benign build filled, before and after a hostile source was built with it."""

    benign: Benign
    after: After
    before: dict[str, tuple[object, ...]]
    then: dict[str, tuple[object, ...]]

    @property
    def told(self) -> dict[str, Json]:
        """What the hostile program said of itself, by phase."""
        texts = [self.after.log]
        # Bazel shows nothing of an action that ends well.
        for wheel in self.after.command.wheelhouse.glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                texts.append(bytes.fromhex(archive.read("tensorflow/told.py").decode()).decode())
        said = [json.loads(line) for text in texts for line in re.findall(r"POISON (\{.*\})", text)]
        return {one["phase"]: one for one in said}


@pytest.fixture(scope="module")
def poisoned(bare_range: Range, benign: Benign) -> Poisoned:
    tree = bare_range.folder / "trees/poison"
    copy_tree(bare_range.tree("benign"), tree, EDITS)
    shutil.copy(HERE / "attacker/poison.py", tree)
    command = bare_range.home(cache=benign.command.cache)
    (release,) = [folder for folder in (benign.command.cache / "disk").iterdir() if not folder.suffix]
    # Each domain may read the one of releases, and no other.
    mark = release.with_name(f"{release.name}-{'0' * 16}") / f"ac/00/{MARK}"
    mark.parent.mkdir(parents=True)
    mark.write_text("of another build")
    before = state_of(benign.command.cache)
    profile = write_profile(command.home / "poison.yaml", tree, **FIELDS)
    after = attacked(bare_range, command, "build", "--json", profile, everywhere=True)
    then = state_of(benign.command.cache)
    shutil.rmtree(mark.parents[2])
    return Poisoned(benign, after, before, then)


def test_the_hostile_source_did_what_it_could(poisoned: Poisoned) -> None:
    assert poisoned.told.keys() == {"image", "fetch", "compile"}, poisoned.after.outcome.told
    assert poisoned.after.outcome.code == 0, poisoned.after.outcome.told
    assert poisoned.told["fetch"]["spoilt"] > 0, "downloads"
    assert poisoned.told["compile"]["spoilt"] > 50, "actions and results of releases, in its own layer above them"
    assert poisoned.after.changed == ()
    assert poisoned.after.heard.outside(poisoned.after.folders()) == []
    assert poisoned.after.elsewhere == ()


def test_the_watch_of_the_machine_sees_what_a_command_changes(bare_range: Range, tmp_path: Path) -> None:
    """`elsewhere` can fail."""
    machine = Machine(tmp_path / "machine", (bare_range.folder,))
    script = (
        'echo x >/etc/made; rm /etc/hosts; echo x >>/usr/bin/env; mkdir /opt/new; touch "$0/kept"; cat /etc/group'
    )
    subprocess.run([*machine.prefix, "sh", "-ec", script, bare_range.folder], check=True, capture_output=True)
    assert machine.changes() == ("/etc/hosts", "/etc/made", "/opt/new", "/usr/bin/env")
    assert (bare_range.folder / "kept").exists()
    assert not Path("/etc/made").exists()


def test_a_source_has_no_rights_where_its_image_is_made(poisoned: Poisoned) -> None:
    told = poisoned.told["image"]
    assert told["uid"] != 0
    assert (told["capabilities"], told["no new rights"]) == (0, "1")
    assert max(told["processes"]) <= MOST_PROCESSES
    assert told["network"] is False
    assert told["written"] == []
    assert told["sockets"] == []


@pytest.mark.parametrize("phase", ["fetch", "compile"])
def test_a_source_has_no_rights_where_it_is_built(poisoned: Poisoned, phase: str) -> None:
    told = poisoned.told[phase]
    assert told["uid"] == os.getuid(), "the caller's"
    assert (told["capabilities"], told["no new rights"]) == (0, "1")
    assert told["sockets"] == []
    assert told["visible"] == [], "another build's cache"


def test_no_source_chooses_its_toolchain_key(poisoned: Poisoned) -> None:
    hostile, good = (record_of(one.outcome.build) for one in (poisoned.after, poisoned.benign))
    assert hostile["toolchain_key"] == good["toolchain_key"]
    known = {path for path in poisoned.before if re.fullmatch(r"disk/[0-9a-f]{16}", path.partition("-")[0])}
    now = {path for path in poisoned.then if re.fullmatch(r"disk/[0-9a-f]{16}", path.partition("-")[0])}
    keys = {path.removeprefix("disk/")[:16] for path in now | known}
    assert keys == {path.removeprefix("disk/")[:16] for path in known}


def test_the_caches_of_others_are_as_they_were(poisoned: Poisoned) -> None:
    """A download that was changed may be gone: it is fetched again. What is there is what it was."""
    old = {domain_of(path) for path in poisoned.before} - {"none"}
    disk = {path for path in poisoned.before.keys() | poisoned.then.keys() if domain_of(path) in old}
    changed = {path for path in disk if poisoned.before.get(path) != poisoned.then.get(path)}
    assert {path for path in changed if is_file(poisoned, path)} == set()
    downloads = {path for path in poisoned.before if path.startswith("repository/") and is_file(poisoned, path)}
    assert downloads
    assert {
        path for path in downloads & poisoned.then.keys() if poisoned.before[path][-1] != poisoned.then[path][-1]
    } == set()


def domain_of(path: str) -> str:
    """The domain whose disk cache has a path of the cache, or nothing."""
    found = re.match(r"disk/([0-9a-f]{16}(-[0-9a-f]{16})?)/", path)
    return found[1] if found else "none"


def is_file(poisoned: Poisoned, path: str) -> bool:
    return bool((poisoned.before.get(path) or poisoned.then[path])[-1])


@pytest.mark.parametrize("trusted", [True, False], ids=["release", "another domain"])
def test_the_next_build_of_another_source_is_what_it_is_in_a_clean_cache(
    bare_range: Range, poisoned: Poisoned, trusted: bool
) -> None:
    command = dataclasses.replace(bare_range.home(cache=poisoned.benign.command.cache), trusted=trusted)
    outcome = command.build(poisoned.benign.profile, code=0)
    assert outcome.build["wheels"][0]["sha256"] == poisoned.benign.outcome.build["wheels"][0]["sha256"]
    assert outcome.build["cache"]["executed"] == 0
