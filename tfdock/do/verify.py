"""Checking a finished wheel: its facts against a profile, then a run in a clean container without network.

The container has the runtime image, the wheel, and a folder of the wheels it requires, which another container with a
network has fetched before. What runs in there is the wheel's own code: it can spoil nothing but its own result.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from tfdock.decide import checks as statics
from tfdock.decide.checks import Check, passed
from tfdock.decide.plan import BuildPlan
from tfdock.decide.resolve import Resolution
from tfdock.decide.serving import own_libraries
from tfdock.decide.trial import (
    Trial,
    accelerator_of,
    judged,
    limits_of,
    linked_to_accelerator,
    none_of_it,
    results_of,
    trial,
)
from tfdock.do import assets, events, journal
from tfdock.do.cache import CacheFolder
from tfdock.do.engine import RUN_LABEL, ContainerSpec, ContainerState, Engine, EngineInfo, ImageInfo
from tfdock.do.failures import file_error, make_folder
from tfdock.do.machine import free_disk, gives_gpus
from tfdock.do.settings import Settings
from tfdock.do.steps import Steps, ready
from tfdock.do.watch import Stop
from tfdock.do.wheels import inspected
from tfdock.do.workspace import remove_folder
from tfdock.errors import (
    DiskFull,
    EngineError,
    EngineHung,
    EngineLost,
    EngineUnavailable,
    NetworkError,
    OutOfMemory,
    Problem,
    ProfileError,
    TfdockError,
    VerificationFailed,
    WheelRefused,
)
from tfdock.inspect import bazel
from tfdock.inspect.defects import WheelError
from tfdock.inspect.facts import GpuCode, merged
from tfdock.inspect.identity import runs_on_python
from tfdock.inspect.inspection import Inspection
from tfdock.model import BuildId, ImageRef, Mount
from tfdock.read.knowledge import Accelerator, KnowledgeBase

MIB, GIB = 1 << 20, 1 << 30

_HERE = "/tfdock"
"""Where all that is ours lies in the containers."""
MEMORY = 8 * GIB
"""More than importing and compiling takes; a machine with less gives what it has."""
_PIDS = 16384
_NO_PROGRAM, _KILLED = 127, 137
"""Exit statuses: a shell found no such program; a container was killed."""
_FULL = 32 * MIB
_LONGEST = 1 << 20
"""Characters of a line with a result."""
_PIP = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST", "PIP_DEFAULT_TIMEOUT")
_PIP_MANNERS = {
    "PIP_PREFER_BINARY": "1",
    # What has a source archive only is built with tools of its own, and not with those that an image may have.
    "PIP_USE_PEP517": "1",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_PROGRESS_BAR": "off",
}
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
"""Of the caller's environment: how packages are reached. It goes into one container, and is written nowhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What was found: the checks in order, the GPU code of TensorFlow's own libraries, and the image it ran in.

    `impossible` is why nothing could be tried in a container, though it was asked for.
    """

    checks: tuple[Check, ...]
    gpu_code: GpuCode = field(default_factory=GpuCode)
    runtime: str | None = None
    impossible: TfdockError | None = None

    @property
    def ok(self) -> bool:
        """Whether no check has failed."""
        return passed(self.checks)

    @property
    def failed(self) -> tuple[Check, ...]:
        """Those that have."""
        return tuple(check for check in self.checks if check.status == "failed")

    @property
    def document(self) -> dict[str, Any]:
        """As records have it."""
        code = self.gpu_code
        return {
            "checks": [asdict(check) for check in self.checks],
            "gpu_code": {"sass": list(code.sass), "ptx": list(code.ptx), "amdgpu": list(code.amdgpu)},
            "runtime": self.runtime,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a wheel shall be. Without a profile there is no `resolution`; `options` are the compiler's, if known.

    `run` is empty, or says why nothing is tried. `dependencies` is a folder of wheels to use as it is.
    """

    resolution: Resolution | None = None
    strict: bool = True
    options: Sequence[str] | None = None
    run: str = ""
    dependencies: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Where a run takes its steps: `folder` is its own, removed when it ends. `memory` in bytes."""

    steps: Steps
    info: EngineInfo
    settings: Settings
    folder: Path
    memory: int = MEMORY
    given: Mapping[str, str] | None = None
    """Images that a bundle has for this run: their ids, by what they are asked for as. Then nothing is fetched."""

    @property
    def engine(self) -> Engine:
        """The engine."""
        return self.steps.engine


class _Impossible(Exception):
    """Why nothing can be tried."""

    def __init__(self, error: TfdockError) -> None:
        self.error = error
        super().__init__(str(error))


def _impossible(code: str, message: str, fix: str) -> _Impossible:
    return _Impossible(ProfileError(Problem(code=code, message=message, fix=fix)))


def _unfit(reason: str) -> _Impossible:
    return _impossible(
        "runtime-unfit",
        f"the runtime image cannot run the checks: {reason}",
        "name an image that has the wheel's Python with pip: `runtime: …` in the profile",
    )


# --- the whole ------------------------------------------------------------------------------------------------------


def verified_build(bench: Bench, knowledge: KnowledgeBase, plan: BuildPlan, wheel: Path) -> Verification:
    """Check a wheel that a plan's build has made, by the plan's own profile."""
    resolution = plan.resolution
    wanted = Wanted(
        resolution=resolution,
        strict=resolution.verify.gpu_code == "strict",
        options=statics.compiler_options(knowledge, plan.environment, plan.bazel_flags),
        run="" if resolution.verify.run else "the profile says `verify: {run: false}`",
    )
    try:
        inspection = inspected(wheel, traces=statics.build_traces())
    except WheelRefused as error:
        return unsound(knowledge, error)
    return verified(bench, knowledge, wheel, inspection, wanted)


def verified(
    bench: Bench | None, knowledge: KnowledgeBase, wheel: Path, inspection: Inspection, wanted: Wanted
) -> Verification:
    """Check a wheel that was inspected for `build_traces`. Without a bench nothing is run, for `wanted.run`.

    Raises the engine's errors when it is lost on the way, Interrupted, TimeLimit, and what runs out: OutOfMemory,
    DiskFull. What keeps a run from beginning is in the result instead.
    """
    static = _static_checks(knowledge, inspection, wanted)
    found = Verification(
        checks=(*static, *none_of_it(wanted.run)),
        gpu_code=merged(library.loadable for library in own_libraries(knowledge, inspection.libraries)),
    )
    if wanted.run or bench is None:
        return found
    image = _runtime(knowledge, inspection, wanted.resolution)
    found = replace(found, runtime=str(image) if image else None)
    try:
        tried = _Run(bench, knowledge, wheel, inspection, wanted).checks(image)
    except _Impossible as reason:
        tried = none_of_it(reason.error.problems[0].message)
        found = replace(found, impossible=reason.error)
    return replace(found, checks=(*static, *tried))


def unsound(knowledge: KnowledgeBase, error: WheelRefused) -> Verification:
    """What is found of a file that `inspected` refuses."""
    if not isinstance(error.__cause__, WheelError):
        raise error
    checks = statics.unsound(knowledge, error.__cause__)
    return Verification(checks=(*checks, *none_of_it("the file is not a sound wheel")))


def _static_checks(knowledge: KnowledgeBase, inspection: Inspection, wanted: Wanted) -> tuple[Check, ...]:
    # Here, not above: it takes a fifth of a second to load what knows the policies.
    from tfdock.do.manylinux import audit

    return statics.static_checks(
        knowledge,
        inspection,
        wanted.resolution,
        strict=wanted.strict,
        options=wanted.options,
        manylinux=audit(inspection),
    )


def _runtime(knowledge: KnowledgeBase, inspection: Inspection, resolution: Resolution | None) -> ImageRef | None:
    """The profile's image, else the known one with a Python that the wheel is for."""
    if resolution and resolution.runtime_asked:
        return resolution.runtime
    tags = inspection.wheel.python_tag, inspection.wheel.abi_tag
    rows = [row for python, row in knowledge.runtimes.items() if runs_on_python(*tags, python)]
    # The newest: of a wheel for several the one that most people have.
    return ImageRef.parse(rows[-1].image) if rows else None


