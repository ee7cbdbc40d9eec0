"""Laws of the rows about failures, and every row on its own text: buried in a long log, with a cascade after it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import yaml

import tfdock
from tfdock.diagnose import log_lines
from tfdock.diagnose.diagnosis import Diagnosis, diagnosis
from tfdock.diagnose.log_lines import NEAR
from tfdock.diagnose.log_search import Diagnostician
from tfdock.errors import ProfileError
from tfdock.knowledge import failure_rows
from tfdock.knowledge import loader as assets
from tfdock.knowledge.failure_rows import Failure, Variant, failures_of
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.profile.profile import Profile
from tfdock.profile.yaml_nodes import MAX_BYTES

from ..backtracking import most_ways
from ..samples import SOAK, sample

FILES = sorted((Path(tfdock.__file__).parent / "knowledge" / "failures").glob("*.yaml"))
KNOWLEDGE = assets.knowledge()
ROWS = KNOWLEDGE.failures
REPORTED = failures_of(KNOWLEDGE.evidence.values(), {"cuda": "CUDA"}, KNOWLEDGE.edits)  # of builds that failed
FAILURES = [row for row in ROWS.values() if row.is_failure]
SUBJECTS = {
    "targets", "release", "python", "bazel", "gpu_compiler", "host_compiler", "base", "runtime", "optimize", "debug",
    "xla", "resources", "cuda", "cudnn", "rocm",
}  # fmt: skip


def _noise(lines: int) -> bytes:
    """What a long build prints when all is well, scary words among it."""
    written = []
    for number in range(lines):
        match number % 20:
            case 3:
                written.append(
                    f"tensorflow/core/x{number}.cc:{number}:12: warning: unused variable 'error' [-Wunused]"
                )
            case 7:
                written.append(f"  {number:5} | int killed_by_error(int fatal) {{ return No_space_left_on_device; }}")
            case 11:
                written.append(f"WARNING: Download from https://mirror/{number} failed: GET returned 404 Not Found")
            case 13:
                written.append(f"//tensorflow/core/platform:error_{number}_test (cached) PASSED in 0.1s")
            case 17:
                written.append("gcc -Werror=return-type -DFATAL=1 -o failed.o -c failed.cc # error: none")
            case _:
                written.append(f"[{number:,} / 100,000] Compiling tensorflow/core/kernels/op_{number}.cc; 12s local")
    return "\n".join(written).encode() + b"\n"


BEFORE, BRIEF, AFTER = _noise(70_000), _noise(100), _noise(29_810)
CASCADE = (
    b"Target //tensorflow/tools/pip_package:wheel failed to build\n"
    b"Use --verbose_failures to see the command lines of failed build steps.\n"
    + b"ERROR: /src/tensorflow/BUILD:1:1: Executing genrule //tensorflow:api failed: (Exit 1): bash failed\n" * 50
    + b"collect2: error: ld returned 1 exit status\n" * 40
    + b"FAILED: Build did NOT complete successfully\nmake: *** [Makefile:3: wheel] Error 1\n"
    b"The command '/bin/sh -c make wheel' returned a non-zero code: 2\n"
)


def diagnosed(*parts: bytes, knowledge: KnowledgeBase = KNOWLEDGE) -> Diagnosis:
    reader = Diagnostician(knowledge)
    for part in parts:
        reader.feed(part)
    return diagnosis(reader.close(), knowledge)


# --- each row -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", FAILURES, ids=lambda row: row.id)
def test_a_failure_is_found_before_its_cascade(row: Failure) -> None:
    for text in row.examples.fires:
        assert_found(row, text, BRIEF, BRIEF)


@pytest.mark.parametrize("row", sample(FAILURES, every=8, rest=SOAK), ids=lambda row: row.id)
def test_a_failure_is_found_in_a_long_log_before_its_cascade(row: Failure) -> None:
    assert_found(row, row.examples.fires[0], BEFORE, AFTER)  # one of 100,000 lines is enough


def assert_found(row: Failure, text: str, before: bytes, after: bytes) -> None:
    """The row is found first, at its line, with all that is said of it."""
    found = diagnosed(before, text.encode() + b"\n", CASCADE, after)
    assert found.findings, text
    first = found.findings[0]
    assert first.id == row.id, (text, [one.id for one in found.findings])
    assert 1 <= first.line - before.count(b"\n") <= 1 + text.count("\n")
    assert first.excerpt.split("\n")[0] in text.replace("\t", " ")
    assert "{" not in first.cause.replace("${", "")
    assert first.source.startswith("https://")


@pytest.mark.parametrize(
    ("row", "variant"),
    [(row, one) for row in FAILURES for one in row.variants],
    ids=lambda one: one.id if isinstance(one, Failure) else ",".join(one.beside),
)
def test_a_variant_answers_an_example_of_its_row(row: Failure, variant: Variant) -> None:
    text = max(re.split(r"\{\w+\}", variant.fix or variant.cause), key=len).replace("{{", "{").replace("}}", "}")
    found = [diagnosed(example.encode() + b"\n").findings for example in row.examples.fires]
    # On Windows, commands have other quotes.
    told = [f"{one.fix}\n{one.cause}".replace('"', "'") for (one, *_) in found]
    assert [one for one in told if text.replace('"', "'") in one], row.id


@pytest.mark.parametrize("row", FAILURES, ids=lambda row: row.id)
def test_a_near_miss_is_not_that_failure(row: Failure) -> None:
    for text in row.examples.near:
        found = diagnosed(text.encode() + b"\n", CASCADE)
        assert row.id not in {one.id for one in found.findings}, text


@pytest.mark.parametrize("row", [row for row in ROWS.values() if row.harmless], ids=lambda row: row.id)
def test_noise_is_no_failure_and_is_explained(row: Failure) -> None:
    for text in row.examples.fires:
        found = diagnosed(text.encode() + b"\n")
        assert found.findings == ()
        assert [one.id for one in found.warnings] == [row.id]


@pytest.mark.parametrize("row", [row for row in ROWS.values() if row.passes], ids=lambda row: row.id)
def test_what_ended_well_takes_back_the_failures_above_it(row: Failure) -> None:
    for stage in row.passes:
        failed = next(one for one in FAILURES if one.stage == stage)
        above = f"{failed.examples.fires[0]}\n".encode()
        well = f"{row.examples.fires[0]}\n".encode()
        assert diagnosed(above).findings
        assert failed.id not in {one.id for one in diagnosed(above, well).findings}
        assert failed.id in {one.id for one in diagnosed(well, above).findings}


def test_a_log_of_a_build_that_went_well_has_no_failure_in_it() -> None:
    found = diagnosed(BEFORE, b"INFO: Build completed successfully, 100,000 total actions\n")
    assert found.findings == ()
    assert found.suspects == ()
    assert found.lines == 70_001


# --- what must hold of the rows -------------------------------------------------------------------------------------


def test_a_build_that_is_known_to_fail_is_a_failure_of_logs() -> None:
    text = b"fatbinary fatal   : Unknown option '-bin2c-path'\n"
    (found,) = diagnosed(b"ERROR: /t/BUILD:1:1: fatbinary a failed (Exit 1)\n", text).findings
    assert found.confidence == "high"
    assert found.cause == "Builds of TensorFlow 1.14 to 2.0 with CUDA 10.2 are known to fail like this."
    assert "tfdock changes third_party/nccl/build_defs.bzl.tpl itself (edit `bin2c-path`)" in found.fix


def test_reports_that_show_the_same_are_one_failure() -> None:
    (row,) = [row for row in REPORTED if row.id == "cub_12_8"]
    assert (
        "TensorFlow 2.18 to 2.19 with CUDA 12.8, and of TensorFlow 2.18 to 2.19 with CUDA 12.9 or newer" in row.cause
    )


def test_an_id_has_one_row() -> None:
    ids = Counter(row["id"] for file in FILES for row in document_of(file)["rows"])
    assert [name for name, count in ids.items() if count > 1] == []
    assert {*ids} | {row.id for row in REPORTED} == {*ROWS}
    assert not {*ids} & {row.id for row in REPORTED}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_file_says_what_it_is_and_cites_all_of_its_sources(file: Path) -> None:
    text, document = file.read_text(), document_of(file)
    assert text.startswith("# ")
    assert len(text.encode()) < MAX_BYTES - 6 * 1024
    cited = {name for row in document["rows"] for name in re.findall(r"[\w.-]+", str(row["source"]))}
    assert cited == set(document["sources"]), "a source nobody cites is a leftover"
    assert document["checked"]


def test_a_short_name_of_a_source_means_one_thing_in_all_files() -> None:
    texts: dict[str, set[str]] = {}
    for file in FILES:
        for name, text in document_of(file)["sources"].items():
            texts.setdefault(name, set()).add(text)
    assert [name for name, several in texts.items() if len(several) > 1] == []


def test_a_row_names_only_what_there_is() -> None:
    for row in ROWS.values():
        assert set(row.instead_of) <= set(ROWS) - {row.id}
        assert set(row.asks) <= SUBJECTS, row.id
        assert set(row.fits.values()) <= SUBJECTS, row.id
        assert row.grave is None or (row.harmless and ROWS[row.grave.row].is_failure), row.id
        assert row.grave is None or row.grave.accelerator in KNOWLEDGE.accelerators, row.id
        for change in row.changes:
            assert len(change) == 1, f"{row.id}: a change is of one field"
            (path,) = change
            field, _, inner = path.partition(".")
            assert field in Profile.model_fields, (row.id, path)
            if inner:
                default = Profile.model_fields[field].get_default(call_default_factory=True)
                assert inner in type(default).model_fields, (row.id, path)


def _told(row: Failure) -> Iterator[tuple[str, str]]:
    """(cause, fix) in words: with what each example gives, and with nothing from a log."""
    if not row.passes and not row.spoils:
        for text in row.examples.fires:
            found = diagnosed(text.encode() + b"\n")
            yield from ((one.cause, one.fix) for one in (*found.findings, *found.warnings) if one.id == row.id)
    yield row.cause.format(**row.values), row.fix.format(**row.values)


@pytest.mark.slow
@pytest.mark.parametrize("stage", sorted({row.stage for row in ROWS.values()}))
def test_what_a_row_says_reads_well_whatever_the_log_gave_it(stage: str) -> None:
    for told, fix in (said for row in ROWS.values() if row.stage == stage for said in _told(row)):
        # What a value means stands behind the row's own sentences.
        cause = reduce(lambda text, known: text.replace(f" {known.means}", ""), KNOWLEDGE.meanings, told)
        for text in (told, fix):
            assert re.match(r"[A-Z`]", text), text
            assert text.endswith("."), text
            assert not re.search(r"\b([a-z]+) \1\b|  |\.[.:]| [,.;:](?!\S)", text), text
        assert len(re.findall(r"[.!?](?= [A-Z`(])", cause)) < 2, cause


def test_words_for_what_a_log_does_not_say_are_in_no_backquotes() -> None:
    """Between those stands what can be typed: a name or, in capitals, the place for one."""
    for row in ROWS.values():
        for quoted in re.findall(r"`([^`]+)`", f"{row.cause} {row.fix}"):
            for name, words in row.values.items():
                assert f"{{{name}}}" not in quoted or " " not in words, (row.id, quoted, words)


@pytest.mark.slow
def test_no_line_makes_an_expression_search_in_more_ways_than_it_has_characters() -> None:
    """Proved of the expression, for all lines: `most_ways` tries none. Most expressions have one way alone."""
    for pattern in (pattern for row in ROWS.values() for pattern in (*row.patterns, *row.facts)):
        assert most_ways(pattern.line or "", 2 * NEAR) <= 2 * NEAR, pattern.line


@pytest.mark.parametrize("matched", [failure_rows._REPEATED, failure_rows._WARNED, log_lines._PREFIX], ids=repr)
def test_no_line_makes_what_is_matched_at_its_beginning_go_more_ways(matched: re.Pattern[str]) -> None:
    assert most_ways(f"^(?:{matched.pattern})", 2 * NEAR) <= 2 * NEAR


def test_what_is_searched_in_every_line_has_one_way_alone() -> None:
    for searched in (failure_rows._QUOTES, failure_rows._TOLD):
        assert most_ways(searched, 2 * NEAR) == 1


@pytest.mark.parametrize(
    "printed",
    [
        "[1,234 / 35,428] 12 actions running; last: Compiling tensorflow/core/kernels/op.cc; 4s local",
        "INFO: From Compiling tensorflow/core/kernels/op.cc:",
        "./tensorflow/core/op.h:9:12: warning: ignoring return value of 'absl::Status status()' [-Wunused-result]",
        "./tensorflow/core/framework/op_kernel.h:9:3: note: 'OP_REQUIRES' was declared here",
    ],
)
def test_no_row_searches_for_a_text_that_every_build_prints(printed: str) -> None:
    """Each line with such a text is looked at. ` declared` took a third of the time of a long log."""
    assert [row.id for row in ROWS.values() for one in (*row.patterns, *row.facts) if one.has in printed] == []
    assert [row.part for row in KNOWLEDGE.log_parts.values() for one in row.shows if one.has in printed] == []


# --- rows of one's own ----------------------------------------------------------------------------------------------

OWN = """
sources: {{me: https://example.org/1}}
rows:
  - id: {id}
    stage: compile
    patterns: [{{has: "frobnicator", line: '^frob: {line}'}}]
    values: {{what: "it"}}
    cause: "The frobnicator met {{what}}."
    fix: "Turn it off."
    source: me
    examples: {{fires: ["frob: the frobnicator met 12"], near: ["the frobnicator met 12"]}}
"""


def _with(tmp_path: Path, text: str) -> KnowledgeBase:
    (tmp_path / "failures").mkdir()
    (tmp_path / "failures" / "mine.yaml").write_text(text)
    return assets.knowledge([tmp_path])


@pytest.mark.parametrize("name", ["frobnicated", "ld_killed"])
def test_a_folder_of_ones_own_adds_rows_and_replaces_shipped_ones(tmp_path: Path, name: str) -> None:
    own = _with(tmp_path, OWN.format(id=name, line=r"the frobnicator met (?P<what>\d+)"))
    (found,) = diagnosed(b"frob: the frobnicator met 12\n", knowledge=own).findings
    assert (found.id, found.cause, found.source) == (name, "The frobnicator met 12.", "https://example.org/1")
    assert len(own.failures) == len(ROWS) + (name not in ROWS)


def test_a_row_that_replaces_a_surer_one_of_its_line_takes_its_place(tmp_path: Path) -> None:
    plain = OWN.format(id="plain", line=r"the frobnicator met (?P<what>\d+)")
    unsure = plain.partition("rows:")[2].replace(
        "id: plain", "id: special\n    unsure: true\n    instead_of: [plain]"
    )
    own = _with(tmp_path, plain + unsure)
    assert [one.id for one in diagnosed(b"frob: the frobnicator met 12\n", knowledge=own).findings] == ["special"]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (("fires: [", 'fires: ["nothing of the kind", '), "no pattern fires on the example"),
        (("frob: {line}", "glob: {line}"), "patterns[0] fires on none"),
        (("near: [", 'near: ["frob: the frobnicator met 13", '), "fires on the near miss"),
        (("met {{what}}", "met {{whom}}"), "placeholder {whom} is not in `values`"),
        (('values: {{what: "it"}}', "values: {{}}"), "group `what` of a pattern is not in `values`"),
        (("stage: compile", "stage: nowhere"), "stage"),
        (('has: "frobnicator"', 'has: "frob\'s nicator"'), "must not contain quotes"),
        (('    fix: "Turn it off."\n', ""), "a failure needs a fix"),
        (("frob: {line}", "frob: ({line}"), "not a regular expression"),
        (("    fix:", "    only_with: [frob]\n    fix:"), "no part `frob` has a row in `log_parts.yaml`"),
        (("    fix:", "    variants: [{{beside: {{frob: ''}}}}]\n    fix:"), "no part `frob` has a row"),
        (("    fix:", "    variants: [{{beside: {{bazel: x}}}}]\n    fix:"), "'x' is not a range"),
    ],
)
def test_a_row_that_does_not_do_what_its_examples_say_is_refused(
    tmp_path: Path, change: tuple[str, str], complaint: str
) -> None:
    assert change[0] in OWN
    text = OWN.replace(*change).format(id="frobnicated", line=r"the frobnicator met (?P<what>\d+)")
    with pytest.raises(ProfileError) as caught:
        _ = _with(tmp_path, text).failures
    (problem, *_) = caught.value.problems
    assert problem.code == "knowledge-row"
    assert complaint in problem.message
    assert problem.line is not None
    assert problem.file == str(tmp_path / "failures" / "mine.yaml")


def document_of(file: Path) -> dict[str, Any]:
    loader: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    document: dict[str, Any] = yaml.load(file.read_text(), loader)
    return document
