"""What `make soak` runs and `make test` leaves out: further permutations of what the suite does once.

The table is all there is to it: a test that an expression is found in is of the soak. Beside it stands what holds the
same fact in `make test`.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterator
from itertools import groupby

import pytest

#: Expression -> what stays in `make test`.
SOAK = {
    # --- engines ---
    r"test_engines\.py::test_a_build_is_interrupted": "faults: whenever it is killed, an engine that dies in a phase",
    r"test_engines\.py::(?!test_a_build_is).*\[(docker28(?!-containerd)|podman)": "docker28-containerd and rootless",
    r"test_engines\.py::.*\breal\]": "the same with a Bazel that is played back; the real one on the bed's engine",
    r"test_pipeline\.py::.*\[hermetic\]": "the same with a Bazel that is played back",
    r"test_played\.py::": "the tests that play Bazel back; the real one where keys, hits and wheels are asserted",
    r"engine/test_contract\.py::(?!test_[^[]*(mount|user|volume|limit|memory|signal|interrupt|stop|owner|cpu|processes))"
    r"[^[]*\[(docker28|rootless|podman)": "the contract on docker",
    r"engine/test_contract\.py::[^[]*\[docker28\]": "the contract on docker and docker28-containerd",
    r"engine/test_contract\.py::(?!test_[^[]*(mount|user|volume|owner))[^[]*\[docker28-userns\]": "what has an owner",
    r"engine/test_(docker_faults|docker_words|terminal)\.py::.*\[docker28\b": "the same on docker",
    r"engine/test_docker_faults\.py::test_disk_that_fills_with_the_context": "a disk that fills in a step",
    # --- faults ---
    r"faults/.*\[real\b": "the same with a Bazel that is played back",
    r"test_engine_dies\.py::.*(SIGTERM\]|frozen_for_a_while|stays_frozen)": "SIGKILL of the engine in each phase",
    r"test_little_room\.py::.*wheelhouse-and-cache": "the engine's disk; test_failures: wheelhouse and cache",
    r"test_odd_worlds\.py::.*(clock_that_is_set_back|prints_much)": "unit tests of the clock and of streams",
    r"test_odd_worlds\.py::test_a_cache_of_another_user": "unit tests of cache folders",
    r"test_odd_worlds\.py::test_a_registry_that_fails": "test_pull: a registry that is down",
    r"test_we_die\.py::test_a_running_step_of_the_image": "whenever it is stopped or killed: 4 moments",
    r"test_we_die\.py::test_whenever.*10 moments\]": "4 moments",
    r"test_little_room\.py::test_what_is_killed_for_memory": "test_failures: more memory than allowed",
    # --- the legacy road, another Python, a debugger ---
    r"test_build\.py::test_a_debug_build": "unit/plan: the flags of a debug build",
    r"test_cache\.py::.*\[legacy\]": "hermetic; the legacy road in test_build",
    r"test_cache_layers\.py::test_an_old_bazel": "test_cache_layers: an empty machine builds from the registry",
    r"test_remote\.py::test_a_cache_that_speaks_grpc": "an HTTP cache; unit tests of flags and of the relay",
    r"test_what_happened\.py::test_on_the_legacy_road": "test_build: the capability on the hermetic road",
    r"test_what_happened\.py::test_another_python": "a changed source file",
    r"test_cache\.py::test_a_rebuilt_base_with_the_same_content": "test_what_happened: a warm build",
    r"test_cache\.py::test_what_a_size_took": "unit tests of pruning; test_pruning_is_refused_while_a_build_runs",
    r"test_remote\.py::test_a_worker_with_the_same_toolchain": "unit tests of flags; an HTTP cache",
    r"test_remote\.py::test_who_has_certificate": "unit/bazel/remote: certificates, a read-only job; an HTTP cache",
    r"test_build\.py::test_two_profiles_in_one_call": "test_matrix_build; the capability of one profile",
    r"test_build\.py::test_(a_ref_that_cannot_be_fetched|an_archive_with_a_patch)": "unit/plan; test_lock: a commit",
    r"test_source_archives\.py::": "unit/knowledge: the table; test_offline",
    r"test_domains\.py::": "attacks/test_neighbours: another domain, a release; unit/builder: the overlay",
    r"test_remote\.py::test_a_cache_that_dies": "unit/bazel/remote: the relay; an HTTP cache",
    r"test_what_happened\.py::test_(another_environment_variable|a_changed_compiler)": "a changed source file",
    r"test_cache\.py::test_an_output_that_is_gone": "a poisoned entry",
    r"test_chain\.py::": "faults/test_we_die: whenever it is killed the next build goes on",
    r"test_diagnosed\.py::": "unit/diagnose; test_failures: a compile error",
    r"test_reported\.py::test_a_real_failure": "test_failures: a compile error; unit/diagnose: a bundle",
    # --- memory, time, signals ---
    r"test_resources\.py::test_where_plain_bazel_dies": "unit tests of the second try",
    r"test_resources\.py::test_four.*real\]": "the same with a Bazel that is played back",
    r"test_resources\.py::test_the_time_limit": "unit/builder: limits; a signal in seal",
    r"test_resources\.py::test_a_disk_that_fills": "faults/test_little_room: the engine's disk",
    r"test_resources\.py::test_left_to_itself": "four profiles at once stay within the memory",
    r"test_failures\.py::test_a_second_ctrl_c": "unit/builder; a signal in seal",
    r"test_resources\.py::test_ctrl_c_stops_all": "a signal in seal; unit tests of several builds",
    r"test_failures\.py::test_a_signal_in_a_phase.*\[(image|fetch|compile)\]": "in seal; faults/test_we_die",
    r"test_failures\.py::test_a_download_that_cannot_be_reached": "test_failures: a fetch; test_availability",
    r"test_wheelhouse_crowd\.py::.*\[20 rounds\]": "4 rounds",
    # --- attacks ---
    r"attacks/test_elsewhere\.py::.*\[newer-": "the same for another user, and on an engine elsewhere",
    r"attacks/test_elsewhere\.py::.*\[far-(SHA256SUMS|raw-WHEEL-swapped|proofs)": "these kinds for another user",
    r"attacks/test_elsewhere\.py::.*\[of_a_user-raw-WHEEL-link": "the link on an engine elsewhere",
    r"attacks/test_results\.py::test_a_build_passes.*\[crowd": "the other kinds; unit: a folder with too many names",
    r"attacks/test_neighbours\.py::test_the_next_build.*\[release\]": "another domain; unit/builder: the overlay",
    r"attacks/test_results\.py::.*\[(row-[123]|text-[12]|done-hard|done-fifo|SHA256SUMS-(swapped|sparse)|raw-many|"
    r"raw-WHEEL-(fifo|swapped|hard)|raw-line|raw-link|holes|verify)": "a kind at each place; unit: all kinds",
    r"test_edges\.py::.*(\bmany\]|_without_measure_is_read_or_refused)": "forty changed texts for each edge",
    # --- wheels ---
    r"test_bad_wheels\.py::.*\[(30 libraries that hold all|65533 sections|100,000 bundles)": "the other kinds",
    r"test_bad_wheels\.py::test_the_command_takes.*\[cubins of LZ4": "METADATA of 7 million fields; the other kinds",
    r"test_wheel\.py::test_a_large_member": "test_bad_wheels: little memory",
    r"test_gpu_code_properties\.py::test_damaged_code": "damage is read alike in any blocks",
    r"test_impossible\.py::test_check_says_the_same": "each of them alone",
    r"test_log_excerpt\.py::test_memory_and_size.*\[\\(n|x1b)": "one line without end",
    r"test_identity\.py::test_(an_upgrade_of|what_wants_a_newer).*\[True\]": "the same without constraints",
    r"test_know\.py::test_no_line_is_wider_than_the_terminal\[(40|60|80)\]": "120 columns; unit tests of tables",
    r"test_official_wheels\.py::.*\[tensorflow(?!==2\.18\.0)": "2.18.0; test_offload_fixtures",
    r"test_manylinux\.py::.*\[tensorflow-cpu": "numpy",
    r"test_runtime_images\.py::test_what_the_wheel_opens_of_cuda": "unit/images; the image for a CPU",
    r"test_lock\.py::test_a_git_tag_that_is_gone.*\[moved\]": "one that is gone",
    r"test_runtime_images\.py::test_two_wheels_that_require_the_same": "unit/images: the order of the layers",
    r"test_tensorflow_configure\.py::": "test_miniature_contract: the miniature's asks and writes the same",
    r"test_verify\.py::test_a_kernel_library_for_another": "unit/verify: GPU code; a wheel that computes wrongly",
    r"test_runtime_images\.py::test_a_wheel_without_a_record": "unit/images; an image of a build",
    r"test_environments\.py::.*\[(hidden|no |an old|a file is|another mod)": "unit/installed; the other causes",
    r"test_verify\.py::test_the_official_(cpu_wheel_passes|wheel_of)": "a wheel that was built; test_official_wheels",
    r"test_verify\.py::test_the_official_cpu_wheel_is_not": "unit/verify: promises; test_a_wheel_that_lies",
}

#: Expression -> of how many permutations of such a test one stays in `make test`.
SAMPLED = {
    r"build/test_pull\.py::test_(a_pull_survives|what_always_fails|a_layer_that_holds|an_image_whose_parts)": 3,
    r"build/test_images\.py::test_a_push_(survives|that_always_fails)": 3,
    r"build/test_cache_layers\.py::test_(a_push_survives|a_registry_that_wants_a_login)": 3,
    r"build/test_cli\.py::test_(a_reader_that_leaves_early|closed_streams)": 3,
    r"attacks/test_wheelhouses\.py::test_no_command_changes_what_links": 2,
    r"engine/test_docker_faults\.py::test_much_output": 2,
    r"real/test_miniature_contract\.py::test_configure_(fails|writes_the_lines)": 2,
}


def mark(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give the tests of the table the mark `soak`. An expression that no test of the suite has is an error."""
    unused = dict.fromkeys([*SOAK, *SAMPLED])
    seen: Counter[str] = Counter()
    for item in items:
        for pattern in SOAK:
            if re.search(pattern, item.nodeid):
                item.add_marker(pytest.mark.soak)
                unused.pop(pattern, None)
        for pattern, of in SAMPLED.items():
            if re.search(pattern, item.nodeid):
                name = _name(item)
                if seen[name] % of:
                    item.add_marker(pytest.mark.soak)
                seen[name] += 1
                unused.pop(pattern, None)
    part, _, parts = config.getoption("part").partition("/")
    if int(parts) > 1:
        # By name alone: the permutations of a test share what it needs.
        left_out = {one for one in items if zlib.crc32(_name(one).encode()) % int(parts) != int(part) - 1}
        config.hook.pytest_deselected(items=[*left_out])
        items[:] = [one for one in items if one not in left_out]
    if config.getoption("quick"):
        left_out = set(items) - set(_few(items))
        config.hook.pytest_deselected(items=[*left_out])
        items[:] = [one for one in items if one not in left_out]
    if unused and config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        raise pytest.UsageError(f"tests/soak.py: no test is found in {', '.join(unused)}")


def _few(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield of each test the first, the middle and the last permutation."""
    for _, group in groupby(items, _name):
        cases = [*group]
        yield from (cases[place] for place in {0, len(cases) // 2, len(cases) - 1})


def _name(item: pytest.Item) -> str:
    """The name of the test without its permutation."""
    return item.nodeid.partition("[")[0]
