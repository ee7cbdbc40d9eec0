"""Disks that fill in each phase, and memory that runs out: of the linker, and of Bazel's own server."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from engine.bench import loop_disk

from .rig import GATES, MARKS, PACKER, PHASES, Case, Rig, filled, gate, side_by_side

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


@pytest.mark.parametrize("disks", [("engine",), ("wheelhouse", "cache")], ids="-and-".join)
def test_a_disk_that_fills_in_a_phase_ends_it_and_loses_nothing(rig: Rig, disks: tuple[str, ...]) -> None:
    with contextlib.ExitStack() as stack:
        builds = {which: stack.enter_context(small(rig, which)) for which in disks}
        for phase in PHASES:
            with contextlib.nullcontext() if phase == "image" else rig.door.opened():
                side_by_side(*(partial(fills, *build, phase) for build in builds.values()))
        with rig.door.opened():
            side_by_side(*(case.goes_on for case, _ in builds.values()))


def fills(case: Case, disk: Path, phase: str) -> None:
    case.release()
    if phase in ("fetch", "compile"):
        case.hold(phase)
    running = case.until(phase, case.start())
    with filled(disk):
        outcome = running.finish(90)
    case.failed_in(phase, outcome, 8, "disk-full")
    # The error says all that Bazel's words for it would say once more.
    assert outcome.build["diagnosis"] == [], outcome.told
    case.mend()


# --- memory -------------------------------------------------------------------------------------------------------

#: Many that are small: the largest of all is Bazel's server, and the kernel takes that one.
CROWD = f"""
import subprocess
hogs = []
while os.path.exists('{GATES}/hold-compile') and len(hogs) < 60:
    hogs.append(subprocess.Popen([sys.executable, '-c', 'x = bytes(1) * (48 << 20); input()'], stdin=subprocess.PIPE))
    time.sleep(0.1)
"""
#: For the linker, which has a hundred bytes for each string that it is to merge, as those of debug information.
STRINGS = 14_000_000


def crowded(text: str) -> str:
    held = "".join(f"    {line}\n" for line in gate("compile").splitlines())
    crowd = "".join(f"    {line}\n" for line in CROWD.strip().splitlines())
    return text.replace(held, f"    import time\n{crowd}")


@pytest.mark.parametrize("rig", ["real"], indirect=True)
def test_what_is_killed_for_memory_is_named(rig: Rig) -> None:
    with rig.door.opened():
        side_by_side(partial(bazels_server, rig), partial(compiler_and_linker, rig))


def bazels_server(rig: Rig) -> None:
    case = rig.case("crowded", edits={PACKER: crowded}, resources={"disk": "1M", "jobs": 1, "memory": "1536MiB"})
    case.hold("compile")
    problem = case.failed_in("compile", case.tfdock.build(case.profile), 8, "out-of-memory")
    assert "Bazel's server" in problem["message"]
    case.mend()
    case.goes_on()


def object_of_strings(count: int) -> bytes:
    """An ELF object (x86-64) of one section to merge, with so many strings of nine bytes."""
    text = b"".join(b"%09d\0" % number for number in range(count))
    names = b"\0.strings\0.shstrtab\0"
    kept = 64 + len(text)  # where the names are, and behind them the table of sections
    sections = ((0, 0, 0, 0, 0, 0), (1, 1, 0x30, 64, len(text), 1), (10, 3, 0, kept, len(names), 0))
    table = b"".join(
        struct.pack("<IIQQQQIIQQ", name, kind, flags, 0, offset, size, 0, 0, 1, entry)
        for name, kind, flags, offset, size, entry in sections
    )
    header = struct.pack("<HHIQQQIHHHHHH", 1, 62, 1, 0, 0, kept + len(names), 0, 64, 0, 0, 64, len(sections), 2)
    return b"\x7fELF\2\1\1" + bytes(9) + header + text + names + table


def compiler_and_linker(rig: Rig) -> None:
    def compiled(text: str) -> str:
        return text.replace('name = "kernels",', f'name = "kernels", copts = ["@{GATES}/more"],', 1)

    def linked(text: str) -> str:
        return text.replace('linkopts = ["-Wl,-soname,lib', f'linkopts = ["{GATES}/more.a", "-Wl,-soname,lib', 1)

    case = rig.case(
        "hungry",
        edits={"tensorflow/core/kernels/BUILD": compiled, "tensorflow/BUILD": linked},
        resources={"disk": "1M", "jobs": 1, "memory": "1536MiB"},
    )
    words, archive = (case.tfdock.cache / "repository" / name for name in ("more", "more.a"))
    runs = {
        "a compiler": (b"-DMINIATURE_HUNGRY_COMPILE=18", b""),
        "the linker": (b"", object_of_strings(STRINGS)),
    }
    for who, contents in runs.items():
        words.write_bytes(contents[0])
        archive.write_bytes(contents[1])
        problem = case.failed_in("compile", case.tfdock.build(case.profile), 8, "out-of-memory")
        assert who in problem["message"]
        case.mend()
    archive.write_bytes(b"!<arch>\n")  # of nothing
    outcome = case.tfdock.build(case.profile, code=0)
    assert outcome.build["wheels"][0]["sha256"] == rig.wheel
    assert outcome.build["cache"]["hits"] > outcome.build["cache"]["executed"]
    case.assert_tidy()
