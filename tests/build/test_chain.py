"""A build cut by its time limit and continued on other machines, as chained CI jobs do: nothing is compiled twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tfdock.bazel import output
from tfdock.bazel.cache.cache_folder import CacheFolder

from .conftest import Workshop
from .harness import CPU, UNTRIED, Json, Outcome, Tfdock, copy_tree, published, replaced, write_profile
from .registries import REPOSITORY, OwnRegistry
from .test_failures import failed_in

pytestmark = [pytest.mark.engine, pytest.mark.limit(300)]

LIMIT = "5h15m"
CUTS = 3
# The build comes to three gates, with a quarter of its actions or so before each. A gate is an action that knocks,
# and waits until its door is open. Knocks are files in the output base, doors are files in the repository cache.
GATES = """
DOORS = "/tf/cache/repository"

[genrule(
    name = "gate_%d" % number,
    srcs = before,
    outs = ["gate_%d.h" % number],
    cmd = "touch /tf/output/knock-{0}; while [ ! -e {1}/door-{0} ]; do sleep 0.1; done; : > $@".format(number, DOORS),
    visibility = ["//visibility:public"],
) for number, before in [
    (1, ["//tensorflow:libtensorflow_framework.so.2", "//tensorflow/python:build_info"]),
    (2, [":libkernels.so"]),
    (3, ["//tensorflow:libtensorflow_cc.so.2"]),
]]

cc_binary(
    name = "libkernels.so",
    linkshared = 1,
    deps = ["//tensorflow/core/kernels"],
)

[cc_library(
    name = "after_%d" % number,
    hdrs = ["gate_%d.h" % number],
    visibility = ["//visibility:public"],
) for number in [1, 2, 3]]
"""
HEADERS = '"//tensorflow/core/framework:headers"'


def behind(number: int) -> Callable[[str], str]:
    """What these rules compile waits for a gate."""
    return replaced(HEADERS, f'{HEADERS}, "//tensorflow/core/platform:after_{number}"')


GATED = {
    "tensorflow/core/platform/BUILD": lambda text: text + GATES,
    "tensorflow/core/kernels/BUILD": behind(1),
    "tensorflow/compiler/jit/BUILD": behind(2),
    "tensorflow/python/BUILD": behind(3),
}
# However slow this machine is, the time is up when the build has come to a gate, and not before: then a day has
# passed.
CLOCK = """
import glob, os, time

monotonic, knock = time.monotonic, os.environ["TESTS_KNOCK"]
time.monotonic = lambda: monotonic() + (86400 if glob.glob(knock) else 0)
"""


# A Bazel that is too old for one: nothing older than 0.26 can be had here.
NO_DISK_CACHE = """
from tfdock.knowledge import contract
known = contract.bazel_options
contract.bazel_options = lambda *asked: () if "disk_cache" in asked else known(*asked)
"""


class Machine:
    """A machine that has nothing, and is thrown away when its job ends. So many of its doors are open."""

    def __init__(self, workshop: Workshop, doors: int) -> None:
        home = workshop.tfdock().home
        self.tfdock = Tfdock(home=home, cache=home / "cache", engine=workshop.host)
        self.repository = CacheFolder.opened(self.tfdock.cache).repository
        self.repository.mkdir()
        for number in range(1, doors + 1):
            (self.repository / f"door-{number}").touch()
        (home / "clock").mkdir()
        (home / "clock/sitecustomize.py").write_text(CLOCK)
        self.knock = self.tfdock.cache / f"output/*/output/knock-{doors + 1}"

    def job(self, profile: Path, reference: str) -> Outcome:
        """What a chained job does: pull, build within the limit, push, whatever became of the build."""
        pulled = self.tfdock.run("cache", "pull", reference, "--json")
        assert pulled.code in (0, 7), pulled.told
        built = self.build(profile)
        self.tfdock.run("cache", "push", reference, "--json", code=0)
        return built

    def build(self, profile: Path, *, code: int | None = None) -> Outcome:
        variables = {"PYTHONPATH": str(self.tfdock.home / "clock"), "TESTS_KNOCK": str(self.knock)}
        return self.tfdock.with_variables(**variables).build("--time-limit", LIMIT, profile, code=code)

    @property
    def actions(self) -> set[str]:
        """The keys of the actions in its cache."""
        return {path.name for path in self.tfdock.cache.glob("disk/*/ac/*/*")}


def said(outcome: Outcome) -> Json:
    """Bazel's own last words on its actions, in the log."""
    counted = output.processes(Path(outcome.build["log"]).read_text())
    hits = sum(count for name, count in counted.items() if "cache hit" in name)
    return {"hits": hits, "executed": sum(counted.values()) - hits - counted.get("internal", 0)}


