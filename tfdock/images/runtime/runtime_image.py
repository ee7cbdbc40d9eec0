"""`image runtime`: an image with Python, a finished wheel and what that requires; tried before it gets its name."""

from __future__ import annotations

import hashlib
import re
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from tfdock.engine.protocol import Cancel, ImageBuild, ImageInfo
from tfdock.errors import BuildFailed, Interrupted, NetworkError, Problem, ProfileError, WheelRefused
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
from tfdock.images.wheel_labels import STANDARD, chosen, labels, plan_choices
from tfdock.knowledge import loader
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.oci.repository import Repository
from tfdock.plan.local_source import context_archive
from tfdock.plan.render import BuildContext
from tfdock.types import Digest, ImageRef
from tfdock.verify.trial_container import Impossible, TrialContainers, TrialEnvironment, impossible, requirements
from tfdock.verify.trial_plan import accelerator_of, is_known_runtime, limits_of, linked_to_accelerator
from tfdock.wheel.facts import WheelError
from tfdock.wheel.identity import constraints, runs_on_python
from tfdock.wheel.inspection import Inspection
from tfdock.wheel.wheel_file import inspected
from tfdock.wheel.zip_archive import open_archive
from tfdock.wheelhouse.build_record import WHEEL

_PYTHON = re.compile(r"[0-9]{1,2}\.[0-9]{1,3}")
"""What may be called so in a script and in a path, whoever wrote the record."""
_CREATED = f"{STANDARD}.created"


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeImageRequest:
    """What is asked for. `name` is the image's, `push` a second one to be sent to its registry.

    Without `gpu` the libraries of the wheel's accelerator are left out.
    """

    name: str
    push: str | None = None
    gpu: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltRuntimeImage:
    """An image that the engine has. Sizes in bytes; `lacking` says in sentences what a user may miss in it.

    `status` is `built`, or `up-to-date` where there was such an image of that name.
    """

    status: str
    name: str
    id: str
    size: int
    base: str
    base_size: int
    labels: Mapping[str, str]
    variables: Mapping[str, str]
    distributions: tuple[str, ...]
    lacking: tuple[str, ...]
    pushed: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Contents:
    """The wheels of the image by stage, and what there is to say of them."""

    files: Mapping[str, tuple[Path, ...]] = field(default_factory=dict)
    lacking: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """What the engine is given: a context with files `beside` it; `key` is a hash of all of it and the base."""

    context: BuildContext
    beside: Mapping[str, Path]
    labels: Mapping[str, str]
    key: str


def default_name(build_id: str) -> str:
    """What the image of a build is called on the engine."""
    return f"tfdock/runtime:{build_id}"


def make(
    bench: TrialEnvironment,
    knowledge: KnowledgeBase,
    build: wheel_image.WheelBuild,
    wheels: Sequence[Path],
    wish: RuntimeImageRequest,
) -> BuiltRuntimeImage:
    """Make the runtime image of a finished build, whose wheels lie there.

    Raises ProfileError (`image-tag-taken`, `runtime-unknown`, `runtime-lacks-libraries`, `runtime-unfit`),
    NetworkError (`dependencies-unavailable`, and what a push raises), BuildFailed, VerificationFailed
    (`runtime-image-broken`), and the engine's errors.
    """
    inspection = inspected(wheels[0])
    try:
        return _Making(bench, knowledge, build, inspection, tuple(wheels), wish).made()
    except Impossible as reason:
        raise reason.error from reason
    except Interrupted:  # the engine's own, which does not know whether it was SIGINT or SIGTERM
        bench.steps.stop.check()
        raise


