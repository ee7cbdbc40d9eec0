"""Make a plan from a profile's file: read the files, then call the pure packages."""

from __future__ import annotations

import difflib
import hashlib
import platform
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from tfdock.errors import Incompatible, Problem, ProfileError
from tfdock.gpu.devices import local_words, means_gpu
from tfdock.host.hardware import local_gpus
from tfdock.host.project_files import Project, located, read_stdin
from tfdock.host.settings import Settings
from tfdock.knowledge import loader
from tfdock.knowledge.contract import bazel_options
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.plan.build_plan import BuildPlan
from tfdock.plan.local_source import has_configure, tree_hash
from tfdock.plan.planning import check_remote, make_plan, not_allowed, remote_of
from tfdock.plan.render import render
from tfdock.plan.resources import BuildResources, size
from tfdock.plan.wish import NO_WISH, Wish
from tfdock.profile import profile as profiles
from tfdock.profile.endpoint import parse
from tfdock.profile.profile import Profile, TensorFlow
from tfdock.profile.yaml_nodes import Node, shown
from tfdock.resolve.question import LocalSource
from tfdock.resolve.resolution import Resolution, Resolver
from tfdock.resolve.resolve import resolve_or_suggest
from tfdock.types import Machine

if TYPE_CHECKING:
    from tfdock.plan.lock_file import LockFile
    from tfdock.plan.profile_fixes import Context
    from tfdock.resolve.starter import AcceptedProfile


_MOST_PATCHES = 32 << 20  #: The most bytes of all patches of a profile together.
STDIN = "-"  #: The name of the profile that comes from standard input.


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenProfile:
    """A profile that was read.

    `extended` maps the names of extended profiles to their texts; `local` are the profile's inputs from this machine.
    `tree` is the profile's local checkout, if it exists on this machine. `options` are the command-line options that
    changed the profile. `lock_path` is the path of its lock; None if the profile cannot have a lock.
    """

    file: str
    text: str
    extended: Mapping[str, str]
    profile: Profile
    document: Node
    local: LocalSource
    tree: Path | None
    options: str = ""
    lock_path: Path | None = None

    @property
    def name(self) -> str:
        """The file's name without its folder; if options replace a file, the options as given."""
        return self.file if self.file.startswith("--") else Path(self.file).name


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedProfile:
    """A profile that is resolved and sized for this machine but not rendered: enough for a check."""

    written: WrittenProfile
    resolution: Resolution
    resources: BuildResources

    @property
    def for_this_machine(self) -> bool:
        """Whether the profile uses this machine's GPUs."""
        return self.written.profile.for_this_machine


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedBuild:
    """A planned profile; `lock` is the lock that gave its pins. The files may change before the build starts."""

    written: WrittenProfile
    plan: BuildPlan
    lock: LockFile | None = None

    @property
    def file(self) -> str:
        """The profile's file."""
        return self.written.file

    @property
    def tree(self) -> Path | None:
        """The local checkout that the profile builds, if it names one."""
        return self.written.tree


