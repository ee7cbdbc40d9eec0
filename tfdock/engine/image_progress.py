"""Follow an image build by the engine's messages: its progress, and why a step failed."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tfdock.engine.engine_errors import registry_refusal, speaks_of_full_disk, step_refusal
from tfdock.errors import BuildFailed, OutOfMemory, Problem, TfdockError

_STEP = re.compile(r"Step \d+/\d+ : (.*)", re.DOTALL)
_RUNNING = re.compile(r" ---> Running in ([0-9a-f]{12})\s*\Z")


@dataclass(slots=True)
class ImageProgress:
    """How far a build has come, from the engine's own messages."""

    build_args: Mapping[str, str]
    step: str = ""
    container: str = ""
    image: str = ""
    full: bool = False

    def take(self, message: Mapping[str, Any]) -> None:
        # The id comes from `aux`; the SDK's high level takes it from the log text, which any RUN can print.
        self.image = (message.get("aux") or {}).get("ID", self.image)
        text = message.get("stream", "")
        self.full = self.full or speaks_of_full_disk(text)
        if step := _STEP.match(text):
            self.step, self.full = step[1].strip(), False
        elif running := _RUNNING.match(text):
            self.container = running[1]

    @property
    def base(self) -> str | None:
        """The image of a FROM step, its arguments filled in."""
        words = string.Template(self.step).safe_substitute(self.build_args).split()
        return words[1] if len(words) > 1 and words[0].upper() == "FROM" else None


def step_failed(step: str, words: str, code: int | None) -> BuildFailed:
    ending = f"with exit code {code}" if code is not None else f"({words})"
    return BuildFailed(
        Problem(
            code="image-step-failed",
            message=f"the image step `{step}` failed {ending}",
            fix="its output above says why",
        ),
        status=code,
    )


def step_killed(step: str) -> OutOfMemory:
    return OutOfMemory(
        Problem(
            code="image-step-out-of-memory",
            message=f"the kernel killed the image step `{step}` for want of memory",
            fix="raise the profile's `resources.memory`, or give the machine more",
        )
    )


def build_refusal(progress: ImageProgress, words: str) -> TfdockError | None:
    """A failure that is not a command's exit code: of the registry in FROM, of the disk, or of the Dockerfile."""
    if progress.base:
        return registry_refusal(progress.base, words)
    return step_refusal(progress.step, words)