class _Making(TrialContainers):
    """One image on its way."""

    def __init__(
        self,
        bench: TrialEnvironment,
        knowledge: KnowledgeBase,
        build: wheel_image.WheelBuild,
        inspection: Inspection,
        wheels: tuple[Path, ...],
        wish: RuntimeImageRequest,
    ) -> None:
        super().__init__(bench, inspection.wheel.python_tag, inspection.wheel.abi_tag)
        self._knowledge, self._build, self._inspection = knowledge, build, inspection
        self._wheels, self._wish = wheels, wish
        self._plan: Mapping[str, Any] = build.record["plan"]

    def made(self) -> BuiltRuntimeImage:
        self._check_place()
        steps = self._bench.steps
        reference, python = self._base()
        base = steps.image(str(self._bench.settings.mirrored(reference)), "image", f"runtime image {reference}")
        contents = self._contents(base, python, known=is_known_runtime(self._knowledge, reference))
        image = self._image(reference, base, python, contents)
        work = _work(image, base, contents)
        found = steps.engine.image(self._wish.name)
        status = "up-to-date" if found and found.labels.get(CONTENTS_LABEL) == work.key else "built"
        if found is None or status == "built":
            found = self._made(image, work, base)
        return BuiltRuntimeImage(
            status=status,
            name=self._wish.name,
            id=found.id,
            size=found.size,
            base=str(reference),
            base_size=base.size,
            labels=work.labels,
            variables=image.settings.variables,
            distributions=tuple(_distribution(path) for stage in STAGES for path in contents.files.get(stage, ())),
            lacking=contents.lacking,
            pushed=self._pushed(found),
        )

    # --- the base -----------------------------------------------------------------------------------------------

    def _base(self) -> tuple[ImageRef, str]:
        """The base, and the Python in it: the profile's `runtime`, else the known one."""
        tags = self._inspection.wheel.python_tag, self._inspection.wheel.abi_tag
        python = chosen(self._build.record, "python")
        asked = self._plan.get("runtime") if self._asked("runtime") else None
        known = self._knowledge.runtimes.get(python)
        reference = asked or (known.image if known and runs_on_python(*tags, python) else None)
        image = _image_called(reference)
        if image is None or not _PYTHON.fullmatch(python):
            raise impossible(
                "runtime-unknown",
                f"no image is known with a Python for {tags[0]}",
                "name one that has it: `runtime: …` in the profile, and build again",
            )
        linked = linked_to_accelerator(self._knowledge, self._inspection)
        if linked and not asked:
            raise impossible(
                "runtime-lacks-libraries",
                f"the wheel links {', '.join(linked)}, which {image} does not have",
                "name an image that has them and the wheel's Python: `runtime: …` in the profile, and build again",
            )
        return image, python

    def _asked(self, name: str) -> bool:
        choices = plan_choices(self._build.record)
        return any(choice.get("field") == name and choice.get("source") == "profile" for choice in choices)

    # --- packages -----------------------------------------------------------------------------------------------

    def _contents(self, base: ImageInfo, python: str, *, known: bool) -> _Contents:
        """Fetch what the wheel requires, as when it was tried, and then what it uses of its accelerator."""
        wanted = self._requirements()
        chosen = self._libraries(python)
        limits = limits_of(self._knowledge, self._inspection)
        required = self._wheels_for(base, wanted, limits, known=known)
        held_to = (*limits, *(_pin(path) for path in required))
        there = {path.name for path in required}
        beside = self._wheels_for(base, chosen.lines, held_to, known=known)
        brought = [path for path in beside if path.name not in there]
        files = {"required": required, "accelerator": tuple(brought), "wheel": self._wheels}
        return _Contents(files={stage: files[stage] for stage in STAGES if files[stage]}, lacking=chosen.lacking)

    def _libraries(self, python: str) -> Libraries:
        accelerator = accelerator_of(self._knowledge, self._inspection)
        if accelerator is None:
            return Libraries()
        if not self._wish.gpu:
            return Libraries(lacking=("the libraries for GPUs, which were not wanted (`--no-gpu-libraries`)",))
        extras = {
            row.extra
            for row in self._knowledge.companions
            if row.accelerator == accelerator.accelerator and row.extra in self._inspection.metadata.provides_extra
        }
        plain = self._requirements()
        offered = [line for line in self._requirements(sorted(filter(None, extras))) if line not in plain]
        return libraries(self._knowledge, self._inspection, offered, python)

    def _requirements(self, extras: Sequence[str] = ()) -> list[str]:
        """What the wheel's METADATA requires, as lines for pip."""
        try:
            return requirements(self._inspection.metadata.requires_dist, extras)
        except InvalidRequirement as error:
            fix = "correct what its source requires, and build again"
            raise impossible("dependencies-unavailable", f"the wheel requires {error}", fix) from error

    def _wheels_for(
        self, base: ImageInfo, wanted: Sequence[str], limits: Sequence[str], *, known: bool
    ) -> tuple[Path, ...]:
        """The wheels that these lines mean, by name."""
        if not wanted:
            return ()
        folder = self.fetched(base, wanted, limits, known=known)
        found = sorted(folder.glob("*.whl"))
        # A package that has only a source archive ran code of its own in the container where these were made.
        for path in found:
            if not _is_wheel(path):
                raise impossible(
                    "dependencies-unavailable",
                    f"{path.name!a} came with what the wheel requires, and is no wheel",
                    f"find out which package brings it; then remove {folder}",
                )
        return tuple(found)

    # --- the image ----------------------------------------------------------------------------------------------

    def _image(self, reference: ImageRef, base: ImageInfo, python: str, contents: _Contents) -> RuntimeImage:
        members = [name for path in contents.files.get("accelerator", ()) for name in _members(path)]
        digest = next((name.rpartition("@")[2] for name in base.digests), reference.digest)
        own = labels([self._build.record], self._build.wheels)
        own |= {f"{STANDARD}.base.name": str(reference)} | ({f"{STANDARD}.base.digest": digest} if digest else {})
        own.pop(_CREATED)  # when that was, the engine says
        # Some of it comes from a record, which may be anybody's; a label is a line.
        own = {
            name: "".join(letter if letter.isprintable() else " " for letter in text) for name, text in own.items()
        }
        return RuntimeImage(
            build_id=self._build.build_id,
            base=reference,
            python=python,
            stages={stage: tuple(map(_pin, paths)) for stage, paths in contents.files.items()},
            settings=settings(self._knowledge, self._inspection, site_packages(python), members),
            labels=dict(sorted(own.items())),
            constraints=constraints(self._build.build_id, [path.name for path in self._wheels]),
        )

    def _made(self, image: RuntimeImage, work: _Work, base: ImageInfo) -> ImageInfo:
        """Build it, try it, and give it its name."""
        steps = self._bench.steps
        found = self._built(image, work, base)
        RuntimeTrial(self._bench, self._knowledge, self._inspection).check(found, self._wish.name)
        for path, wheel in zip(self._wheels, self._build.wheels, strict=True):
            _check_same(path, wheel.sha256)
        steps.engine.tag(found.id, self._wish.name)
        # They hold everything a second time; of an image that did not come to its end, `cache prune` removes them.
        for stage in steps.engine.dangling(STAGE_LABEL):
            if stage.labels[STAGE_LABEL] == steps.run:
                steps.engine.remove_image(stage.id)
        return found

    def _built(self, image: RuntimeImage, work: _Work, base: ImageInfo) -> ImageInfo:
        """Build it. Who builds on the same base waits: layers that both need are made once."""
        steps, machine = self._bench.steps, self._bench.settings
        request = ImageBuild(
            context=lambda: context_archive(work.context, None, work.beside),
            build_args={"BASE_IMAGE": base.id, "STAGE_OF": steps.run},
            # Everything is in the context.
            network="none",
        )
        cancel = Cancel()
        stopper = steps.stopper(gently=cancel.set, by_force=lambda: steps.give_up("image"))
        key = hashlib.sha256(f"runtime {image.base}".encode()).hexdigest()[:16]
        waiting = steps.waiting("image", f"builds an image on {image.base} too")
        steps.output.clear()
        with held(machine.state_dir.absolute() / "locks" / f"image-{key}", "the image", alone=True, waiting=waiting):
            try:
                made = steps.watch(
                    self._wish.name, lambda output: steps.engine.build(request, output, cancel), stopper
                )
            except BuildFailed as error:
                raise self._completed(error) from error
        found = steps.engine.image(made)
        assert found is not None
        return found

    def _completed(self, error: BuildFailed) -> BuildFailed:
        """The error with what the step said last, and where all of it stands."""
        own = [line for line in self._bench.steps.output.tail if line.startswith(("tfdock: ", "ERROR: "))]
        (problem, *_), log = error.problems, self._bench.steps.log.name
        said = "".join(f"\n  {line[:300]}" for line in own[-3:])
        return BuildFailed(replace(problem, message=f"{problem.message}{said}\n  log: {log}"))

    # --- a registry ---------------------------------------------------------------------------------------------

    def _check_place(self) -> None:
        """Refuse to replace an image of wheels, before anything is made."""
        if self._wish.push is None:
            return
        image = ImageRef.parse(self._wish.push)
        repository = Repository(image.registry, image.repository, check=self._bench.steps.stop.check)
        with suppress(NetworkError):  # it is the engine that pushes, and it may see what we do not
            found = repository.manifest(image.tag or "latest")
            if found and says_wheels(found.data):
                raise ProfileError(
                    Problem(
                        code="image-tag-taken",
                        message=f"`{image}` stands for wheels, and is not replaced: {found.digest}",
                        fix="give images to run a repository of their own, or another tag",
                    )
                )

    def _pushed(self, image: ImageInfo) -> Mapping[str, str] | None:
        if self._wish.push is None:
            return None
        steps, name = self._bench.steps, self._wish.push
        steps.engine.tag(image.id, name)
        stopper = steps.stopper(gently=lambda: steps.give_up("image"))
        digest: Digest = steps.watch(f"push {name}", lambda output: steps.engine.push(name, output), stopper)
        return {"reference": name, "digest": digest}