class Preparer:
    """Plans profiles for one machine; knowledge and templates are read once."""

    def __init__(
        self,
        settings: Settings,
        machine: Machine,
        *,
        allow_untested: bool = False,
        trusted: bool = False,
        knowledge: KnowledgeBase | None = None,
        wish: Wish = NO_WISH,
    ) -> None:
        """Prepare for one machine. `trusted` builds share the disk cache of `release`, whatever their inputs.

        Without `knowledge`, the tables of the settings are read. `wish` changes each profile. A profile made from
        options only has the options as its name.
        """
        self.machine = settings.granted(machine)
        self.allowed = settings.allow_paths
        self._allows = settings.allows
        self._remote = settings.remote
        self._allow_untested = allow_untested
        self.trusted = trusted
        self._wish = wish
        self.knowledge = knowledge or loader.knowledge(settings.knowledge, settings.cache_dir)

    @cached_property
    def _templates(self) -> dict[str, str]:
        return loader.templates()

    def prepare(self, name: str, pinned: Callable[[Resolution], Resolution] | None = None) -> PreparedBuild:
        """Plan the profile in a file, or the shipped profile of that name; raises ProfileError or Incompatible.

        `pinned` applies the pins of a lock to its resolution.
        """
        return self.plan_resolved(self.resolve(name, pinned))

    def prepare_written(
        self, written: WrittenProfile, pinned: Callable[[Resolution], Resolution] | None = None
    ) -> PreparedBuild:
        """Plan a profile that was read before, possibly on another machine."""
        return self.plan_resolved(self.resolve_written(written, pinned=pinned))

    def plan_resolved(self, resolved: ResolvedProfile) -> PreparedBuild:
        """Render and plan a resolved profile."""
        context = render(resolved.resolution, self._templates)
        plan = make_plan(
            resolved.written.profile,
            resolved.resolution,
            resolved.resources,
            context,
            self.knowledge,
            self.machine,
            self._remote,
            trusted=self.trusted,
        )
        return PreparedBuild(written=resolved.written, plan=plan)

    def resolve(self, name: str, pinned: Callable[[Resolution], Resolution] | None = None) -> ResolvedProfile:
        """Resolve the profile in a file without rendering it; raises the same errors as `prepare`."""
        try:
            return self.resolve_written(self.read(name), pinned=pinned)
        except OSError as error:  # of the profile, the checkout or a patch
            raise unreadable(error, name) from error

    def read(self, name: str) -> WrittenProfile:
        """Read a profile with all its other files; raises ProfileError or OSError."""
        path, text = self._text(name)
        made = bool(self._wish) and name == self._wish.words
        project, said = Project.of(path, self.allowed), name if made else str(path)
        extended = extended_texts(text, path, project)
        # A profile made from options lacks only the source that the options name.
        wish = Wish(fields=self._wish.source) if made else self._wish
        if wish:
            # Read the release only if the wish leaves it open: otherwise the profile need not have a release.
            known = wish.source or (wish.gpus and not wish.release)
            release = profiles.read(text, said, extended)[0].source.release if known else ""
            # A name that no profile in the chain of `extends` is likely to have.
            label = str(path) if path.is_absolute() else f"./{path}"
            over = wish.over(label, release, self.knowledge, self._wished_gpus)
            extended[label], text, said = text, over, self._wish.words
        profile, document = profiles.read(text, said, extended)
        own = {".".join(field.split(".")[:2]) for field in wish.source}
        # A file named by an option must be in the current folder or its project.
        project = Project.of(Path("option"), self.allowed) if own else project

        def folder(field: str) -> Path:
            return Path() if field.partition("[")[0] in own else path.parent

        file = name if made else str(path)
        try:
            local, tree = read_local(profile.source, folder, file, project)
        except ProfileError as error:
            # The checkout's reader knows the field; the document knows the line of the field.
            raise ProfileError(*(placed(problem, document, file) for problem in error.problems)) from error
        return WrittenProfile(
            file=file,
            text=text,
            extended=extended,
            profile=profile,
            document=document,
            local=local,
            tree=tree,
            options=wish.words,
            lock_path=None if name == STDIN else self.lock_path(name),
        )

    def lock_path(self, name: str) -> Path:
        """Return the path of a profile's lock, with the options that change the profile; raises ProfileError."""
        return lock_path(name, self._wish.words)

    def _text(self, name: str) -> tuple[Path, str]:
        """Return the path of a profile and its text."""
        if self._wish and name == self._wish.words:
            return Path("options"), self._made.text  # a path in the current folder, whatever the options are
        if name == STDIN:
            return Path("<stdin>"), self._piped_text
        path = find_profile(name, self.knowledge, self._wish.gpus)
        return path, read_profile_text(path, Project.of(path, self.allowed))

    @cached_property
    def _made(self) -> AcceptedProfile:
        machine = platform.machine()
        return self._wish.profile(self.knowledge, self._wished_gpus, machine, allow_untested=self._allow_untested)

    def chose_python(self, file: str) -> bool:
        """Whether options without `--python` made the profile."""
        return bool(self._wish) and file == self._wish.words and "python" not in self._wish.fields

    @property
    def _wished_gpus(self) -> tuple[str, ...]:
        # Run the drivers' tools only for `local`: other options do not need them.
        return self._local_gpus if "local" in self._wish.gpus else ()

    @cached_property
    def _piped_text(self) -> str:
        # Read standard input once: `check` and `build` may ask for the text twice.
        return read_stdin()

    def context(self, written: WrittenProfile) -> Context:
        """Return the facts of a profile for the diagnosis of its build, even if the profile is refused."""
        from tfdock.plan.profile_fixes import Context

        profile, resolver = written.profile, self._resolver(written)
        context = Context(knowledge=self.knowledge, profile=profile, attempt=resolver.attempt)
        try:
            resolution = resolve_or_suggest(resolver, profile)
            resources = size(profile.resources, resolution.release.cost, self.machine)
        except Incompatible as error:
            # Problems of one profile share their fixes, so each fix is printed once.
            ways = {way.text: way for problem in error.problems for way in problem.ways}
            return replace(context, problems=error.problems, ways=tuple(ways.values()))
        return replace(context, resolution=resolution, resources=resources)

    def _check_endpoints(self, profile: Profile, document: Node, file: str) -> None:
        """Refuse endpoints that the profile names:

        this process would connect to any address in an untrusted profile.
        """
        asked = {"remote": profile.cache.remote, "executor": profile.cache.executor}
        refused = {name: address for name, address in asked.items() if address and not self._allows(parse(address))}
        if refused:
            problems = (not_allowed(name, address) for name, address in refused.items())
            raise ProfileError(*(placed(problem, document, file) for problem in problems))

    @cached_property
    def _local_gpus(self) -> tuple[str, ...]:
        return tuple(local_words(self.knowledge, local_gpus()))

    def _resolver(self, written: WrittenProfile) -> Resolver:
        """Return the resolver of a profile and of changed versions of this profile, for this machine."""
        return Resolver(
            document=written.document,
            knowledge=self.knowledge,
            file=written.file,
            local=written.local,
            # Run the drivers' tools only for `local`: other profiles do not need them.
            local_gpus=self._local_gpus if written.profile.for_this_machine else (),
            machine=platform.machine(),
            allow_untested=self._allow_untested,
            describe=self._wish.describe if written.options else None,
        )

    def resolve_written(
        self,
        written: WrittenProfile,
        *,
        pinned: Callable[[Resolution], Resolution] | None = None,
        suggest: bool = True,
    ) -> ResolvedProfile:
        """Resolve a profile that was read; raises Incompatible, with suggestions unless `suggest` is false.

        Raises ProfileError (`endpoint-not-allowed`) for a remote cache or executor that the settings do not allow.
        """
        profile, document, file = written.profile, written.document, written.file
        # Before anything else.
        self._check_endpoints(profile, document, file)
        resolver = self._resolver(written)
        resolution = resolve_or_suggest(resolver, profile) if suggest else resolver.resolve(profile)
        if self._wish and file == self._wish.words:
            # Its text writes out what the release chose; the reasons are the release's.
            reasons = {choice.field: choice for choice in self._made.choices if choice.field not in self._wish.fields}
            resolution = replace(
                resolution, choices=tuple(reasons.get(choice.field, choice) for choice in resolution.choices)
            )
        resolution = pinned(resolution) if pinned else resolution
        try:
            resources = size(profile.resources, resolution.release.cost, self.machine)
            options = partial(bazel_options, self.knowledge, resolution.bazel)
            native = profile.optimize == "native"
            check_remote(remote_of(profile.cache, self._remote), resolution.bazel, options, native=native)
        except Incompatible as error:
            raise Incompatible(*(placed(problem, document, file) for problem in error.problems)) from error
        return ResolvedProfile(written=written, resolution=resolution, resources=resources)