@pytest.mark.parametrize("cuts", [1, 3], ids=["1 cut", "3 cuts"])
def test_a_build_that_is_cut_ends_on_the_next_machine_as_if_it_had_not_been(
    workshop: Workshop, registry: OwnRegistry, tmp_path: Path, cuts: int
) -> None:
    tree = copy_tree(workshop.tree(), tmp_path / "tree", GATED)
    profile = write_profile(tmp_path / "profile.yaml", tree, **CPU, verify=UNTRIED)
    whole = Machine(workshop, CUTS)
    uncut = whole.tfdock.build(profile, code=0)
    total = uncut.build["cache"]["executed"]

    reference = f"{registry.address}/{REPOSITORY}:chain-{cuts}"
    executed: list[int] = []
    for number in range(CUTS - cuts, CUTS):
        machine = Machine(workshop, number)
        cut = machine.job(profile, reference)
        problem = failed_in("compile", cut, 8, "time-limit", "of 18900 s was reached", "tfdock cache push")
        figures = cut.build["cache"]
        assert (figures["hits"], figures["executed"]) == (sum(executed), said(cut)["executed"]), cut.told
        assert figures["executed"] >= total // 8, "it is about a quarter"
        assert f"{figures['executed']} actions were executed" in problem["message"]
        assert machine.tfdock.visible == machine.tfdock.leftovers == []
        executed.append(figures["executed"])

    last = Machine(workshop, CUTS)
    end = last.job(profile, reference)
    assert end.code == 0, end.told
    assert {name: end.build["cache"][name] for name in ("hits", "executed")} == said(end)
    assert end.build["cache"]["hits"] == sum(executed), "all that was executed before the cuts was kept"
    assert sum(executed) + end.build["cache"]["executed"] == total, "no action was executed twice"
    assert last.actions == whole.actions
    assert [one["sha256"] for one in end.build["wheels"]] == [one["sha256"] for one in uncut.build["wheels"]]
    assert last.tfdock.visible == published(end.build)


def test_a_bazel_without_a_disk_cache_goes_on_in_its_output_base(workshop: Workshop, tmp_path: Path) -> None:
    tree = copy_tree(workshop.tree(), tmp_path / "tree", GATED)
    gates = tree / "tensorflow/core/platform/BUILD"
    # Bazel writes down every three seconds what is done.
    gates.write_text(gates.read_text().replace('cmd = "touch', 'cmd = "[ {0} != 1 ] || sleep 4; touch'))
    profile = write_profile(tmp_path / "mine.yaml", tree, **CPU, verify=UNTRIED)
    machine = Machine(workshop, 1)
    (machine.tfdock.home / "clock/sitecustomize.py").write_text(CLOCK + NO_DISK_CACHE)
    cut = machine.build(profile)
    failed_in("compile", cut, 8, "time-limit", "of 18900 s was reached")
    assert "has no disk cache, so this build begins an output base that stays" in cut.told
    (kept,) = machine.tfdock.cache.glob("output/*")
    (machine.repository / "door-2").touch()
    (machine.repository / "door-3").touch()
    machine.knock = tmp_path / "never"
    end = machine.build(profile, code=0)
    assert f"this build continues in an output base that stays until the wheel is finished: {kept}" in end.told
    assert not list(machine.tfdock.cache.glob("output/*")), "the wheel is there"

    whole = Machine(workshop, CUTS).tfdock.build(profile)
    assert [one["sha256"] for one in end.build["wheels"]] == [one["sha256"] for one in whole.build["wheels"]]
    assert said(end)["executed"] <= said(whole)["executed"] * 3 // 4, "what was done before the first gate is there"
