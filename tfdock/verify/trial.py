"""Try one wheel in a clean container: its image, its requirements, the GPUs it sees, the results."""

from __future__ import annotations

import json
import secrets
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement

from tfdock import events
from tfdock.engine.engine_host import gives_gpus
from tfdock.engine.protocol import EngineInfo, ImageInfo
from tfdock.errors import (
    EngineError,
    EngineHung,
    EngineLost,
    EngineUnavailable,
    NetworkError,
)
from tfdock.knowledge import loader
from tfdock.knowledge.rows import Accelerator
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.types import ImageRef, Mount
from tfdock.verify.checks import Check
from tfdock.verify.trial_container import (
    HERE,
    GpuAccess,
    Impossible,
    TrialContainers,
    TrialEnvironment,
    TrialRequest,
    check_not_stopped,
    ended,
    handed,
    impossible,
    own_python,
    requirements,
    unfit,
)
from tfdock.verify.trial_plan import (
    RUN,
    Trial,
    accelerator_of,
    is_known_runtime,
    judged,
    limits_of,
    linked_to_accelerator,
    results_of,
    trial,
)
from tfdock.wheel.inspection import Inspection

_LONGEST = 1 << 16
"""Characters of a line with a result."""
_OUTCOMES = ("passed", "failed", "skipped")
_MOST = 1000
"""Results that are kept: a wheel can print any number of them."""


class WheelTrial(TrialContainers):
    """One wheel's trial in an environment.

    The results are the wheel's own word: they come out of a container in which its code ran. A wheel that lies can
    pass them all. It can change no other check: these come from the bytes of the file, read on this side.
    """

    _instead = ("give a folder of wheels: `tfdock verify --dependencies DIR`",)

    def __init__(
        self,
        environment: TrialEnvironment,
        knowledge: KnowledgeBase,
        wheel: Path,
        inspection: Inspection,
        wanted: TrialRequest,
    ) -> None:
        super().__init__(environment, inspection.wheel.python_tag, inspection.wheel.abi_tag)
        self._knowledge, self._wanted = knowledge, wanted
        self._wheel, self._inspection = wheel.resolve(), inspection
        self._accelerator = accelerator_of(knowledge, inspection)

    def checks(self, image: ImageRef | None) -> tuple[Check, ...]:
        """Try it in that image; raises Impossible where it does not come to that."""
        runtime = self._image(image)
        known = image is not None and is_known_runtime(self._knowledge, image)
        access = access_to(self._accelerator, self._environment.info)
        try:
            dependencies = self._dependencies(runtime, known=known, with_gpu=not access.missing)
        except Impossible:
            if access.missing or self._environment.given is None:
                raise
            access = GpuAccess(missing="the bundle has no libraries for GPUs")
            dependencies = self._dependencies(runtime, known=known, with_gpu=False)
        if not access.missing:
            try:
                return self._tried(runtime, dependencies, access)
            except (EngineHung, EngineLost, EngineUnavailable):
                raise
            except EngineError as error:  # its GPU runtime is there, and has no GPU to give
                access = GpuAccess(missing=error.problems[0].message)
        return self._tried(runtime, dependencies, access)

    def _image(self, image: ImageRef | None) -> ImageInfo:
        if image is None:
            raise impossible(
                "runtime-unknown",
                f"no image is known with a Python for {self._inspection.wheel.python_tag}",
                "name one that has it: `runtime: …` in the profile",
            )
        asked = self._wanted.resolution and self._wanted.resolution.runtime_asked
        linked = linked_to_accelerator(self._knowledge, self._inspection)
        if linked and not asked:
            raise impossible(
                "runtime-lacks-libraries",
                f"the wheel links {', '.join(linked)}, which {image} does not have",
                "name an image that has them and the wheel's Python: `runtime: …` in the profile",
            )
        reference = str(self._environment.settings.mirrored(image))
        if self._environment.given is not None:
            return self._given(str(image))
        try:
            return self._environment.runner.image(reference, "verify", f"runtime image {image}")
        except NetworkError as error:
            raise Impossible(error) from error

    def _given(self, reference: str) -> ImageInfo:
        """The image that the bundle has."""
        name = (self._environment.given or {}).get(reference)
        found = self._environment.engine.image(name) if name else None
        if found is None:
            raise impossible(
                "runtime-unknown",
                f"the bundle does not have {reference}, in which the wheel would be tried",
                "make the bundle anew with a profile that says `verify: {run: true}`",
            )
        return found

    # --- what it requires ---

    def _dependencies(self, image: ImageInfo, *, known: bool, with_gpu: bool) -> Path:
        """A folder with the wheels that this one requires; fetched once for a list and an image."""
        if self._wanted.dependencies:
            return self._wanted.dependencies.resolve()
        try:
            texts = self._inspection.metadata.requires_dist
            wanted = requirements(texts, self._extras(with_gpu=with_gpu))
        except InvalidRequirement as error:
            raise impossible("dependencies-unavailable", f"it requires {error}", "") from error
        if not wanted:
            return self._folder("nothing")
        limits = limits_of(self._knowledge, self._inspection)
        folder = self._kept(image, wanted, limits)
        if self._environment.given is not None and not folder.is_dir():
            raise impossible(
                "dependencies-unavailable",
                f"the bundle does not have what the wheel requires: {', '.join(wanted)[:300]}",
                "build it once with a network, then make the bundle anew with the same `--wheelhouse`",
            )
        return self.fetched(image, wanted, limits, known=known)

    def _extras(self, *, with_gpu: bool) -> tuple[str, ...]:
        """The extra that brings the accelerator's libraries, where they can be of use."""
        name = self._accelerator.accelerator if self._accelerator else ""
        known = {row.extra for row in self._knowledge.companions if row.accelerator == name and row.extra}
        offered = self._inspection.metadata.provides_extra if with_gpu else ()
        return tuple(extra for extra in offered if extra in known)

    # --- the trial ---

    def _tried(self, image: ImageInfo, dependencies: Path, access: GpuAccess) -> tuple[Check, ...]:
        resolution = self._wanted.resolution
        tried = trial(
            self._knowledge,
            self._inspection,
            xla=resolution.xla if resolution else None,
            without_gpu=access.missing,
            limits=() if self._wanted.dependencies else limits_of(self._knowledge, self._inspection),
        )
        mark = f"tfdock-{secrets.token_hex(8)}"
        work = self._for_container("work" if access.missing else "work-with-gpu")
        mounts = [
            handed(self._request(tried, mark), "verify"),
            handed(self._wheel, f"wheel/{self._wheel.name}"),
            handed(dependencies, "dependencies"),
            Mount(source=work.mount_source, target=f"{HERE}/work"),
        ]
        words = (f"{HERE}/verify/run.py", f"{HERE}/verify/request.json")
        command = own_python(self._tags, *words)
        spec = self._spec("verify", image, command, mounts, {}, network="none", access=access)
        marked = MarkedLines(mark, lambda count: self._progress(count, len(tried.tasks)))
        state = self._ran(spec, f"trial of {self._wheel.name}", marked)
        results = results_of(tried.tasks, marked.documents)
        if not results or any(result.outcome == "failed" for result in results.values()):
            self._check_room()
        if len(results) < len(tried.tasks):
            check_not_stopped(state, "in which the wheel was tried")
        if not results:
            raise unfit(ended(state, self._environment.runner.output.tail))
        if "install" in results and results["install"].outcome == "skipped":
            raise unfit(results["install"].reason)
        return judged(self._knowledge, self._inspection, tried, results, ended(state))

    def _request(self, tried: Trial, mark: str) -> Path:
        """The folder with the scripts and what they are told."""
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
            "work": f"{HERE}/work",
            "facts": tried.facts,
            "checks": [asdict(task) for task in tried.tasks],
        }
        (folder / "request.json").write_text(json.dumps(request), "utf-8")
        return folder

    def _progress(self, done: int, total: int) -> None:
        self._environment.runner.listen(events.Progress(done=min(done, total), total=total))


