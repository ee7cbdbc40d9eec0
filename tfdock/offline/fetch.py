"""Make bundles: collect images, downloads and pins of profiles; try them without a network; write one file."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import BinaryIO

from packaging.requirements import InvalidRequirement

from tfdock.builder import build
from tfdock.builder.build_run import BuildRun, ImageResult, container_beside, phase_container
from tfdock.builder.locking import gather_pins, prepare_locked
from tfdock.builder.session import BuildRequest, BuildSession
from tfdock.engine.protocol import ContainerSpec
from tfdock.errors import BuildFailed, Problem, ProfileError, TfdockError
from tfdock.events import Listener, Notice
from tfdock.host.files import check_target, file_error
from tfdock.host.hardware import last_line
from tfdock.host.untrusted_folders import UntrustedPath
from tfdock.knowledge import loader
from tfdock.oci.plain_tar import BLOCK
from tfdock.offline import bundle_format
from tfdock.offline.bundle_writer import NAME, REPOSITORY, BundlePacker, BundleWorkFolder, PackedInputs, WrittenBundle
from tfdock.plan import lock_file as locks
from tfdock.plan.build_plan import EXTERNAL, OUTPUT, SOURCE, STAGING, packing, unpacking
from tfdock.plan.lock_file import LockFile
from tfdock.plan.prepare import PreparedBuild, Preparer
from tfdock.run import containers, journal
from tfdock.run.disk_space import DiskSpace
from tfdock.run.results import RunFolders
from tfdock.run.supervisor import Supervisor
from tfdock.types import ExpectedFiles
from tfdock.verify.trial_container import TrialContainers, TrialEnvironment, pip_requirements
from tfdock.verify.trial_plan import is_known_runtime, limits_for, limits_of
from tfdock.wheel.wheel_file import inspected

_PIP_PACKAGE = f"{SOURCE}/tensorflow/tools/pip_package"
_REQUIREMENTS = ExpectedFiles(pattern="requirements.json")
_MOST_REQUIRED = 1 << 20  #: The most bytes of `requirements.json`.


# --- caches only ----------------------------------------------------------------------------------------------------


def warm(prepared: PreparedBuild, session: BuildSession, listen: Listener) -> None:
    """Build a profile's image, and fetch its build's downloads into the caches of this machine."""
    build.fetch(session, BuildRequest(prepared=prepared), listen, lambda *_: None)


# --- a bundle -------------------------------------------------------------------------------------------------------


@dataclass
class Bundler:
    """Makes one bundle. With `locked`, use the locks beside the profiles instead of new pins."""

    target: Path
    preparer: Preparer
    session: BuildSession
    listen: Listener
    locked: bool = False

    def make(self, names: Sequence[str]) -> WrittenBundle:
        """Collect the profiles' inputs and write the bundle. An existing bundle is replaced in one step, or stays."""
        # Check before any download: a name that another file has is refused at once.
        check_target(self.target, "bundle-name-taken", _is_bundle)
        try:
            with self._work_folder() as work:
                packed: list[PackedInputs] = []
                for name in dict.fromkeys(names):
                    packed.append(self._gather(name, work))
                    _check_build_ids(packed)
                return BundlePacker(self.target, work, packed, self.preparer.knowledge.version).write()
        except OSError as error:
            raise file_error(error, {"the bundle's folder": self.target.absolute().parent}) from error

    @contextmanager
    def _work_folder(self) -> Iterator[BundleWorkFolder]:
        """Yield the folders for making the bundle, in the cache and beside the target. The journal lists both."""
        run = journal.new_run_id()
        target, settings = self.target.absolute(), self.session.settings
        # Beside the target, so that one rename makes the bundle appear. The run's id lets a later cleanup find it.
        beside = target.parent / f".{target.name}.{run}"
        folder = self.session.cache.run_folder(run)
        engine = self.session.engine_info.id
        entry = journal.RunEntry(run=run, build_id=NAME, staging=str(beside), output=str(folder), engine=engine)
        with self.session.cache.in_use(), journal.running(settings.state_dir, entry):
            try:
                folders = RunFolders.create(folder, beside)
                folders.container_folder(REPOSITORY).make()
                # Unbuffered: a full disk is noticed in the phase that fills it.
                with (folders.own / "log").open("wb", buffering=0) as log:
                    supervisor = Supervisor(
                        engine=self.session.engine,
                        run_id=run,
                        local=self.session.engine_info.local,
                        log=log,
                        listen=self.listen,
                        stop=self.session.stop,
                        disk_space=DiskSpace(places={"the bundle": target.parent}),
                    )
                    yield BundleWorkFolder(supervisor, folders.own, folders.staged / target.name)
            finally:
                # Report the first error; the journal lists everything that could not be cleaned up.
                with suppress(TfdockError, OSError):
                    journal.clean_own_run(settings.state_dir, entry, self.session.engine)

    # --- one build ---

    def _gather(self, name: str, work: BundleWorkFolder) -> PackedInputs:
        prepared, lock = self._pinned(name)
        pack = partial(self._pack, prepared, lock, work)
        # A separate cache, empty at first: afterwards it holds exactly the downloads that the builds need.
        request = BuildRequest(prepared=prepared, repository=work.folder / REPOSITORY)
        return build.fetch(self.session, request, self.listen, pack)

    def _pinned(self, name: str) -> tuple[PreparedBuild, str | None]:
        """Return the profile planned with a lock, and the lock's text; None if a lock cannot describe the build."""
        if self.locked:
            prepared = prepare_locked(name, self.preparer, self.session.settings, self._warn)
            assert prepared.lock is not None
            return prepared, locks.to_text(prepared.lock.lock)
        prepared = self.preparer.prepare(name)
        problem = locks.native(prepared.plan.resolution, prepared.file)
        if problem:
            self._notice(f"{prepared.file}: the bundle has no lock for this profile: {problem.message}")
            return prepared, None
        lock = gather_pins(name, self.preparer, self.session, self.listen)
        text = locks.to_text(lock)
        file = LockFile(path="the lock", sha256=hashlib.sha256(text.encode()).hexdigest(), lock=lock)
        # Plan again with the pins, to get the fingerprint of a build from the bundle.
        return replace(self.preparer.prepare(name, partial(locks.pinned, pins=lock.pins)), lock=file), text

    def _pack(
        self,
        prepared: PreparedBuild,
        lock: str | None,
        work: BundleWorkFolder,
        run: BuildRun,
        image: ImageResult,
    ) -> PackedInputs:
        """Return the inputs of a run that has fetched its downloads, after a trial without a network."""
        resolution = run.plan.resolution
        # Try now: on the machine without a network, nobody could add missing downloads.
        external = self._try_offline(run, image, work)
        there = run.engine.image(image.id)
        assert there is not None, "it has just run"
        reference = resolution.runtime if resolution.verify.run else None
        runtime = None
        if reference:
            mirrored = str(self.session.settings.mirrored(reference))
            runtime = run.supervisor.image(mirrored, "pack", f"runtime image {reference}")
        inputs = PackedInputs(
            prepared=prepared,
            lock=lock,
            image=there,
            base_digest=image.base_digest,
            source_ref=image.source_ref,
            runtime=runtime,
            requirements=None,
            external=external,
        )
        return self._with_wheels(inputs, run, image) if runtime else inputs

    def _try_offline(self, run: BuildRun, image: ImageResult, work: BundleWorkFolder) -> Path | None:
        """Fetch again, into an empty output base and without a network, from the bundle's contents.

        Repository rules may run pip or git, whose downloads are not in Bazel's caches. Then the rules' output goes
        into the bundle too, and a second trial uses it. Return the archive of this output, None if not needed.
        """
        plan = run.plan
        fetch = phase_container(run, image, plan.fetch, network=False)
        if self._runs(run, _with_output(run, fetch, "tried"), "fetch without a network"):
            return None
        packed = container_beside(run, image, "pack", packing(), EXTERNAL)
        unpacked = container_beside(run, image, "unpack", unpacking(), given=run.folders.results)
        if not (
            self._runs(run, packed, "the files that repository rules fetched")
            and self._runs(run, _with_output(run, unpacked, "again"), "the same unpacked")
            and self._runs(run, _with_output(run, fetch, "again"), "fetch without a network, with the rules' files")
        ):
            said = last_line("\n".join(run.supervisor.output.errors or run.supervisor.output.tail))
            raise BuildFailed.of(
                "bundle-incomplete",
                f"{plan.build_id} cannot be fetched without a network, although a fetch with a "
                f"network has run: {said[:300]}",
                "the source downloads files again in each fetch; give these downloads a sha256 in the source, or "
                "build it on a machine with a network",
            )
        target = work.folder / f"{plan.build_id}.external"
        # The next container's results would replace it, and the work folder may be on another disk.
        shutil.move(run.folders.results / EXTERNAL.pattern, target)
        return target

    def _runs(self, run: BuildRun, spec: ContainerSpec, title: str) -> bool:
        """Return whether a container without a network succeeds."""
        state, memory = containers.run(run.supervisor, replace(spec, network="none"), "pack", title)
        # Remove it after a failure too, which is a valid result here.
        run.engine.remove(state.id)
        return state.exit_code == 0 and not memory

    # --- requirements of finished wheels ---

    def _with_wheels(self, inputs: PackedInputs, run: BuildRun, image: ImageResult) -> PackedInputs:
        plan, requirements_and_limits = run.plan, self._requirements(run, image)
        if requirements_and_limits is None:
            self._notice(
                f"{plan.build_id}: the requirements of the wheel are known only after a build; for a trial without "
                "a network, build the wheel once, and make the bundle again with the same `--wheelhouse`"
            )
            return inputs
        lines, limits = requirements_and_limits
        assert inputs.runtime is not None
        folder = None
        if lines:
            environment = TrialEnvironment(
                supervisor=run.supervisor,
                info=self.session.engine_info,
                settings=self.session.settings,
                folder=run.folders.own / "verify",
            )
            tag = f"cp{plan.resolution.python.replace('.', '')}"
            runtime = plan.resolution.runtime
            named = runtime is not None and is_known_runtime(self.preparer.knowledge, runtime)
            trial = TrialContainers(environment, tag, tag)
            folder = trial.fetch_requirements(inputs.runtime, lines, limits, known=named)
        return replace(inputs, requirements=lines, limits=limits, wheels=folder)

    def _requirements(self, run: BuildRun, image: ImageResult) -> tuple[list[str], tuple[str, ...]] | None:
        """Return requirements and limits of the finished wheel, or else of the source's setup.py; None if unknown."""
        plan, knowledge = run.plan, self.preparer.knowledge
        record = self.session.wheelhouse.complete_record_for(plan)
        try:
            if record:
                inspection = inspected(self.session.wheelhouse.root / record["wheels"][0]["file"], traces=())
                return pip_requirements(inspection.metadata.requires_dist), limits_of(knowledge, inspection)
            lines = self._requirements_of_source(run, image)
            if lines is not None:
                return pip_requirements(lines), limits_for(knowledge, str(plan.resolution.version.minor))
        # Unknown requirements are no error: the bundle still builds, only the wheel cannot be tried offline.
        except InvalidRequirement:
            return None
        return None

    def _requirements_of_source(self, run: BuildRun, image: ImageResult) -> list[str] | None:
        python = run.plan.resolution.paths.get("python", "python3")
        script = loader.templates()["run/requirements.py"]
        command = (python, "-c", script, _PIP_PACKAGE, f"{STAGING}/{_REQUIREMENTS.pattern}")
        # setup.py is a program of the source, so it runs in a container without a network.
        if not self._runs(
            run, container_beside(run, image, "setup", command, _REQUIREMENTS), "what setup.py requires"
        ):
            return None
        # The container wrote the file, so it may be missing or invalid.
        lines: list[str] | None = UntrustedPath(run.folders.results, _REQUIREMENTS.pattern).load(
            list[str], _MOST_REQUIRED
        )
        return lines

    def _warn(self, problems: Sequence[Problem]) -> None:
        for problem in problems:
            self._notice(problem.message)

    def _notice(self, text: str) -> None:
        self.listen(Notice(text=text))


# --- small parts ----------------------------------------------------------------------------------------------------


def _check_build_ids(packed: Sequence[PackedInputs]) -> None:
    """Refuse two profiles with the same build id: a build from the bundle could not choose between them."""
    files: dict[str, str] = {}
    for inputs in packed:
        build_id, file = inputs.prepared.plan.build_id, inputs.prepared.file
        first_file = files.setdefault(build_id, file)
        if first_file != file:
            message = f"{first_file} and {file} have the same build id, {build_id}"
            raise ProfileError.of("build-id-twice", message, "put the two profiles into two bundles", file=file)


def _is_bundle(file: BinaryIO) -> bool:
    try:
        bundle_format.index_size(file.read(BLOCK))
    except bundle_format.BundleError:
        return False
    return True


def _with_output(run: BuildRun, spec: ContainerSpec, name: str) -> ContainerSpec:
    """Return the same container with another output base: an empty folder with this name."""
    output = run.folders.container_folder(name).make()
    mounts = (
        replace(mount, source=output.mount_source) if mount.target == OUTPUT else mount for mount in spec.mounts
    )
    return replace(spec, name=f"{spec.name}-{name}", mounts=tuple(mounts))