def unreadable(error: OSError, name: str) -> ProfileError:
    """Return the refusal of a profile whose file cannot be read."""
    message, fix = f"cannot be read: {error.strerror}", "check the name, the owner and the mode"
    return ProfileError.of("file-unreadable", message, fix, file=str(error.filename or name))


def placed(problem: Problem, document: Node, file: str) -> Problem:
    """Return the problem with the position of its field."""
    node = document.at_field(problem.field or "")
    return replace(problem, file=node.file or file, line=node.line, column=node.column)


def find_profile(name: str, knowledge: KnowledgeBase | None = None, gpus: Sequence[str] = ()) -> Path:
    """Return the file of that name; else `<name>.yaml` here or in `profiles/`; else the shipped profile.

    Raises ProfileError. If `knowledge` is given and the name is a GPU's, the error suggests the option `--gpu` with
    `gpus` and this name.
    """
    path = Path(name)
    if path.is_file():
        return path
    # The shipped matrix is in the same folder, but is not a profile.
    if path.suffix not in (".yaml", ".yml") and path.name == name and f"{name}.yaml" != loader.MATRIX:
        for folder in (Path(), Path("profiles"), loader.profiles()):
            if (folder / f"{name}.yaml").is_file():
                return folder / f"{name}.yaml"
    shipped = [file.stem for file in loader.profile_files()]
    stems = dict.fromkeys((name, name.removesuffix(path.suffix)))
    # Suggest a file of this name with another ending before any shipped profile.
    folders = ("", "profiles/") if path.name == name else ("",)
    names = (f"{folder}{stem}{end}" for folder in folders for stem in stems for end in (".yaml", ".yml"))
    beside = [file for file in names if Path(file).is_file()]
    stem = name.removesuffix(path.suffix) if path.suffix in (".yaml", ".yml") else name
    if not beside and stem not in shipped and knowledge and means_gpu(knowledge, stem):
        raise ProfileError(_gpu_is_no_profile(stem, gpus))
    # Never suggest the profile of another GPU: its wheel may not run on this GPU.
    alike = [profile for profile in shipped if _begins_alike(_numbers(stem), _numbers(profile))]
    near = beside or difflib.get_close_matches(path.stem.lower(), alike, n=1)
    guess = f"did you mean `{near[0]}`? Otherwise " if near else ""
    raise ProfileError.of(
        "profile-not-found",
        _no_profile_text(name),
        f"{guess}give a file, or the name of a shipped profile: {', '.join(shipped)}",
        file=name,
    )


