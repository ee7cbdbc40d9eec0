"""What is known, asked directly: computed from the rows, so that a new row is seen at once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from tfdock.errors import Incompatible
from tfdock.host import hardware
from tfdock.knowledge.switch_rows import presets
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.resolve import gpu_support
from tfdock.resolve import resolve as resolving
from tfdock.types import LocalGpu, Version

from .. import command_line
from ..command_line import too_wide
from ..desk import Desk


def run(*words: str, columns: int = 80) -> Result:
    return command_line.run(*words, COLUMNS=str(columns))


def document(command: str, *words: str) -> dict[str, Any]:
    result = run(command, "--json", *words)
    assert result.exit_code == 0, result.stderr
    return command_line.document(result, f"tfdock.{command}/1")


# --- gpus ---------------------------------------------------------------------------------------------------------


def test_every_known_gpu_is_listed_below_what_compiles_for_it(desk: Desk) -> None:
    text = run("gpus", columns=200).stdout
    listed = {line.split()[0] for line in text.splitlines() if line.startswith("  ") and line[2] != " "}
    assert listed == set(desk.knowledge.gpus)
    (heading,) = [line for line in text.splitlines() if line.startswith("12.0 (sm_120), Blackwell: ")]
    told = ": CUDA 12.8 or newer; TensorFlow 2.20 or newer; driver 570.86.16 or newer (WSL2: 570)"
    assert heading.endswith(f"{told}; only the open kernel modules support the GPU")


def test_gpus_are_listed_vendor_by_vendor_the_newest_first_and_embedded_ones_last() -> None:
    lines = [line for line in run("gpus", columns=200).stdout.splitlines() if line and line[0] != " "]
    order = [line.split()[0].rstrip(",:") for line in lines]
    places = {target: order.index(target) for target in ("12.0", "9.0", "3.0", "8.7", "gfx1201", "gfx1030", "gfx90a")}
    assert [*places.values()] == sorted(places.values())


@pytest.mark.parametrize(("gpu", "name"), [("v100", "V100"), ("a100", "A100")])
def test_a_short_name_is_written_as_drivers_write_it(gpu: str, name: str) -> None:
    assert run("gpus", gpu).stdout.splitlines()[0] == f"{gpu}  {name}"


@pytest.mark.slow
def test_the_releases_of_a_gpu_are_those_that_resolve(desk: Desk) -> None:
    """For every target of a GPU that stands in any machine, and every release."""
    base = desk.knowledge
    for name, target in {(gpu.accelerator, gpu.target) for gpu in base.gpus.values() if not gpu.machine}:
        accelerator = base.accelerators[name]
        facts = gpu_support.target_facts(base, accelerator, target)
        listed = {one.release: one for one in facts.releases}
        for release in base.releases.values():
            dotted = release.capability_format == "dotted"
            written = facts.written.replace("sm_", "compute_") if dotted else facts.written
            one = listed.get(release.release)
            xla = "false" if one and not one.xla else "true"
            text = (
                f'schema: 1\ntensorflow: "{release.release}"\n{accelerator.target_field}: [{written}]\nxla: {xla}\n'
            )
            # A toolkit of builds by others must be named.
            named = f'{accelerator.toolkit}: "{one.toolkits[0]}"\n' if one else ""
            resolves = _resolves(text, base) or (bool(named) and _resolves(text + named, base))
            assert resolves == bool(one), (target, release.release)


def _resolves(text: str, base: KnowledgeBase) -> bool:
    try:
        resolving.resolve_text(text, base, suggest=False)
    except Incompatible:
        return False
    return True


def test_the_official_wheel_serves_a_gpu_by_code_of_its_major_version_too() -> None:
    text = run("gpus", "k80", columns=200).stdout
    assert "2.14  11.8          official wheel runs (sm_35)\n" in text
    assert "1.4   8.0           official wheel runs (sm_37)\n" in text
    assert "with `xla: false`" in run("gpus", "quadro-k600", columns=200).stdout


def test_one_driver_is_told_the_highest_of_what_gpu_and_toolkit_need(desk: Desk) -> None:
    facts = facts_of(desk, "rtx5080")
    assert (facts.driver, facts.toolkit_driver, facts.needs_driver) == ("570.86.16", "525.60.13", "570.86.16")
    for gpu, driver in {
        "rtx5080": "570.86.16 or newer (WSL2: 570); only the open kernel modules support the GPU",
        "rtx5080-laptop": "570.133.07 or newer (WSL2: 570); only the open kernel modules support the GPU",
        "rtx4090": "520.56.06 or newer (WSL2: 520)",
        "gh200": "535.129.03 or newer (WSL2: 535); only the open kernel modules support the GPU",
        "rtx2080": "410.57 or newer (WSL2: 411.31)",
    }.items():
        assert f"  driver        {driver}\n" in run("gpus", gpu, columns=200).stdout


@pytest.mark.parametrize("words", [[""], ["\N{GRINNING FACE}"], ["9.1"], ["sm_91"], ["gfx9999"]])
def test_where_nothing_is_found_nothing_is_guessed(words: list[str]) -> None:
    result = run("gpus", *words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "[gpu-unknown]" in result.stderr
    assert "did you mean" not in result.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["rtx3080"], {"rtx3080"}),
        (["RTX", "3080"], {"rtx3080"}),
        (["NVIDIA GeForce RTX 3080"], {"rtx3080"}),
        (["GeForce RTX 3080"], {"rtx3080"}),
        (["3080"], {"rtx3080", "rtx3080ti", "rtx3080-laptop", "rtx3080ti-laptop"}),
        (["RTX 3080 10GB"], {"rtx3080"}),
        (["rtx3080", "h100"], {"rtx3080", "h100"}),
        (["gfx90a", "mi250"], {"mi250", "mi250x"}),
        (["laptop", "8.9", "4090"], {"rtx4090-laptop"}),
        (["sm_37"], {"k80"}),
        (["compute_37"], {"k80"}),
    ],
)
def test_gpus_are_found_by_name_by_part_of_a_name_and_by_target(
    desk: Desk, words: list[str], expected: set[str]
) -> None:
    assert {gpu["gpu"] for gpu in document("gpus", *words)["gpus"]} == expected & set(desk.knowledge.gpus)
    assert expected & set(desk.knowledge.gpus)


def test_one_gpu_says_its_capability_its_first_cuda_its_releases_and_its_driver() -> None:
    (gpu,) = document("gpus", "rtx5080")["gpus"]
    assert (gpu["target"], gpu["written"], gpu["architecture"]) == ("12.0", "sm_120", "Blackwell")
    assert gpu["toolkits"][0] == "12.8"
    assert [one["release"] for one in gpu["releases"]] == ["2.20", "2.21"]
    assert gpu["driver"] == "570.86.16"
    text = run("gpus", "rtx5080").stdout
    for words in (
        "12.0 (sm_120)",
        "Blackwell",
        "16 GiB",
        "CUDA 12.8 or newer",
        "TensorFlow 2.20 or newer",
        "570.86.16",
    ):
        assert words in text
    assert text.splitlines()[0] == "rtx5080  NVIDIA GeForce RTX 5080", "the answer first"


def test_local_stands_for_the_gpus_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    here = LocalGpu(accelerator="cuda", name="NVIDIA GeForce RTX 3080", target="8.6")
    monkeypatch.setattr(hardware, "local_gpus", lambda: (here,))
    assert [gpu["gpu"] for gpu in document("gpus", "local")["gpus"]] == ["rtx3080"]
    monkeypatch.setattr(hardware, "local_gpus", lambda: ())
    assert "`local` found no GPU on this machine [gpu-local-none]" in run("gpus", "local").stderr


def test_a_name_that_is_not_known_gets_the_nearest_ones() -> None:
    result = run("gpus", "gtx3080")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "[gpu-unknown]" in result.stderr
    assert "did you mean `rtx3080`" in result.stderr


def test_the_name_of_a_generation_lists_its_gpus() -> None:
    assert {gpu["architecture"] for gpu in document("gpus", "Turing")["gpus"]} == {"Turing"}
    assert {gpu["target"] for gpu in document("gpus", "rdna", "3")["gpus"]} == {
        "gfx1100", "gfx1101", "gfx1102", "gfx1103"
    }  # fmt: skip


def test_what_others_say_of_a_target_is_told_as_theirs() -> None:
    told = run("gpus", "rx6600", columns=200).stdout
    assert "users report that `HSA_OVERRIDE_GFX_VERSION=10.3.0` makes gfx1032 run code for gfx1030" in told
    assert "probably (nobody has checked it): users report" in run("gpus", "rx7600", columns=200).stdout
    assert "does harm on gfx1010 (an RX 5700 crashed)" in run("gpus", "rx5700", columns=200).stdout
    fork = "TensorFlow 2.16, 2.17, 2.19, 2.20 of https://github.com/ROCm/tensorflow-upstream takes gfx1102"
    assert fork in document("gpus", "rx7600")["gpus"][0]["reports"]


def facts_of(desk: Desk, gpu: str) -> gpu_support.TargetFacts:
    row = desk.knowledge.gpus[gpu]
    return gpu_support.target_facts(desk.knowledge, desk.knowledge.accelerators[row.accelerator], row.target)


def test_a_made_up_gpu_is_served_by_the_rows_that_name_its_target(made_up: Desk) -> None:
    facts = facts_of(made_up, "twelve")
    assert (facts.written, facts.toolkits, facts.last_toolkit) == ("sm_120", ("20.1",), True)
    # 9.8 takes two digits, 1.9 takes CUDA 20.0 only; 9.9's versions of 20.1 do it.
    assert [(one.release, one.toolkits, one.tested) for one in facts.releases] == [
        ("9.9", ("20.1.0", "20.1.3"), True)
    ]
    old = facts_of(made_up, "old")
    assert (old.toolkits, old.last_toolkit) == (("20.0",), False)
    assert [one.release for one in old.releases] == ["1.9", "9.8", "9.9"]
    slab = facts_of(made_up, "slab")
    assert (slab.written, slab.toolkit, [one.official for one in slab.releases]) == ("xe2", "xpu", [True])
    assert (slab.architecture, slab.driver, slab.toolkit_driver) == (None, None, None)


def overlay(made_up: Desk, **tables: str) -> Desk:
    """Made-up knowledge with further tables."""
    base = {name: list(made_up.knowledge._texts[name]) for name in made_up.knowledge._texts}
    for name, text in tables.items():
        base[name] = [*base.get(name, []), (f"{name}.yaml", text)]
    return Desk(knowledge=KnowledgeBase(base), templates={})


def test_drivers_and_architectures_are_told_where_there_are_rows(made_up: Desk) -> None:
    desk = overlay(
        made_up,
        architectures='rows:\n- {architecture: Zeta, accelerator: cuda, targets: ["12.0"], embedded: ["12.0"], '
        'driver_min: "700", driver_max: "800", source: x}\n',
        drivers='rows:\n- {toolkit: cuda, version: "20", linux: "690.1", windows: "691.2", source: x}\n',
    )
    facts = facts_of(desk, "twelve")
    assert (facts.architecture, facts.embedded, facts.driver, facts.driver_max) == ("Zeta", True, "700", "800")
    assert (facts.toolkit_driver, facts.toolkit_driver_windows) == ("690.1", "691.2")


def test_a_release_without_a_library_for_the_gpu_does_not_take_it(made_up: Desk) -> None:
    library = "{component: cudnn, since: '9', lowest: '8.0', highest: '12.0', toolkits: ['20.1'], source: x}"
    desk = overlay(made_up, libraries=f"rows:\n- {library}\n")
    assert [one.release for one in facts_of(desk, "old").releases] == ["1.9", "9.8"]
    (one,) = [one for one in facts_of(desk, "one").releases if one.release == "9.9"]
    assert one.toolkits == ("20.1.0", "20.1.3"), "what the library is not made for is not offered"


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        ([], []),
        (["2.9"], [("2.9", "2.9")]),
        (["2.10", "2.9", "2.11"], [("2.9", "2.11")]),
        (["2.8", "2.10"], [("2.8", "2.8"), ("2.10", "2.10")]),
    ],
)
def test_versions_that_stand_side_by_side_are_a_span(versions: list[str], expected: list[tuple[str, str]]) -> None:
    assert gpu_support.spans(versions, ["2.8", "2.9", "2.10", "2.11"]) == expected


# --- releases -----------------------------------------------------------------------------------------------------


def test_every_release_has_a_line_with_what_it_was_tested_with(desk: Desk) -> None:
    lines = run("releases", columns=200).stdout.splitlines()
    early = ["0.12.1", "1.0.1", "1.1.0", "1.2.1", "1.3.0"]
    assert [line.split()[0] for line in lines[1:]] == [*early, *sorted(desk.knowledge.releases, key=Version)]
    (line,) = [line for line in lines if line.startswith("2.18 ")]
    assert line.split()[:7] == ["2.18", "3.9-3.12", "6.5.0", "clang", "18", "12.5.1", "9.3.0"]
    assert line.endswith("sm_60 sm_70 sm_80 sm_89 compute_90")


@pytest.mark.parametrize(
    ("part", "version", "releases", "told"),
    [
        ("CUDA", "11.2", [f"2.{minor}" for minor in range(5, 12)], "450.80.02 or newer, on Windows and in WSL 2 452"),
        ("cudnn", "5.1", ["0.12.1", "1.0.1", "1.1.0", "1.2.1"], ""),
        ("tensorrt", "8", [f"2.{minor}" for minor in range(12, 18)], ""),
        ("cuda", "11.6", [f"2.{minor}" for minor in range(5, 12)], "is made with cuda 11.6; these wheels"),
        ("python", "3.13", ["2.20", "2.21"], ""), ("bazel", "5.3", ["2.11", "2.12", "2.13"], ""),
        ("bazel", "3.7.1", ["2.3", "2.4"], "the source of these"),
        ("numpy", "2.3", ["2.20", "2.21"], "their METADATA allows"), ("keras", "2.12", ["2.12"], "METADATA"),
        ("protobuf", "27", ["2.18", "2.19"], "METADATA"),
        ("rocm", "4.0", ["1.15", "2.3", "2.4"], "is made with rocm 4.0; the source of these lists it"),
        ("driver", "390", [f"1.{minor}" for minor in range(4, 13)], "a GPU may need a newer one"),
        ("ubuntu", "16.04", [f"1.{minor}" for minor in range(4, 16)] + [f"2.{minor}" for minor in range(21)],
         "glibc 2.23"),
    ],
)  # fmt: skip
def test_the_releases_with_a_version_of_a_part_are_listed(
    part: str, version: str, releases: list[str], told: str
) -> None:
    lines = run("releases", part, version, columns=200).stdout.splitlines()
    assert [line.split()[0] for line in lines[1:] if line[0].isdigit()] == releases
    assert told in lines[-1]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["cuda", "11.1"], "driver for CUDA 11.1: 450.80.02 or newer"),
        (["cuda", "11.1"], "no release from 1.4 on is made with cuda 11.1"),
        (["cuda", "12", "x"], "name a release, or a part and its version"),
        (["foo", "1"], "known are bazel, clang, cuda, cudnn, driver, "),
        (["python", "2.0"], "known are 2.7, 3.3, 3.4"),
    ],
)
def test_what_no_release_has_says_what_is_known(words: list[str], told: str) -> None:
    assert told in " ".join(run("releases", *words, columns=1000).stderr.split())


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["1.3"], "`pip install tensorflow-gpu==1.3.0`, CUDA 8.0, cuDNN 6;"),
        (["docker"], "2.18 to now: driver 525 or newer: `docker pull tensorflow/tensorflow:X.Y.Z-gpu`"),
        (["rocm", "3.10"], "1.15 2.7 3.3-3.7"),
        # The wheels of 1.13 and 1.14 for Python 3.7 need glibc 2.23: tensorflow/tensorflow issue 26826.
        (["glibc", "2.17"], "1.13 2.7 3.3-3.6 0.19.2"),
        (["protobuf", "27.3"], "protobuf 27.3 is protobuf 5.27.3"),
        (["l4t", "32.7"], "l4t 32.7 is jetpack 4.6.1"),
    ],
)
def test_a_topic_and_a_release_before_the_first_one_are_answered(words: list[str], told: str) -> None:
    assert told in " ".join(run("releases", *words, columns=1000).stdout.split())


def test_a_release_says_with_which_compiler_it_was_built_on_windows() -> None:
    text = run("releases", "1.13", columns=1000).stdout
    assert "Visual Studio 2015 (releases up to 1.13)" in text
    assert "`pip install tensorflow-gpu==1.13.1`, CUDA 10.0 and cuDNN 7.4 (Python 3.5 to 3.7)" in text
    assert "Apple silicon" not in text


@pytest.mark.parametrize("asked", ["2.18", "2.18.1"])
def test_a_release_says_everything_that_its_row_does_and_from_where(desk: Desk, asked: str) -> None:
    text = " ".join(run("releases", asked, columns=60).stdout.split())
    row = desk.knowledge.releases["2.18"]
    for value in (row.patches[-1], row.bazel, row.wheel.target, row.checked, row.note, str(row.unverified)):
        assert str(value) in text
    for support in row.components.values():
        assert all(version in text for version in support.accepted)
    sources = desk.knowledge.sources("releases")
    assert all(" ".join(sources[key].split()) in text for key in row.source)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("2.81", "known are 1.4 to 2.21"),
        ("1.99", "`1.15` or `2.0`"),
        ("2.18.9", "TensorFlow 2.18.9 does not exist; of 2.18 there are 2.18.0, 2.18.1"),
        ("two", "`two` is not a version of TensorFlow"),
    ],
)
def test_a_release_that_is_not_known_is_refused_alike_everywhere(
    asked: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asking = (["releases"], ["advise", "rtx3080", "--tensorflow"], ["init", "--gpu", "cpu", "--tensorflow"])
    results = [run(*command, asked) for command in asking]
    assert {(result.exit_code, result.stdout) for result in results} == {(2, "")}
    assert words in " ".join(results[0].stderr.split())
    assert len({result.stderr for result in results}) == 1


def test_a_release_added_as_a_row_is_listed(tmp_path: Path, desk: Desk) -> None:
    row = desk.knowledge.releases["2.18"].model_dump(mode="json", exclude_none=True) | {"release": "9.9"}
    (tmp_path / "releases.yaml").write_text(json.dumps({"rows": [row]}))
    assert "\n9.9 " in run("releases", "--knowledge", str(tmp_path)).stdout
    assert "TensorFlow 9.9\n" in run("releases", "9.9", "--knowledge", str(tmp_path)).stdout


# --- explain ------------------------------------------------------------------------------------------------------


def test_all_codes_switches_presets_and_topics_are_listed_a_line_each(desk: Desk) -> None:
    known, lines = desk.knowledge, run("explain", columns=200).stdout.splitlines()
    names = [*sorted(known.codes), *known.switches, *sorted(presets(known.switches))]
    assert [line.split()[0] for line in lines[: len(names)]] == names
    assert all(any(line.startswith(row.device) for row in known.topics) for line in lines[len(names) :])


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "tf_gpu_thread_mode",
            ("a variable, read by TensorFlow", "1.5 and newer, according to the official wheels", "`own-gpu"),
        ),
        ("xla_flags", ("XLA_FLAGS: a variable, read by XLA", "the flags of XLA's compiler")),
        ("--xla_dump_to", ("a flag in `XLA_FLAGS`", "write       `XLA_FLAGS=--xla_dump_to=VALUE`")),
        ("--tf_xla_auto_jit", ("a flag in `TF_XLA_FLAGS`",)),
        ("gpu_options.allow_growth", ("a setting of the program", "tf.config.experimental.set_memory_growth(")),
        ("TF_CUDNN_USE_FRONTEND", ("2.5 to 2.19, according",)),
        ("XLA_dump_to", ("a flag in `XLA_FLAGS`",)),
        ("Find-Fault", ("a preset, for `--switch find-fault`", "CUDA_LAUNCH_BLOCKING=1  ")),
    ],
)
def test_a_switch_is_explained_by_who_reads_it_and_since_when(name: str, says: tuple[str, ...]) -> None:
    text = run("explain", name, columns=999).stdout
    assert [part for part in says if part not in text] == []
    document("explain", name)


def test_a_code_is_explained_by_its_cause_an_example_as_it_is_answered_today_and_the_ways_out(desk: Desk) -> None:
    text = run("explain", "target-not-in-toolkit", columns=999).stdout
    row = desk.knowledge.codes["target-not-in-toolkit"]
    assert text.startswith(f"{row.code}: {row.title}\n\n{row.cause}\n\n")
    assert '  cuda: "11.0"\n' in text
    assert "profile.yaml:6:8: error: " in text
    assert "Unsupported gpu architecture 'compute_86'" in text
    assert text.index("fix:") < text.index("ways out")
    assert all(f"-  {way}\n" in text for way in row.ways)
    (problem,) = document("explain", "target-not-in-toolkit")["problems"]
    assert problem["code"] == "target-not-in-toolkit"
    assert problem["ways"]


def test_a_code_without_profile_shows_its_example(desk: Desk) -> None:
    text = run("explain", "[container-killed]", columns=200).stdout
    assert (desk.knowledge.codes["container-killed"].example or "?").strip() in text


def test_a_code_that_does_not_exist_gets_the_nearest_ones() -> None:
    result = run("explain", "yaml-sintax")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "[code-unknown]" in result.stderr
    assert "`yaml-syntax`" in result.stderr


def test_the_beginning_of_codes_is_answered_by_all_of_them(desk: Desk) -> None:
    result = run("explain", "gpu")
    assert result.exit_code == 2
    assert all(f"`{code}`" in result.stderr for code in desk.knowledge.codes if code.startswith("gpu-"))
    assert "did you mean `TF_CUDNN_DETERMINISTIC`" in run("explain", "TF_CUDNN_DETERMINSTIC").stderr


# --- all of them --------------------------------------------------------------------------------------------------

COMMANDS = [
    ["gpus"],
    ["gpus", "rtx5080"],
    ["gpus", "gfx1100"],
    ["releases"],
    ["releases", "2.18"],
    ["releases", "1.4"],
]


@pytest.mark.slow
@pytest.mark.parametrize("columns", [40, 60, 80, 120])
def test_no_line_is_wider_than_the_terminal(desk: Desk, columns: int) -> None:
    commands = [*COMMANDS, ["explain"], *(["explain", code] for code in desk.knowledge.codes)]
    # Resolving each example takes a while: at other widths a tenth of them will do.
    for words in commands if columns == 80 else commands[::10]:
        result = run(*words, columns=columns)
        assert result.exit_code == 0, (words, result.stderr)
        assert too_wide(result.stdout.splitlines(), columns) == [], words


@pytest.mark.slow
def test_every_command_prints_one_document() -> None:
    for words in (*COMMANDS, ["explain"], ["explain", "yaml-syntax"]):
        document(*words)


@pytest.mark.parametrize("name", ["gpus", "releases", "explain"])
def test_help_gives_an_example(name: str) -> None:
    assert f"`tfdock {name}" in run(name, "-h").stdout


@pytest.mark.slow
def test_a_reader_that_leaves_early_is_no_error() -> None:
    script = f"'{sys.executable}' -m tfdock gpus | head -n 1"
    result = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert result.stderr == ""
    assert len(result.stdout.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "variables", "paged"),
    [
        (["gpus"], {}, True),
        (["explain"], {}, True),
        (["gpus", "5090"], {}, False),
        (["gpus"], {"MANPAGER": "false"}, True),
        (["gpus"], {"PAGER": ""}, False),
        (["gpus"], {"PAGER": "cat"}, False),
        (["gpus"], {"PAGER": "no-such-pager -R"}, False),
        (["gpus"], {"TERM": "dumb"}, False),
        (["gpus", "--json"], {}, False),
    ],
)
def test_a_list_longer_than_the_terminal_goes_through_the_pager(
    tmp_path: Path, words: list[str], variables: dict[str, str], paged: bool
) -> None:
    given = {"PAGER": "sed s/^/paged:/", "TERM": "xterm", **variables}
    code, seen = command_line.at_terminal(tmp_path, *words, typed=b"", **given)
    assert code == 0
    *_, last = lines = seen.splitlines()
    assert last
    assert [line.startswith("paged:") for line in lines if "no-such" not in line].count(not paged) == 0


def test_a_pager_that_is_left_early_is_no_error(tmp_path: Path) -> None:
    code, seen = command_line.at_terminal(tmp_path, "gpus", PAGER="head -n 1", TERM="xterm")
    assert (code, len(seen.splitlines())) == (0, 1)