def refusal(found: Sequence[Verification], kept: Sequence[Path]) -> VerificationFailed:
    """The error for a build whose wheels are not what was asked for, or do not work; they lie where `kept` says."""
    failed = [_told(check) for one in found for check in one.failed]
    return VerificationFailed(
        Problem(
            code="wheel-refused",
            message="the wheel was built, but is refused:\n  " + "\n  ".join(failed),
            why=f"it is not in the wheelhouse; it was kept as {', '.join(str(path) for path in kept)}",
            fix=f"look at it again (`tfdock verify {kept[0]} PROFILE`), correct profile or source, and build anew",
        )
    )


def combined(found: Sequence[Verification]) -> dict[str, Any]:
    """What a record says of the wheels of one build, which is one but for packers of several."""
    documents = [one.document for one in found]
    first = documents[0]
    return {**first, "checks": [check for document in documents for check in document["checks"]]}


def _told(check: Check) -> str:
    """A failed check in one line."""
    parts = [f"expected {check.expected}" if check.expected else "", f"found {check.found}" if check.found else ""]
    return f"`{check.name}`: {'; '.join(part for part in (*parts, check.reason) if part)}"


# --- a run of its own -----------------------------------------------------------------------------------------------


@contextmanager
def bench_for(
    engine: Engine, settings: Settings, listen: events.Listener, stop: Stop, log: Path, wheel: str
) -> Iterator[Bench]:
    """A bench for a wheel that no build has just made: known to the journal while it lives, cleaned up at its end."""
    info = engine.info()
    ready(engine, info, settings.state_dir, listen)
    name = journal.new_run_id()
    cache = CacheFolder.opened(settings.cache_dir)
    folder = cache.output(name)
    entry = journal.RunEntry(
        run=name, build_id=wheel, staging=str(folder / "staging"), output=str(folder), engine=info.id
    )
    make_folder(log.parent)
    with cache.in_use(), journal.running(settings.state_dir, entry), log.open("wb", buffering=0) as file:
        steps = Steps(engine=engine, run=name, log=file, listen=listen, stop=stop, local=info.local)
        began, ok = steps.clock(), False
        listen(events.PhaseStarted(build_id=BuildId(wheel), phase="verify"))
        try:
            yield Bench(steps=steps, info=info, settings=settings, folder=folder)
            ok = True
        except OSError as error:
            raise file_error(error, {"the cache": settings.cache_dir.absolute()}) from error
        finally:
            seconds = steps.clock() - began
            listen(events.PhaseEnded(build_id=BuildId(wheel), phase="verify", seconds=seconds, ok=ok))
            # The first error is the one to tell; what cannot be cleaned now, the journal keeps for later.
            with suppress(TfdockError, OSError):
                journal.clean(settings.state_dir, entry, engine)


