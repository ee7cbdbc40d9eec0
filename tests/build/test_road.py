"""The road of one build: the modules of ours that `tfdock build` loads for a wheel, on an engine in memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from .harness import KNOWLEDGE, write_profile
from .test_orchestration import SOURCE

MOST = 119  #: Modules, packages aside. The number that is reached: it may fall, and must not rise.
PROGRAM = """
import importlib.util, sys

loaded = []

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("tfdock."):
            loaded.append(name)

sys.meta_path.insert(0, Watch())
from tfdock.cli import main
from tfdock.cli import build_progress

def in_memory():
    ours = len(loaded)
    from build.test_orchestration import Engine
    del loaded[ours:]  # what only the test loads
    return Engine()

build_progress.local_engine = in_memory
try:
    main.main()
finally:
    files = {name: importlib.util.find_spec(name).origin for name in dict.fromkeys(loaded)}
    print("\\n".join(name for name, file in files.items() if not file.endswith("__init__.py")))
"""


def test_one_build_loads_no_more_modules_than_before(tmp_path: Path) -> None:
    fields: dict[str, object] = {"tensorflow": SOURCE, "accelerator": "cpu", "compute_capabilities": None}
    profile = write_profile(tmp_path / "profile.yaml", None, **fields)
    tests = Path(__file__).parents[1]
    # Settings of the user, or of the test bed, load modules that a plain build does not.
    surroundings = {name: value for name, value in os.environ.items() if not name.startswith(("TFDOCK_", "DOCKER_"))}
    places = {"TFDOCK_WHEELHOUSE": "wheelhouse", "TFDOCK_CACHE_DIR": "cache", "XDG_STATE_HOME": "state"}
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, "build", str(profile), "--knowledge", str(KNOWLEDGE)],
        env={**surroundings, **{name: str(tmp_path / folder) for name, folder in places.items()},
             "PYTHONPATH": f"{tests.parent}:{tests}"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    wheel, *modules = result.stdout.split()
    assert wheel.endswith(".whl")
    assert len(modules) <= MOST, "\n".join(modules)
