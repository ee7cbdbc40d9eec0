"""The tables of knowledge: what is known about releases, toolkits, compilers, GPUs, images and accelerators.

Knowledge is data: YAML tables in `tfdock/knowledge/`, each row with its source, checked when it is loaded. Folders of
further rows (overlays) are merged over the shipped ones. If the rows of a table have a `KEY`, a row with the key of a
shipped row replaces that row. In the other tables, rows are only added: images, archives and estimates of an overlay
are used first; variables, flags and Bazel options of an overlay come last and override earlier ones. A new release,
toolkit, GPU or accelerator is a new row; no code knows a version number.

Pure.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from tfdock.errors import Problem, ProfileError
from tfdock.knowledge import (
    evidence_rows,
    gpu_rows,
    image_rows,
    program_rows,
    release_rows,
    switch_rows,
    toolkit_rows,
    wheel_rows,
)
from tfdock.knowledge.evidence_rows import ReportedBuild, is_of, spans
from tfdock.knowledge.gpu_rows import Fork, OtherDevice
from tfdock.knowledge.release_rows import Release, applies
from tfdock.knowledge.rows import Accelerator, Row
from tfdock.profile import yaml_nodes
from tfdock.types import Version

# At run time the rows of failures are imported only when needed: see `failures`.
if TYPE_CHECKING:
    from tfdock.knowledge.failure_rows import CameAndWent, ErrorKind, Failure, LogPart, Meaning

_MEMORY = "memory"
_R = TypeVar("_R", bound=Row)


def plain(text: str, file: str) -> object:
    """Return a table's text as plain data; raises ProfileError with the place of invalid YAML."""
    return yaml_nodes.parse(text, file).value


_Only = Callable[[Mapping[str, Any]], bool]  #: A filter for rows that sees their unchecked values.


def _keyed(kind: type[_R]) -> cached_property[dict[Any, _R]]:
    """Return a table as key -> row. The key is the row's `KEY`, a tuple for several fields."""
    table: cached_property[dict[Any, _R]] = cached_property(lambda base: base.keyed(str(table.attrname), kind))
    return table


def _listed(kind: type[_R], name: str = "", *, newest_first: bool = False) -> cached_property[tuple[_R, ...]]:
    """Return a table as its rows in order; of rows with equal keys the last one holds."""

    def listed(base: KnowledgeBase) -> tuple[_R, ...]:
        own = name or str(table.attrname)
        return tuple(base.keyed(own, kind).values()) if kind.KEY else base.rows(own, kind, newest_first=newest_first)

    table = cached_property(listed)
    return table


def _of_logs(kind: str, *, listed: bool = True) -> cached_property[Any]:
    """Return a table of rows about logs. Their module is imported when it is needed: most commands read no log."""

    def of_logs(base: KnowledgeBase) -> object:
        from tfdock.knowledge import failure_rows

        rows = base.keyed(str(table.attrname), getattr(failure_rows, kind))
        return tuple(rows.values()) if listed else rows

    table = cached_property(of_logs)
    return table


