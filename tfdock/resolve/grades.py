"""Grade a combination by reports of builds: built, tested, untested, or known to fail."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from tfdock.knowledge.evidence_rows import Edit, ReportedBuild, spoken, tool_and_version
from tfdock.knowledge.release_rows import Release
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.resolve.question import RuleFinding, sentences
from tfdock.types import Choice, Version

Words = Mapping[str, str]
_NAMED = 3  #: The most reports that a message names.
OF_THE_BASE = ("glibc", "musl")  #: Parts of a build that only the base image provides.


class Reports:
    """The reports on builds with these facts: `release`, `accelerator`, `toolkit`, `machine`, `python`, parts.

    An empty fact is unknown. `options` are Bazel's options, as the profile has them, and `xla`. `fork` is the source
    if it is a repository with reports, such as `ROCm/tensorflow-upstream`. Other sources say nothing about a fork. A
    report that names no compiler used the release's own compilers, which are `tools`. `titles` are names of parts,
    for messages. `edits` fix known failures of the source's version.
    """

    def __init__(
        self, knowledge: KnowledgeBase, facts: Words, tools: Words, titles: Words, edits: Sequence[Edit] = ()
    ) -> None:
        self._knowledge, self._facts, self._titles, toolkit = knowledge, facts, titles, facts["toolkit"]
        self._edits = edits
        other = {name for name, own in tools.items() if facts[name].partition(" ")[0] != own}
        self._known = [
            row
            for row in knowledge.reports_on(facts["release"])
            if (row.fork or "") == facts["fork"] or (row.outcome == "fails" and not row.fork)
        ]
        rows = [row for row in self._known if row.agrees(facts)]
        # A report without an accelerator or toolkit matches every accelerator or toolkit.
        told = [
            row
            for row in rows
            if row.accelerator and (not toolkit or toolkit in row.components) and other <= row.parts.keys()
        ]
        self._built = [row for row in told if row.outcome == "built"]
        self._own = [row for row in self._built if row.accelerator == facts["accelerator"]]
        self._edited = [row for row in told if row.outcome == "built-with-edit"]
        if facts["fork"] and self._own:
            # The fork may mend what fails in TensorFlow itself.
            self._known = [row for row in self._known if row.fork]
        failed = [row for row in rows if row.outcome == "fails" and row in self._known]
        self._mended = [row for row in failed if self._mending(row)]
        self._failed = [row for row in failed if row not in self._mended]
        self._covered = self._by_edits(self._edited, self._mended)
        self._between: list[str] = []

    @property
    def is_built(self) -> bool:
        """Whether somebody built this combination with only such edits as tfdock makes."""
        return bool(self._built or self._covered)

    def judged(self, doubt: RuleFinding) -> RuleFinding | None:
        """Judge a doubt about a part: None if somebody built with it, a warning if it is between built versions.

        Otherwise return the doubt; its `why` names builds of the part that needed an edit.
        """
        if any(row.is_exactly(doubt.part, self._facts) for row in (*self._built, *self._covered)):
            return None
        part, around = self._around(doubt.part)
        if around:
            self._between.append(part)
            message = f"no build of TensorFlow {self._facts['release']} is known with {part} and the other parts"
            return replace(doubt, weight="warning", message=message, why=f"nearby builds: {around}")
        edited = [row for row in self._edited if row.is_exactly(doubt.part, self._facts)]
        by = f"built with an edit by {self._named(edited)}: {'; '.join(edited[0].needs)}" if edited else ""
        return replace(doubt, why=sentences(doubt.why, by))

    def _around(self, part: str) -> tuple[str, str]:
        """Return a part's version and the builds that show it is neither too new nor too old.

        A version is not too new if this or an older release was built with a version at least as new. It is not too
        old if this or a newer release was built with a version at least as old. From 1.0 on, a newer Bazel of the
        same major version is not too new either: Bazel removes features only in major versions.
        """
        tool, text = tool_and_version(self._facts.get(part, ""))
        support = self._knowledge.releases[self._facts["release"]].components.get(part)
        # From a closed list, Bazel downloads only the listed versions.
        if not text or part == "python" or (support and support.closed):
            return "", ""
        release, parts = Version(self._facts["release"]), Version(text).parts
        # A report of cuDNN 8 is no evidence for 8.2; a report of 9.1 is evidence for 9.1.85.
        exact, parts = 1 if tool else min(2, len(parts)), _series(tool, parts)
        known = [
            (of, held, _series(tool, held.parts), rows)
            for of, held, rows in self._versions(part, tool)
            if len(held.parts) >= exact
        ]
        limit = parts[:1] if part == "bazel" and parts[0] >= 1 else parts
        as_new = [item for item in known if item[0] <= release and item[2] >= limit[: len(item[2])]]
        as_old = [item for item in known if item[0] >= release and item[2] <= parts[: len(item[2])]]
        if not as_new or not as_old:
            return "", ""
        title = tool or self._titles.get(part, part)
        nearest = (max(as_new, key=lambda item: item[0]), min(as_old, key=lambda item: item[0]))
        by = [self._named(rows) or "tested upstream" for *_, rows in nearest]
        told = {f"TensorFlow {of} with {title} {held} ({by[n]})": "" for n, (of, held, *_) in enumerate(nearest)}
        return f"{title} {text}", " and ".join(told)

    def _versions(self, part: str, tool: str) -> Iterator[tuple[Version, Version, Sequence[ReportedBuild]]]:
        """Yield (release, version of a part, reports) of builds without an edit, and of the releases' own tables."""
        # Another compiler of GPU code may not be able to use the same toolkit.
        compiler = self._facts["compiler"].partition(" ")[0] if part == self._facts["toolkit"] else ""
        for release in self._knowledge.releases.values():
            for text in tested_for(release, part, tool) if compiler in ("", release.gpu_compiler or compiler) else ():
                yield Version(release.release), Version(text), ()
        for of, held, row in sure_builds(self._knowledge).get((part, tool), ()):
            if row.agrees_in_kind(self._facts) and (row.compiler or compiler).startswith(compiler):
                yield of, held, [row]

    def failures(self, places: Mapping[str, str]) -> Iterator[RuleFinding]:
        """Yield the known failures. `places` maps a part to the field that requests it.

        If an edit fixes the failure, but no build with only this edit is known, the failure is only a doubt.
        """
        for row in self._failed + ([] if self._covered else self._mended):
            of = [*(f"{self._titles.get(name, '')} {self._facts[name]}".strip() for name in row.parts), *row.options]
            path = next((places[name] for name in (*row.parts, *row.options) if name in places), places[""])
            message = f"TensorFlow {self._facts['release']}" + (f" with {' and '.join(of)}" if of else "")
            if edits := self._mending(row):
                told = f"{message} is known to fail, and no build with only the edit {edits[0].edit} is known"
                found = self._failure(row, path, told)
                yield replace(found, weight="doubt", why=sentences(str(edits[0].unverified or ""), found.why))
            elif others := self._who_built(row):
                told = f"{message} failed for some users and was built by others"
                yield self._failure(row, path, told, f"built by {self._named(others)}")
            else:
                yield self._failure(row, path, f"{message} is known to fail")

    def failures_of_base(self, name: str, version: str) -> Iterator[RuleFinding]:
        """Yield known failures with a base image's C library or C++ compiler; each has this part as its path."""
        part, facts = name if name in OF_THE_BASE else "host_compiler", self._with_part(name, version)
        rows = [row for row in self._known if part in row.parts and row.agrees(facts)]
        for row in rows:
            built = self._by_edits(rows, rows) or any(other.outcome == "built" for other in rows)
            if row.outcome == "fails" and not built:
                which = spoken(row.parts[part] if part == "host_compiler" else f"{name} {row.parts[part]}")
                found = self._failure(row, name, f"TensorFlow {facts['release']} is known to fail with {which}")
                yield replace(found, weight="doubt") if self._mending(row) else found

    def edits(self, base: Mapping[str, str]) -> tuple[Edit, ...]:
        """Return the changes of the source for the build, with these tools and libraries of its base image."""
        rows = {row.id: row for row in self._mended}
        for name, version in base.items():
            facts = self._with_part(name, version)
            rows |= {row.id: row for row in self._known if row.outcome == "fails" and row.agrees(facts)}
        return tuple(edit for row in rows.values() for edit in self._mending(row))

    def _mending(self, row: ReportedBuild) -> list[Edit]:
        """Return the edits for known failures; none if somebody built without an edit."""
        return [one for one in self._edits if one.is_for(row, self._facts["version"]) and not self._who_built(row)]

    def _by_edits(self, rows: Iterable[ReportedBuild], failing: Iterable[ReportedBuild]) -> list[ReportedBuild]:
        """Return the builds that used only the edits that tfdock makes for the failures."""
        made = {edit.edit for row in failing for edit in self._mending(row)}
        return [row for row in rows if row.edits and {*row.edits} <= made]

    def _with_part(self, name: str, version: str) -> dict[str, str]:
        """Return the facts, with a base image's C library or C++ compiler."""
        part, value = (name, version) if name in OF_THE_BASE else ("host_compiler", f"{name} {version}")
        return {**self._facts, part: value}

    def _failure(self, row: ReportedBuild, path: str, message: str, built: str = "") -> RuleFinding:
        why = sentences(
            f"`{row.failed_with}`" if row.failed_with else row.note or "",
            f"reported in {row.at}",
            f"what mends it: {'; '.join(row.needs)}" if row.needs else "",
            built,
        )
        return RuleFinding("known-to-fail", path, message, why, weight="warning" if built else "failing")

    def _who_built(self, row: ReportedBuild) -> list[ReportedBuild]:
        """Return the builds for this accelerator, of the same parts with the same options and without an edit."""
        wanted = {_config(option) for option in row.options}
        return [
            built
            for built in self._own
            if built.has_parts_of(row, self._facts) and wanted <= {_config(option) for option in built.options}
        ]

    def grade(self, edits: Sequence[Edit], *, untested: bool) -> Choice:
        """Return the grade of the whole combination, as a choice in a plan."""
        if not all(map(self._who_built, self._failed)):
            return _choice("known-to-fail", "known to fail; the profile allows this, or changes the source")
        if untested:
            edited = f"; with an edit by {self._named(self._edited)}" if self._edited else ""
            return _choice("untested", f"no such build is known{edited}")
        if edits:
            made = ", ".join(edit.edit for edit in edits)
            by = self._named(self._covered) if self._covered else "builds with the compiler of the base image"
            return _choice("built", f"with edits of the source, by {by}; here: {made}")
        configs = [word for word in self._facts["options"].split() if word.startswith("--config=")]
        told = {_config(option) for row in self._built for option in row.options}
        without = [word for word in configs if _config(word) not in told]
        aside = f"; no report about {' or '.join(without)} is known" if without else ""
        if self._between:
            parts = " and ".join(self._between)
            known = f"there are builds with {parts}, which the warnings name"
            return _choice("tested", f"no such build is known, but {known}{aside}")
        if self._built:
            how = "" if self._own else "for GPUs "
            return _choice("built", f"{how}by {self._named(self._own or self._built)}{aside}")
        known = "the release's own tables list the parts; no report of such a build is known"
        return _choice("tested", f"{known}{aside}")

    def _named(self, rows: Sequence[ReportedBuild]) -> str:
        dates: dict[str, str] = {}
        for row in rows:
            name = self._knowledge.cited("evidence", row).partition(":")[0]
            dates.setdefault(row.at.partition(";")[0] if name == "a thread" else name, row.date or "")
        named = [f"{name} ({date})" if date else name for name, date in dates.items()]
        return ", ".join(named[:_NAMED]) + (f" and {len(named) - _NAMED} more" if len(named) > _NAMED else "")


