"""The fields of our own documents that go into a report; any other field is left out.

A document may come from a newer tfdock or be untrusted, so the contents of its other fields are unknown. Most
known fields are free text (flags, variables, messages). Known secrets are replaced in these fields too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from types import UnionType
from typing import Union, get_args, get_origin, get_type_hints

from tfdock.documents.build_documents import RecordDocument, RunDocument
from tfdock.documents.plan_documents import BuildPlanJson
from tfdock.errors import document_key

#: Name -> the fields inside, or None to keep everything inside, such as the variables of an environment.
Fields = Mapping[str, "Fields | None"]


def _fields(kind: object) -> Fields | None:
    """Return the fields of a published type, or of the items of a sequence; None for a type without named fields."""
    if is_dataclass(kind) or hasattr(kind, "__required_keys__"):  # a TypedDict
        return {document_key(name): _fields(hint) for name, hint in get_type_hints(kind).items()}
    # `X | None` and a list have the fields of the type inside.
    if get_origin(kind) in (Sequence, list, tuple, Union, UnionType):
        inner = [fields for fields in map(_fields, get_args(kind)) if fields is not None]
        return {name: fields[name] for fields in inner for name in fields} if inner else None
    return None


#: File of a report -> its known fields. The other files are written by this tfdock, so all their fields are known.
FIELDS: Mapping[str, Fields | None] = {
    "plan.json": _fields(BuildPlanJson),
    "record.json": _fields(RecordDocument),
    "run.json": {**(_fields(RunDocument) or {}), "refused_now": None},
}


def keep_fields(node: object, known: Fields | None) -> tuple[object, int]:
    """Return a document with only its known fields, and the number of omitted fields. None keeps all fields."""
    if known is None:
        return node, 0
    if isinstance(node, list):
        items = [keep_fields(item, known) for item in node]
        return [item for item, _ in items], sum(count for _, count in items)
    if not isinstance(node, dict):
        return node, 0
    kept = {name: keep_fields(value, known[name]) for name, value in node.items() if name in known}
    left_out = len(node) - len(kept) + sum(count for _, count in kept.values())
    return {name: value for name, (value, _) in kept.items()}, left_out
