"""The tables of knowledge: what is known about releases, toolkits, compilers, GPUs, images and accelerators.

Knowledge is data: YAML tables in `tfdock/knowledge/`, each row with its source, checked when it is loaded. Folders
of further rows (overlays) are merged over the shipped ones. Where the rows of a table have a `KEY`, one with the key
of a shipped row takes its place. Rows of the other tables replace none: images, archives and estimates of an overlay
are looked at first, its variables, flags and options of Bazel come last, where they win. Adding a release, a toolkit,
a GPU or an accelerator is adding rows; no code knows a version number.

Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from tfdock.errors import Problem, ProfileError
from tfdock.knowledge.gpu_rows import Architecture, Gpu
from tfdock.knowledge.image_rows import ArchiveRow, ImageRow, Interpreter, RuntimeRow
from tfdock.knowledge.program_rows import CiAction, ErrorCode
from tfdock.knowledge.release_rows import (
    BazelOption,
    Cachebuster,
    Config,
    CpuFeature,
    Estimate,
    Flag,
    HarmlessOption,
    Release,
    SourceArchive,
    Variable,
)
from tfdock.knowledge.rows import Accelerator, Row
from tfdock.knowledge.toolkit_rows import (
    Compiler,
    Driver,
    LibraryRow,
    PackagedCompiler,
    Redistributable,
    RuntimeCompiler,
    RuntimeToolkit,
    Toolkit,
)
from tfdock.knowledge.wheel_rows import (
    Companion,
    GeneratedKernels,
    Probe,
    RequirementLimit,
    RuntimeLibrary,
    SizeLimit,
    WheelLibrary,
)
from tfdock.profile import yaml_nodes

# At run time the rows of failures are imported late: see `failures`.
if TYPE_CHECKING:
    from tfdock.knowledge.failure_rows import Failure

_MEMORY = "memory"
_R = TypeVar("_R", bound=Row)


def plain(text: str, file: str) -> object:
    """Return a table's text as plain data; raises ProfileError with the place of invalid YAML."""
    return yaml_nodes.parse(text, file).value