def _numbers(name: str) -> list[str]:
    return re.findall(r"\d+", name)


def _begins_alike(numbers: list[str], others: list[str]) -> bool:
    return others[: len(numbers)] == numbers and bool(numbers) == bool(others)


def _gpu_is_no_profile(name: str, gpus: Sequence[str]) -> Problem:
    word = shlex.quote(name)
    option = shlex.join(["--gpu", ",".join([*gpus, name])])
    return Problem(
        "profile-not-found",
        f"`{name}` is a GPU, not a profile",
        (
            f"name it by an option: `{option}`; `tfdock init {word} --yes` writes {name}.yaml",
            f"`tfdock advise --gpu {word}` says whether an official wheel runs on this GPU",
        ),
        file=name,
    )


def lock_path(name: str, options: str = "") -> Path:
    """Return the path of a profile's lock: beside the profile; in the current folder for a shipped profile.

    The lock of `my.yaml` is `my.lock`; for other names, `.lock` is appended. A profile changed by `options` has its
    own lock: `my-python-3.12.lock`. Options without a profile have a lock in this folder, such as `gpu-rtx5090.lock`.
    Raises ProfileError, also for a profile from standard input.
    """
    if name == STDIN:
        raise ProfileError.of("profile-not-found", "a profile from standard input has no lock", "save it as a file")
    if name.startswith("--"):
        return Path(f"{_slug(name)}.lock")
    path = find_profile(name)
    if path.parent == loader.profiles() and not Path(name).is_file():
        path = Path(f"{name}.yaml")
    # Only `.yaml` is removed: else `my.yml` would share the lock of `my.yaml`, and `my.lock` would be its own lock.
    own = path.stem if path.suffix == ".yaml" else path.name
    return path.with_name(f"{own}-{_slug(options)}.lock" if options else f"{own}.lock")


def _slug(options: str) -> str:
    """Return options as part of a file's name."""
    slug = "-".join(re.findall(r"[\w.]+", options))
    # Different options must have different locks, and the length of a file name is limited.
    plain = len(slug) < 100 and not re.search(r"[^\w.\- =,]", options)
    return slug if plain else f"{slug[:80]}-{hashlib.sha256(options.encode()).hexdigest()[:8]}"