# --- in a container -------------------------------------------------------------------------------------------------


class _Lab:
    """Containers on a bench, for wheels with those tags of Python and ABI (`cp311`, `cp311`)."""

    def __init__(self, bench: Bench, python_tag: str, abi_tag: str) -> None:
        self._bench, self._tags = bench, (python_tag, abi_tag)

    def fetched(self, image: ImageInfo, wanted: Sequence[str], limits: Sequence[str]) -> Path:
        """The folder with the wheels that these lines mean; raises _Impossible where they cannot be had."""
        folder = dependencies(self._bench.settings, image, self._tags[0], wanted, limits)
        if not folder.is_dir():
            self._fetch(image, wanted, limits, folder)
        os.utime(folder)
        return folder

    def _fetch(self, image: ImageInfo, wanted: Sequence[str], limits: Sequence[str], folder: Path) -> None:
        """Fetch into a folder of the run's own, and move it when it is whole."""
        given, made = self._folder("requirements"), self._emptied("fetched")
        for name, lines in (("requirements.txt", wanted), ("constraints.txt", limits)):
            (given / name).write_text("".join(f"{line}\n" for line in lines), "utf-8")
        mounts = [
            _given(given, "given"),
            Mount(source=str(made), target=f"{_HERE}/made", given=True, results=("wheels/*.whl",)),
        ]
        environment = {name: os.environ[name] for name in (*_PIP, *_PROXIES) if os.environ.get(name)}
        certificates = os.environ.get("PIP_CERT")
        if certificates and Path(certificates).is_file():
            mounts.append(_given(Path(certificates).absolute(), "certificates/ca.pem"))
            environment["PIP_CERT"] = f"{_HERE}/certificates/ca.pem"
        # `wheel` and not `download`: what has only a source archive is made a wheel while there is a network.
        words = ["-m", "pip", "wheel", "--no-cache-dir", "--wheel-dir", f"{_HERE}/made/wheels"]
        words += [f"--{name}={_HERE}/given/{name}s.txt" for name in ("requirement", "constraint")]
        spec = self._spec(
            "dependencies",
            image,
            _python(self._tags, *words),
            mounts,
            {**_PIP_MANNERS, "HOME": f"{_HERE}/made", "TMPDIR": f"{_HERE}/made", **environment},
            network=self._bench.settings.network,
        )
        state = self._ran(spec, "what the wheel requires")
        if state.exit_code:
            self._check_room()
            said = [line for line in self._bench.steps.tail if line.strip()]
            if state.exit_code == _NO_PROGRAM or "No module named pip" in " ".join(said[-1:]):
                raise _unfit(_ended(state, said))
            errors = [line for line in said if line.startswith("ERROR")] or said
            raise _Impossible(
                NetworkError(
                    Problem(
                        code="dependencies-unavailable",
                        message=f"pip cannot get what the wheel requires: {' '.join(errors[-2:])[:500]}",
                        fix="check the network, `network:` in the settings and pip's variables (PIP_INDEX_URL, "
                        "PIP_CERT); or give a folder of wheels: `tfdock verify --dependencies DIR`",
                    )
                )
            )
        make_folder(folder.parent)
        (made / "wheels").mkdir(exist_ok=True)  # pip makes none where no line is for this Python
        try:
            (made / "wheels").rename(folder)
        except OSError:
            if not folder.is_dir():  # else another run has put one there meanwhile
                raise

    def _spec(
        self,
        name: str,
        image: ImageInfo,
        command: tuple[str, ...],
        mounts: Sequence[Mount],
        environment: Mapping[str, str],
        *,
        network: str | None,
        access: _Access | None = None,
    ) -> ContainerSpec:
        access = access or _Access()
        return ContainerSpec(
            name=f"tfdock-{self._bench.steps.run}-{name}",
            image=image.id,
            command=command,
            environment={"LC_ALL": "C.UTF-8", "TINI_KILL_PROCESS_GROUP": "1", **environment},
            mounts=tuple(mounts),
            labels={RUN_LABEL: self._bench.steps.run},
            user=f"{os.getuid()}:{os.getgid()}",
            workdir="/",
            network=network,
            memory=min(self._bench.memory, self._bench.info.memory),
            pids=_PIDS,
            tmpfs={"/tmp": "rw,exec,mode=1777,size=512m"},
            read_only=True,
            gpus=access.gpus,
            devices=access.devices,
            groups=access.groups,
        )

    def _ran(self, spec: ContainerSpec, title: str, marked: MarkedLines | None = None) -> ContainerState:
        """Run a container to its end, and remove it."""
        steps = self._bench.steps
        steps.forget()
        state, memory = steps.container(spec, "verify", title, marked)
        if memory:
            raise OutOfMemory(
                Problem(
                    code="out-of-memory",
                    message=f"the kernel killed a process for memory while the wheel was tried in "
                    f"{(spec.memory or 0) / GIB:.1f} GiB",
                    fix="give the machine more memory; `--no-run`, or `verify: {run: false}` in the profile, "
                    "leaves the trial out",
                )
            )
        self._bench.engine.remove(state.id)
        return state

    def _check_room(self) -> None:
        """Raise where it was not the wheel that failed, but the disk."""
        free = free_disk(self._bench.folder)
        if bazel.speaks_of_full_disk(self._bench.steps.tail) or (free is not None and free < _FULL):
            raise DiskFull(
                Problem(
                    code="disk-full",
                    message=f"a disk ran full while the wheel was tried; the cache ({self._bench.folder}) has "
                    f"{(free or 0) / GIB:.1f} GiB left",
                    fix="make room there: a wheel takes about four times its size when it is tried",
                )
            )

    def _folder(self, name: str) -> Path:
        folder = self._bench.folder / name
        make_folder(folder)
        return folder

    def _emptied(self, name: str) -> Path:
        remove_folder(self._bench.folder / name)
        return self._folder(name)