class KnowledgeBase:
    """All tables, each read when it is first asked for.

    `texts` maps a table's name to its (file name, YAML text) pairs, the shipped one first, overlays after it.
    `read` is `plain`, or something quicker that gives the same.
    """

    def __init__(
        self, texts: Mapping[str, Sequence[tuple[str, str]]], read: Callable[[str, str], object] = plain
    ) -> None:
        self._texts = texts
        self._plain = read
        self._named: dict[str, dict[str, str]] = {}

    @cached_property
    def releases(self) -> dict[str, Release]:
        """Minor release -> row."""
        return self._keyed("releases", Release)

    @cached_property
    def variables(self) -> tuple[Variable, ...]:
        """The variables of the contract, in order."""
        return self._rows("variables", Variable)

    @cached_property
    def flags(self) -> tuple[Flag, ...]:
        """The Bazel flags of the contract, in order; overlay rows come last, so that they win."""
        return self._rows("flags", Flag)

    @cached_property
    def configs(self) -> tuple[Config, ...]:
        """Configurations that are of no use here."""
        return tuple(self._keyed("configs", Config).values())

    @cached_property
    def bazel_options(self) -> tuple[BazelOption, ...]:
        """Options of Bazel itself, by purpose and version."""
        return self._rows("bazel", BazelOption)

    @cached_property
    def cachebusters(self) -> tuple[Cachebuster, ...]:
        """Variables that keep images from sharing a cache."""
        return tuple(self._keyed("cachebusters", Cachebuster).values())

    @cached_property
    def harmless_options(self) -> tuple[HarmlessOption, ...]:
        """Options of a profile with which a build may share the trust domain `release`."""
        return tuple(self._keyed("harmless_options", HarmlessOption).values())

    @cached_property
    def toolkits(self) -> dict[tuple[str, str], Toolkit]:
        """(toolkit, minor version) -> row."""
        return self._keyed("toolkits", Toolkit)

    @cached_property
    def compilers(self) -> dict[tuple[str, str], Compiler]:
        """(compiler, version) -> row."""
        return self._keyed("compilers", Compiler)

    @cached_property
    def host_compilers(self) -> dict[tuple[str, str], PackagedCompiler]:
        """(compiler, first version) -> row."""
        return self._keyed("host_compilers", PackagedCompiler)

    @cached_property
    def drivers(self) -> dict[tuple[str, str], Driver]:
        """(toolkit, major version) -> row."""
        return self._keyed("drivers", Driver)

    @cached_property
    def architectures(self) -> tuple[Architecture, ...]:
        """Generations of GPUs."""
        return tuple(self._keyed("architectures", Architecture).values())

    @cached_property
    def libraries(self) -> tuple[LibraryRow, ...]:
        """What versions of libraries run on and with."""
        return tuple(self._keyed("libraries", LibraryRow).values())

    @cached_property
    def redistributables(self) -> dict[tuple[str, str], Redistributable]:
        """(component, version) -> row."""
        return self._keyed("redistributables", Redistributable)

    @cached_property
    def interpreters(self) -> dict[str, Interpreter]:
        """Python minor version -> row."""
        return self._keyed("interpreters", Interpreter)

    @cached_property
    def archives(self) -> tuple[ArchiveRow, ...]:
        """Archives of components, in order of preference: overlay rows first."""
        return self._rows("archives", ArchiveRow, newest_file_first=True)

    @cached_property
    def source_archives(self) -> tuple[SourceArchive, ...]:
        """Archives of source trees whose own addresses are dead."""
        return tuple(self._keyed("source_archives", SourceArchive).values())

    @cached_property
    def cpu_features(self) -> dict[str, CpuFeature]:
        """Feature -> row."""
        return self._keyed("cpu_features", CpuFeature)

    @cached_property
    def size_limits(self) -> tuple[SizeLimit, ...]:
        """How large wheels may be, where."""
        return tuple(self._keyed("size_limits", SizeLimit).values())

    @cached_property
    def runtimes(self) -> dict[str, RuntimeRow]:
        """Python minor version -> row."""
        return self._keyed("runtimes", RuntimeRow)

    @cached_property
    def probes(self) -> tuple[Probe, ...]:
        """How wheels are tried, overlay rows first."""
        return self._rows("probes", Probe, newest_file_first=True)

    @cached_property
    def requirement_limits(self) -> tuple[RequirementLimit, ...]:
        """What is too new for wheels that require it."""
        return tuple(self._keyed("requirement_limits", RequirementLimit).values())

    @cached_property
    def runtime_libraries(self) -> tuple[RuntimeLibrary, ...]:
        """Libraries that are opened at run time."""
        return tuple(self._keyed("runtime_libraries", RuntimeLibrary).values())

    @cached_property
    def runtime_toolkits(self) -> tuple[RuntimeToolkit, ...]:
        """What releases call of a toolkit at run time."""
        return tuple(self._keyed("runtime_toolkits", RuntimeToolkit).values())

    @cached_property
    def estimates(self) -> tuple[Estimate, ...]:
        """Figures for planning, overlay rows first."""
        return self._rows("estimates", Estimate, newest_file_first=True)

    @cached_property
    def companions(self) -> tuple[Companion, ...]:
        """What comes with official wheels."""
        return tuple(self._keyed("companions", Companion).values())

    @cached_property
    def generated_kernels(self) -> tuple[GeneratedKernels, ...]:
        """What MLIR generated for official wheels."""
        return tuple(self._keyed("generated_kernels", GeneratedKernels).values())

    @cached_property
    def runtime_compilers(self) -> tuple[RuntimeCompiler, ...]:
        """How releases compile at run time."""
        return tuple(self._keyed("runtime_compilers", RuntimeCompiler).values())

    @cached_property
    def wheel_libraries(self) -> tuple[WheelLibrary, ...]:
        """Whose the libraries of a wheel are: overlay rows first."""
        return self._rows("wheel_libraries", WheelLibrary, newest_file_first=True)

    @cached_property
    def ci_actions(self) -> dict[str, CiAction]:
        """An action's name -> row."""
        return self._keyed("ci_actions", CiAction)

    @cached_property
    def codes(self) -> dict[str, ErrorCode]:
        """A problem's code -> row."""
        return self._keyed("codes", ErrorCode)

    @cached_property
    def failures(self) -> dict[str, Failure]:
        """A failure's id -> row."""
        # Imported here: only commands that read a log need it.
        from tfdock.knowledge.failure_rows import Failure

        return self._keyed("failures", Failure)

    @cached_property
    def gpus(self) -> dict[str, Gpu]:
        """Canonical short name -> row."""
        return self._keyed("gpus", Gpu)

    @cached_property
    def images(self) -> tuple[ImageRow, ...]:
        """Base images in order of preference: overlay rows first."""
        return self._rows("images", ImageRow, newest_file_first=True)

    @cached_property
    def accelerators(self) -> dict[str, Accelerator]:
        """Name -> row."""
        return self._keyed("accelerators", Accelerator)

    @cached_property
    def version(self) -> str:
        """A hash of every table's text, whichever folder it came from: 16 hexadecimal digits."""
        total = hashlib.sha256()
        # Sorted, so that the hash does not depend on the order in which tables are listed.
        for table in sorted(self._texts):
            for _, text in self._texts[table]:
                # With NULs between them, no text can pass for another table.
                total.update(f"{table}\0{text}\0".encode())
        return total.hexdigest()[:16]

    def sources(self, table: str) -> dict[str, str]:
        """Return what the short names in the `source` of a table's rows stand for."""
        if table not in self._named:
            documents = [self._plain(text, file) for file, text in self._texts.get(table, ())]
            named = [document.get("sources", {}) for document in documents if isinstance(document, dict)]
            self._named[table] = {name: str(text) for explained in named for name, text in explained.items()}
        return self._named[table]

    def cited(self, table: str, row: Row) -> str:
        """Return a row's sources, as its table explains their short names."""
        named = self.sources(table)
        names = (row.source,) if isinstance(row.source, str) else row.source
        return "; ".join(named.get(name, name) for name in names)

    def _keyed(self, table: str, kind: type[_R]) -> dict[Any, _R]:
        """Return rows by `KEY`, a tuple for several fields; a later file's row replaces the earlier in its place."""
        # With one field it gives the value, with several a tuple.
        key = attrgetter(*kind.KEY)
        return {key(row): row for row in self._rows(table, kind)}

    def _rows(self, table: str, kind: type[_R], *, newest_file_first: bool = False) -> tuple[_R, ...]:
        files = list(self._texts.get(table, ()))
        # The first row that fits is used, so rows of an overlay must come before the shipped ones.
        if newest_file_first:
            files.reverse()
        return tuple(row for file, text in files for row in self._file_rows(file, text, kind))

    def _file_rows(self, file: str, text: str, kind: type[_R]) -> list[_R]:
        table = _Table(file, text, self._plain(text, file))
        sources = table.sources
        checked_rows: list[_R] = []
        seen: dict[tuple[Any, ...], int] = {}
        for index, values in enumerate(table.rows):
            row = _parse_row(table, index, values, kind)
            cited = (row.source,) if isinstance(row.source, str) else row.source
            # A short name without an explanation would be shown to people as the source.
            if sources is not None and (unknown := [name for name in cited if name not in sources]):
                message = f"source `{unknown[0]}` is not explained in `sources:`"
                raise table.wrong_row((index, "source"), message, f"the table's `sources:` has: {', '.join(sources)}")
            # Here and not in the model: a row alone does not know the accelerators.
            if mistake := row.find_mistake(self):
                raise table.wrong_row(
                    (index, mistake[0]), mistake[1], "correct it, or the rows of `accelerators.yaml`"
                )
            key = tuple(getattr(row, field) for field in kind.KEY)
            # Within one file a second row is a mistake; over files it is an overlay.
            if key and seen.setdefault(key, index) != index:
                message = f"{_key_text(key)} has a row already, in line {table.place((seen[key],)).line}"
                fix = "one row says all of it; a row of an overlay replaces the shipped one"
                raise table.wrong_row((index,), message, fix)
            checked_rows.append(row)
        return checked_rows


