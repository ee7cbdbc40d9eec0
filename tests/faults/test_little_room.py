"""Disks that fill in each phase, and memory that runs out: of the linker, and of Bazel's own server."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from .rig import GATES, MARKS, PACKER, PHASES, Case, Rig, filled, gate, loop_disk

pytestmark = MARKS


@contextlib.contextmanager
def small(rig: Rig, which: str) -> Iterator[tuple[Case, Path]]:
    """A case whose engine, wheelhouse or cache lies on a small disk; that disk."""
    mark = f"fills-{which}"
    if which == "engine":
        yield rig.case(mark), rig.data
        return
    home = rig.folder / f"home-of-{mark}"
    home.mkdir()
    with loop_disk(home / which, "64M" if which == "wheelhouse" else "512M") as disk:
        yield rig.case(mark, home=home), disk


@pytest.mark.parametrize("which", ["engine", "wheelhouse", "cache"])
def test_a_disk_that_fills_in_a_phase_ends_it_and_loses_nothing(rig: Rig, which: str) -> None:
    with small(rig, which) as (case, disk):
        for phase in PHASES:
            case.release()
            if phase in ("fetch", "compile"):
                case.hold(phase)
            with contextlib.nullcontext() if phase == "image" else rig.door.opened():
                running = case.until(phase, case.start())
                with filled(disk):
                    outcome = running.finish(90)
            case.failed_in(phase, outcome, 8, "disk-full")
            case.mend()
        with rig.door.opened():
            case.goes_on()


# --- memory -------------------------------------------------------------------------------------------------------

CROWD = f"""
import subprocess
hogs = []
while os.path.exists('{GATES}/hold-compile') and len(hogs) < 60:
    hogs.append(subprocess.Popen([sys.executable, '-c', 'x = bytes(1) * (48 << 20); input()'], stdin=subprocess.PIPE))
    time.sleep(0.1)
"""
"""Many that are small: the largest of all is Bazel's server, and the kernel takes that one."""
SCRIPT = f"SECTIONS {{ .tfdock_big : {{ INCLUDE {GATES}/body.ld }} =0x90909090 }} INSERT AFTER .data;\n"
"""For the linker, which fills a gap in memory before it writes it."""


def crowded(text: str) -> str:
    held = "".join(f"    {line}\n" for line in gate("compile").splitlines())
    crowd = "".join(f"    {line}\n" for line in CROWD.strip().splitlines())
    return text.replace(held, f"    import time\n{crowd}")


def test_bazels_server_that_is_killed_for_memory_is_named(rig: Rig) -> None:
    case = rig.case("crowded", edits={PACKER: crowded}, resources={"disk": "1M", "jobs": 1, "memory": "1536MiB"})
    case.hold("compile")
    with rig.door.opened():
        outcome = case.tfdock.build(case.profile)
    problem = case.failed_in("compile", outcome, 8, "out-of-memory")
    assert "Bazel's server" in problem["message"]
    case.mend()
    case.goes_on()


def test_a_linker_that_is_killed_for_memory_is_named(rig: Rig) -> None:
    def linked_so(text: str) -> str:
        return text.replace(
            'linkopts = ["-Wl,-soname,lib', 'linkopts = ["-Wl,-T,/tf/tensorflow/big.ld", "-Wl,-soname,lib', 1
        )

    case = rig.case(
        "linked",
        edits={"tensorflow/BUILD": linked_so},
        resources={"disk": "1M", "jobs": 1, "memory": "1536MiB"},
    )
    (rig.tree("linked") / "big.ld").write_text(SCRIPT)
    body = case.tfdock.cache / "repository/body.ld"
    body.write_text("BYTE(1) . = . + 0x70000000;\n")
    with rig.door.opened():
        outcome = case.tfdock.build(case.profile)
    problem = case.failed_in("compile", outcome, 8, "out-of-memory")
    assert "the linker" in problem["message"]
    case.mend()
    body.write_text("")
    outcome = case.tfdock.build(case.profile)
    assert outcome.code == 0, outcome.told
    assert outcome.build["wheels"][0]["sha256"] == rig.wheel
    assert outcome.build["cache"]["hits"] > outcome.build["cache"]["executed"]
    case.assert_tidy()