def fetched_dependencies(
    bench: Bench, python_tag: str, image: ImageInfo, wanted: Sequence[str], limits: Sequence[str]
) -> Path:
    """The folder with the wheels that these lines mean in that image; raises NetworkError if they cannot be had."""
    try:
        return _Lab(bench, python_tag, python_tag).fetched(image, wanted, limits)
    except _Impossible as reason:
        raise reason.error from reason


class _Run(_Lab):
    """One wheel's trial on a bench."""

    def __init__(
        self, bench: Bench, knowledge: KnowledgeBase, wheel: Path, inspection: Inspection, wanted: Wanted
    ) -> None:
        super().__init__(bench, inspection.wheel.python_tag, inspection.wheel.abi_tag)
        self._knowledge, self._wanted = knowledge, wanted
        self._wheel, self._inspection = wheel.absolute(), inspection
        self._accelerator = accelerator_of(knowledge, inspection)

    def checks(self, image: ImageRef | None) -> tuple[Check, ...]:
        """Try it in that image; raises _Impossible where it does not come to that."""
        runtime = self._image(image)
        access = _access(self._accelerator, self._bench.info)
        try:
            dependencies = self._dependencies(runtime, with_gpu=not access.missing)
        except _Impossible:
            if access.missing or self._bench.given is None:
                raise
            access = _Access(missing="the bundle has no libraries for GPUs")
            dependencies = self._dependencies(runtime, with_gpu=False)
        if not access.missing:
            try:
                return self._tried(runtime, dependencies, access)
            except (EngineHung, EngineLost, EngineUnavailable):
                raise
            except EngineError as error:  # its GPU runtime is there, and has no GPU to give
                access = _Access(missing=error.problems[0].message)
        return self._tried(runtime, dependencies, access)

    def _image(self, image: ImageRef | None) -> ImageInfo:
        if image is None:
            raise _impossible(
                "runtime-unknown",
                f"no image is known with a Python for {self._inspection.wheel.python_tag}",
                "name one that has it: `runtime: …` in the profile",
            )
        asked = self._wanted.resolution and self._wanted.resolution.runtime_asked
        linked = linked_to_accelerator(self._knowledge, self._inspection)
        if linked and not asked:
            raise _impossible(
                "runtime-lacks-libraries",
                f"the wheel links {', '.join(linked)}, which {image} does not have",
                "name an image that has them and the wheel's Python: `runtime: …` in the profile",
            )
        reference = str(self._bench.settings.mirrored(image))
        if self._bench.given is not None:
            return self._given(str(image))
        try:
            return self._bench.steps.image(reference, "verify", f"runtime image {image}")
        except NetworkError as error:
            raise _Impossible(error) from error

    def _given(self, reference: str) -> ImageInfo:
        """The image that the bundle has."""
        name = (self._bench.given or {}).get(reference)
        found = self._bench.engine.image(name) if name else None
        if found is None:
            raise _impossible(
                "runtime-unknown",
                f"the bundle does not have {reference}, in which the wheel would be tried",
                "make the bundle anew with a profile that says `verify: {run: true}`",
            )
        return found

    # --- what it requires ---

    def _dependencies(self, image: ImageInfo, *, with_gpu: bool) -> Path:
        """A folder with the wheels that this one requires; fetched once for a list and an image."""
        if self._wanted.dependencies:
            return self._wanted.dependencies.absolute()
        try:
            texts = self._inspection.metadata.requires_dist
            wanted = requirements(texts, self._extras(with_gpu=with_gpu))
        except InvalidRequirement as error:
            raise _impossible("dependencies-unavailable", f"it requires {error}", "") from error
        if not wanted:
            return self._folder("nothing")
        limits = limits_of(self._knowledge, self._inspection)
        folder = dependencies(self._bench.settings, image, self._tags[0], wanted, limits)
        if self._bench.given is not None and not folder.is_dir():
            raise _impossible(
                "dependencies-unavailable",
                f"the bundle does not have what the wheel requires: {', '.join(wanted)[:300]}",
                "build it once with a network, then make the bundle anew with the same `--wheelhouse`",
            )
        return self.fetched(image, wanted, limits)

    def _extras(self, *, with_gpu: bool) -> tuple[str, ...]:
        """The extra that brings the accelerator's libraries, where they can be of use."""
        name = self._accelerator.accelerator if self._accelerator else ""
        known = {row.extra for row in self._knowledge.companions if row.accelerator == name and row.extra}
        offered = self._inspection.metadata.provides_extra if with_gpu else ()
        return tuple(extra for extra in offered if extra in known)

    # --- the trial ---

    def _tried(self, image: ImageInfo, dependencies: Path, access: _Access) -> tuple[Check, ...]:
        resolution = self._wanted.resolution
        tried = trial(
            self._knowledge,
            self._inspection,
            xla=resolution.xla if resolution else None,
            without_gpu=access.missing,
            limits=() if self._wanted.dependencies else limits_of(self._knowledge, self._inspection),
        )
        mark = f"tfdock-{secrets.token_hex(8)}"
        work = self._emptied("work" if access.missing else "work-with-gpu")
        mounts = [
            _given(self._request(tried, mark), "verify"),
            _given(self._wheel, f"wheel/{self._wheel.name}"),
            _given(dependencies, "dependencies"),
            Mount(source=str(work), target=f"{_HERE}/work"),
        ]
        words = (f"{_HERE}/verify/run.py", f"{_HERE}/verify/request.json")
        command = _python(self._tags, *words)
        spec = self._spec("verify", image, command, mounts, {}, network="none", access=access)
        marked = MarkedLines(mark, lambda count: self._progress(count, len(tried.tasks)))
        state = self._ran(spec, f"trial of {self._wheel.name}", marked)
        results = results_of(tried.tasks, marked.documents)
        if not results or any(result.outcome == "failed" for result in results.values()):
            self._check_room()
        if state.exit_code == _KILLED and len(results) < len(tried.tasks):
            raise EngineLost(
                Problem(
                    code="container-killed",
                    message="the container in which the wheel was tried was killed from outside, and not for memory",
                    fix="was the engine restarted? Run the same command again",
                )
            )
        if not results:
            raise _unfit(_ended(state, self._bench.steps.tail))
        if "install" in results and results["install"].outcome == "skipped":
            raise _unfit(results["install"].reason)
        return judged(self._knowledge, self._inspection, tried, results, _ended(state))

    def _request(self, tried: Trial, mark: str) -> Path:
        """The folder with the scripts and what they are told."""
        folder = self._emptied("request")
        for name, text in assets.templates().items():
            if name.startswith("verify/"):
                path = folder / name.removeprefix("verify/")
                path.parent.mkdir(exist_ok=True)
                path.write_text(text, "utf-8")
        request = {
            "mark": mark,
            "wheel": f"{_HERE}/wheel/{self._wheel.name}",
            "dependencies": f"{_HERE}/dependencies",
            "work": f"{_HERE}/work",
            "facts": tried.facts,
            "checks": [asdict(task) for task in tried.tasks],
        }
        (folder / "request.json").write_text(json.dumps(request), "utf-8")
        return folder

    def _progress(self, done: int, total: int) -> None:
        self._bench.steps.listen(events.Progress(done=min(done, total), total=total))


