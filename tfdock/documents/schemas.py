"""JSON Schemas of the published documents, made from their types."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core.core_schema import DataclassSchema, ModelSchema, TypedDictSchema, WithDefaultSchema
from typing_extensions import get_original_bases

from tfdock.documents import document_parts, published
from tfdock.errors import document_key

DIALECT = "https://json-schema.org/draft/2020-12/schema"
Schema = dict[str, Any]
_TEXT = "#: "

NAMES = tuple(sorted([*published.PRINTED, *published.KEPT]))


def schema_of(name: str) -> Schema:
    """Return the JSON Schema of the named document, made from the document's type."""
    if name in published.PRINTED:
        return _printed(name, published.PRINTED[name])
    return _kept(name, published.KEPT[name])


def _kept(name: str, type_: type) -> Schema:
    definitions, reference = _definitions(type_)
    fields = definitions[type_.__name__]["properties"]
    if "schema" in fields:
        fields["schema"] = {"const": published.schema_id(name)} | fields["schema"]
    return {"$schema": DIALECT, "title": name, "$ref": reference, "$defs": definitions}


def _printed(name: str, types: tuple[type, ...]) -> Schema:
    """Return the schema of the output of a command: any of these types, or the document of an error."""
    definitions: Schema = {}
    references = []
    head: Schema = {
        "schema": {"const": published.schema_id(name), "description": "Which document this is."},
        "ok": {"type": "boolean", "description": "True if the command found no problem."},
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
    """Return the definitions of a type and of the types in it, and the reference to the type."""
    adapter = TypeAdapter(list[type_])  # type: ignore[valid-type]
    schema = adapter.json_schema(mode="serialization", schema_generator=_Schemas)
    definitions = schema.get("$defs", {})
    if "$ref" not in schema["items"]:  # pydantic inlines a type that is used only once
        definitions[type_.__name__] = schema["items"]
    return definitions, f"#/$defs/{type_.__name__}"


class _Schemas(GenerateJsonSchema):
    """Makes the schemas of types for documents: every field has its text and is required; other keys are invalid."""

    def typed_dict_schema(self, schema: TypedDictSchema) -> Schema:
        return _described(schema["cls"], super().typed_dict_schema(schema))

    def dataclass_schema(self, schema: DataclassSchema) -> Schema:
        return _whole(schema["cls"], super().dataclass_schema(schema))

    def model_schema(self, schema: ModelSchema) -> Schema:
        return _whole(schema["cls"], super().model_schema(schema))

    def default_schema(self, schema: WithDefaultSchema) -> Schema:
        return self.generate_inner(schema["schema"])


def _whole(type_: type, schema: Schema) -> Schema:
    """Return the schema of a dataclass or model in a document: defaults are written too, fixes are one text."""
    described = _described(type_, schema)
    properties = {document_key(field): value for field, value in described["properties"].items()}
    if "fixes" in described["properties"]:
        properties["fix"] = {"type": "string", "description": properties["fix"]["description"]}
    return {**described, "properties": properties, "required": list(properties)}


def _described(type_: type, schema: Schema) -> Schema:
    texts = _texts(type_)
    for field, described in schema["properties"].items():
        described.pop("title", None)
        if field in texts:
            described["description"] = texts[field]
    schema.pop("title", None)
    return {**schema, "description": inspect.getdoc(type_), "additionalProperties": type_ in published.OPEN}


def _texts(type_: Any) -> dict[str, str]:
    """Return the texts of a type's fields, inherited ones too."""
    if not type_.__module__.startswith("tfdock."):
        return {}
    texts = {field: text for base in get_original_bases(type_) for field, text in _texts(base).items()}
    with suppress(OSError):  # `PinJson` has no class statement
        lines = inspect.getsource(type_).splitlines()
        texts.update(_described_fields(lines))
    return texts


def _described_fields(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the fields of a class that have a text: a `#:` comment behind the field, or above it."""
    (node,) = ast.parse("\n".join(lines)).body
    assert isinstance(node, ast.ClassDef)
    for field in node.body:
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            above = takewhile(lambda line: line.strip().startswith(_TEXT), reversed(lines[: field.lineno - 1]))
            texts = [*reversed(list(above)), lines[field.lineno - 1]]
            yield field.target.id, " ".join(text.partition(_TEXT)[2].strip() for text in texts if _TEXT in text)
