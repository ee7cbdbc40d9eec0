"""Install wheels in a container as a trial does, and run programs with these wheels there, without a network.

The programs run a stranger's code: they get the trial's user, limits and mounts, and may report false results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tfdock.engine.engine_machine import GpuAccess
from tfdock.engine.protocol import ImageInfo
from tfdock.errors import ProfileError, VerificationFailed
from tfdock.run.supervisor import OutputTap
from tfdock.types import ExpectedFiles, ImageRef, Mount
from tfdock.verify.trial import WheelTrial
from tfdock.verify.trial_container import HERE, check_not_stopped
from tfdock.verify.trial_plan import clean_runtime, plan_trial
from tfdock.wheel.inspection import Inspection

MADE = f"{HERE}/made"  #: The folder in the container for results.


class WheelInContainer(WheelTrial):
    """A wheel that is installed in a folder of a container."""

    _alternatives = ("install the wheel in an environment, and name that environment",)
    _other_image = "install the wheel in an environment that has {}, and name that environment"
    _more_memory = "install the wheel in an environment, and name that environment: there tfdock sets no limit"

    def install(self, folder: str, others: Sequence[Inspection], *, with_gpu: bool) -> None:
        """Install the wheel in a clean image that suits this wheel and the `others`.

        With `with_gpu`, the container has a GPU if possible. One container may hold several wheels, each in its own
        `folder`.
        Raises NetworkError, ProfileError, or VerificationFailed if the installation fails.
        """
        self._work = folder
        if not with_gpu:
            self._accelerator = None
        row = clean_runtime(self._knowledge, [self._inspection, *others])
        if row is None and others:
            names = " and ".join(one.wheel.python_tag for one in (self._inspection, *others))
            message = f"no known image has a Python for both wheels, {names}"
            raise ProfileError.of(
                "runtime-unknown", message, "install each wheel in an environment, and name these environments"
            )
        image = self._image(ImageRef.parse(row.image) if row else None)
        self.python_version = row.python if row else ""
        self._in_container(image, self._install, known=True)

    def _install(self, image: ImageInfo, dependencies: Path, access: GpuAccess) -> None:
        plan = plan_trial(self._knowledge, self._inspection, xla=None, without_gpu=access.missing)
        (install,) = (task for task in plan.tasks if task.check == "install")
        _, results = self._run_tasks(image, dependencies, access, replace(plan, tasks=(install,)))
        if (result := results["install"]).outcome != "passed":
            message = f"{self._wheel.name} cannot be installed: {result.reason}"
            raise VerificationFailed.of(
                "tensorflow-trial", message, f"`tfdock verify {self._wheel}` checks the wheel"
            )
        self._runtime, self._access = image, access

    @property
    def python(self) -> Path:
        """The path, in the container, of the Python of the wheel's environment."""
        return Path(self.installed.target, "environment/bin/python")

    def run(
        self,
        command: Sequence[str],
        *,
        mounts: Sequence[Mount] = (),
        workdir: str = "/",
        variables: Mapping[str, str] | None = None,
        tap: OutputTap | None = None,
        expected: Sequence[ExpectedFiles] = (),
    ) -> Path:
        """Run a command in a new container. Return the folder with the `expected` results, copied out of `MADE`.

        Raises EngineLost if the container was killed, OutOfMemory, and BuildFailed for results that are refused.
        """
        kept, home = self._environment.folder / "kept", self.installed.target
        made = Mount(
            source=self._container_folder("made").mount_source,
            target=MADE,
            given=True,
            results=tuple(expected),
            results_folder=str(kept),
        )
        environment = {"HOME": f"{home}/home", "TMPDIR": f"{home}/tmp", "PYTHONUNBUFFERED": "1", **(variables or {})}
        spec = self._spec(
            "program",
            self._runtime,
            tuple(command),
            [self.installed, made, *mounts],
            environment,
            network="none",
            access=self._access,
        )
        state = self._run_container(replace(spec, workdir=workdir), f"a program with {self._wheel.name}", tap)
        check_not_stopped(state, "that ran the program")
        return kept

    @property
    def last_line(self) -> str:
        """The last line that the last program printed; empty if it printed none."""
        return next((line for line in reversed(self._environment.supervisor.output.tail) if line.strip()), "")
