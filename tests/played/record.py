"""Write down what the real Bazel prints and builds of the miniature for a CPU. `make golden` runs it."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from build.harness import CPU, MINIATURE, PLAYED, UNTRIED, Json, Tfdock, write_profile

#: Actions of Bazel's own, which run no program and are in no cache.
OWN = re.compile(r"Writing file|SolibSymlink|BazelWorkspaceStatusAction")


def record(folder: Path, target: Path) -> None:
    """Run the phases of a plan by hand, so that all is kept that they print and leave."""
    folder.mkdir(exist_ok=True)
    command = Tfdock(home=folder / "home", cache=folder / "cache", engine=os.environ["DOCKER_HOST"])
    profile = write_profile(folder / "profile.yaml", MINIATURE / "hermetic", **CPU, verify=UNTRIED)
    outcome = command.build(profile)
    assert outcome.code == 0, outcome.told
    plan: Json = json.loads(Path(outcome.build["record"]).read_text())["plan"]
    places = [folder / "by-hand" / name for name in ("output", "cache/repository", "cache/disk", "staging")]
    mounts = [f"--volume={place}:/tf/{place.relative_to(folder / 'by-hand')}" for place in places]
    variables = [f"--env={name}={value}" for name, value in plan["container_environment"].items()]
    for place in places:
        place.mkdir(parents=True)
    for phase in plan["phases"]:
        network = "host" if phase["network"] else "none"
        options = ["--rm", f"--network={network}", *mounts, *variables, "--env=TFDOCK_RUN=recorded", "--user=0"]
        words = ["docker", "run", *options, plan["image"]["name"], *phase["command"]]
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert done.returncode == 0, done.stdout
        (target / f"{phase['name']}.txt").write_text(done.stdout)
    staging = places[-1]
    rows = json.loads(gzip.decompress((staging / "profile.gz").read_bytes()))["traceEvents"]
    run = [row for row in rows if row.get("cat") == "action processing" and not OWN.match(row["name"])]
    run.sort(key=lambda row: row["ts"] + row["dur"])
    (target / "actions.txt").write_text("".join(f"{row['name']}\n" for row in run))
    for wheel in target.glob("*.whl"):
        wheel.unlink()
    for wheel in staging.glob("raw/*.whl"):
        shutil.copy(wheel, target)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        record(Path(temporary), PLAYED)
