"""Which fields of our own documents go into a report, and that the others do not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tfdock.builder.seal_phase import shareable_plan
from tfdock.report.reported_fields import FIELDS, keep_fields

from .test_report_bundle import Place, document_of, place, text_of  # noqa: F401 - a fixture

PROFILES = Path(__file__).parents[3] / "profiles"
NAMES = ("cpu-native", "debug", "rocm", "rtx3080", "rtx5090", "tf1.4-xla-cuda8")


@pytest.mark.parametrize("name", NAMES)
def test_a_plan_goes_into_a_report_whole(place: Place, name: str) -> None:  # noqa: F811
    plan = shareable_plan(place.preparer.prepare(str(PROFILES / f"{name}.yaml")).plan)
    assert keep_fields(plan, FIELDS["plan.json"]) == (plan, 0)


def test_a_field_that_nobody_knows_is_left_out_and_counted(place: Place) -> None:  # noqa: F811
    log = place.fail(place.profile(), b"ERROR: no\n")
    path = next(log.parent.glob("*.run.json"))
    document = json.loads(path.read_text())
    document |= {"diary": "dear", "password": "diary"}
    document["plan"] |= {"diary": {"of": "plan"}}
    document["engine"]["serial"] = "4711"
    document["problems"][0]["diary"] = "dear"
    path.write_text(json.dumps(document))
    files = place.bundle()
    assert "  unknown field: 5\n" in text_of(files, "README.txt")
    assert document_of(files, "run.json")["engine"] == {"name": "Docker", "version": "28.5"}
    assert b"diary" not in b"".join(files.values())


def test_what_is_no_object_stays_as_it_is() -> None:
    fields = {"a": {"b": None}}
    assert keep_fields(None, fields) == (None, 0)
    assert keep_fields({"a": 5}, fields) == ({"a": 5}, 0)
    assert keep_fields({"a": [{"b": {"c": 1}, "d": 2}, 3]}, fields) == ({"a": [{"b": {"c": 1}}, 3]}, 1)
