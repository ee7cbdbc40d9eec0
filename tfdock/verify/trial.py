"""Try one wheel in a clean container: its image, its requirements, the GPUs it sees, the results."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from packaging.requirements import InvalidRequirement

from tfdock import events
from tfdock.engine.engine_machine import GpuAccess, gpu_access
from tfdock.engine.protocol import ContainerState, ImageInfo
from tfdock.errors import (
    EngineError,
    EngineHung,
    EngineLost,
    EngineUnavailable,
    NetworkError,
    ProfileError,
)
from tfdock.gpu.opened_libraries import accelerator_of
from tfdock.host.foreign_json import Malformed, parse
from tfdock.knowledge import loader
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.types import ImageRef, Mount
from tfdock.verify.checks import Check
from tfdock.verify.trial_container import (
    HERE,
    TrialContainers,
    TrialEnvironment,
    TrialRequest,
    check_not_stopped,
    describe_end,
    pip_requirements,
    python_command,
    read_only_mount,
    runtime_unfit,
)
from tfdock.verify.trial_plan import (
    RUN,
    Result,
    Trial,
    is_known_runtime,
    judge_results,
    limits_of,
    linked_to_accelerator,
    plan_trial,
    read_results,
)
from tfdock.wheel.inspection import Inspection

_T = TypeVar("_T")

_LONGEST = 1 << 16  #: The most characters of a line that can hold a result.
_OUTCOMES = ("passed", "failed", "skipped")
_MOST = 1000  #: Most results that are stored: a wheel can print any number of them.


class WheelTrial(TrialContainers):
    """One wheel's trial in an environment. The wheel's own code runs there, so it could forge the results."""

    _alternatives = ("give a folder of wheels: `tfdock verify --dependencies DIR`",)
    _other_image = "name an image with {}: `runtime: …` in the profile"
    _work = "work"  #: The name of the folder that the wheel is installed in.

    def __init__(
        self,
        environment: TrialEnvironment,
        knowledge: KnowledgeBase,
        wheel: Path,
        inspection: Inspection,
        request: TrialRequest,
    ) -> None:
        super().__init__(environment, inspection.wheel.python_tag, inspection.wheel.abi_tag)
        self._knowledge, self._request = knowledge, request
        self._wheel, self._inspection = wheel.resolve(), inspection
        self._accelerator = accelerator_of(knowledge, inspection)

    def built_in(self) -> ImageInfo | None:
        """Return the image that compiled the wheel, if the wheel links its accelerator's libraries.

        A clean image lacks these libraries. With a bundle, return None: a bundle has the requirements for the
        profile's image only.
        """
        name = self._request.built_in if self._linked() and self._environment.given is None else ""
        return self._environment.engine.image(name) if name else None

    def checks(self, image: ImageRef | None, built_in: ImageInfo | None) -> tuple[Check, ...]:
        """Try the wheel in the image `built_in` that compiled it, or in `image` if `built_in` is None.

        Return the checks. Raises NetworkError or ProfileError if the trial cannot begin.
        """
        runtime = built_in or self._image(image)
        known = not built_in and image is not None and is_known_runtime(self._knowledge, image)
        return self._in_container(runtime, self._try_wheel, known=known)

    def _in_container(self, runtime: ImageInfo, do: Callable[[ImageInfo, Path, GpuAccess], _T], *, known: bool) -> _T:
        """Call `do` with the runtime image, the fetched requirements, and a GPU if the engine gives one."""
        access = gpu_access(self._accelerator, self._environment.info)
        try:
            dependencies = self._dependencies(runtime, known=known, with_gpu=not access.missing)
        except (NetworkError, ProfileError):
            # A bundle that was made without a GPU has no libraries for GPUs. The rest of the trial needs none.
            if access.missing or self._environment.given is None:
                raise
            access = GpuAccess(missing="the bundle has no libraries for GPUs")
            dependencies = self._dependencies(runtime, known=known, with_gpu=False)
        if not access.missing:
            try:
                return do(runtime, dependencies, access)
            # These errors are EngineErrors too, but they say nothing about GPUs.
            except (EngineHung, EngineLost, EngineUnavailable):
                raise
            except EngineError as error:  # the engine has a GPU runtime but no GPU
                access = GpuAccess(missing=error.problems[0].message)
        return do(runtime, dependencies, access)

    def _linked(self) -> tuple[str, ...]:
        """Return the accelerator's libraries that the wheel links; none if the profile names a runtime image."""
        asked = self._request.resolution and self._request.resolution.runtime_asked
        return () if asked else linked_to_accelerator(self._knowledge, self._inspection)

    def _image(self, image: ImageRef | None) -> ImageInfo:
        if image is None:
            raise ProfileError.of(
                "runtime-unknown",
                f"no known image has a Python for {self._inspection.wheel.python_tag}",
                self._other_image.format("this Python"),
            )
        if linked := self._linked():
            raise ProfileError.of(
                "runtime-lacks-libraries",
                f"the wheel links {', '.join(linked)}, which {image} does not have",
                self._other_image.format("these libraries and the wheel's Python"),
            )
        reference = str(self._environment.settings.mirrored(image))
        if self._environment.given is not None:
            return self._bundled_image(str(image))
        return self._environment.supervisor.image(reference, "verify", f"runtime image {image}")

    def _bundled_image(self, reference: str) -> ImageInfo:
        """Return the bundle's image for the reference in a profile."""
        name = (self._environment.given or {}).get(reference)
        info = self._environment.engine.image(name) if name else None
        if info is None:
            raise ProfileError.of(
                "runtime-unknown",
                f"the bundle does not have {reference}, the image for the trial",
                "make the bundle again with a profile that has `verify: {run: true}`",
            )
        return info

    # --- what it requires ---

    def _dependencies(self, image: ImageInfo, *, known: bool, with_gpu: bool) -> Path:
        """Return a folder with the wheels that this wheel requires. They are fetched once for each list and image."""
        if self._request.dependencies:
            return self._request.dependencies.resolve()
        try:
            texts = self._inspection.metadata.requires_dist
            lines = pip_requirements(texts, self._extras(with_gpu=with_gpu))
        except InvalidRequirement as error:
            raise ProfileError.of("dependencies-unavailable", f"it requires {error}", "") from error
        if not lines:
            return self._folder("nothing")
        limits = limits_of(self._knowledge, self._inspection)
        folder = self._requirements_folder(image, lines, limits)
        if self._environment.given is not None and not folder.is_dir():
            raise ProfileError.of(
                "dependencies-unavailable",
                f"the bundle lacks requirements of the wheel: {', '.join(lines)[:300]}",
                "build the wheel once with a network, then make the bundle again with the same `--wheelhouse`",
            )
        return self.fetch_requirements(image, lines, limits, known=known)

    def _extras(self, *, with_gpu: bool) -> tuple[str, ...]:
        """Return the extra that installs the accelerator's libraries, if the container has a GPU."""
        name = self._accelerator.accelerator if self._accelerator else ""
        known = {row.extra for row in self._knowledge.companions if row.accelerator == name and row.extra}
        offered = self._inspection.metadata.provides_extra if with_gpu else ()
        return tuple(extra for extra in offered if extra in known)

    # --- the trial ---

    def _try_wheel(self, image: ImageInfo, dependencies: Path, access: GpuAccess) -> tuple[Check, ...]:
        resolution = self._request.resolution
        plan = plan_trial(
            self._knowledge,
            self._inspection,
            xla=resolution.xla if resolution else None,
            without_gpu=access.missing,
            # A folder of wheels is used as it is, so no limit was applied.
            limits=() if self._request.dependencies else limits_of(self._knowledge, self._inspection),
        )
        state, results = self._run_tasks(image, dependencies, access, plan)
        return judge_results(self._knowledge, self._inspection, plan, results, describe_end(state))

    def _run_tasks(
        self, image: ImageInfo, dependencies: Path, access: GpuAccess, plan: Trial
    ) -> tuple[ContainerState, dict[str, Result]]:
        """Run a plan's tasks in a container; return the container's final state, and one or more results."""
        mark = f"tfdock-{secrets.token_hex(8)}"
        # Each try has its own folder: the try with a GPU may have left files.
        work = self._container_folder(self._work if access.missing else f"{self._work}-with-gpu")
        self.installed = Mount(source=work.mount_source, target=f"{HERE}/{self._work}")
        mounts = [
            read_only_mount(self._write_request(plan, mark), "verify"),
            read_only_mount(self._wheel, f"wheel/{self._wheel.name}"),
            read_only_mount(dependencies, "dependencies"),
            self.installed,
        ]
        words = (f"{HERE}/verify/run.py", f"{HERE}/verify/request.json")
        command = python_command(self._tags, *words)
        spec = self._spec("verify", image, command, mounts, {}, network="none", access=access)
        marked = MarkedLines(mark, lambda count: self._progress(count, len(plan.tasks)))
        state = self._run_container(spec, f"trial of {self._wheel.name}", marked)
        results = read_results(plan.tasks, marked.documents)
        # The script skips `install` if the image's Python cannot create an environment.
        install = results.get("install")
        unfit = install.reason if install and install.outcome == "skipped" else ""
        # A full disk makes checks fail in many ways. Look for a full disk before blaming the wheel or the image.
        if not results or unfit or any(result.outcome == "failed" for result in results.values()):
            self._check_disk_space(unfit)
        # A container that was stopped from outside proves nothing.
        if len(results) < len(plan.tasks):
            check_not_stopped(state, "in which the wheel was tried")
        if not results:
            raise runtime_unfit(describe_end(state, self._environment.supervisor.output.tail))
        if unfit:
            raise runtime_unfit(unfit)
        return state, results

    def _write_request(self, plan: Trial, mark: str) -> Path:
        """Write the scripts and their input into a folder; return it."""
        folder = self._folder("request")
        for name, text in loader.templates().items():
            if name.startswith("verify/"):
                path = folder / name.removeprefix("verify/")
                path.parent.mkdir(exist_ok=True)
                path.write_text(text, "utf-8")
        request = {
            "mark": mark,
            "wheel": f"{HERE}/wheel/{self._wheel.name}",
            "dependencies": f"{HERE}/dependencies",
            "work": f"{HERE}/{self._work}",
            "facts": plan.facts,
            "checks": [asdict(task) for task in plan.tasks],
        }
        (folder / "request.json").write_text(json.dumps(request), "utf-8")
        return folder

    def _progress(self, done: int, total: int) -> None:
        self._environment.supervisor.listen(events.Progress(done=min(done, total), total=total))


