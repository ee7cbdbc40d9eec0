"""Build an image with Python, a finished wheel and its requirements (`image runtime`). Test it before it gets its
name."""

from __future__ import annotations

import hashlib
import re
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from packaging.requirements import InvalidRequirement
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from tfdock.engine.protocol import ImageBuild, ImageInfo
from tfdock.errors import BuildFailed, NetworkError, ProfileError, WheelRefused, clean
from tfdock.gpu.opened_libraries import accelerator_of
from tfdock.host.files import file_sha256, held
from tfdock.images import wheel_image
from tfdock.images.runtime.runtime_contents import (
    CONTENTS_LABEL,
    STAGE_LABEL,
    STAGES,
    Libraries,
    RuntimeImage,
    libraries,
    render_runtime,
    settings,
    site_packages,
)
from tfdock.images.runtime.runtime_trial import RuntimeTrial
from tfdock.images.wheel_image_read import says_wheels
from tfdock.images.wheel_labels import STANDARD, foreign_record, labels, plan_choice, plan_choices
from tfdock.images.wheel_layer import ImageWheel
from tfdock.knowledge import loader
from tfdock.knowledge.switch_rows import laid_over
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.oci.repository import Repository
from tfdock.plan.local_source import context_archive
from tfdock.plan.render import BuildContext
from tfdock.resolve.naming import MAX_NAME
from tfdock.types import ImageRef
from tfdock.verify.trial_container import TrialContainers, TrialEnvironment, pip_requirements
from tfdock.verify.trial_plan import is_known_runtime, limits_of, linked_to_accelerator
from tfdock.wheel.facts import WheelError
from tfdock.wheel.identity import constraints, runs_on_python
from tfdock.wheel.inspection import Inspection
from tfdock.wheel.wheel_file import inspected
from tfdock.wheel.zip_archive import open_archive
from tfdock.wheelhouse.build_record import WHEEL

#: Only such versions are safe in a script and in a path. A stranger may have written the record.
_PYTHON = re.compile(r"[0-9]{1,2}\.[0-9]{1,3}")
_CREATED = f"{STANDARD}.created"
_NO_GPU = "-no-gpu-libraries"


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeImageRequest:
    """The request for an image. `name` is the image's name, `push` a second name, which is pushed to a registry.

    Without `gpu`, the libraries of the wheel's accelerator are left out. `variables` are set in the image.
    """

    name: str
    push: str | None = None
    gpu: bool = True
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltRuntimeImage:
    """A finished image to run a wheel in. The engine has this image."""

    status: Literal["built", "up-to-date"]  #: `up-to-date`: the image with this name existed before.
    name: str  #: The image's name.
    id: str  #: The image's id on the engine.
    size: int  #: Bytes of the image.
    base: str  #: The base image of the image.
    base_size: int  #: Bytes of the base image.
    labels: Mapping[str, str]  #: The image's labels.
    variables: Mapping[str, str]  #: The image's environment variables that request GPUs.
    distributions: tuple[str, ...]  #: Python packages in the image.
    lacking: tuple[str, ...]  #: The missing parts of the image, in sentences.
    pushed: Mapping[str, str] | None = None  #: `reference` and `digest` in the registry; null without `--push`.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Contents:
    """The wheels of the image by stage, and what the image lacks."""

    files: Mapping[str, tuple[Path, ...]] = field(default_factory=dict)
    lacking: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _BuildInput:
    """The input of the engine: a context with files `beside` it; `key` is a hash of all of it and the base."""

    context: BuildContext
    beside: Mapping[str, Path]
    labels: Mapping[str, str]
    key: str


def default_tag(build_id: str, *, gpu: bool = True, variables: Mapping[str, str] | None = None) -> str:
    """Return the default tag of a build's image, at most 128 characters long.

    The tag also shows whether GPU libraries are left out, and whether variables are set.
    """
    end = "" if gpu else _NO_GPU
    if variables:
        end += f"-x{hashlib.sha256(repr(sorted(variables.items())).encode()).hexdigest()[:8]}"
    return f"{build_id[: MAX_NAME - len(end)]}{end}"


