"""ci/requirements.txt: the packages that `ci/setup` installs."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[3]
LOCK = (ROOT / "ci/requirements.txt").read_text("utf-8")
#: The version of each package that has a hash, by its name.
VERSIONS = dict(re.findall(r"^(\S+)==(\S+)(?: ; .+)? \\\n {4}--hash=sha256:[0-9a-f]{64}\b", LOCK, re.MULTILINE))


def test_each_package_has_one_version_and_hashes_and_the_lock_has_no_address() -> None:
    assert len(re.findall(r"^\S", LOCK, re.MULTILINE)) == len(VERSIONS) > 50
    assert "://" not in LOCK


def test_what_pyproject_names_is_locked_at_a_version_that_it_allows() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    lines = [*pyproject["build-system"]["requires"], *pyproject["project"]["dependencies"]]
    for group in pyproject["dependency-groups"].values():
        lines += [line for line in group if isinstance(line, str)]
    for requirement in map(Requirement, lines):
        version = VERSIONS[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), f"{requirement}: {version} is locked; run `make update`"