@dataclass
class MarkedLines:
    """Reads a container's output, and keeps the JSON documents on lines that begin with the mark.

    The mark separates the documents from other output. It does not stop a hostile wheel, whose code can read the
    mark. `heard` is called after each new document, with the number of documents. At most `_MOST` are kept.
    """

    mark: str
    heard: Callable[[int], None] = lambda _: None
    documents: list[object] = field(default_factory=list)
    _rest: bytes = b""

    def feed(self, data: bytes) -> None:
        """Read some bytes of output."""
        *lines, rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._line(line)
        # Of a line that has not ended, only the beginning is kept.
        self._rest = rest[:_LONGEST]

    def _line(self, line: bytes) -> None:
        start = f"{self.mark} ".encode()
        # A wheel can print as much as it likes, and all documents are kept in memory.
        if line.startswith(start) and len(self.documents) < _MOST and len(line) < _LONGEST:
            with suppress(Malformed):
                self.documents.append(parse(Any, line.removeprefix(start)))
                self.heard(len(self.documents))

    def shown_line(self, line: str) -> str:
        """Return a short text for a result, and any other line unchanged. The terminal shows the short text."""
        if not line.startswith(f"{self.mark} "):
            return line
        with suppress(Malformed):  # it may have been cut
            result = parse(dict[str, Any], line.removeprefix(f"{self.mark} "))
            if result.get("check") in RUN and result.get("outcome") in _OUTCOMES:
                return f"{result['check']}: {result['outcome']}"
        return ""