def default_name(build_id: str, *, gpu: bool = True, variables: Mapping[str, str] | None = None) -> str:
    """Return the default name of a build's image on the engine."""
    return f"tfdock/runtime:{default_tag(build_id, gpu=gpu, variables=variables)}"


def foreign_build(
    knowledge: KnowledgeBase, inspection: Inspection, wheel: ImageWheel, verification: Mapping[str, Any]
) -> wheel_image.WheelBuild:
    """Return a build for a wheel without a record. Its Python is the newest known one that runs the wheel."""
    tags = inspection.wheel.python_tag, inspection.wheel.abi_tag
    pythons = [python for python in knowledge.runtimes if runs_on_python(*tags, python)]
    # A tag has fewer letters than the name of a file.
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", wheel.file.removesuffix(".whl"))[:MAX_NAME]
    version, python = inspection.wheel.version.partition("+")[0], pythons[-1] if pythons else ""
    record = foreign_record(name, wheel, version, python, verification)
    return wheel_image.WheelBuild(record=record, document=b"", wheels=(wheel,))


def make(
    environment: TrialEnvironment,
    knowledge: KnowledgeBase,
    build: wheel_image.WheelBuild,
    wheels: Sequence[Path],
    request: RuntimeImageRequest,
) -> BuiltRuntimeImage:
    """Make the runtime image of a finished build with these wheels.

    Raises ProfileError (`image-tag-taken`, `runtime-unknown`, `runtime-lacks-libraries`, `runtime-unfit`),
    NetworkError (`dependencies-unavailable`, and what a push raises), BuildFailed, VerificationFailed
    (`runtime-image-broken`), and the engine's errors.
    """
    inspection = inspected(wheels[0])
    return _RuntimeBuild(environment, knowledge, build, inspection, tuple(wheels), request).run()


