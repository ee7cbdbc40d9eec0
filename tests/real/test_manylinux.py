"""Our answer to which manylinux tag a wheel satisfies, against auditwheel's own on wheels from PyPI."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from waits import FETCH

from tfdock.verify.checks import Manylinux
from tfdock.verify.manylinux import audit
from tfdock.wheel.inspection import inspect_wheel

pytestmark = pytest.mark.limit(FETCH)

NUMPY = "numpy==1.26.4"


def shown(wheel: Path, temporary: Path) -> dict[str, Any]:
    """What `auditwheel show --json` says."""
    command = [sys.executable, "-m", "auditwheel", "show", "--json", str(wheel)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={"TMPDIR": str(temporary), "PATH": "/usr/bin:/bin"}
    )
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def audited(wheel: Path) -> Manylinux:
    with wheel.open("rb") as file:
        fact = audit(inspect_wheel(file, wheel.name))
    assert isinstance(fact, Manylinux), fact
    return fact


@pytest.mark.parametrize("requirement", ["markupsafe==3.0.2", NUMPY, "tensorflow-cpu==2.18.0"])
def test_a_wheel_satisfies_the_tag_that_auditwheel_names(
    official_wheels: Callable[..., Path], tmp_path: Path, requirement: str
) -> None:
    wheel = official_wheels(requirement, python="3.11")
    document = shown(wheel, tmp_path)
    assert audited(wheel) == Manylinux(fits=document["overall_tag"], obstacles={})


def test_a_wheel_that_has_lost_its_bundled_libraries_lacks_those_that_auditwheel_names(
    official_wheels: Callable[..., Path], tmp_path: Path
) -> None:
    whole = official_wheels(NUMPY, python="3.11")
    bare = tmp_path / whole.name
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(bare, "w") as target:
        for member in source.infolist():
            data = source.read(member)
            if member.filename.endswith(".dist-info/RECORD"):
                data = b"".join(line for line in data.splitlines(True) if not line.startswith(b"numpy.libs/"))
            if not member.filename.startswith("numpy.libs/"):
                target.writestr(member.filename, data, zipfile.ZIP_STORED)
    document, fact = shown(bare, tmp_path), audited(bare)
    assert fact.fits == document["overall_tag"] == "linux_x86_64"
    for obstacles in fact.obstacles.values():
        missing = {told.partition("needs ")[2].partition(",")[0] for told in obstacles}
        assert missing == set(document["policy_upgrades"]["manylinux_2_17_x86_64"]["libs_to_eliminate"])
    assert set(fact.obstacles) == {"manylinux_2_17_x86_64", "manylinux2014_x86_64"}