# --- GPUs of the engine ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Access:
    """How a container sees GPUs; `missing` says why it does not."""

    gpus: bool = False
    devices: tuple[str, ...] = ()
    groups: tuple[int, ...] = ()
    missing: str = ""


def _access(accelerator: Accelerator | None, info: EngineInfo) -> _Access:
    """By the engine's runtime for such GPUs, or by their device files."""
    if accelerator is None:
        return _Access(missing="the wheel is for the CPU")
    runtime, devices = accelerator.engine_runtime, accelerator.device_files
    if gives_gpus(info, accelerator):
        return _Access(gpus=True)
    if devices and info.local and all(Path(device).exists() for device in devices):
        return _Access(devices=devices, groups=tuple(sorted(_groups(devices))))
    wants = f"the runtime `{runtime}`" if runtime else " and ".join(devices)
    have = ", ".join(name for name in info.runtimes if "." not in name) or "none"
    return _Access(missing=f"the engine gives containers no such GPU: that takes {wants}, and it has {have}")


def _groups(devices: Sequence[str]) -> set[int]:
    """The groups that may open the devices."""
    files = [file for device in devices for file in (Path(device), *Path(device).rglob("*"))]
    return {found.st_gid for file in files if stat.S_ISCHR((found := file.stat()).st_mode)}