def access_to(accelerator: Accelerator | None, info: EngineInfo) -> GpuAccess:
    """By the engine's runtime for such GPUs, or by their device files."""
    if accelerator is None:
        return GpuAccess(missing="the wheel is for the CPU")
    runtime, devices = accelerator.engine_runtime, accelerator.device_files
    if gives_gpus(info, accelerator):
        return GpuAccess(gpus=True)
    if devices and info.local and all(Path(device).exists() for device in devices):
        return GpuAccess(devices=devices, groups=tuple(sorted(_groups(devices))))
    wants = f"the runtime `{runtime}`" if runtime else " and ".join(devices)
    have = ", ".join(name for name in info.runtimes if "." not in name) or "none"
    return GpuAccess(missing=f"the engine gives containers no such GPU: that takes {wants}, and it has {have}")


def _groups(devices: Sequence[str]) -> set[int]:
    """The groups that may open the devices."""
    files = [file for device in devices for file in (Path(device), *Path(device).rglob("*"))]
    return {found.st_gid for file in files if stat.S_ISCHR((found := file.stat()).st_mode)}


@dataclass
class MarkedLines:
    """Takes a container's output, and keeps the JSON documents on lines that begin with the mark.

    The mark guards against noise, not against a wheel that lies: the wheel's code can read it. `heard` gets the
    number of documents whenever there is another one. No more than `_MOST` are kept.
    """

    mark: str
    heard: Callable[[int], None] = lambda _: None
    documents: list[object] = field(default_factory=list)
    _rest: bytes = b""

    def feed(self, data: bytes) -> None:
        """Take some bytes."""
        *lines, rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._line(line)
        self._rest = rest[:_LONGEST]

    def _line(self, line: bytes) -> None:
        start = f"{self.mark} ".encode()
        if line.startswith(start) and len(self.documents) < _MOST and len(line) < _LONGEST:
            with suppress(ValueError, RecursionError):
                self.documents.append(json.loads(line.removeprefix(start)))
                self.heard(len(self.documents))

    def shown_line(self, line: str) -> str:
        """Return a result in short, and another line as it is. Nothing else of a result reaches the terminal."""
        if not line.startswith(f"{self.mark} "):
            return line
        with suppress(ValueError, RecursionError):  # it may have been cut
            result: Any = json.loads(line.removeprefix(f"{self.mark} "))
            if isinstance(result, dict) and result.get("check") in RUN and result.get("outcome") in _OUTCOMES:
                return f"{result['check']}: {result['outcome']}"
        return ""