def _key_text(key: Iterable[str | tuple[str, ...] | None]) -> str:
    return " ".join(word if isinstance(word, str) else " ".join(word) for word in key if word)


class _Table:
    """A table's text, and its plain data. Only where something is wrong the text is read for its place."""

    def __init__(self, file: str, text: str, data: object) -> None:
        self._file = file
        self._text = text
        self._data: dict[str, Any] = data if isinstance(data, dict) else {}

    @property
    def rows(self) -> list[Any]:
        rows = self._data.get("rows")
        if isinstance(rows, list):
            return rows
        node = self._document
        raise ProfileError(
            Problem(
                code="knowledge-table",
                message="a knowledge table needs a list `rows:`",
                fix="compare with the shipped table of the same name",
                file=self._file,
                line=node.line,
                column=node.column,
            )
        )

    @property
    def checked(self) -> str:
        return str(self._data.get("checked", ""))

    @property
    def sources(self) -> dict[str, Any] | None:
        """What rows may cite; None where the table does not say."""
        if "sources" not in self._data:
            return None
        sources = self._data["sources"]
        # `sources:` with nothing in it is a promise to cite, so every name is unknown.
        return sources if isinstance(sources, dict) else {}

    def place(self, path: tuple[str | int, ...]) -> yaml_nodes.Node:
        """Return the place of a value of the rows."""
        return self._document.at(("rows", *path))

    @cached_property
    def _document(self) -> yaml_nodes.Node:
        return yaml_nodes.parse(self._text, self._file)

    def wrong_row(self, path: tuple[str | int, ...], message: str, fix: str) -> ProfileError:
        return ProfileError(self.problem(path, message, fix))

    def problem(self, path: tuple[str | int, ...], message: str, fix: str) -> Problem:
        place = self.place(path)
        return Problem(
            code="knowledge-row", message=message, fix=fix, file=self._file, line=place.line, column=place.column
        )


def _checked_on(table: _Table, values: Mapping[str, Any]) -> str:
    """Return the table's day; empty for a row from memory alone, which was compared with nothing."""
    return "" if values.get("source") in (_MEMORY, [_MEMORY]) else table.checked


def _parse_row(table: _Table, index: int, values: object, kind: type[_R]) -> _R:
    # `strict=False` turns lists into tuples: YAML has no tuples, and frozen rows need them.
    try:
        # The row's own day wins over the table's.
        complete = {"checked": _checked_on(table, values), **values} if isinstance(values, dict) else values
        return kind.model_validate(complete, strict=False)
    except ValidationError as error:
        fix = f"a row of this table has: {', '.join(kind.model_fields)}; versions are quoted text"
        raise ProfileError(
            *(table.problem((index, *item["loc"]), _complaint(item), fix) for item in error.errors(include_url=False))
        ) from error


def _complaint(item: ErrorDetails) -> str:
    """Return pydantic's message without its prefix for every ValueError, which says nothing."""
    place = ".".join(str(part) for part in item["loc"]) or "row"
    return f"{place}: {item['msg'].removeprefix('Value error, ')}"
