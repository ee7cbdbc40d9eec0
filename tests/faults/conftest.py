"""A private engine for all faults, on a small disk of its own; a miniature with gates; a wheel to compare with."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from .rig import Case, Rig, opened


@pytest.fixture(scope="session")
def played_rig() -> Iterator[Rig]:
    with opened(played=True) as rig:
        yield rig


@pytest.fixture(scope="session")
def real_rig() -> Iterator[Rig]:
    with opened(played=False) as rig:
        yield rig


@pytest.fixture(scope="module", params=["played", "real"])
def rig(request: pytest.FixtureRequest) -> Rig:
    """By the Bazel that its builds have."""
    rig: Rig = request.getfixturevalue(f"{request.param}_rig")
    return rig


@pytest.fixture
def case(rig: Rig) -> Iterator[Case]:
    """A command with a wheelhouse and a cache of its own; at the end nothing half done may be left."""
    case = rig.case()
    yield case
    case.assert_tidy()


@pytest.fixture(autouse=True)
def _engine_is_back(rig: Rig) -> Iterator[None]:
    """Whatever a test does to the engine, the next one has it, and finds no container."""
    yield
    rig.private.revive()
    gc.collect()  # no garbage of dead connections for the tests of other modules
    assert not rig.quiet or rig.containers() == []
