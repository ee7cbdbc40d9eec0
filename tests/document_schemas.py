"""Documents of ours, held against the JSON Schemas of their types."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tfdock.documents import published
from tfdock.documents.schemas import schema_of

jsonschema: Any = importlib.import_module("jsonschema")  # has no types


@cache
def _validator(name: str) -> Any:
    return jsonschema.Draft202012Validator(schema_of(name))


def faults(name: str, document: object) -> list[str]:
    """Return in what a document differs from the schema of that name."""
    error = jsonschema.exceptions.best_match(_validator(name).iter_errors(document))
    return [f"{name}: {error.json_path}: {error.message[:400]}"] if error else []


def name_of(document: Mapping[str, Any]) -> str:
    """Return the name of a document's schema, by what it says it is."""
    names = {published.schema_id(name): name for name in published.PRINTED}
    names |= {f"tfdock.{name}/1": name for name in published.KEPT}
    return names[document["schema"]]


def check_printed(text: str) -> Iterator[Mapping[str, Any]]:
    """Give the document of ours that a command printed, held against its schema; nothing for other text."""
    try:
        document = json.loads(text)
    except ValueError:
        return  # for people, or of a command that was killed
    if isinstance(document, dict) and str(document.get("schema")).startswith("tfdock."):
        found = faults(name_of(document), document)
        assert found == [], found
        yield document


def check_named(document: Mapping[str, Any]) -> None:
    """Hold every document of ours that a build has written, such as its record, against its schema."""
    # Pulled records are what others wrote: they may be of another version, and tests make up small ones.
    built = [build for build in document.get("builds", ()) if build.get("status") == "built"]
    for path in {Path(text) for text in _texts_in(built) if text.startswith("/") and text.endswith(".json")}:
        if path.is_file():
            list(check_printed(path.read_text("utf-8")))


def _texts_in(value: object) -> Iterator[str]:
    """Yield every text in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _texts_in(inner)