# --- small parts ----------------------------------------------------------------------------------------------------


def dependencies(
    settings: Settings, image: ImageInfo, python_tag: str, wanted: Sequence[str], limits: Sequence[str]
) -> Path:
    """The folder of the wheels that these lines, within these limits, mean for that Python of an image."""
    text = "\n".join(["2", image.id, python_tag, *sorted(wanted), "", *limits])
    key = hashlib.sha256(text.encode()).hexdigest()[:16]
    return settings.cache_dir.absolute() / "dependencies" / key


def requirements(texts: Iterable[str], extras: Sequence[str] = ()) -> list[str]:
    """What a wheel requires, by its metadata's lines, as lines for pip, with what `extras` add.

    Raises InvalidRequirement for what is not a requirement, and for an address: no wheel's metadata shall say where
    things are fetched from.
    """
    found = []
    for text in texts:
        requirement = Requirement(text)
        if requirement.url:
            raise InvalidRequirement(f"an address, which is not followed: {requirement.name}")
        if "extra" in str(requirement.marker or ""):
            asked = [
                extra for extra in extras if requirement.marker and requirement.marker.evaluate({"extra": extra})
            ]
            if not asked:
                continue
            requirement.marker = None  # evaluated: pip would say that nobody asked for the extra
        # As one is written in setup.py, and as setuptools writes it into a wheel, are two spellings.
        requirement.name = canonicalize_name(requirement.name)
        found.append(str(requirement))
    return found


