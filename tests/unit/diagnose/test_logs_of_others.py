"""Logs as other people's tools write them: many wordings, versions, builders and cascades, and what only looks bad.

`logs/failed.txt` and `logs/harmless.txt` have one log after another, each below `## ` and the failure that it is of.
They are made up around what the tools print unchanged; no row of the knowledge has them as its example.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from .test_diagnose import diagnosed, ids

FOLDER = Path(__file__).parents[1] / "data/logs"


def _logs(name: str) -> dict[str, list[str]]:
    """id -> the logs that are below it."""
    logs: defaultdict[str, list[str]] = defaultdict(list)
    for part in f"\n{(FOLDER / name).read_text()}".split("\n## ")[1:]:
        name, _, log = part.partition("\n")
        logs[name].append(log)
    return logs


FAILED, HARMLESS = _logs("failed.txt"), _logs("harmless.txt")["none"]


@pytest.mark.parametrize("name", sorted(FAILED))
def test_a_failure_is_found_first_however_it_is_worded(name: str) -> None:
    assert len(FAILED[name]) >= 3
    for log in FAILED[name]:
        found = diagnosed(f"{log}\n").findings
        assert found, log
        assert found[0].id == name, (log, [one.id for one in found])
        assert found[0].count <= log.count("\n") + 1


@pytest.mark.parametrize("log", HARMLESS, ids=range(len(HARMLESS)))
def test_what_only_looks_bad_is_no_failure(log: str) -> None:
    assert ids(f"{log}\n") == []


def test_logs_one_after_another_are_each_read_by_themselves() -> None:
    """A line that ends well between them takes back what was before it."""
    for name, logs in FAILED.items():
        log = f"{logs[0]}\n=== tfdock: compile of x ===\n" + "\n".join(HARMLESS[:3])
        assert diagnosed(log).findings == (), name
