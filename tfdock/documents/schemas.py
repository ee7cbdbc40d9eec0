"""JSON Schemas of the published documents, made from their types."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import takewhile
from types import ModuleType
from typing import Any, get_type_hints

from pydantic import TypeAdapter
from typing_extensions import is_typeddict

from tfdock.documents import document_parts, published
from tfdock.documents.plan_documents import PinJson

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_PIN = get_type_hints(PinJson, include_extras=True)
Schema = dict[str, Any]
_TEXT = "#: "

NAMES = tuple(sorted([*published.PRINTED, *published.KEPT]))


def schema_of(name: str) -> Schema:
    """Return the JSON Schema of the document of that name, made from its type."""
    _close_types()
    if name in published.PRINTED:
        return _printed(name, published.PRINTED[name])
    return _kept(name, published.KEPT[name])


def _kept(name: str, type_: type) -> Schema:
    definitions, reference = _definitions(type_)
    return {"$schema": DIALECT, "title": name, "$ref": reference, "$defs": definitions}


def _printed(name: str, types: tuple[type, ...]) -> Schema:
    """Return the schema of what a command prints: any of these types, or why it ended with an error."""
    definitions: Schema = {}
    references = []
    head: Schema = {
        "schema": {"const": published.schema_id(name), "description": "Which document this is."},
        "ok": {"type": "boolean", "description": "Whether the command found nothing wrong."},
    }
    for type_ in (*types, document_parts.RefusedDocument):
        more, reference = _definitions(type_)
        definitions |= more
        references.append({"$ref": reference})
        document = definitions[type_.__name__]
        first = head | {"ok": {**head["ok"], "const": False}} if type_ is document_parts.RefusedDocument else head
        document["properties"] = first | document["properties"]
        document["required"] = [*head, *document["required"]]
    return {
        "$schema": DIALECT,
        "title": name,
        "anyOf": references,
        "$defs": dict(sorted(definitions.items())),
    }


def _definitions(type_: type) -> tuple[Schema, str]:
    """Return the definitions of a type and of those in it, and the reference to it."""
    schema = TypeAdapter(list[type_]).json_schema(mode="serialization", by_alias=True)  # type: ignore[valid-type]
    definitions = schema.get("$defs", {})
    if "$ref" not in schema["items"]:  # pydantic writes a type that stands in one place where it stands
        definitions[type_.__name__] = schema["items"]
    texts = _texts()
    for name, definition in definitions.items():
        definition.pop("title", None)
        for field, described in definition.setdefault("properties", {}).items():
            described.pop("title", None)
            if (name, field) in texts:
                described["description"] = texts[name, field]
    return definitions, f"#/$defs/{type_.__name__}"


def _modules() -> list[ModuleType]:
    """Return the modules that hold types of documents."""
    found = {type_.__module__ for types in published.PRINTED.values() for type_ in types}
    found |= {type_.__module__ for type_ in published.KEPT.values()} | {document_parts.__name__}
    return [importlib.import_module(name) for name in sorted(found)]


def _close_types() -> None:
    """Let no document hold keys that its type does not name."""
    for module in _modules():
        for type_ in vars(module).values():
            if is_typeddict(type_) and type_.__module__ == module.__name__:
                type_.__pydantic_config__ = {"extra": "allow" if type_ in published.OPEN else "forbid"}


@cache
def _texts() -> Mapping[tuple[str, str], str]:
    """Return the text beside each field of the types, by type and field."""
    own: dict[str, dict[str, str]] = {}
    bases: dict[str, list[str]] = {}
    for module in _modules():
        source = inspect.getsource(module)
        lines = source.splitlines()
        for node in ast.parse(source).body:
            if isinstance(node, ast.ClassDef):
                own[node.name] = dict(_fields(node, lines))
                bases[node.name] = [base.id for base in node.bases if isinstance(base, ast.Name)]

    def of(name: str) -> dict[str, str]:
        inherited = {field: text for base in bases.get(name, ()) for field, text in of(base).items()}
        return inherited | own.get(name, {})

    said = {(name, field): text for name in own for field, text in of(name).items()}
    return said | {(PinJson.__name__, field): hint.__metadata__[0].documentation for field, hint in _PIN.items()}


def _fields(node: ast.ClassDef, lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the fields of a class that have a text: a `#:` comment behind the field, or above it."""
    for field in node.body:
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            above = takewhile(lambda line: line.strip().startswith(_TEXT), reversed(lines[: field.lineno - 1]))
            texts = [*reversed(list(above)), lines[field.lineno - 1]]
            yield field.target.id, " ".join(text.partition(_TEXT)[2].strip() for text in texts if _TEXT in text)
