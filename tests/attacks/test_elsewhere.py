"""The core of the attacks again: as an ordinary user, on an engine elsewhere with volumes, and on a newer engine."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
from bed import engine_variant, missing, needs_root
from build.elsewhere import Gate
from build.harness import as_user

from .plants import orders
from .rig import Range, attacked
from .test_results import assert_held

pytestmark = pytest.mark.engine

USER = 1234
CORE = ("proofs",)
ENDED = ("raw-WHEEL-link-file", "raw-WHEEL-swapped-file", "SHA256SUMS-fifo-")


@pytest.fixture(scope="module")
def of_a_user(ground: Range) -> Range:
    """The range, for commands of an ordinary user who is in the engine's group."""
    needs_root("another user")
    socket = Path(ground.host.removeprefix("unix://"))
    if not socket.stat().st_mode & 0o060:
        missing("another user needs a socket of a group")
    return dataclasses.replace(ground, prefix=as_user(USER, f"--groups={socket.stat().st_gid}"), owner=USER)


@pytest.fixture(scope="module")
def far(ground: Range) -> Iterator[Range]:
    """The range, for commands whose engine is behind an address: folders are volumes there."""
    gate = Gate(ground.host)
    gate.open()
    yield dataclasses.replace(ground, host=gate.host)
    gate.close()


@pytest.fixture(scope="module")
def newer(ground: Range) -> Iterator[Range]:
    """The range on Docker 28, which the bed starts."""
    with engine_variant("docker28") as environment:
        host = environment["DOCKER_HOST"]
        sdk = docker.APIClient(host, version="auto", timeout=60)
        there = dataclasses.replace(ground, host=host, sdk=sdk)
        there.make_base(orders(there))
        yield there
        there.remove_images()
        sdk.close()


@pytest.fixture(params=["of_a_user", "far", "newer"])
def variant(request: pytest.FixtureRequest) -> Range:
    there: Range = request.getfixturevalue(request.param)
    return there


@pytest.mark.parametrize("attack", CORE)
def test_a_build_passes_over_what_it_has_no_need_of(variant: Range, attack: str) -> None:
    command = variant.home()
    after = attacked(variant, command, "build", "--json", variant.attack(command, attack))
    assert_held(after, variant)
    assert after.outcome.code == 0, after.outcome.told
    assert "TRIAL LOOKED" in after.log
    assert {path.lstat().st_uid for path in command.wheelhouse.rglob("*")} == {variant.owner}


@pytest.mark.parametrize("attack", ENDED)
def test_a_build_ends_where_what_it_needs_is_something_else(variant: Range, attack: str) -> None:
    command = variant.home()
    after = attacked(variant, command, "build", "--json", variant.attack(command, attack))
    assert_held(after, variant)
    if after.outcome.code == 0:  # the race was lost
        assert "swapped" in attack
    else:
        assert command.visible == []
