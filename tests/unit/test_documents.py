"""The JSON Schemas of documents are valid, complete and printed by their names."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from document_schemas import jsonschema

from tfdock.cli.completion import of_fields
from tfdock.documents import published
from tfdock.documents.schemas import NAMES, schema_of
from tfdock.knowledge import loader
from tfdock.matrix import matrix_file
from tfdock.profile import profile

from .command_line import run

ROOT = Path(__file__).parents[2]


def test_every_document_that_a_command_prints_has_a_type() -> None:
    sources = "".join(file.read_text("utf-8") for file in (ROOT / "tfdock/cli").rglob("*.py"))
    printed = set(re.findall(r'print_(?:json|result)\(\s*"(tfdock\.[a-z-]+/\d+)"', sources))
    assert printed == {published.schema_id(name) for name in published.PRINTED}


def undescribed(node: Any) -> Iterator[str]:
    """Return the places of types and fields that nothing is said of."""
    for name, definition in node["$defs"].items():
        yield from [] if definition.get("description") else [name]
        for field, described in definition["properties"].items():
            yield from [] if described.get("description") else [f"{name}.{field}"]


@pytest.mark.parametrize("name", NAMES)
def test_a_schema_is_valid_and_describes_everything_in_a_document(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(schema_of(name))
    assert list(undescribed(schema_of(name))) == []


@pytest.mark.parametrize("name", [*NAMES, "profile", "matrix"])
def test_a_schema_is_printed_by_its_name(name: str) -> None:
    result = run("schema", name)
    assert (result.exit_code, result.stderr) == (0, "")
    own = {"profile": profile.json_schema, "matrix": matrix_file.json_schema}.get(name)
    assert json.loads(result.stdout) == (own(of_fields(loader.knowledge())) if own else schema_of(name))


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    result = run("schema", "recrod", COLUMNS="1000")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Did you mean `record`?" in result.stderr
    assert all(name in result.stderr for name in NAMES)


def test_each_document_is_listed_for_people() -> None:
    text = (ROOT / "docs/documents.md").read_text("utf-8")
    assert [name for name in NAMES if f"\n| `{name}` |" not in text] == []