class _RuntimeBuild(TrialContainers):
    """The build of one image."""

    def __init__(
        self,
        environment: TrialEnvironment,
        knowledge: KnowledgeBase,
        build: wheel_image.WheelBuild,
        inspection: Inspection,
        wheels: tuple[Path, ...],
        request: RuntimeImageRequest,
    ) -> None:
        super().__init__(environment, inspection.wheel.python_tag, inspection.wheel.abi_tag)
        self._knowledge, self._build, self._inspection = knowledge, build, inspection
        self._wheels, self._request = wheels, request
        self._plan: Mapping[str, Any] = build.record["plan"]

    def run(self) -> BuiltRuntimeImage:
        self._check_push_target()
        supervisor = self._environment.supervisor
        reference, python = self._base()
        base = supervisor.image(
            str(self._environment.settings.mirrored(reference)), "image", f"runtime image {reference}"
        )
        contents = self._contents(base, python, known=is_known_runtime(self._knowledge, reference))
        image = self._image(reference, base, python, contents)
        build_input = _build_input(image, base, contents)
        image_found = supervisor.engine.image(self._request.name)
        status: Literal["built", "up-to-date"] = "up-to-date"
        # The label is a hash of everything in the image, so an image with an equal label needs no build or trial.
        if image_found is None or image_found.labels.get(CONTENTS_LABEL) != build_input.key:
            status, image_found = "built", self._make(image, build_input, base)
        return BuiltRuntimeImage(
            status=status,
            name=self._request.name,
            id=image_found.id,
            size=image_found.size,
            base=str(reference),
            base_size=base.size,
            labels=build_input.labels,
            variables=image.settings.variables,
            distributions=tuple(_distribution(path) for stage in STAGES for path in contents.files.get(stage, ())),
            lacking=contents.lacking,
            pushed=self._push(image_found),
        )

    # --- the base -----------------------------------------------------------------------------------------------

    def _base(self) -> tuple[ImageRef, str]:
        """Return the base, and the Python in it: the profile's `runtime`, else the one that the knowledge lists."""
        tags = self._inspection.wheel.python_tag, self._inspection.wheel.abi_tag
        python = plan_choice(self._build.record, "python")
        # What the knowledge chose at the time of the build may be outdated.
        asked = self._plan.get("runtime") if self._is_asked_for("runtime") else None
        known = self._knowledge.runtimes.get(python)
        reference = asked or (known.image if known and runs_on_python(*tags, python) else None)
        image = _parse_image(reference)
        # The record may be a stranger's, and its Python version is written into a script.
        if image is None or not _PYTHON.fullmatch(python):
            raise ProfileError.of(
                "runtime-unknown",
                f"no known image has a Python for {tags[0]}",
                "name an image that has such a Python: `runtime: …` in the profile, and build again",
            )
        linked = linked_to_accelerator(self._knowledge, self._inspection)
        if linked and not asked:
            raise ProfileError.of(
                "runtime-lacks-libraries",
                f"the wheel links {', '.join(linked)}, but {image} does not have these libraries",
                "name an image that has these libraries and the wheel's Python: `runtime: …` in the profile, and "
                "build again",
            )
        return image, python

    def _is_asked_for(self, name: str) -> bool:
        choices = plan_choices(self._build.record)
        return any(choice.get("field") == name and choice.get("source") == "profile" for choice in choices)

    # --- packages -----------------------------------------------------------------------------------------------

    def _contents(self, base: ImageInfo, python: str, *, known: bool) -> _Contents:
        """Fetch the wheel's requirements, as when it was tried, and then the libraries of its accelerator."""
        required_lines = self._requirements()
        accelerator = self._libraries(python)
        limits = limits_of(self._knowledge, self._inspection)
        required = self._wheels_for(base, required_lines, limits, known=known)
        pins = (*limits, *(_pin(path) for path in required))
        names = {path.name for path in required}
        fetched = self._wheels_for(base, accelerator.lines, pins, known=known)
        added = [path for path in fetched if path.name not in names]
        files = {"required": required, "accelerator": tuple(added), "wheel": self._wheels}
        return _Contents(files={stage: files[stage] for stage in STAGES if files[stage]}, lacking=accelerator.lacking)

    def _libraries(self, python: str) -> Libraries:
        accelerator = accelerator_of(self._knowledge, self._inspection)
        if accelerator is None:
            return Libraries()
        if not self._request.gpu:
            return Libraries(lacking=("the libraries for GPUs, because of `--no-gpu-libraries`",))
        extras = {
            row.extra
            for row in self._knowledge.companions
            if row.accelerator == accelerator.accelerator and row.extra in self._inspection.metadata.provides_extra
        }
        plain = self._requirements()
        # Keep only the extra's own lines: the wheel's plain requirements come with `required`.
        offered = [line for line in self._requirements(sorted(filter(None, extras))) if line not in plain]
        components = {name: plan_choice(self._build.record, name) for name in accelerator.components}
        return libraries(self._knowledge, self._inspection, offered, python, components)

    def _requirements(self, extras: Sequence[str] = ()) -> list[str]:
        """Return the requirements in the wheel's METADATA, as lines for pip."""
        try:
            return pip_requirements(self._inspection.metadata.requires_dist, extras)
        except InvalidRequirement as error:
            fix = "correct the requirements in the wheel's source, and build again"
            raise ProfileError.of(
                "dependencies-unavailable", f"a requirement of the wheel is invalid: {error}", fix
            ) from error

    def _wheels_for(
        self, base: ImageInfo, lines: Sequence[str], limits: Sequence[str], *, known: bool
    ) -> tuple[Path, ...]:
        """Return the wheels that pip chooses for these lines, by name."""
        if not lines:
            return ()
        folder = self.fetch_requirements(base, lines, limits, known=known)
        wheels = sorted(folder.glob("*.whl"))
        # The build of a source-only package ran its own code in the container that made these files.
        for path in wheels:
            if not _is_wheel(path):
                raise ProfileError.of(
                    "dependencies-unavailable",
                    f"{path.name!a} was fetched for the wheel's requirements, but is not a wheel",
                    f"find out which package needs this file; then remove {folder}",
                )
        return tuple(wheels)

    # --- the image ----------------------------------------------------------------------------------------------

    def _image(self, reference: ImageRef, base: ImageInfo, python: str, contents: _Contents) -> RuntimeImage:
        members = [name for path in contents.files.get("accelerator", ()) for name in _members(path)]
        # An image that was not pulled from a registry has no registry digest.
        digest = next((name.rpartition("@")[2] for name in base.digests), reference.digest)
        all_labels = labels([self._build.record], self._build.wheels)
        all_labels |= {f"{STANDARD}.base.name": str(reference)} | (
            {f"{STANDARD}.base.digest": digest} if digest else {}
        )
        all_labels.pop(_CREATED)  # the engine states the time of creation
        # Some values come from a record, which may be a stranger's. A label must be one line.
        all_labels = {name: clean(text, keep="", instead=" ") for name, text in all_labels.items()}
        own = settings(self._knowledge, self._inspection, site_packages(python), members)
        return RuntimeImage(
            build_id=self._build.build_id,
            base=reference,
            python=python,
            stages={stage: tuple(map(_pin, paths)) for stage, paths in contents.files.items()},
            settings=replace(own, variables=laid_over(own.variables, self._request.variables)),
            labels=dict(sorted(all_labels.items())),
            constraints=constraints(self._build.build_id, [path.name for path in self._wheels]),
        )

    def _make(self, image: RuntimeImage, build_input: _BuildInput, base: ImageInfo) -> ImageInfo:
        """Build the image, test it, and give it its name."""
        supervisor = self._environment.supervisor
        built = self._build_image(image, build_input, base)
        RuntimeTrial(self._environment, self._knowledge, self._inspection).check(built, self._request.name)
        for path, wheel in zip(self._wheels, self._build.wheels, strict=True):
            _check_same(path, wheel.sha256)
        supervisor.engine.tag(built.id, self._request.name)
        # Images of stages hold all files a second time. `cache prune` removes those of unfinished images.
        for stage in supervisor.engine.dangling(STAGE_LABEL):
            if stage.labels[STAGE_LABEL] == supervisor.run_id:
                supervisor.engine.remove_image(stage.id)
        return built

    def _build_image(self, image: RuntimeImage, build_input: _BuildInput, base: ImageInfo) -> ImageInfo:
        """Build the image. Builds on the same base wait for each other, so that shared layers are made only once."""
        supervisor, machine = self._environment.supervisor, self._environment.settings
        request = ImageBuild(
            context=lambda: context_archive(build_input.context, None, build_input.beside),
            # Name the base by its id: its name may lead to another image by the time of the build.
            build_args={"BASE_IMAGE": base.id, "STAGE_OF": supervisor.run_id},
            # No network is needed: everything is in the context.
            network="none",
        )
        # A hash, because the name of an image has slashes.
        key = hashlib.sha256(f"runtime {image.base}".encode()).hexdigest()[:16]
        waiting = supervisor.waiting("image", f"also builds an image on {image.base}")
        supervisor.output.clear()
        with held(machine.state_dir.absolute() / "locks" / f"image-{key}", "the image", alone=True, waiting=waiting):
            try:
                image_id = supervisor.watch_cancellable(
                    self._request.name,
                    "image",
                    lambda output, cancel: supervisor.engine.build(request, output, cancel),
                )
            except BuildFailed as error:
                raise self._with_log(error) from error
        built = supervisor.engine.image(image_id)
        assert built is not None
        return built

    def _with_log(self, error: BuildFailed) -> BuildFailed:
        """Return the error with the last lines of the step, and the path of the log."""
        lines = [
            line for line in self._environment.supervisor.output.tail if line.startswith(("tfdock: ", "ERROR: "))
        ]
        (problem, *_), log = error.problems, self._environment.supervisor.log.name
        last_lines = "".join(f"\n  {line[:300]}" for line in lines[-3:])
        return BuildFailed(replace(problem, message=f"{problem.message}{last_lines}\n  log: {log}"))

    # --- a registry ---------------------------------------------------------------------------------------------

    def _check_push_target(self) -> None:
        """Refuse to replace an image of wheels, before anything is made."""
        if self._request.push is None:
            return
        image = ImageRef.parse(self._request.push)
        repository = Repository(image.registry, image.repository, check=self._environment.supervisor.stop.check)
        with suppress(NetworkError):  # the engine pushes, and it may reach registries that tfdock cannot
            manifest = repository.manifest(image.tag or "latest")
            if manifest and says_wheels(manifest.data):
                raise ProfileError.of(
                    "image-tag-taken",
                    f"`{image}` is a tag of a wheel image, and is not replaced: {manifest.digest}",
                    "use a separate repository for runtime images, or another tag",
                )

    def _push(self, image: ImageInfo) -> Mapping[str, str] | None:
        if self._request.push is None:
            return None
        supervisor, name = self._environment.supervisor, self._request.push
        supervisor.engine.tag(image.id, name)
        digest = supervisor.watch_until_stopped(
            f"push {name}", "image", lambda output: supervisor.engine.push(name, output)
        )
        return {"reference": name, "digest": digest}


