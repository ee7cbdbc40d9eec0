"""What a compile action may see and do, told by an action itself: it puts what it finds into the wheel."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tfdock.plan.build_plan import toolchain_key

from .conftest import Workshop
from .harness import Json, Outcome, Tfdock, after_first_line, contents, copy_tree, record_of, write_profile

pytestmark = [pytest.mark.engine, pytest.mark.limit(300)]

PROBE = """
import json
import os
import pathlib
import resource
import socket


def _reaches_the_machine():
    try:
        socket.create_connection(("127.0.0.1", 5552), 2).close()
    except OSError:
        return False
    return True


def _content(*paths):
    return next(pathlib.Path(path).read_text().strip() for path in paths if os.path.exists(path))


def _facts():
    status = dict(line.split(":", 1) for line in _content("/proc/self/status").splitlines())
    environment = _content("/proc/1/environ").split(chr(0))
    return {
        "status": {name: value.strip() for name, value in status.items()},
        "interfaces": os.listdir("/sys/class/net"),
        "reaches the machine": _reaches_the_machine(),
        "uid": os.getuid(),
        "gid": os.getgid(),
        "memory": _content("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory.max"),
        "pids": _content("/sys/fs/cgroup/pids/pids.max", "/sys/fs/cgroup/pids.max"),
        "init": _content("/proc/1/cmdline").split(chr(0)),
        "mounts": [line.split()[3:6] for line in _content("/proc/self/mountinfo").splitlines()],
        "environment": dict(line.split("=", 1) for line in environment if "=" in line),
    }


"""
CHOSEN = b"chosen by the source\n"
CONFIGURE = """
import json
import os
import pathlib
import shutil
import subprocess
import sys


def _write(path):
    try:
        pathlib.Path(path).write_bytes(CHOSEN)
    except OSError as error:
        return type(error).__name__
    return "written"


os.makedirs("/tmp/left/behind")
for folder in (".", "/tmp/left", "/var/tmp"):
    shutil.copy("/bin/true", folder + "/rights")
    os.chmod(folder + "/rights", 0o6755)
subprocess.Popen(["sleep", "1000"], start_new_session=True)
targets = ["toolchain", "pins", "phase.sh", "source", "new"]
targets = ["/opt/tfdock/" + name for name in targets]
targets += ["/etc/passwd", "/etc/bazel.bazelrc", "/usr/bin/gcc", "/usr/bin/new", "/tf/output", "/new"]
facts = {
    "status": dict(line.split(":", 1) for line in open("/proc/self/status")),
    "interfaces": os.listdir("/sys/class/net"),
    "environment": dict(os.environ),
    "targets": {target: _write(target) for target in targets},
}
print("FACTS " + json.dumps(facts))
""".replace("CHOSEN", repr(CHOSEN))
PACKER = "tensorflow/tools/pip_package/build_pip_package.py"
# In hexadecimal digits: a wheel that names folders of its build is refused.
SAY = '(folder / "tensorflow/facts.py").write_text(json.dumps(_facts()).encode().hex())'
TELLING = {
    PACKER: lambda text: PROBE + text.replace("        command = [", f"        {SAY}\n        command = ["),
    "configure": after_first_line(f"python3 - <<'END'{CONFIGURE}END"),
}


@pytest.fixture(scope="module")
def telling(workshop: Workshop) -> Path:
    """A profile whose wheel says how it was made; memory is limited, to a number that is not another's."""
    tree = copy_tree(workshop.tree(), workshop.folder / "trees/telling", TELLING)
    return write_profile(workshop.folder / "telling.yaml", tree, resources={"memory": "3000MiB", "cpus": 1})


def facts_of(outcome: Outcome) -> Json:
    assert outcome.code == 0, outcome.told
    said = contents(Path(outcome.build["wheels"][0]["path"]))["tensorflow/facts.py"]
    facts: Json = json.loads(bytes.fromhex(said.decode()))
    return facts


def assert_no_powers(facts: Json) -> None:
    for capabilities in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(facts["status"][capabilities], 16) == 0
    assert int(facts["status"]["NoNewPrivs"]) == 1
    assert facts["interfaces"] == ["lo"]
    assert not {"DOCKER_HOST", "GITHUB_TOKEN"} & facts["environment"].keys()


def assert_configure_had_no_rights(outcome: Outcome, workshop: Workshop) -> None:
    (line,) = (line for line in Path(outcome.build["log"]).read_text().splitlines() if line.startswith("FACTS "))
    facts = json.loads(line.removeprefix("FACTS "))
    assert {name: facts["status"][name].split() for name in ("Uid", "Gid", "Groups")} == {
        "Uid": ["65534"] * 4,
        "Gid": ["65533"] * 4,
        "Groups": [],
    }
    assert_no_powers(facts)
    assert "written" not in facts["targets"].values()
    record = record_of(outcome.build)
    assert record["toolchain_key"] != toolchain_key(CHOSEN)
    find = ("find", "/", "-xdev", "-user", "65534", "(", "-perm", "/6000", "-o", "-path", "/tmp/*", ")")
    found = workshop.said(record["plan"]["image"]["name"], *find, user="0")
    assert [line for line in found.splitlines() if line.startswith("/")] == []


def assert_walled_in(facts: Json, outcome: Outcome) -> None:
    plan = record_of(outcome.build)["plan"]
    assert_no_powers(facts)
    assert facts["reaches the machine"] is False
    assert int(facts["memory"]) == plan["resources"]["memory"] == 3000 << 20
    assert int(facts["pids"]) == plan["resources"]["pids"]
    assert Path(facts["init"][0]).name == "docker-init"
    assert facts["environment"]["HOME"] == "/tmp"

    mounts = {target: (root, options.split(",")[0]) for root, target, options in facts["mounts"]}
    ours = {target for target in mounts if target.startswith("/tf/")}
    assert ours == {"/tf/output", "/tf/cache/repository", "/tf/cache/disk", "/tf/staging"}
    run = facts["environment"]["TFDOCK_RUN"]
    assert mounts["/tf/output"][0].endswith(f"/output/{run}/output"), "an output base of this run alone"
    assert mounts["/tf/staging"][0].endswith(f"/.tfdock/staging/{run}/staging")
    assert not any(target.endswith("docker.sock") for target in mounts)


@pytest.fixture
def ordinary(request: pytest.FixtureRequest) -> Tfdock:
    """The command as an ordinary user runs it; where these tests run as one, that one."""
    command: Tfdock = request.getfixturevalue("as_user")() if os.geteuid() == 0 else request.getfixturevalue("tfdock")
    return command


def test_a_compile_action_runs_as_the_caller_without_network_and_capabilities_within_the_limits_of_the_plan(
    ordinary: Tfdock, telling: Path, workshop: Workshop
) -> None:
    outcome = ordinary.with_variables(GITHUB_TOKEN="secret").build(telling)
    facts = facts_of(outcome)
    owner = ordinary.home.stat()
    assert owner.st_uid != 0
    assert (facts["uid"], facts["gid"]) == (owner.st_uid, owner.st_gid)
    assert_walled_in(facts, outcome)
    assert_configure_had_no_rights(outcome, workshop)
    left = [*ordinary.wheelhouse.rglob("*"), *ordinary.cache.rglob("*")]
    assert any("cas" in path.parts for path in left)
    assert {path.lstat().st_uid for path in left} == {owner.st_uid}
