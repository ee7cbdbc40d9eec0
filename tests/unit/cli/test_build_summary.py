"""The end of a build of several profiles: what became of each."""

from __future__ import annotations

import pytest

from tfdock.cli.build_progress import failed, show_summary
from tfdock.errors import BuildFailed, Problem


def test_several_builds_end_with_the_outcome_of_each_and_their_counts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    error = BuildFailed(Problem(code="bazel-failed", message="Bazel failed"))
    bad = failed("b.yaml", "tf-b", "failed", error)
    good = {**bad, "profile": "a.yaml", "status": "built", "problems": [], "exit_code": 0}
    show_summary([good, bad, {**good, "profile": "c.yaml"}])
    out, told = capsys.readouterr()
    assert out == ""
    assert [line.split() for line in told.splitlines()] == [
        [],
        ["built", "a.yaml"],
        ["failed", "b.yaml", "(bazel-failed)"],
        ["built", "c.yaml"],
        ["2", "built,", "1", "failed"],
    ]
