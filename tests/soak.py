"""What `make soak` runs and `make test` leaves out: further permutations of what the suite does once.

The table is all there is to it: a test that an expression is found in is of the soak. Beside it stands what holds the
same fact in `make test`.
"""

from __future__ import annotations

import re
import zlib

import pytest

SOAK = {
    # --- engines ---
    r"test_engines\.py::.*\[(docker28(?!-containerd)|podman)": "the main job on docker28-containerd and rootless",
    r"test_engines\.py::.*\breal\]": "the same with a Bazel that is played back; the real one on the bed's engine",
    r"test_pipeline\.py::.*\[hermetic\]": "the same with a Bazel that is played back",
    r"test_played\.py::": "the tests that play Bazel back; the real one where keys, hits and wheels are asserted",
    r"engine/test_contract\.py::(?!test_.*(mount|user|volume|limit|memory|signal|interrupt|stop|owner|cpu|processes)).*"
    r"\[(docker28|docker28-userns|rootless|podman)\b": "the contract on docker and docker28-containerd",
    r"engine/test_(docker_faults|docker_words|terminal)\.py::.*\[docker28\b": "the same on docker",
    # --- faults ---
    r"faults/.*\[real\b": "the same with a Bazel that is played back",
    r"test_engine_dies\.py::.*(SIGTERM\]|frozen_for_a_while|stays_frozen)": "SIGKILL of the engine in each phase",
    r"test_little_room\.py::.*wheelhouse-and-cache": "the engine's disk; test_failures: wheelhouse and cache",
    r"test_odd_worlds\.py::.*(clock_that_is_set_back|prints_much)": "unit tests of the clock and of streams",
    r"test_we_die\.py::test_whenever.*10 moments\]": "4 moments",
    r"test_little_room\.py::test_what_is_killed_for_memory": "test_failures: more memory than allowed",
    # --- the legacy road, another Python, a debugger ---
    r"test_build\.py::test_a_debug_build": "unit/plan: the flags of a debug build",
    r"test_cache\.py::.*\[legacy\]": "hermetic; the legacy road in test_build",
    r"test_cache_layers\.py::test_an_old_bazel": "test_cache_layers: an empty machine builds from the registry",
    r"test_remote\.py::.*\[legacy-": "hermetic",
    r"test_what_happened\.py::test_on_the_legacy_road": "test_build: the capability on the hermetic road",
    r"test_what_happened\.py::test_another_python": "a changed source file, a changed option, another variable",
    r"test_cache\.py::test_a_rebuilt_base_with_the_same_content": "test_what_happened: a warm build",
    r"test_cache\.py::test_what_a_size_took": "unit tests of pruning; test_pruning_is_refused_while_a_build_runs",
    r"test_remote\.py::test_a_worker_with_the_same_toolchain": "unit tests of flags; the cache that speaks gRPC",
    # --- memory, time, signals ---
    r"test_resources\.py::test_where_plain_bazel_dies": "unit tests of the second try",
    r"test_resources\.py::test_four.*real\]": "the same with a Bazel that is played back",
    r"test_resources\.py::test_the_time_limit": "test_chain, where time limits cut builds",
    r"test_resources\.py::test_ctrl_c_stops_all": "a signal in seal; unit tests of several builds",
    r"test_failures\.py::test_a_signal_in_a_phase.*\[(image|fetch|compile)\]": "in seal; faults/test_we_die",
    r"test_failures\.py::test_a_download_that_cannot_be_reached": "test_diagnosed: fetch_404; test_availability",
    r"test_chain\.py::.*\[3 cuts\]": "one cut",
    r"test_wheelhouse_crowd\.py::.*\[20 rounds\]": "4 rounds",
    # --- attacks ---
    r"attacks/test_elsewhere\.py::.*\[(far|newer)-(SHA256SUMS|raw-WHEEL-swapped)": "these kinds for another user",
    r"attacks/test_elsewhere\.py::.*\[of_a_user-raw-WHEEL-link": "the link on engines elsewhere and newer",
    r"attacks/test_results\.py::.*\[(row-[123]|text-[12]|done-hard|done-fifo|SHA256SUMS-(swapped|sparse)|raw-many|"
    r"raw-WHEEL-(fifo|swapped|hard)|raw-line|raw-link)": "a kind at each place; unit: all kinds",
    r"test_edges\.py::.*(\bmany\]|_without_measure_is_read_or_refused)": "forty changed texts for each edge",
    # --- wheels ---
    r"test_bad_wheels\.py::.*\[30 libraries that hold all": "the other hostile wheels of the sample",
    r"test_official_wheels\.py::.*\[tensorflow(==2\.15\.1|==2\.21\.0|-cpu==2\.18\.0)\]": "2.18.0 and ROCm's 2.14",
    r"test_manylinux\.py::.*\[tensorflow-cpu": "numpy",
    r"test_runtime_images\.py::test_what_the_wheel_opens_of_cuda": "unit/images; the image for a CPU",
    r"test_runtime_images\.py::test_two_wheels_that_require_the_same": "unit/images: the order of the layers",
    r"test_tensorflow_configure\.py::.*\[(a CPU by|this CPU|a CPU with|the same|three GPUs)": "the five others",
    r"test_verify\.py::test_the_official_wheel_of_tensorflow_1": "the official CPU wheel of 2.18",
}
"""Expression -> what stays in `make test`."""


def mark(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give the tests of the table the mark `soak`. An expression that no test of the suite has is an error."""
    unused = dict.fromkeys(SOAK)
    for item in items:
        for pattern in SOAK:
            if re.search(pattern, item.nodeid):
                item.add_marker(pytest.mark.soak)
                unused.pop(pattern, None)
    part, _, parts = config.getoption("part").partition("/")
    if int(parts) > 1:
        # By name alone: the permutations of a test share what it needs.
        left_out = {
            one for one in items if zlib.crc32(one.nodeid.partition("[")[0].encode()) % int(parts) != int(part) - 1
        }
        config.hook.pytest_deselected(items=[*left_out])
        items[:] = [one for one in items if one not in left_out]
    if unused and config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        raise pytest.UsageError(f"tests/soak.py: no test is found in {', '.join(unused)}")