def _no_profile_text(name: str) -> str:
    """Return why a name is not the name of a profile."""
    if not name:
        return "the name of the profile is empty"
    if Path(name).is_dir():
        return f"`{name}` is a folder, not a profile"
    return f"`{name}` is not a file" if Path(name).exists() else f"the profile `{name}` does not exist"


def read_profile_text(path: Path, project: Project) -> str:
    """Return the text of a profile, or of a matrix of profiles; raises ProfileError."""
    try:
        return project.text(path, code="profile-unreadable")
    except FileNotFoundError as error:  # the file vanished after it was found
        raise unreadable(error, str(path)) from error
    except ProfileError as error:
        raise ProfileError(*(replace(problem, file=str(path)) for problem in error.problems)) from error


def named_text(node: Node, key: str, path: Path, project: Project) -> str:
    """Return the text of the profile that a value of the file at `path` names; raises ProfileError with its place."""
    try:
        return project.text(path.parent / node.raw, code="profile-unreadable", name=node.raw)
    except FileNotFoundError as error:
        message = f"`{key}: {shown(node.raw)}`: the file {shown(str(path.parent / node.raw))} does not exist"
        fix = "the path is relative to the file that names it"
        raise ProfileError(node.problem(str(path), "profile-not-found", message, fix, field=key)) from error
    except ProfileError as error:
        raise located(error, str(path), key, node) from error


def extended_texts(text: str, path: Path, project: Project) -> dict[str, str]:
    """Return the texts of the profiles that this profile extends, by their names."""
    others: dict[str, str] = {}
    file = str(path)
    # Stop at a circle of `extends`. `merged` refuses it later, with the line of the value.
    while (parent := profiles.extended_by(text, file)) is not None and (name := parent.raw) not in others:
        if len(others) == profiles.MAX_EXTENDS:
            raise profiles.extends_too_far(parent, file)
        text = others[name] = named_text(parent, "extends", path, project)
        path, file = path.parent / name, name
    return others


def read_local(
    source: TensorFlow, folder: Callable[[str], Path], file: str, project: Project
) -> tuple[LocalSource, Path | None]:
    """Hash the checkout, and read the patches that a profile names.

    `folder` maps a field (`tensorflow.path`) to the folder to which its path is relative. Returns the source and the
    path of the checkout. Raises ProfileError for a file that is missing, or outside of the project.
    """
    tree = None
    if source.path is not None:
        with _named_by(file, "tensorflow.path"):
            base, inside = project.resolve(folder("tensorflow.path") / source.path, name=source.path, folder=True)
            tree = base / inside
            if not has_configure(tree):
                raise _missing(
                    f"`{source.path}` is not a TensorFlow source: {tree} has no regular file `configure`",
                    "give the root of a TensorFlow checkout, relative to the file that names it",
                )
    patches: dict[str, bytes] = {}
    for index, name in enumerate(source.patches):
        field = f"tensorflow.patches[{index}]"
        with _named_by(file, field):
            try:
                patches[name] = project.patch(folder(field) / name, name=name)
            except FileNotFoundError as error:
                fix = "the path is relative to the profile that names it, or with `--set` to the current folder"
                message = f"the patch `{name}` does not exist"
                raise _missing(message, fix) from error
            if sum(map(len, patches.values())) > _MOST_PATCHES:
                message = f"the patches have more than {_MOST_PATCHES:,} bytes together"
                raise ProfileError.of("file-too-large", message, "use a repository or an archive with the patches")
    with _named_by(file, "tensorflow.path"):
        digest, real = (tree_hash(tree), str(tree.resolve())) if tree else (None, "")
        return LocalSource(tree=digest, folder=real, patches=patches), tree


@contextmanager
def _named_by(file: str, field: str) -> Iterator[None]:
    """Refuse a file, and report the field that names the file."""
    try:
        yield
    except ProfileError as error:
        raise located(error, file, field) from error


def _missing(message: str, fix: str) -> ProfileError:
    return ProfileError.of("source-missing", message, fix)