@lru_cache(maxsize=1)
def sure_builds(knowledge: KnowledgeBase) -> dict[tuple[str, str], list[tuple[Version, Version, ReportedBuild]]]:
    """Return (part, its tool) -> (release, version, report) of each build of one release without an edit."""
    found: dict[tuple[str, str], list[tuple[Version, Version, ReportedBuild]]] = {}
    for row in knowledge.evidence.values():
        sure = row.outcome == "built" and not (row.fork or row.unverified or "-" in row.tensorflow)
        for part, said in row.parts.items() if sure else ():
            tool, text = tool_and_version(said)
            if text and ".." not in text + row.tensorflow:
                found.setdefault((part, tool), []).append((Version(row.tensorflow).minor, Version(text), row))
    return found


def tested_for(release: Release, part: str, tool: str) -> Sequence[str]:
    """Return the versions of a part with which a release is built or was tested, by its row."""
    if part == "bazel":
        return (release.bazel, *release.tested_bazel)
    if part == "host_compiler":
        return (*filter(None, [release.compilers.get(tool)]), *release.tested_compilers.get(tool, ()))
    support = release.support(part)
    # If Bazel downloads the part, an accepted version is not necessarily tested.
    return support.accepted if not support.closed else (support.tested,) if support.tested else ()


def _series(tool: str, parts: tuple[int, ...]) -> tuple[int, ...]:
    """Return the numbers of a version that matter: up to the minor, of a compiler from 5 on the major."""
    return parts[:1] if tool and parts[0] >= 5 else parts[:2]


def _config(option: str) -> str:
    """Return an option's name in reports: `mkl` for `--config=mkl` and for `MKL`."""
    return option.removeprefix("--config=").casefold()


def _choice(value: str, reason: str) -> Choice:
    return Choice(field="evidence", value=value, source="evidence.yaml", reason=reason)
