"""What the environment says of settings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tfdock.host import settings

EXAMPLES = Path(__file__).parents[3] / "ci/examples"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("TFDOCK_WHEELHOUS", "TFDOCK_WHEELHOUSE"),
        ("TFDOCK_MEMROY", "TFDOCK_MEMORY"),
        ("TFDOCK_REGISTRYS", "TFDOCK_REGISTRIES"),
        ("TFDOCK_MIRRORS", "TFDOCK_REGISTRY_MIRROR"),
        ("TFDOCK_REMOTE_HEADERS", "TFDOCK_REMOTE_HEADER"),
    ],
)
def test_a_variable_that_is_nearly_a_setting_gets_a_warning(name: str, meant: str) -> None:
    (problem,) = settings.misspelt({name: "x", "PATH": "/bin"})
    assert (problem.severity, problem.code, problem.fix) == (
        "warning",
        "settings-unknown-key",
        f"did you mean `{meant}`?",
    )
    assert name in problem.message


@pytest.mark.parametrize(
    "name",
    # The last ones are variables of rendered pipelines, of a run's container, and of somebody else.
    ["TFDOCK_WHEELHOUSE", "TFDOCK_REMOTE_HEADER", "TFDOCK_REGISTRY_USER",
     "TFDOCK_REGISTRY_READ_TOKEN", "TFDOCK_CACHE_TOKEN", "TFDOCK_CELLS", "TFDOCK_RUN", "TFDOCK_FOO", "WHEELHOUS"],
)  # fmt: skip
def test_other_variables_get_no_warning(name: str) -> None:
    assert settings.misspelt({name: "x"}) == []


def test_no_variable_of_a_rendered_pipeline_gets_a_warning() -> None:
    examples = [path.read_text() for path in EXAMPLES.rglob("*") if path.is_file()]
    names = {name for text in examples for name in re.findall(r"\bTFDOCK_[A-Z_]+\b", text)}
    assert len(names) > 20
    assert settings.misspelt(dict.fromkeys(names, "x")) == []
