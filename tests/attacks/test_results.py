"""What a container leaves for the host: nothing of it makes the host read, write, run or mount anything else."""

from __future__ import annotations

import hashlib
import re
import zipfile
from collections.abc import Iterator

import pytest
from build.harness import file_server

from .plants import ATTACKS, Attack
from .rig import LARGEST, After, Range, attacked, leaks, leaks_below

pytestmark = pytest.mark.engine

REMOTE = "TFDOCK_REMOTE_CACHE"


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A remote cache in which nothing is: a build with it has a relay, and the relay has files in a container."""
    with file_server(tmp_path_factory.mktemp("remote")) as address:
        yield address


def assert_held(after: After, there: Range) -> None:
    """Nothing of the victims has changed or was read, and all that the command wrote is in its own folders."""
    assert after.changed == (), after.outcome.told
    assert after.heard.outside(after.folders()) == [], after.outcome.told
    # The port, or the name of the socket.
    known = [re.split("[/:]", after.command.variables.get(name, there.host))[-1] for name in ("", REMOTE)]
    assert after.heard.strangers(*known) == []
    assert after.heard.started == ()
    told = after.outcome.stdout + after.outcome.stderr + after.log
    assert "TRIAL SEES" not in told, told
    assert "Traceback" not in told, told
    assert after.outcome.code != 70, told
    assert after.largest < LARGEST
    assert leaks_below(after.command.home, {"the victims": there.victims.secret}) == []
    assert after.command.leftovers == []
    outputs = after.command.cache / "output"
    assert not outputs.exists() or list(outputs.iterdir()) == []


@pytest.mark.parametrize("attack", [one for one in ATTACKS.values() if one.tolerated], ids=lambda one: one.name)
def test_a_build_passes_over_what_it_has_no_need_of(ground: Range, remote: str, attack: Attack) -> None:
    command = ground.home().with_variables(**{REMOTE: remote})
    after = attacked(ground, command, "build", "--json", ground.attack(command, attack.name))
    assert_held(after, ground)
    assert after.outcome.code == 0, after.outcome.told
    assert "could not plant" not in after.log, after.log
    assert "TRIAL LOOKED" in after.log
    (wheel,) = command.wheelhouse.glob("*.whl")
    assert not wheel.is_symlink()
    assert hashlib.sha256(wheel.read_bytes()).hexdigest() == after.outcome.build["wheels"][0]["sha256"]
    with zipfile.ZipFile(wheel) as archive:
        assert archive.testzip() is None


@pytest.mark.parametrize("attack", [one for one in ATTACKS.values() if not one.tolerated], ids=lambda one: one.name)
def test_a_build_ends_where_what_it_needs_is_something_else(ground: Range, attack: Attack) -> None:
    command = ground.home()
    after = attacked(ground, command, "build", "--json", ground.attack(command, attack.name))
    swapped = {plant.kind for plant in attack.plants} == {"swapped"}
    assert_held(after, ground)
    # A file that is swapped all the time may end the build's own script before the last phase of the attack.
    assert f"attack: {'compile' if swapped else 'last'} is done" in after.log
    assert "could not plant" not in after.log, after.log
    if after.outcome.code == 0:  # the race was lost
        assert swapped, after.outcome.told
    else:
        assert after.outcome.problem["fix"], after.outcome.told
        assert command.visible == []


def test_commands_that_look_after_the_cache_follow_nothing_that_a_build_left_there(ground: Range) -> None:
    command = ground.home().with_variables(TFDOCK_KEEP_OUTPUT="failed")
    built = attacked(ground, command, "build", "--json", ground.attack(command, "kept"))
    assert built.changed == (), built.outcome.told
    failed = attacked(ground, command, "build", "--json", ground.attack(command, "raw-link-folder"))
    assert failed.changed == (), failed.outcome.told
    for words in (["list"], ["verify"], ["prune", "--max-size", "1MiB"], ["clean"]):
        after = attacked(ground, command, "cache", *words)
        assert after.changed == (), after.outcome.told
        assert after.heard.outside(after.folders()) == []
        assert "Traceback" not in after.outcome.stderr, after.outcome.told
        assert leaks(after.outcome.stdout.encode(), {"the victims": ground.victims.secret}) == []
