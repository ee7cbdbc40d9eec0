"""The JSON Schema that editors use: valid itself, up to date, and of one mind with the reader."""

from __future__ import annotations

import importlib
import json
from typing import Any

import pytest
import yaml

from tfdock.cli.completion import of_fields
from tfdock.errors import ProfileError
from tfdock.knowledge import loader
from tfdock.profile import profile as profiles

jsonschema: Any = importlib.import_module("jsonschema")  # has no types

NAMES = of_fields(loader.knowledge())
SCHEMA = profiles.json_schema(NAMES)
HEAD = 'schema: 1\ntensorflow: "2.18.0"\n'


def complaints(text: str) -> list[str]:
    """What an editor would underline."""
    return [error.message for error in jsonschema.Draft7Validator(SCHEMA).iter_errors(yaml.safe_load(text))]


def test_the_schema_is_a_valid_draft_07_schema() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"] == "http://json-schema.org/draft-07/schema#"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('schema: 1\ntensorflow: {release: "2.18.0", ref: main}\n', id="long form of the source"),
        pytest.param(HEAD + "gpus: local\n", id="local GPUs"),
        pytest.param(HEAD + "gpus: [NVIDIA GeForce RTX 3080]\n", id="a driver's name"),
        pytest.param(HEAD + "optimize: [avx2, sse4.2, amx-tile]\n", id="CPU features"),
        pytest.param(HEAD + "debug: true\n", id="short debug"),
        pytest.param(HEAD + "resources: {jobs: 4, memory: 24 GB, time_limit: 5h30m}\n", id="limits"),
        pytest.param(HEAD + "host_compiler: gcc\n", id="short host compiler"),
        pytest.param("extends: base.yaml\npython: '3.11'\n", id="what is left out stands in the other profile"),
    ],
)
def test_good_profiles_satisfy_both_the_schema_and_the_reader(text: str) -> None:
    assert complaints(text) == []
    profiles.read(text, "x.yaml", {"base.yaml": HEAD})


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('tensorflow: "2.18.0"\n', id="no schema"),
        pytest.param("schema: 1\n", id="no tensorflow"),
        pytest.param("schema: 2\ntensorflow: '2.18.0'\n", id="another schema"),
        pytest.param(HEAD + "python: 3.10\n", id="a number for a version"),
        pytest.param(HEAD + "python: '3.x'\n", id="no Python version"),
        pytest.param(HEAD + "pyhton: '3.11'\n", id="a misspelt key"),
        pytest.param(HEAD + "gpus: rtx3080\n", id="no list"),
        pytest.param(HEAD + "gpus: [a;b]\n", id="a hostile name"),
        pytest.param(HEAD + "xla: 1\n", id="no boolean"),
        pytest.param(HEAD + "optimize: fast\n", id="an unknown word"),
        pytest.param(HEAD + "debug: {mode: dgb}\n", id="an unknown mode"),
        pytest.param(HEAD + "resources: {jobs: 0}\n", id="no jobs at all"),
        pytest.param(HEAD + "bazel: {flags: [-c]}\n", id="no long flag"),
        pytest.param("schema: 1\ntensorflow: {ref: main}\n", id="a source without its release"),
        pytest.param('schema: 1\ntensorflow: {release: "2.18.0", ref: -x}\n', id="an option for a ref"),
    ],
)
def test_bad_profiles_satisfy_neither(text: str) -> None:
    assert complaints(text)
    with pytest.raises(ProfileError):
        profiles.read(text, "x.yaml")


def test_every_field_says_what_it_is() -> None:
    models = [SCHEMA, *SCHEMA["$defs"].values()]
    silent = [
        f"{model['title']}.{name}"
        for model in models
        for name, field in model["properties"].items()
        if not field.get("description")
    ]
    assert silent == []


@pytest.mark.parametrize("field", NAMES)
def test_editors_suggest_names_that_the_schema_and_the_reader_take(field: str) -> None:
    assert f'"examples": {json.dumps(NAMES[field])}' in json.dumps(SCHEMA["properties"][field])
    for name in NAMES[field]:
        text = json.dumps({"schema": 1, "tensorflow": "2.18.0", field: [name] if field == "gpus" else name})
        assert complaints(text) == []
        profiles.read(text, "x.yaml")


def test_names_for_a_field_that_profiles_do_not_have_are_left_out() -> None:
    assert profiles.json_schema({"xpu": ["5.0"]}) == profiles.json_schema()
