"""Runs the script steps of a GitHub job in a real shell, with the variables and files that the runner gives them."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .runner import outputs

SHELL = ("bash", "--noprofile", "--norc", "-eo", "pipefail")  #: What `shell: bash` is.
FILES = ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY", "GITHUB_ENV", "GITHUB_PATH")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step that has run. `log` is all that it printed, in order."""

    name: str
    code: int
    log: str
    outputs: Mapping[str, str]
    summary: str


@dataclass(kw_only=True)
class Job:
    """A job of a workflow, in a folder that is its repository. `contexts` are values such as `matrix.job`."""

    workflow: Mapping[str, Any]
    name: str
    workspace: Path
    temporary: Path
    environment: Mapping[str, str]
    contexts: dict[str, str] = field(default_factory=dict)
    skipped: tuple[str, ...] = ()  #: Names of steps that are left out.

    def run(self) -> list[Step]:
        """Its script steps, one after another, up to the first that fails."""
        steps: list[Step] = []
        environment = {**self.environment, **self._filled(self.workflow.get("env", {})), **self._runner()}
        for number, step in enumerate(self.workflow["jobs"][self.name]["steps"]):
            if "run" not in step or step["name"] in self.skipped:
                continue
            done = self._step(number, step, environment)
            steps.append(done)
            if done.code:
                break
        return steps

    def _runner(self) -> dict[str, str]:
        return {
            "CI": "true",
            "GITHUB_ACTIONS": "true",
            "GITHUB_WORKSPACE": str(self.workspace),
            "RUNNER_TEMP": str(self.temporary),
        }

    def _step(self, number: int, step: Mapping[str, Any], environment: dict[str, str]) -> Step:
        folder = self.temporary / f"step-{number}"
        folder.mkdir(parents=True)
        files = {name: folder / name for name in FILES}
        for file in files.values():
            file.touch()
        script = folder / "script.sh"
        script.write_text(self._text(step["run"]))
        done = subprocess.run(
            [*SHELL, str(script)],
            cwd=self.workspace,
            env={
                **environment,
                **self._filled(step.get("env", {})),
                **{name: str(file) for name, file in files.items()},
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )
        found = outputs(files["GITHUB_OUTPUT"].read_text())
        self.contexts |= {f"steps.{step.get('id')}.outputs.{name}": value for name, value in found.items()}
        environment |= outputs(files["GITHUB_ENV"].read_text())
        more = files["GITHUB_PATH"].read_text().split("\n")
        environment["PATH"] = os.pathsep.join([*filter(None, reversed(more)), environment["PATH"]])
        return Step(
            name=step["name"],
            code=done.returncode,
            log=done.stdout,
            outputs=found,
            summary=files["GITHUB_STEP_SUMMARY"].read_text(),
        )

    def _filled(self, values: Mapping[str, Any]) -> dict[str, str]:
        return {name: self._text(str(value)) for name, value in values.items()}

    def _text(self, text: str) -> str:
        """Text with its expressions, each of which is a value's name; what is not known is empty, as with GitHub."""
        return re.sub(r"\$\{\{\s*(.*?)\s*\}\}", lambda one: self.contexts.get(one[1], ""), text)
