"""The scores of the package ai-benchmark, which people publish for their machines. They are shown as the package
measures them, and never beside the figures of `comparison`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from tfdock.errors import ProfileError
from tfdock.host.foreign_json import Line, below
from tfdock.installed.interpreter import AskedPython
from tfdock.installed.packages import distributions, find_tensorflow
from tfdock.types import Version

PACKAGE = "ai-benchmark"  #: The package, and its suite.
_Milliseconds = Annotated[float, below(1e9)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedScores:
    """`tfdock bench --suite ai-benchmark`: the scores with all threads, and with the GPU if there is one."""

    tensorflow: Line  #: The version.
    #: Each test: its number, the model, what is timed, milliseconds of a batch and their standard deviation.
    tests: tuple[tuple[Line, Line, Literal["inference", "training"], _Milliseconds, _Milliseconds], ...]
    inference: int  #: The score of all inference tests.
    training: int  #: The score of all training tests.
    ai: int  #: The sum of both scores.
    python: str = field(default="")  #: The interpreter's path.


def check_packages(python: AskedPython) -> None:
    """Raise ProfileError if a Python lacks a package that the scores need."""
    found = distributions(python.path)
    wanted = {PACKAGE: PACKAGE}
    tensorflow = find_tensorflow(python.path)
    if tensorflow and tensorflow.wheels and found.get("keras", ("", None))[0].startswith("3."):
        # Another one would bring another TensorFlow.
        wanted["tf-keras"] = f"tf-keras=={Version(tensorflow.wheels[0].version).minor}.*"
    if missing := [requirement for name, requirement in wanted.items() if name not in found]:
        named = " ".join(f'"{one}"' for one in missing)
        message = f"{python.program} lacks {' and '.join(missing)}"
        raise ProfileError.of("python-unusable", message, f"`{python.program} -m pip install {named}`")


def score_rows(results: Mapping[str, PublishedScores]) -> Iterator[tuple[str, ...]]:
    """Yield the rows of a table: each test, then the scores, with a column for each result."""
    yield ("", "", "", *results)
    columns = [{one[:3]: f"{one[3]:.0f} ± {one[4]:.0f} ms" for one in result.tests} for result in results.values()]
    for test in dict.fromkeys(test for column in columns for test in column):
        yield (*test, *(column.get(test, "") for column in columns))
    for title, name in (("inference score", "inference"), ("training score", "training"), ("AI score", "ai")):
        yield ("", title, "", *(str(getattr(result, name)) for result in results.values()))
