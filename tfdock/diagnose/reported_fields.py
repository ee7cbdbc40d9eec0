"""The fields of our own documents that go into a report; any other field stays at home. Pure.

A document may come from a newer tfdock or from a stranger: nobody knows what its other fields hold. What the fields
hold is free text for the most part (flags, variables, messages), so that it goes through the redaction as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from tfdock.errors import Problem
from tfdock.types import Choice

Fields = Mapping[str, "Fields | None"]
"""Name -> the fields inside, or None: everything inside goes through, such as the variables of an environment."""


def _fields(names: str, **inner: Fields) -> Fields:
    return {**dict.fromkeys(names.split()), **inner}


_MACHINE = _fields("cpus memory")
_ENGINE = _fields("name version local")
_PROBLEM: Fields = {field.name: None for field in fields(Problem)}
_CHOICE: Fields = {field.name: None for field in fields(Choice)}
_PLAN = _fields(
    "build_id fingerprint environment container_environment startup_options local_startup_options bazel_flags"
    " local_flags targets package resources trust remote runtime untested",
    image=_fields("base name", source=_fields("kind location refs commit sha256 patches")),
    mounts=_fields("source target read_only kind"),
    phases=_fields("name network command"),
    machine=_MACHINE,
    wheel=_fields("name local_version"),
    verify=_fields("run gpu_code"),
    choices=_CHOICE,
)
_RUN = _fields(
    "schema tfdock run build_id fingerprint knowledge at_once started ended error",
    machine=_MACHINE,
    engine=_ENGINE,
    problems=_PROBLEM,
    refused_now=_PROBLEM,
)
_RECORD = _fields(
    "schema build_id fingerprint tfdock log wheels toolchain_key toolchain base_digest lock seconds attempts"
    " resources at_once estimate remote untested deflate verification started finished bazel kept",
    plan=_PLAN,
    source=_fields("ref found"),
    machine=_MACHINE,
    engine=_ENGINE,
)
FIELDS: Mapping[str, Fields] = {"plan.json": _PLAN, "record.json": _RECORD, "run.json": _RUN}
"""File of a report -> its fields. The other files are put together for the report, field by field."""


def keep_fields(node: object, known: Fields | None) -> tuple[object, int]:
    """Return a document with its known fields alone, and how many others were left out; all of it for None."""
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