def _build_input(image: RuntimeImage, base: ImageInfo, contents: _Contents) -> _BuildInput:
    """Return the context, with a label that is a hash of everything in it."""
    beside = {f"{stage}/{path.name}": path for stage, paths in contents.files.items() for path in paths}
    # Render it without the label first: the label is the hash of everything else.
    plain = render_runtime(image, loader.templates())
    total = hashlib.sha256(base.id.encode())
    for path, data in plain.files.items():
        total.update(f"\n{path} {hashlib.sha256(data).hexdigest()}".encode())
    for name, file in sorted(beside.items()):
        total.update(f"\n{name} {file.stat().st_size}".encode())
    labels = {**image.labels, CONTENTS_LABEL: total.hexdigest()}
    context = render_runtime(replace(image, labels=labels), loader.templates())
    return _BuildInput(context=context, beside=beside, labels=labels, key=total.hexdigest())


def _check_same(path: Path, sha256: str) -> None:
    """Raise WheelRefused if the wheel in the wheelhouse was replaced while it was installed."""
    if file_sha256(path) != sha256:
        raise WheelRefused.of("wheel-changed", f"{path} was replaced meanwhile", "run the same command again")


def _parse_image(reference: object) -> ImageRef | None:
    """Return the image of a name; None if it is malformed."""
    with suppress(ValueError):
        return ImageRef.parse(reference) if isinstance(reference, str) else None
    return None


def _is_wheel(path: Path) -> bool:
    if not WHEEL.fullmatch(path.name) or path.is_symlink() or not zipfile.is_zipfile(path):
        return False
    with suppress(InvalidWheelFilename):
        return bool(parse_wheel_filename(path.name))
    return False


def _members(wheel: Path) -> list[str]:
    """Return the files that a wheel puts among packages."""
    try:
        with wheel.open("rb") as file:
            # Installers move the contents of `.data/` elsewhere.
            return [member.name for member in open_archive(file).members if ".data/" not in member.name]
    except WheelError as error:
        fix = f"find out which package needs this file; then remove {wheel.parent}"
        raise ProfileError.of("dependencies-unavailable", f"{wheel.name}: {error.message}", fix) from error


def _pin(wheel: Path) -> str:
    return _distribution(wheel).replace(" ", "==")


def _distribution(wheel: Path) -> str:
    """Return name and version of a wheel: `numpy 2.0.2`."""
    name, version, *_ = parse_wheel_filename(wheel.name)
    return f"{name} {version}"