def _work(image: RuntimeImage, base: ImageInfo, contents: _Contents) -> _Work:
    """The context, with a label of what all of it comes to."""
    beside = {f"{stage}/{path.name}": path for stage, paths in contents.files.items() for path in paths}
    plain = render_runtime(image, loader.templates())
    total = hashlib.sha256(base.id.encode())
    for path, data in plain.files.items():
        total.update(f"\n{path} {hashlib.sha256(data).hexdigest()}".encode())
    for name, file in sorted(beside.items()):
        total.update(f"\n{name} {file.stat().st_size}".encode())
    labels = {**image.labels, CONTENTS_LABEL: total.hexdigest()}
    context = render_runtime(replace(image, labels=labels), loader.templates())
    return _Work(context=context, beside=beside, labels=labels, key=total.hexdigest())


def _check_same(path: Path, sha256: str) -> None:
    """The wheelhouse may have got another wheel of that name while this one was installed."""
    if file_sha256(path) != sha256:
        raise WheelRefused(
            Problem(code="wheel-changed", message=f"{path} was replaced meanwhile", fix="run the same command again")
        )


def _image_called(reference: object) -> ImageRef | None:
    """The image of that name; None for what is no name."""
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
    """The files that a wheel puts among packages."""
    try:
        with wheel.open("rb") as file:
            return [member.name for member in open_archive(file).members if ".data/" not in member.name]
    except WheelError as error:
        fix = f"find out which package brings it; then remove {wheel.parent}"
        raise impossible("dependencies-unavailable", f"{wheel.name}: {error.message}", fix) from error


def _pin(wheel: Path) -> str:
    return _distribution(wheel).replace(" ", "==")


def _distribution(wheel: Path) -> str:
    """`numpy 2.0.2`."""
    name, version, *_ = parse_wheel_filename(wheel.name)
    return f"{name} {version}"