def _given(source: Path, name: str) -> Mount:
    """A file or folder of this machine that a container reads."""
    return Mount(source=str(source), target=f"{_HERE}/{name}", read_only=True, given=True)


def _ended(state: ContainerState, said: Iterable[str] = ()) -> str:
    """How a container ended, with the last line that it said."""
    words = [line for line in said if line.strip()][-1:]
    return ": ".join([f"the container ended with exit status {state.exit_code}", *(word[:300] for word in words)])


def _python(tags: tuple[str, str], *words: str) -> tuple[str, ...]:
    """A command for the Python of a wheel's own tags (`cp311`, `cp311`), else whichever the image has."""
    python_tag, abi_tag = tags
    number = python_tag.removeprefix("cp")
    own, test = "python", ""
    if number.isdigit() and abi_tag.startswith(python_tag):
        own = f"python{number[0]}.{number[1:]}"
        test = f"import sys; sys.exit(sys.version_info[:2] != ({number[0]}, {number[1:]}))"
    find = f'for one in {own} python python3; do "$one" -c "{test}" 2> /dev/null && exec "$one" "$@"; done'
    return ("/bin/sh", "-c", f"{find}; echo there is no {own}; exit {_NO_PROGRAM}", "python", *words)


@dataclass
class MarkedLines:
    """Takes a container's output, and keeps the JSON documents on lines that begin with the mark.

    It guards against noise, not against a wheel that lies: what runs in there is the wheel's own code. `heard` is
    told how many there are when there is another.
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
        if line.startswith(start):
            with suppress(ValueError, RecursionError):
                self.documents.append(json.loads(line.removeprefix(start)))
                self.heard(len(self.documents))

    def told(self, line: str) -> str:
        """A result in short; another line as it is."""
        if not line.startswith(f"{self.mark} "):
            return line
        with suppress(ValueError, RecursionError):  # it may have been cut
            result: Any = json.loads(line.removeprefix(f"{self.mark} "))
            return f"{result.get('check')}: {result.get('outcome')}" if isinstance(result, dict) else ""
        return ""
