"""Combine a profile with the tables into a `Resolution`: every value of a build, with its source and its reason.

The tables have all versions, vendors and releases; this code has none. The error for an impossible or untested
combination lists all reasons.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from tfdock.errors import Problem
from tfdock.knowledge import fits
from tfdock.knowledge.contract import Contract, MissingFact, filled, version_facts
from tfdock.knowledge.evidence_rows import Edit, spans
from tfdock.knowledge.gpu_rows import Fork, is_in_repository
from tfdock.knowledge.image_rows import ArchiveRow, ImageRow, Interpreter
from tfdock.knowledge.release_rows import Release, applies
from tfdock.knowledge.rows import Accelerator
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.profile.profile import Debug, Profile, Verify
from tfdock.profile.yaml_nodes import Node
from tfdock.resolve.accelerator import accelerator_of, devices_of
from tfdock.resolve.grades import Reports
from tfdock.resolve.naming import WheelNameParts
from tfdock.resolve.question import LocalSource, Notes, Question, TrialRefused, by_place, sentences
from tfdock.resolve.tools import (
    Bases,
    asked_configs,
    bazel_of,
    check_configs,
    check_features,
    check_flags,
    check_native,
    host_compiler_of,
    packaged,
)
from tfdock.types import BuildId, Choice, ImageRef, Source, Version, same_minor
from tfdock.wheel.identity import file_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """All decisions about a build before it is planned.

    `edits` change the source to prevent known failures. `runtime` is the image in which the wheel is tried, from the
    profile or the knowledge base; None if no image is known. `untested` are combinations without a known test that
    the profile allows; `warnings` are limits of a working build.
    """

    version: Version
    release: Release
    python: str
    accelerator: Accelerator
    components: Mapping[str, str]
    targets: tuple[str, ...]
    gpu_compiler: str
    gpu_compiler_version: str
    host_compiler: str
    xla: bool
    optimize: tuple[str, ...]
    debug: Debug | None
    base: ImageRef
    image: ImageRow
    interpreter: Interpreter | None
    archives: tuple[ArchiveRow, ...]
    paths: Mapping[str, str]
    bazel: str
    cachebusters: tuple[str, ...]
    source: Source
    edits: tuple[Edit, ...]
    environment: Mapping[str, str]
    of_repositories: tuple[str, ...]
    flags: tuple[str, ...]
    startup: tuple[str, ...]
    package: tuple[str, ...]
    wheel_name: str
    local_version: str | None
    platform: str | None
    runtime: ImageRef | None
    runtime_asked: bool
    verify: Verify
    build_id: BuildId
    choices: tuple[Choice, ...]
    untested: tuple[Problem, ...]
    warnings: tuple[Problem, ...]

    @property
    def grade(self) -> Choice:
        """The grade of such builds: `built`, `tested`, `untested` or `known-to-fail`, and by whom."""
        return next(choice for choice in self.choices if choice.field == "evidence")

    @property
    def unverified(self) -> tuple[str, ...]:
        """Unchecked facts about the base image, from the image's row; empty if the profile names the image."""
        doubt, (base,) = self.image.unverified, (choice for choice in self.choices if choice.field == "base")
        if not doubt or base.source == "profile":
            return ()
        return (f"{self.base}: {doubt if isinstance(doubt, str) else 'its existence was not checked'}",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolver:
    """Resolves a profile and changed versions of it, all with the same knowledge, machine and files.

    `document` has the line of each field, for problems. `local_gpus` name this machine's GPUs (`local_words`), for
    `gpus: local`. `allow_untested` is the command-line option, which works like the profile's field. `describe`
    writes the changes of suggestions in another form than lines of a profile.
    """

    document: Node
    knowledge: KnowledgeBase
    file: str
    local: LocalSource | None = None
    local_gpus: Sequence[str] = ()
    machine: str = "x86_64"
    allow_untested: bool = False
    describe: Callable[[Mapping[str, object], Profile], str] | None = None

    def resolve(self, profile: Profile) -> Resolution:
        """Return the resolution; raises Incompatible with every problem, without suggestions."""
        return _Decision(self._question(profile, trial=False)).resolution()

    def attempt(self, profile: Profile) -> Resolution | None:
        """Return the resolution; None for a refused profile. Faster than `resolve`, which collects the reasons."""
        try:
            return _Decision(self._question(profile, trial=True)).resolution()
        except TrialRefused:
            return None

    def _may_be_edited(self, profile: Profile) -> bool:
        """Return whether the source may have fixed a failure of its release; a tag of TensorFlow itself has not."""
        source, upstream = profile.source, {row.repository for row in self.knowledge.releases.values()}
        of_tensorflow = not source.git or any(is_in_repository(source.git, one) for one in upstream)
        return source.is_own and not (source.is_tag and of_tensorflow)

    def _question(self, profile: Profile, *, trial: bool) -> Question:
        allowed = self.allow_untested or profile.allow_untested
        return Question(
            profile=profile,
            knowledge=self.knowledge,
            notes=Notes(
                document=self.document,
                file=self.file,
                allow_untested=allowed,
                allow_failing=self._may_be_edited(profile) or bool(profile.allow_failing),
                trial=trial,
            ),
            local=self.local or LocalSource(),
            local_gpus=self.local_gpus,
            machine=self.machine,
        )


class _Decision:
    """An unfinished resolution: each step reads the results of earlier steps and adds choices or problems."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self.profile = question.profile
        self.knowledge = question.knowledge
        self.notes = question.notes
        # The other steps depend on these.
        self.release, self.version = self._release()
        self._check_python()
        accelerator = accelerator_of(question)
        self.fork, self.release = self._tree(accelerator)
        self.chosen = devices_of(question, self.release, accelerator)
        self.host_compiler = host_compiler_of(question, self.chosen)

    def resolution(self) -> Resolution:
        """Return the resolution; raises Incompatible, or TrialRefused in a trial."""
        release, chosen = self.release, self.chosen
        bazel = bazel_of(self.question, release)
        check_configs(self.question, chosen, self.host_compiler.name)
        check_flags(self.question, release)
        check_native(self.question)
        self._check_source_archives()
        optimize = self._optimize()
        reports = self._reports()
        self._doubt_repository(reports)
        refused = {problem.field for problem in self.notes.problems}
        # Report only one reason for each field.
        failures = [found for found in reports.failures(self._places()) if found.path not in refused]
        known = {failure.path for failure in failures}
        # A known failure replaces the doubt about the same field.
        self.notes.settle(lambda doubt: None if doubt.path in known else reports.judged(doubt))
        for finding in failures:
            self.notes.find(finding)
        # Report all problems up to here at once. Search for an image only if the build is possible.
        self.notes.stop_if_refused()
        bases = Bases(question=self.question, chosen=chosen, reports=reports, host_compiler=self.host_compiler)
        python, image = self._python_and_image(bases, bazel)
        # The versions that rows may use as placeholders.
        versions = version_facts({"python": python, "version": str(self.version), **chosen.components})
        try:
            base = self._base(versions, image)
            paths = self._paths(versions, image, base)
        except MissingFact as missing:
            self._stop_at_placeholder(missing)
        for finding in bases.findings(image, str(base)):
            self.notes.find(finding)
        self.notes.stop_if_refused()
        self._check_image_versions(image, base)
        source = self._source()
        held = bases.parts(image, str(base))
        edits = reports.edits(held)
        for edit in edits:
            mended = self.knowledge.evidence[edit.mends]
            why = sentences(f"mends `{mended.failed_with or mended.note}`", f"reported in {mended.at}")
            self.notes.choose(f"edit {edit.edit}", edit.file, "edits.yaml", why)
        own_name = self.profile.wheel.name
        wheel_name = own_name or release.wheel.name
        self.notes.choose_asked("wheel.name", wheel_name, own_name is not None, "the requirement of `pip install`")
        own_xla = "xla" in self.profile.model_fields_set  # a field with its default value is still a choice
        self.notes.choose_asked("xla", str(self.profile.xla).lower(), own_xla, "TensorFlow's own default")
        debug = self.profile.debugging
        self.notes.choose_asked("debug", debug.mode if debug else "off", debug is not None, "optimised, no symbols")
        names, own_version = self._names(python, source, wheel_name), self.profile.wheel.local_version
        local_version = own_version or names.local_version
        why = "distinguishes the wheel from the official wheel"
        self.notes.choose_asked("wheel.local_version", local_version or "none", own_version is not None, why)
        runtime = self._runtime(python)
        self.notes.choices.append(reports.grade(edits, untested=bool(self.notes.untested)))
        if self.profile.allow_failing:
            self.notes.choose("allow_failing", self.profile.allow_failing, "profile", "as asked")
        if self.notes.allow_untested:
            who = "profile" if self.profile.allow_untested else "command line"
            self.notes.choose("allow_untested", "true", who, "as asked")
        facts = self._facts(versions, paths, held, optimize) | {"sysroot": self._sysroot(image)[1]}
        contract = Contract(self.knowledge, release, facts)
        try:
            environment, flags, package = contract.environment(), self._flags(contract), contract.package()
        except MissingFact as missing:
            # First report the field that requested the tool. An error in a row gets another message below.
            self._stop_without_tool(missing, image, base)
            self._stop_at_placeholder(missing)
        self.notes.stop_if_refused()
        platform = self._platform(image, paths.get(self.host_compiler.name, ""), environment, held)
        # Users look for these two choices first; the other choices keep their order.
        choices = sorted(self.notes.choices, key=lambda choice: choice.field not in ("tensorflow", "python"))
        return Resolution(
            version=self.version,
            release=release,
            python=python,
            accelerator=chosen.accelerator,
            components=chosen.components,
            targets=chosen.target_names,
            gpu_compiler=chosen.compiler,
            gpu_compiler_version=chosen.compiler_version,
            host_compiler=self.host_compiler.name,
            xla=self.profile.xla,
            optimize=optimize,
            debug=debug,
            base=base,
            image=image,
            interpreter=self.knowledge.interpreters.get(python) if image.interpreter else None,
            archives=fits.archives_of(self.knowledge, image, chosen.components) or (),
            paths=paths,
            bazel=bazel,
            cachebusters=tuple(row.variable for row in self.knowledge.cachebusters),
            source=source,
            edits=edits,
            environment=environment,
            of_repositories=contract.of_repositories(bazel),
            flags=flags,
            startup=tuple(self.profile.bazel.startup),
            package=package,
            wheel_name=wheel_name,
            local_version=local_version,
            platform=platform,
            runtime=runtime,
            runtime_asked=self.profile.runtime is not None,
            verify=self.profile.verify,
            build_id=names.build_id,
            choices=tuple(choices),
            untested=tuple(by_place(self.notes.untested)),
            warnings=tuple(self.notes.warnings),
        )

    # --- release and Python ----------------------------------------

    def _release(self) -> tuple[Release, Version]:
        source = self.profile.source
        asked = Version(source.release)
        path = self.profile.release_field
        release = self.knowledge.releases.get(str(asked.minor))
        if release is None:
            known = sorted(self.knowledge.releases, key=Version)
            newest = self.knowledge.releases[known[-1]].newest
            by_rules = f'`tensorflow: {{release: "{newest}", ref: {_ref(asked)}}}` builds it by the rules of {newest}'
            message = f"TensorFlow {asked} is not known"
            why = f"known releases: {known[0]} to {known[-1]}; tfdock builds no older ones"
            fix = by_rules if Version(newest) < asked else "add a row to a folder given by `--knowledge`"
            self.notes.stop("release-unknown", path, message, why=why, fix=fix)
        # A custom source may have a version that was never released.
        official = not (source.git or source.archive or source.path or source.ref)
        if len(asked.parts) < 3 and release.patches:
            row = f"releases.yaml {release.release}"
            self.notes.choose("tensorflow", release.newest, row, "newest patch release of the minor")
            return release, Version(release.newest)
        if official and release.patches and str(asked) not in release.patches:
            message = f"TensorFlow {asked} is not a known release"
            why = f"releases of {release.release}: {', '.join(release.patches)}"
            ref = f'`tensorflow: {{release: "{release.newest}", ref: {_ref(asked)}}}`'
            fix = f"name its tag: {ref}, or the branch `r{release.release}` as `ref`"
            self.notes.refuse("release-unknown", path, message, why=why, fix=fix)
        self.notes.choose("tensorflow", asked, "profile", "as asked")
        return release, asked

    def _check_python(self) -> None:
        asked, release = self.profile.python, self.release
        if asked is None or asked in release.pythons:
            return
        message = f"TensorFlow {release.release} is not built for Python {asked}"
        if release.pythons_closed:
            why = f"its build downloads Python, and has requirements for {', '.join(release.pythons)} only"
            self.notes.refuse("python-unsupported", "python", message, why=why)
        else:
            why = f"it is built for {', '.join(release.pythons)}"
            self.notes.doubt("python-unsupported", "python", message, why=why, part="python")

    def _tree(self, accelerator: Accelerator) -> tuple[Fork | None, Release]:
        """Return the fork and the release's row for its tree; None for TensorFlow's own or an unknown source."""
        fork, asked = self.knowledge.fork(self.release, accelerator.accelerator), self.profile.source
        # The origin of a checkout's tree is not known.
        address = asked.git or asked.archive
        if fork is None or (address and not fork.has(address)):
            return None, self.knowledge.own_releases[self.release.release]
        return fork, self.release

    def _doubt_repository(self, reports: Reports) -> None:
        """Record a doubt about a repository that is not the fork in the tables, unless somebody built it."""
        accelerator = self.chosen.accelerator.accelerator
        known = self.knowledge.fork(self.release, accelerator)
        if known and not self.fork and not reports.is_built:
            title = self.chosen.title(accelerator)
            field = "archive" if self.profile.source.archive else "git"
            message = f"{getattr(self.profile.source, field)} is not known to be built for {title}"
            why = f"all known facts about TensorFlow {self.release.release} for {title} are about {known.git}"
            self.notes.doubt("component-untested", f"tensorflow.{field}", message, why=why)

    def _reports(self) -> Reports:
        """Return the reports about such builds. A tool that was not requested has no version in the result."""
        release, chosen, fork, accelerator = self.release, self.chosen, self.fork, self.chosen.accelerator
        # A repository without a report is probably a copy of TensorFlow's own.
        forks = {row.fork for row in self.knowledge.reports_on(release.release) if row.fork}
        address = (fork.git if fork else self.profile.source.git or self.profile.source.archive) or ""
        built = (name for name in forks if is_in_repository(address, f"https://github.com/{name}"))
        host, toolkit = self.host_compiler, chosen.compiler_version
        bazel = self.profile.bazel
        configs = [f"--config={name}" for name in bazel.configs]
        xla = ["xla"] if self.profile.xla else []
        facts = {
            **chosen.components,
            "release": release.release,
            "fork": next(built, fork.git.split("/", 3)[3] if fork else ""),
            "version": str(self.version),
            "accelerator": accelerator.accelerator,
            "toolkit": chosen.accelerator.toolkit,
            "machine": self.question.machine,
            "python": self.profile.python or "",
            "compiler": f"{chosen.compiler} {toolkit}".strip() if toolkit[:1].isdigit() else chosen.compiler,
            "host_compiler": f"{host.name} {host.version or ''}".strip(),
            "bazel": self.profile.asked_bazel[0],
            "options": "\n".join((*configs, *bazel.flags, *bazel.copts, *self._cpu_flags, *xla)),
        }
        own = (release.gpu_compiler or "") if chosen.compiler else ""
        beside = release.host_compilers.get(own or accelerator.accelerator)
        tools = {"compiler": own, "host_compiler": beside or next(iter(release.compilers), host.name)}
        titles = {**accelerator.titles, "bazel": "Bazel", "host_compiler": "C++ compiler"}
        # A fork may already contain the fixes, as a user's own source may.
        mends = self.profile.edits == "all" if fork else self.profile.mends_source
        edits = self.knowledge.edits if mends else ()
        return Reports(self.knowledge, facts, tools, titles, edits)

    def _places(self) -> dict[str, str]:
        """Return part -> the field that asks for it; the empty part is the release."""
        asked = {name: self.chosen.place(name) for name in self.chosen.asked}
        asked |= {name: name for name in ("compiler", "host_compiler") if getattr(self.profile, name)}
        asked |= {"bazel": place} if (place := self.profile.asked_bazel[1]) else {}
        asked |= {f"--config={name}": path for path, name in asked_configs(self.question)}
        asked |= {flag: f"bazel.copts[{index}]" for index, flag in enumerate(self.profile.bazel.copts)}
        asked |= dict.fromkeys(self._cpu_flags, "optimize")
        return asked | {"": self.profile.release_field}

    def _python_and_image(self, bases: Bases, bazel: str) -> tuple[str, ImageRow]:
        """Choose the profile's Python; else the newest Python of an image; else a Python that an image compiles."""
        release = self.release
        rows = [self._with_compiler(row, self._base_name(row)) for row in self._images()]
        # If the build is known to fail in all images, report the reason of the first.
        rows = [row for row in rows if not bases.fails_in(row, self._base_name(row))] or rows
        asked = self.profile.python
        pythons = [asked] if asked else sorted(release.pythons, key=Version, reverse=True)
        held = self._pythons_of_base()
        # The Python of a custom base image is fixed.
        pythons.sort(key=lambda python: python not in held)
        fitting = [(python, row) for python in pythons for row in rows if self._has(row, python)]
        # In a base without the Python that was asked for, Python must be compiled.
        compiles = bool(held and asked) and asked not in held
        # Prefer images with the requested compiler, then images with the Python, then images with known versions.
        fitting.sort(
            key=lambda pair: (self._lacks_compiler(pair[1]), pair[1].interpreter != compiles, bool(pair[1].unknown))
        )
        python, image = fitting[0] if fitting else (pythons[0], None)
        if image is None and self.profile.base_image and rows:
            image = self._for_other_python(rows, python)
        if image is None:
            self._stop_without_image(python, rows)
        if held and python not in held and (self.profile.provides or not image.interpreter):
            message = f"`base` {self.profile.base_image} has Python {' and '.join(held)}, not {python}"
            why = f"TensorFlow {release.release} is built for Python {', '.join(release.pythons)}"
            fix = "use a base image with this Python, or set `python` to a version in the base image"
            self.notes.refuse("image-without-tool", "python" if asked else "base", message, why=why, fix=fix)
        provides = self.profile.provides
        own = provides is not None and bool(held)
        source = "profile" if asked or own else f"releases.yaml {release.release}"
        why = "the base image has this version" if own else "newest Python the release is built for"
        why += "" if asked or own or python == pythons[0] else " that a base image has"
        self.notes.choose("python", python, source, "as asked" if asked else why)
        if provides is not None:
            image = self._provided(image, provides, bazel)
        return python, image

    def _for_other_python(self, rows: Sequence[ImageRow], python: str) -> ImageRow:
        """Return a row for the profile's own base, with the requirements of a Python that none of its rows has."""
        can_compile = python in self.knowledge.interpreters and python not in self._pythons_of_base()
        images = [row for row in self.knowledge.images if row.machine == self.question.machine]
        others = [row for row in images if self._serves(row)] if can_compile else []

        def fitness(row: ImageRow) -> tuple[bool, bool, Version]:
            # Python 2 has other paths and packages than Python 3, and an old distribution has old packages.
            majors = {held.partition(".")[0] for held in row.pythons}
            like, _ = fits.distribution_of(self.knowledge, row.image)
            glibc = Version(like.holds.get("glibc", "") if like else "")
            return bool(row.interpreter) is can_compile, python.partition(".")[0] in majors, glibc

        row = max((*rows, *others), key=fitness)
        alike = [one for one in images if one.interpreter == row.interpreter and python in one.pythons]
        exact = next((one.pip for one in alike if applies(self.release, one.releases)), None)
        # The release has no such Python, but perhaps a fork: the first row with this Python has packages for it.
        first = next((one.pip for one in images if python in one.pythons and one.pip), ())
        later = {pin.partition("==")[0]: pin for pin in first}
        pins = exact or tuple(later.get(pin.partition("==")[0], pin) for pin in row.pip)
        # The base may be newer than the row's distribution, without its old compilers.
        base, whole = fits.distribution_of(self.knowledge, self.profile.base_image or "")
        gccs = base.compilers.get("gcc", ()) if base and whole else ()
        kept = [name for name in row.packages if not gccs or name.removeprefix("g++-") in (name, *gccs)]
        return row.model_copy(update={"pip": pins, "packages": tuple(kept)})

    def _base_name(self, row: ImageRow) -> str:
        """Return the profile's own base image, or the name of an image as far as the components decide it."""
        return self.profile.base_image or fits.name_with(row, self.chosen.components)

    def _pythons_of_base(self) -> tuple[str, ...]:
        """Return the Pythons of the profile's own base; none if they are unknown, or Bazel downloads Python."""
        if self.release.pythons_closed:
            return ()
        if self.profile.provides is not None:
            return tuple(filter(None, [self.profile.provides.get("python")]))
        row, exact = fits.distribution_of(self.knowledge, self.profile.base_image or "")
        return row.pythons if row and exact else ()

    def _provided(self, image: ImageRow, provides: Mapping[str, str], bazel: str) -> ImageRow:
        """Return the row of a base image with all build tools: like the known row, but nothing is installed."""
        base, host = self.profile.base_image, self.host_compiler
        known = {"python", "bazel", *(name for name, _ in self.knowledge.host_compilers)}
        needed = ("bazel", "python") if host.path else (host.name, "bazel", "python")
        lacking = [tool for tool in needed if tool not in provides]
        wanted = {"bazel": bazel, host.name: host.version}
        for tool, version in provides.items():
            if tool not in known:
                message, fix = f"`provides` may name {', '.join(sorted(known))}, but not {tool}", "remove it"
            elif tool == "bazel" and (len(Version(version).parts) < 3 or not version.replace(".", "").isdigit()):
                message = f"`provides` says bazel {version}, but Bazel needs its full version"
                fix = "write it as `7.4.1`"
            elif (asked := wanted.get(tool)) and not Version(version).matches(Version(asked)):
                message, fix = f"{base} provides {tool} {version}, not {asked}", f"use an image with {tool} {asked}"
            else:
                continue
            self.notes.refuse("image-without-tool", "base.provides", message, fix=fix)
        if lacking:
            message = f"`provides` names no {' and no '.join(lacking)}, and tfdock installs nothing in {base}"
            fix = "write its version there if the image has it"
            self.notes.refuse("image-without-tool", "base.provides", message, fix=fix)
        self.notes.choose("base.provides", ", ".join(map(" ".join, provides.items())), "profile", "as asked")
        tools = ("python", "gcc", "clang")
        paths = {name: path for name, path in image.paths.items() if name.partition("-")[0] not in tools}
        paths |= {tool: f"/usr/bin/{tool}" for tool in provides if tool != "bazel"}
        paths |= {"python": f"/usr/bin/python{provides.get('python', '')}"}
        nothing = {"packages": (), "pip": (), "archives": (), "interpreter": False, "holds": {}, "unknown": ()}
        return image.model_copy(update={**nothing, "template": "own", "compilers": provides, "paths": paths})

    def _has(self, row: ImageRow, python: str) -> bool:
        """Return whether an image has a Python, or the Python can be installed."""
        listed = not row.pythons or python in row.pythons
        return listed and (not row.interpreter or python in self.knowledge.interpreters)

    def _serves(self, row: ImageRow) -> bool:
        chosen = self.chosen
        return fits.serves(self.knowledge, row, chosen.release, chosen.accelerator, chosen.components)

    def _images(self) -> list[ImageRow]:
        """Return the rows that fit, whatever the Python."""
        host = self.host_compiler
        rows = [
            row
            for row in self.knowledge.images
            if row.machine == self.question.machine
            # A row with `compilers` is only for profiles that request such a compiler version.
            and all(
                part == host.name and host.version and spans(want, host.version)
                for part, want in row.compilers.items()
            )
        ]
        fitting = [row for row in rows if self._serves(row)]
        if self.profile.base_image:
            # A custom base image may have components that no known image has.
            lacking: dict[str, object] = {"components": {}, "archives": (), "holds": {}}
            fitting = fitting or [own for row in rows if self._serves(own := row.model_copy(update=lacking))]
            like, exact = fits.distribution_of(self.knowledge, self.profile.base_image)
            # The row for images of a plain distribution lists the packages to install.
            same = [row for row in fitting if exact and fits.distribution_of(self.knowledge, row.image)[0] is like]
            return same or fitting
        return [row for row in fitting if not fits.missing_tag(self.knowledge, self._base_name(row))]

    def _stop_without_image(self, python: str, rows: Sequence[ImageRow]) -> NoReturn:
        machine, chosen, kind = self.question.machine, self.chosen, self.chosen.accelerator.accelerator
        known = sorted({row.machine for row in self.knowledge.images})
        if machine not in known:
            message, why = f"no base image is known for {machine} machines", f"known for {', '.join(known)}"
            fix = f"add a row with `machine: {machine}` to `images.yaml` in a `--knowledge` folder"
            self.notes.stop("machine-unsupported", "base", message, why=why, fix=fix)
        pythons = sorted({version for row in rows for version in row.pythons}, key=Version)
        gone = [
            f"{name} does not exist: {self.knowledge.cited('image_tags', missing)}"
            for image in self.knowledge.images
            if self._serves(image)
            and (missing := fits.missing_tag(self.knowledge, name := fits.name_with(image, chosen.components)))
        ]
        parts = [f"{chosen.title(name)} {value}" for name, value in chosen.components.items()]
        wanted = ", ".join([f"TensorFlow {chosen.release.release}", f"Python {python}", *(parts or [kind])])
        fix = "add a row to `images.yaml` in a `--knowledge` folder"
        # An image of one's own takes the packages and paths of a row for the release.
        alike = any(
            applies(chosen.release, one.releases) and (not one.accelerators or kind in one.accelerators)
            for one in self.knowledge.images
        )
        message = "`images.yaml` has no row" if self.profile.base else "no base image is known"
        why = f"there are images with Python {', '.join(pythons)}" if pythons else "".join(gone[:1])
        fix = f"name an image of your own, `base: …`, or {fix}" if alike and not self.profile.base else fix
        self.notes.stop("image-unknown", "base", f"{message} for {wanted}", why=why, fix=fix)

    def _stop_at_placeholder(self, missing: MissingFact) -> NoReturn:
        message = f"the knowledge row `{missing.row}` needs {missing.fact}, which this build does not have"
        fix = "correct the row, limit it by `when:`, or add the path or component to the image's or release's row"
        self.notes.stop("knowledge-placeholder", "tensorflow", message, fix=fix)

    def _stop_without_tool(self, missing: MissingFact, image: ImageRow, base: ImageRef) -> None:
        """Stop if the base image lacks a tool: blame the field that requested it, not the row that reads its path."""
        tool, _, path = missing.fact.strip("'").rpartition("_")
        if path != "path" or tool in image.paths:
            return
        fields = {name: getattr(self.profile, name) for name in ("host_compiler", "compiler", "python")}
        wants = [field for field, value in fields.items() if tool in (field, value, getattr(value, "name", None))]
        # An image for another toolkit version may lack the compiler, so the field of this version may be the cause.
        parts = (tool, self.chosen.accelerator.toolkit)
        wants += [self.chosen.place(name) for name in parts if name in self.chosen.asked]
        message = f"{self._image_words()} has no {tool}"
        why = f"{base}; the build needs its path (`{missing.row}`)"
        like, whole = fits.distribution_of(self.knowledge, str(base))
        packaged = like.holds.get(tool) if like and whole else None
        wanted = self.release.compilers.get(tool)
        if like and packaged and wanted and not same_minor(packaged, wanted):
            message += f" {wanted}"
            why += f"; {like.distribution} packages {tool} {packaged}"
        row = "add a row to `images.yaml` in a `--knowledge` folder"
        fix = f"for an image that has it, name its tools (`base: {{image: …, provides: …}}`), or {row}"
        self.notes.stop("image-without-tool", wants[0] if wants else "base", message, why=why, fix=fix)

    def _image_words(self) -> str:
        return "your base image" if self.profile.base_image else "the known base image for this build"

    # --- base image and source ----------------------------------------

    def _base(self, versions: Mapping[str, str], image: ImageRow) -> ImageRef:
        if self.profile.base_image:
            self.notes.choose("base", self.profile.base_image, "profile", "as asked")
            return ImageRef.parse(self.profile.base_image)
        reference = ImageRef.parse(filled(image.image, versions, f"images.yaml {image.image}"))
        doubt = "; its existence was not checked" if image.unverified else ""
        self.notes.choose("base", reference, "images.yaml", f"the known image for this release and Python{doubt}")
        return reference

    def _check_source_archives(self) -> None:
        """Record a doubt about a release whose source downloads an archive that no known server has any more."""
        for row in fits.source_archives_of(self.knowledge, self.release):
            if not row.urls:
                release = f"TensorFlow {self.release.release}"
                message = f"{release} downloads {row.archive}, and no server is known to have it"
                why = f"{row.original} has not worked since {row.gone}; the archive's sha256 is {row.sha256}"
                self.notes.doubt("source-archive-lost", self.profile.release_field, message, why=why)

    def _check_image_versions(self, image: ImageRow, base: ImageRef) -> None:
        """Refuse another major version than the image's; warn about another minor; doubt an unknown version."""
        if self.profile.base_image:
            return  # the image build checks the image's versions
        chosen, code = self.chosen, "image-holds-other"
        for name, held in image.holds.items():
            asked = chosen.components.get(name, "")
            if asked and not Version(held).matches(Version(asked)):
                message = f"the base image holds {chosen.title(name)} {held}, not {asked}"
                why = f"{base} is the known image for this build; the build stops if the minor version differs"
                weight = "warning" if Version(held).parts[0] == Version(asked).parts[0] else "error"
                self.notes.refuse(code, chosen.place(name), message, why=why, weight=weight)
        for name in image.unknown:
            title, planned = chosen.title(name), chosen.components.get(name, "")
            message = f"the version of {title} in the base image is not known; the plan assumes {planned}"
            why = f"{base} can change; the build stops if the image has another minor version"
            fix = f"name an image with {title} {planned}: `base: …`"
            # If a profile requests a version, the build must use it.
            weight = "doubt" if name in chosen.asked else "warning"
            self.notes.refuse(code, chosen.place(name), message, why=why, fix=fix, weight=weight)

    def _paths(self, versions: Mapping[str, str], image: ImageRow, base: ImageRef) -> dict[str, str]:
        paths = {name: filled(path, versions, f"images.yaml {path}") for name, path in image.paths.items()}
        # The profile's own path is used, even if the image's row has another path.
        if self.host_compiler.path:
            return paths | {self.host_compiler.name: self.host_compiler.path}
        name, version = self._asked_compiler
        return paths | ({name: self._path_of(name, version, base, paths)} if name else {})

    @property
    def _asked_compiler(self) -> tuple[str, str]:
        """The compiler and its version that the base image has to have; empty if any version will do."""
        host = self.host_compiler
        if host.path or not host.version or self.profile.provides is not None:
            return "", ""
        return host.name, host.version

    def _lacks_compiler(self, image: ImageRow) -> bool:
        """Return whether an image's compilers are known and the requested compiler is not among them."""
        name, asked = self._asked_compiler
        held = _versions_of(name, image.paths)
        return bool(name and held) and not any(same_minor(version, asked) for version in held)

    def _with_compiler(self, image: ImageRow, base: str) -> ImageRow:
        """Return the image with the compiler version that is asked for, if only its distribution's archive has it."""
        name, asked = self._asked_compiler
        like, exact = fits.distribution_of(self.knowledge, base)
        offered = like.compilers.get(name, ()) if like and exact else ()
        version = next((one for one in offered if same_minor(one, asked)), "")
        row = packaged(self.knowledge, name, asked) if version else None
        if not (row and row.package) or any(same_minor(held, asked) for held in _versions_of(name, image.paths)):
            return image
        update = {
            "packages": tuple(sorted({*image.packages, row.with_version(row.package, version)})),
            "paths": {**image.paths, f"{name}-{version}": row.with_version(row.path, version)},
        }
        return image.model_copy(update=update)

    def _path_of(self, name: str, version: str, base: ImageRef, paths: Mapping[str, str]) -> str:
        """Return the path of a compiler version in an image: by its version, or the release's own compiler.

        If the image's versions are unknown, or the profile names the image, the path of Debian and Ubuntu is assumed.
        Empty if there is no such image; the profile is then refused.
        """
        listed = _versions_of(name, paths)
        own = [path for held, path in listed.items() if same_minor(held, version)]
        tested, package = self.release.compilers.get(name), packaged(self.knowledge, name, version)
        if own:
            return own[0]
        # If the row names a compiler without a version, this is the release's own compiler.
        if not listed and name in paths and tested and same_minor(tested, version):
            return paths[name]
        if package and (not listed or self.profile.base_image):
            return package.with_version(package.path, version)
        message = f"{self._image_words()} has no {name} {version}"
        why = f"{base} has {name} {', '.join(listed)}" if listed else ""
        fix = "name its path in an image of your own: `base:` and `host_compiler: {name: …, path: …}`"
        self.notes.refuse("image-without-tool", "host_compiler", message, why=why, fix=fix)
        return ""

    def _source(self) -> Source:
        asked, release, fork, version = self.profile.source, self.release, self.fork, str(self.version)
        patches = dict(self.question.local.patches)
        if asked.archive:
            self.notes.choose("source", asked.archive, "profile", "archive, pinned by its sha256")
            return Source(kind="archive", location=asked.archive, sha256=asked.sha256, patches=patches)
        if asked.path:
            self.notes.choose("source", asked.path, "profile", "local checkout, identified by the hash of its tree")
            local = self.question.local
            return Source(kind="path", location=asked.path, sha256=local.tree, patches=patches, folder=local.folder)
        if fork:
            row, commits = f"forks.yaml {release.release}", {}
            own, tag = fork.git, fork.ref.format(release=release.release)
        else:
            row, commits = f"releases.yaml {release.release}", release.commits
            own, tag = release.repository, release.tag.format_map({"version": version})
        # Try a repeated ref only once.
        refs = tuple(dict.fromkeys((asked.ref or tag, *asked.fallback)))
        # Another spelling names the same repository.
        location = own if fork else asked.git or own
        # Only the release's own tag in its own repository has a known commit.
        commit = commits.get(version) if refs == (tag,) and location == own else None
        fixed = f"{'the branch' if fork else 'the tag'} may move: only a commit is fixed"
        if commit or re.fullmatch(r"[0-9a-f]{40}", refs[0]):
            fixed = f"commit {commit[:12]}" if commit else "one commit"
        origin = "profile" if asked.git or asked.ref or asked.fallback else row
        self.notes.choose("source", f"{location} {' then '.join(refs)}", origin, fixed)
        return Source(
            kind="git",
            location=location,
            refs=refs,
            commit=commit,
            leaves_failed_compile=asked.fallback_on == "compile",
            patches=patches,
            # The build may use a fallback, so the source no longer counts as the release.
            official=location == own and refs == (tag,),
        )

    # --- the contract ----------------------------------------

    @property
    def _cpu_flags(self) -> tuple[str, ...]:
        """The compiler's options for the CPU instructions that the profile asks for."""
        asked = self.profile.optimize
        if isinstance(asked, str):
            return ("-march=native",) if asked == "native" else ()
        return tuple(f"-m{name}" for name in asked)

    def _optimize(self) -> tuple[str, ...]:
        optimize = self.profile.optimize
        if optimize == "portable":
            features = (row for row in self.knowledge.cpu_features.values() if row.machine == self.question.machine)
            more = [row.feature for row in features if row.official and applies(self.release, row.official)]
            official = f"the official wheel requires {' and '.join(more)}, and is quicker"
            slower = f"{official}: `optimize: [{', '.join(more)}]`" if more else ""
            reason = sentences("runs on every supported CPU of this architecture", slower)
            self.notes.choose("optimize", "portable", "default", reason)
            return ()
        if isinstance(optimize, list):
            check_features(self.question, optimize)
        self.notes.choose("optimize", " ".join(self._cpu_flags), "profile", "as asked")
        return self._cpu_flags

    def _facts(
        self, versions: Mapping[str, str], paths: Mapping[str, str], base: Mapping[str, str], optimize: Sequence[str]
    ) -> dict[str, str]:
        """Return the facts for conditions (`when:`) and placeholders of the contract's rows.

        `base` are versions that the base image decides. `gcc_major` is set if the C++ compiler's major version is
        known.
        """
        release, chosen, debug = self.release, self.chosen, self.profile.debugging
        accelerator, targets, host = chosen.accelerator, ",".join(chosen.target_names), self.host_compiler
        named = {host.name: host.version} if host.version else {}
        facts = {
            **version_facts({**base, **named}),
            **versions,
            "release": release.release,
            "accelerator": accelerator.accelerator,
            "gpu_compiler": chosen.compiler,
            "host_compiler": host.name,
            "xla": str(self.profile.xla).lower(),
            "xla_digit": str(int(self.profile.xla)),
            "cloud": str(self.profile.cloud).lower(),
            "optimize": self.profile.optimize if isinstance(self.profile.optimize, str) else "custom",
            "optimize_flags": " ".join(optimize),
            "debug": debug.mode if debug else "off",
            "symbols": str(bool(debug and debug.symbols)).lower(),
            "wheel_name": self.profile.wheel.name or release.wheel.name,
            "targets": targets,
            accelerator.target_field: targets,
            # This is a folder in the container, so it is the same on every machine.
            "output": "/tf/staging/raw",
        }
        if accelerator.capabilities:
            facts["capabilities"] = ",".join(fits.written(release, target) for target in chosen.target_names)
        return facts | {f"{name}_path": path for name, path in paths.items()}

    def _flags(self, contract: Contract) -> tuple[str, ...]:
        """Return the contract's flags, then the profile's own: the later of two flags wins.

        The profile's configurations follow the flags of the rows, regardless of their place in the profile.
        """
        bazel, debug = self.profile.bazel, self.profile.debugging
        flags = [*contract.flags([name for _, name in asked_configs(self.question)])]
        rules = debug.per_file if debug else []
        flags += [f"--per_file_copt={rule.files}@{','.join(rule.copts)}" for rule in rules]
        flags += [f"--copt={option}" for option in bazel.copts]
        # Repeated options stay: `-Xclang a -Xclang b` is four options.
        return (*flags, *(flag for flag in bazel.flags if not flag.startswith("--config=")))

    def _names(self, python: str, source: Source, wheel_name: str) -> WheelNameParts:
        cpu, release, chosen = self.profile.optimize, self.release, self.chosen
        return WheelNameParts(
            version=self.version,
            python=python,
            accelerator=chosen.accelerator.accelerator,
            toolkit=chosen.accelerator.toolkit,
            components=tuple(chosen.components.items()),
            targets=chosen.target_names,
            # The release's own compiler is left out: it is no difference, and would make every name longer.
            compiler=chosen.compiler if chosen.compiler != release.gpu_compiler else "",
            cpu=cpu if isinstance(cpu, str) else tuple(cpu),
            debug=self.profile.debugging is not None,
            xla=self.profile.xla,
            cloud=self.profile.cloud,
            source=source,
            project=file_name(wheel_name) if file_name(wheel_name) != file_name(release.wheel.name) else "",
            machine=self.question.machine,
        )

    def _sysroot(self, image: ImageRow) -> tuple[str, str]:
        """Return the platform's glibc and sysroot folder in the image; "" and `none` without a sysroot."""
        asked = self.profile.wheel.platform
        # The sysroots of a custom base image are not known.
        rows = image.sysroots.items() if asked and not self.profile.base_image else ()
        return next((row for row in rows if Version(row[0]) <= _glibc(asked or "")), ("", "none"))

    def _platform(
        self, image: ImageRow, compiler: str, environment: Mapping[str, str], held: Mapping[str, str]
    ) -> str | None:
        """Return the platform tag that the wheel gets.

        Refuse a platform if the C library is known to be too new for it.
        """
        asked = self.profile.wheel.platform
        if not asked:
            return None
        older, folder = self._sysroot(image)
        in_sysroot = compiler.startswith(f"{folder}/") or folder in environment.values()
        glibc = older if in_sysroot else held.get("glibc", "")
        if glibc and Version(glibc) > _glibc(asked):
            message = f"the code is built against glibc {glibc}, and {asked} promises {_glibc(asked)}"
            fix = f"write `manylinux_{glibc.replace('.', '_')}`"
            self.notes.stop("platform-too-old", "wheel.platform", message, fix=fix)
        known = f"built against glibc {glibc}" if glibc else "the glibc that the code is built against is not known"
        self.notes.choose("wheel.platform", asked, "profile", known)
        return f"{asked}_{self.question.machine}"

    def _runtime(self, python: str) -> ImageRef | None:
        """Return the image in which the wheel is tried."""
        asked, row = self.profile.runtime, self.knowledge.runtimes.get(python)
        if asked:
            self.notes.choose("runtime", asked, "profile", "as asked")
            return ImageRef.parse(asked)
        if row is None:
            self.notes.choose("runtime", "none", "runtimes.yaml", f"no clean image with Python {python} is known")
            return None
        doubt = "; this project has not pulled this image" if row.unverified else ""
        self.notes.choose("runtime", row.image, "runtimes.yaml", f"a clean image with this Python{doubt}")
        return ImageRef.parse(row.image)


# --- pure helpers ----------------------------------------


def _versions_of(compiler: str, paths: Mapping[str, str]) -> dict[str, str]:
    """Return the known versions of a compiler in an image, with their paths."""
    return {key.removeprefix(f"{compiler}-"): path for key, path in paths.items() if key.startswith(f"{compiler}-")}


def _ref(version: Version) -> str:
    """Return TensorFlow's tag of a version, or its branch: v2.22.0-rc0 of 2.22.0rc0, r2.22 of 2.22."""
    return f"v{re.sub('-?rc', '-rc', str(version))}" if len(version.parts) > 2 else f"r{version}"


def _glibc(platform: str) -> Version:
    """Return the glibc that a platform tag promises."""
    return Version(platform.removeprefix("manylinux_").replace("_", "."))