class KnowledgeBase:
    """All tables; each is read when it is first needed.

    `texts` maps a table's name to its (file name, YAML text) pairs: first the shipped table, then the overlays.
    `read` is `plain`, or a quicker function with the same results. The texts in rows of files that are `shipped` are
    not checked.
    """

    def __init__(
        self,
        texts: Mapping[str, Sequence[tuple[str, str]]],
        read: Callable[[str, str], object] = plain,
        shipped: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._texts = texts
        self._document = cache(read)
        self._shipped = shipped
        self._named: dict[str, dict[str, str]] = {}
        self._reports: dict[str, tuple[ReportedBuild, ...]] = {}

    evidence = _keyed(ReportedBuild)  #: A report's id -> row.
    edits = _listed(evidence_rows.Edit)  #: Changes of sources that fix known failures.
    variables = _listed(release_rows.Variable)  #: The variables of the contract, in order.
    #: The Bazel flags of the contract, in order; overlay rows come last, so that they win.
    flags = _listed(release_rows.Flag)
    configs = _listed(release_rows.Config)  #: Bazel configurations that tfdock's builds cannot use.
    bazel_options = _listed(release_rows.BazelOption, "bazel")  #: Options of Bazel itself, by purpose and version.
    cachebusters = _listed(release_rows.Cachebuster)  #: Variables that keep images from sharing a cache.
    #: The only options of a profile with which a build may still share the trust domain `release`.
    harmless_options = _listed(release_rows.HarmlessOption)
    toolkits = _keyed(toolkit_rows.Toolkit)  #: (toolkit, minor version) -> row.
    compilers = _keyed(toolkit_rows.Compiler)  #: (compiler, version) -> row.
    host_compilers = _keyed(toolkit_rows.PackagedCompiler)  #: (compiler, first version) -> row.
    drivers = _keyed(toolkit_rows.Driver)  #: (toolkit, major version) -> row.
    architectures = _listed(gpu_rows.Architecture)  #: Generations of GPUs.
    target_reports = _listed(gpu_rows.TargetReport)  #: Reports of users and vendors about targets.
    other_devices = _listed(gpu_rows.OtherDevice)  #: Devices and systems for which no wheel is built here.
    topics = _listed(gpu_rows.OtherDevice)  #: What else questions name: images, add-ons, languages, options.
    published_builds = _listed(gpu_rows.PublishedBuild)  #: Wheels and images by others.
    forks = _listed(Fork)  #: Forks of TensorFlow that use more GPUs.
    libraries = _listed(toolkit_rows.LibraryRow)  #: The GPUs and toolkits that each version of a library supports.
    redistributables = _keyed(toolkit_rows.Redistributable)  #: (component, version) -> row.
    interpreters = _keyed(image_rows.Interpreter)  #: Python minor version -> row.
    #: Archives of components, in order of preference: overlay rows first.
    archives = _listed(image_rows.ArchiveRow, newest_first=True)
    source_archives = _listed(release_rows.SourceArchive)  #: Archives that sources download from dead addresses.
    cpu_features = _keyed(release_rows.CpuFeature)  #: Feature -> row.
    bench_operations = _listed(wheel_rows.BenchOperation)  #: What `bench` times.
    slow_causes = _listed(wheel_rows.SlowCause)  #: Causes of slow programs; a cause that hides another comes first.
    size_limits = _listed(wheel_rows.SizeLimit)  #: The largest wheels that services accept.
    runtimes = _keyed(image_rows.RuntimeRow)  #: Python minor version -> row.
    probes = _listed(wheel_rows.Probe, newest_first=True)  #: How wheels are tried, overlay rows first.
    requirement_limits = _listed(wheel_rows.RequirementLimit)  #: Packages that are too new for some wheels.
    runtime_libraries = _listed(wheel_rows.RuntimeLibrary)  #: Libraries that are opened at run time.
    runtime_toolkits = _listed(toolkit_rows.RuntimeToolkit)  #: The toolkit's programs that releases call at run time.
    estimates = _listed(release_rows.Estimate, newest_first=True)  #: Figures for planning, overlay rows first.
    companions = _listed(wheel_rows.Companion)  #: The parts that come with official wheels.
    generated_kernels = _listed(wheel_rows.GeneratedKernels)  #: The kernels that MLIR generated for official wheels.
    runtime_compilers = _listed(toolkit_rows.RuntimeCompiler)  #: How releases compile at run time.
    wheel_libraries = _listed(wheel_rows.WheelLibrary, newest_first=True)  #: Owners of libraries: overlay rows first.
    ci_actions = _keyed(program_rows.CiAction)  #: An action's name -> row.
    codes = _keyed(program_rows.ErrorCode)  #: A problem's code -> row.
    switches = _keyed(switch_rows.Switch)  #: A switch's name -> row.

    @cached_property
    def failures(self) -> dict[str, Failure]:
        """A failure's id -> row. Builds that are known to fail are failures too, if they show in a log."""
        # Imported here: only commands that read a log need it.
        from tfdock.knowledge.failure_rows import Failure, failures_of

        reported = failures_of(self.evidence.values(), self.titles, self.edits)
        return {**{row.id: row for row in reported}, **self.keyed("failures", Failure)}

    #: A part that logs show -> row.
    log_parts: cached_property[dict[str, LogPart]] = _of_logs("LogPart", listed=False)
    #: The kinds of errors, the most specific kind first.
    error_kinds: cached_property[tuple[ErrorKind, ...]] = _of_logs("ErrorKind")
    #: The names that were added or removed by some version of a part.
    came_and_went: cached_property[tuple[CameAndWent, ...]] = _of_logs("CameAndWent")
    meanings: cached_property[tuple[Meaning, ...]] = _of_logs("Meaning")  #: What values in logs mean.
    gpus = _keyed(gpu_rows.Gpu)  #: Canonical short name -> row.
    images = _listed(image_rows.ImageRow, newest_first=True)  #: Base images, the best first: overlay rows first.
    image_tags = _listed(image_rows.ImageTags)  #: Which tags of a repository exist.
    distributions = _keyed(image_rows.Distribution)  #: Name -> row.
    accelerators = _keyed(Accelerator)  #: Name -> row.

    @cached_property
    def components(self) -> tuple[str, ...]:
        """The components of all accelerators."""
        return tuple(dict.fromkeys(name for row in self.accelerators.values() for name in row.components))

    @cached_property
    def titles(self) -> dict[str, str]:
        """Component -> its name as people write it."""
        return {name: title for row in self.accelerators.values() for name, title in row.titles.items()}

    def reports_on(self, release: str) -> tuple[ReportedBuild, ...]:
        """Return the reported builds of a minor release, newest first. The rows of other releases are not checked."""
        if release not in self._reports:
            rows = self.keyed("evidence", ReportedBuild, lambda values: is_of(values.get("tensorflow"), release))
            newest = sorted(rows.values(), key=lambda row: row.date or "", reverse=True)
            self._reports[release] = tuple(newest)
        return self._reports[release]

    @cached_property
    def version(self) -> str:
        """A hash of the text of every table, including overlays: 16 hexadecimal digits."""
        total = hashlib.sha256()
        # Sorted, so that the hash does not depend on the order in which tables are listed.
        for table in sorted(self._texts):
            for _, text in self._texts[table]:
                # With NULs between them, no text can pass for another table.
                total.update(f"{table}\0{text}\0".encode())
        return total.hexdigest()[:16]

    def sources(self, table: str) -> dict[str, str]:
        """Return the meaning of the short names in the `source` of a table's rows."""
        if table not in self._named:
            documents = [self._document(text, file) for file, text in self._texts.get(table, ())]
            named = [document.get("sources", {}) for document in documents if isinstance(document, dict)]
            self._named[table] = {name: str(text) for explained in named for name, text in explained.items()}
        return self._named[table]

    def cited(self, table: str, row: Row) -> str:
        """Return a row's sources, with their short names explained by the row's table."""
        named = self.sources(table)
        return "; ".join(named.get(name, name) for name in row.sources)

    @cached_property
    def own_releases(self) -> dict[str, Release]:
        """Minor release -> row of TensorFlow's own tree."""
        return self.keyed("releases", Release)

    @cached_property
    def releases(self) -> dict[str, Release]:
        """Minor release -> row.

        The targets include those that only the fork uses, because the fork is built for them.
        """
        found = dict(self.own_releases)
        for name, row in found.items():
            own = {fork.accelerator: fork.targets for fork in self.forks if applies(row, fork.releases)}
            # Without a list, no target is known that the release does not use.
            used = {kind: tuple(dict.fromkeys((*of, *own.get(kind, ())))) for kind, of in row.runtime_targets.items()}
            found[name] = row.model_copy(update={"runtime_targets": used})
        return found

    def on_system(self, device: OtherDevice, system: str = "") -> KnowledgeBase:
        """Return the same knowledge with the official wheels of another system (`macos 10.12`)."""
        rows = dict(self.releases)
        number = next((number for name, number in device.also.items() if name in system.lower()), system)
        # A number without a dot is a version only behind the name of the system: `macbook air 11` has 11 inches.
        own = re.findall(r"\d+\.[\d.]*\d|^\d+$|(?<=macos )(?:1[1-9]|2\d)(?![\d.])", number.lower())
        for name, row in rows.items() if not device.linux else ():
            least = next((version for span, version in device.least.items() if spans(span, name)), "0")
            has = spans(device.official or "", name) and not (own and Version(own[-1]) < Version(least))
            code = next((code for span, code in device.wheels.items() if spans(span, name)), ())
            changed = {
                "pythons": tuple(one for one in row.pythons if has and Version(one) >= Version(device.python_min)),
                "patches": tuple(patch for patch in row.patches if patch not in device.lacking),
                "official_targets": {"cuda": code} if code else {},
                "official_project": row.official_project if code else {},
            }
            rows[name] = row.model_copy(update=changed)
        builds = tuple(row for row in self.published_builds if device.runs.get(row.accelerator) in row.machines)
        return self.with_releases(rows, published_builds=builds)

    def about(self, topic: OtherDevice, version: str | None = None) -> OtherDevice:
        """Return a topic whose text has the facts of a version's release."""
        told = self.facts(topic, version)
        return topic.model_copy(update={"says": f"{topic.says}; TensorFlow {'; '.join(told)}"}) if told else topic

    def facts(self, topic: OtherDevice, version: str | None = None) -> list[str]:
        """Return a topic's facts about a version's release; without a version, or with no fact, those about all."""
        minor = str(Version(version).minor) if version else ""
        row = self.releases.get(minor)
        first = row.patches[0] if row and row.patches else f"{minor}.0"
        facts = topic.by_release.items()
        own = [f"{minor}: {text.replace('{first}', first)}" for span, text in facts if minor and spans(span, minor)]
        every = [f"{(span + 'now' * span.endswith('..')).replace('..', ' to ')}: {text}" for span, text in facts]
        told = own or ([f"{minor}: none is known", *every] if minor and every else every)
        return [text.replace("{first}", "X.Y.Z") for text in told]

    def with_releases(self, rows: Mapping[str, Release], **tables: object) -> KnowledgeBase:
        """Return the same knowledge with these rows of releases, and other tables."""
        other = KnowledgeBase(self._texts)
        other.__dict__.update(self.__dict__, releases=rows, **tables)
        return other

    def release_of(self, version: str) -> Release | None:
        """Return the row of a version's minor release; None if the release is not known."""
        return self.releases.get(str(Version(version).minor))

    def toolkit(self, name: str, version: str) -> toolkit_rows.Toolkit | None:
        """Return the row of a toolkit's version; None if the version is not known."""
        return self.toolkits.get((name, str(Version(version).minor)))

    def toolkits_of(self, name: str) -> list[toolkit_rows.Toolkit]:
        """Return the rows of a toolkit, the oldest version first."""
        rows = (row for row in self.toolkits.values() if row.toolkit == name)
        return sorted(rows, key=lambda row: Version(row.version))

    def fork(self, release: Release, accelerator: str) -> Fork | None:
        """Return the fork that is the source of a release's builds for an accelerator; None for TensorFlow itself."""
        rows = (row for row in self.forks if row.accelerator == accelerator and applies(release, row.releases))
        return next(rows, None)

    def estimate(self, name: str, release: Release, accelerator: Accelerator) -> release_rows.Estimate | None:
        """Return the row of a number for builds of a release for an accelerator; None without a row."""
        rows = (row for row in self.estimates if (row.estimate, row.accelerator) == (name, accelerator.accelerator))
        return next((row for row in rows if applies(release, row.releases)), None)

    def keyed(self, table: str, kind: type[_R], only: _Only | None = None) -> dict[Any, _R]:
        """Return rows by `KEY` (a tuple for several fields); a later file's row replaces an earlier row."""
        # With one field, `attrgetter` returns the value; with several fields, a tuple.
        key = attrgetter(*kind.KEY)
        return {key(row): row for row in self.rows(table, kind, only)}

    def rows(
        self, table: str, kind: type[_R], only: _Only | None = None, *, newest_first: bool = False
    ) -> tuple[_R, ...]:
        files = list(self._texts.get(table, ()))
        # The first row that fits is used, so rows of an overlay must come before the shipped ones.
        if newest_first:
            files.reverse()
        return tuple(row for file, text in files for row in self._file_rows(file, text, kind, only))

    def _file_rows(self, file: str, text: str, kind: type[_R], only: _Only | None) -> list[_R]:
        table = _Table(file, text, self._document(text, file))
        is_shipped = self._shipped(file)
        sources = table.sources
        checked_rows: list[_R] = []
        seen: dict[tuple[Any, ...], int] = {}
        for index, values in enumerate(table.rows):
            if only and isinstance(values, dict) and not only(values):
                continue
            row = _parse_row(table, index, values, kind, is_shipped=is_shipped)
            # Otherwise users would see the unexplained short name as the source.
            if sources is not None and (unknown := [name for name in row.sources if name not in sources]):
                message = f"source `{unknown[0]}` is not explained in `sources:`"
                fix = f"the table's `sources:` has: {', '.join(sources)}"
                raise ProfileError(table.problem((index, "source"), message, fix))
            # Checked here and not in the model, because a row alone does not know the accelerators.
            if mistake := row.find_mistake(self):
                fix = "correct this row, or the rows of `accelerators.yaml`"
                raise ProfileError(table.problem((index, mistake[0]), mistake[1], fix))
            key = tuple(getattr(row, field) for field in kind.KEY)
            # A second row with the same key is a mistake within one file; in another file it is an overlay.
            if key and seen.setdefault(key, index) != index:
                message = f"{_key_text(key)} already has a row, in line {table.place((seen[key],)).line}"
                fix = "put all fields into one row; a row of an overlay replaces the shipped row"
                raise ProfileError(table.problem((index,), message, fix))
            checked_rows.append(row)
        return checked_rows


def _key_text(key: Iterable[str | tuple[str, ...] | None]) -> str:
    return " ".join(" ".join(word) if isinstance(word, tuple) else str(word) for word in key if word)


class _Table:
    """A table's text, and its plain data. Only for an error is the text parsed again, to find the place."""

    def __init__(self, file: str, text: str, data: object) -> None:
        self._file = file
        self._text = text
        self._data: dict[str, Any] = data if isinstance(data, dict) else {}

    @property
    def rows(self) -> list[Any]:
        rows = self._data.get("rows")
        if isinstance(rows, list):
            return rows
        message, fix = "a knowledge table needs a list `rows:`", "compare with the shipped table of the same name"
        raise ProfileError(self._document.problem(self._file, "knowledge-table", message, fix))

    @property
    def checked(self) -> str:
        return str(self._data.get("checked", ""))

    @property
    def sources(self) -> dict[str, Any] | None:
        """The sources that rows may cite; None if the table does not list them."""
        if "sources" not in self._data:
            return None
        sources = self._data["sources"]
        # If `sources:` is empty, every cited name is unknown.
        return sources if isinstance(sources, dict) else {}

    def place(self, path: tuple[str | int, ...]) -> yaml_nodes.Node:
        """Return the place of a value of the rows."""
        return self._document.at(("rows", *path))

    @cached_property
    def _document(self) -> yaml_nodes.Node:
        return yaml_nodes.parse(self._text, self._file)

    def problem(self, path: tuple[str | int, ...], message: str, fix: str) -> Problem:
        return self.place(path).problem(self._file, "knowledge-row", message, fix)


def _parse_row(table: _Table, index: int, values: object, kind: type[_R], *, is_shipped: bool) -> _R:
    # `strict=False` turns lists into tuples: YAML has no tuples, and frozen rows need them.
    try:
        if isinstance(values, dict):
            # A row's day replaces the table's day. A row from memory alone was not compared with any source.
            checked = "" if values.get("source") in (_MEMORY, [_MEMORY]) else table.checked
            values = {"checked": checked, **values}
        return kind.model_validate(values, strict=False, context=is_shipped)
    except ValidationError as error:
        fix = f"a row of this table has: {', '.join(kind.model_fields)}; versions are quoted text"
        raise ProfileError(
            *(table.problem((index, *item["loc"]), _complaint(item), fix) for item in error.errors(include_url=False))
        ) from error


def _complaint(item: ErrorDetails) -> str:
    """Return pydantic's message without the useless prefix that every ValueError gets."""
    place = ".".join(str(part) for part in item["loc"]) or "row"
    return f"{place}: {item['msg'].removeprefix('Value error, ')}"
