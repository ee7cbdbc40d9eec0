"""Find the part (compiler, library, …) that is too new or too old, from the errors in a log. Pure.

An error with a name that some version added or removed suggests a skew; the versions in the log or profile confirm or
refute it. Without such a name, the version of the part that the error is about is compared with the release's range.
A problem that `tfdock check` finds in the profile comes first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from tfdock.diagnose.log_search import LogSightings, SuspectLine
from tfdock.errors import Problem, joined
from tfdock.knowledge.evidence_rows import ReportedBuild, is_of, spans, tool_and_version
from tfdock.knowledge.failure_rows import CameAndWent, ErrorKind, LogPart, comparable, compiled, is_said
from tfdock.knowledge.fits import admits, required, versions_of
from tfdock.knowledge.release_rows import Release, applies
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.plan.profile_fixes import Context
from tfdock.types import Version

# Messages of tools: a part lacks a name, or defines a name that the source defines too.
_LACKS = re.compile(
    r"undefined (?:reference|symbol)|undeclared|not (?:been )?declared|is not defined|is undefined|does not name|"
    r"\bno (?:member|type|template|attribute)|has no |No (?:such|module)|not found|cannot (?:open|import|find)|"
    r"does not (?:contain|exist)|[Uu]n(?:recognized|known)|not a member"
)
_HAS_IT = re.compile(
    r"ambiguat|conflict|redefin|redeclar|follows non-static|exception spec|is ambiguous|too (?:few|many) arguments"
)
_ANNOUNCED = re.compile(
    r"^ERROR: .{1,900} failed:? \((?:Exit|Segm|Aborted|Killed|Illegal)|error executing command|"
    r"^(?:FAILED|collect2): |linker command failed|^ERROR: .{1,900}(?:was not created|not all outputs were created)|"
    r"too many errors emitted|returned a non-zero code: \d|failed to solve: process|ProcessError: Command exited|"
    r":do_\w+\) failed with|A failure occurred in \w+\(\)|^(?:error: )?build(?:er for| of) '|failed \(\w+ phase\)|"
    r"BadExitStatusException: Process exited|FAILED: Installation ended|"
    r"conda_build\.sh'\]|/vcpkg_execute_\w+\.cmake|failed; build aborted:?$|"
    # A traceback or the words of a program follow, and they name the error.
    r"^(?:ERROR: .{1,900}|Error in \w{1,60}:.{0,300}):$|^Error in \w{1,60}: ?$|\bRepository command failed$"
)
#: Lines that Bazel and Nix print, lines of a command that Bazel shows, and a compiler's warnings.
_AROUND = re.compile(
    r"Target |Use --|g?make\b|ninja|INFO|FAILED|ERROR|DEBUG|WARNING|Execution platform|#|\(cd |exec env|[A-Z_]{2,}=|"
    r"In file included|last \d|>(?: |$)|\[\d|\S[^:]*: [^:]+: +\w:\\|.{300}|"
    r".*(?:\\$|: In (?:function|member)|: (?:warning|note): |\bwarning\b)"
)
# Messages of tools about a removed name.
_GONE = re.compile(r"(?:has been|was|been) removed|removed in favor|\bdeprecated\b|no longer |disabled by default")
# Not `CUDA error: `, as programs print at run time.
_COMPILED = re.compile(
    r"(?:(?<!\w )\b|(?:fatal|catastrophic|compiler) )error(?: [A-Z]{1,3}\d{4})?: |^(?:ERROR|Error(?: in \w{1,40})?): "
)
_REPOSITORY = re.compile(r"\bexternal/(?P<path>[\w.+~-]{1,100})/|@(?P<label>[\w.+~-]{1,100})//")
_ADDRESS = re.compile(r"https?://[^\s,\]]{1,600}")
_TOOL = re.compile(r"(?:failed|Exit \d{1,3}\)?):? ?(?:\([^)]{1,40}\):? )?(?P<tool>[\w./+-]{1,80}) failed")
_FILE = re.compile(r"(?:ERROR: )?(?P<file>[A-Za-z]:[/\\][\w./\\+~ ()-]{1,300}?|[\w./\\+~-]{1,300}\.\w{1,8})[:(]\d")

#: Releases without a row: the ones before the table, and all later ones.
_BEFORE, _AFTER = ("0.12", "1.0", "1.1", "1.2", "1.3"), "99.0"
_FEW = 4  #: The most releases about which a sentence says what they were made with.


@dataclass(frozen=True, slots=True, kw_only=True)
class Skew:
    """A part with a wrong version, and the error that shows it. `way` is `too_new`, `too_old`, or empty if unknown.

    `version` is empty if it is unknown. `problem` is the error of `tfdock check`. `name` is the added or removed name
    in the error, if any. `agrees`: the version explains an error with this name.
    """

    part: LogPart
    error: SuspectLine
    way: str
    version: str
    problem: Problem | None
    name: CameAndWent | None = None
    agrees: bool = False

    @property
    def id(self) -> str:
        """The id of the finding, such as `python_too_new`."""
        return f"{self.part.part.replace('-', '_')}_{self.way or 'unfit'}"

    @property
    def confidence(self) -> str:
        """`high` if a version or `tfdock check` confirms this, `low` if only the part is known."""
        if self.agrees or self.problem:
            return "high"
        return "medium" if self.name or self.way else "low"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedParts:
    """The versions of parts in a log and a profile. `there` are the parts that the log shows.

    `releases` are the minor releases that the log or the profile can be about, oldest first; empty if unknown. `rows`
    are their rows.
    """

    parts: Mapping[str, LogPart]
    there: frozenset[str]
    versions: Mapping[str, str]
    releases: tuple[str, ...]
    rows: tuple[Release, ...]
    reports: tuple[ReportedBuild, ...]  #: Builds of these releases that ended well, or failed.
    required: Mapping[str, str]  #: Part to the versions that the release's wheel requires (`>=1.20,<2`), or to "".
    problems: tuple[Problem, ...]

    def made_with(self, part: str) -> list[str]:
        """Return the versions that the releases were made with, oldest first; empty if none is known."""
        versions = {version for row in self.rows for version in self._made_with(row, part) if version}
        return sorted(versions, key=Version)

    def _made_with(self, row: Release, part: str) -> Iterator[str | None]:
        support, known = row.components.get(part), self.parts[part]
        yield from (versions_of(row).get(part), row.built_with.get(known.title), row.host_compilers_min.get(part))
        yield from row.tested_compilers.get(part, ())
        built = (one for one in self.reports if is_of(one.tensorflow, row.release) and one.outcome != "fails")
        tools = (tool_and_version(text) for one in built for text in one.tools)
        yield from (version for tool, version in tools if tool == part)
        if part == "bazel":
            yield from (row.bazel_min, *row.tested_bazel, row.bazel_max)
        if part == "python":
            yield from row.pythons
        if support:
            yield from support.accepted
        yield from (one for span, made in known.made_with.items() if applies(row, span) for one in made)

    def tested(self, part: str) -> str:
        """Return the recommended version, or the range of versions, of the release; empty if unknown."""
        if stated := self.required.get(part):
            return stated
        made = self.made_with(part)
        if not made:
            return ""
        one = versions_of(self.rows[0]).get(part) if len(self.rows) == 1 else None
        return one or (made[0] if len(made) == 1 else f"{made[0]} to {made[-1]}")

    def way(self, part: LogPart) -> str:
        """Return whether a part is outside the release's versions: `too_new`, `too_old`, or empty."""
        made, version = self.made_with(part.part), self.versions.get(part.part, "")
        if version and (allowed := self.required.get(part.part)):
            floors = [one for one in allowed.split(",") if not one.startswith("<")]
            older = not all(admits(one.replace("~=", ">="), version) for one in floors)
            return "" if admits(allowed, version) else "too_old" if older else "too_new"
        if not made or not version:
            return ""
        here, first, last = (_cut(text, part.digits) for text in (version, made[0], made[-1]))
        # Nothing is known about releases without a row, older and newer ones.
        if here > last and self.releases[-1] == self.rows[-1].release:
            return "too_new"
        return "too_old" if here < first and self.releases[0] == self.rows[0].release else ""

    def show(self, parts: Mapping[str, str]) -> bool:
        """Return whether the log shows all these parts, each with a version in its range if there is a range."""
        return all(self._shows(part, span) for part, span in parts.items())

    def _shows(self, part: str, span: str) -> bool:
        version = self.versions.get(part, "")
        versions = self.releases if part == "tensorflow" and not version else [version] if version else ()
        return bool(versions) and all(admits(span, one) for one in versions) if span else part in self.there

    def refused(self, part: LogPart) -> Problem | None:
        """Return the first problem of the profile that concerns a part."""
        fields = set(part.asks) - {"release"}
        return next((one for one in self.problems if (one.field or "").partition(".")[0] in fields), None)

    def outside(self) -> str:
        """Return sentences about the parts outside the release's versions, and remarks on parts; may be empty."""
        parts = [(name, part.title) for name, part in self.parts.items() if self.way(part)]
        outside = [f"{title} {self.versions[name]} (made with {self.tested(name)})" for name, title in parts]
        said = [f"Not a version that {self.whom} was made with: {joined(outside)}."] if outside else []
        remarks = (part.remark for name, part in self.parts.items() if part.remark and name in self.there)
        return " ".join([*said, *islice(self._known_to_fail(), 2), *remarks])

    def _known_to_fail(self) -> Iterator[str]:
        """Return sentences about failed builds of these releases, if the log shows all their parts."""
        here = {part: version for part, version in self.versions.items() if version and part in self.parts}
        for report in self.reports:
            tools = [(name, *tool_and_version(text)) for name, text in report.parts.items()]
            asked = {tool or name: span for name, tool, span in tools if span}
            narrower = report.outcome != "fails" or report.fork or report.machine or report.options or report.python
            others = report.accelerator and report.accelerator not in self.there
            has_all = all(part in here and spans(asked[part], here[part]) for part in asked)
            if asked and has_all and not (narrower or others):
                shown = joined([f"{self.parts[part].title} {here[part]}" for part in asked])
                yield f"{self.whom} with {shown} is known to fail. What helped: {'; or '.join(report.needs)}."

    def made_of(self, parts: Iterable[str]) -> str:
        """Return a sentence that lists the versions of `parts` the release was made with; empty if none is known."""
        parts = parts if len(self.rows) <= _FEW else ()
        known = [f"{self.parts[part].title} {tested}" for part in parts if (tested := self.tested(part))]
        return f"{self.whom} was made with {joined(known)}." if known else ""

    @property
    def libc(self) -> str:
        """The C library of the system that wrote the log, if it is not glibc; else empty."""
        return next((part.libc for name, part in self.parts.items() if part.libc and name in self.there), "")

    @property
    def whom(self) -> str:
        """The name of the source that is built, for sentences."""
        if not self.rows:
            return "this source"
        first, last = self.rows[0].release, self.rows[-1].release
        if first == last:
            return f"TensorFlow {self.versions['tensorflow'] or first}"
        if self.releases[0] != first:
            return f"TensorFlow up to {last}"
        return f"TensorFlow {first} to {last}" if self.releases[-1] == last else f"TensorFlow from {first} on"


def _cut(version: str, digits: int) -> Version:
    return Version(".".join(map(str, Version(version).parts[:digits])))


def observed_parts(seen: LogSightings, context: Context) -> ObservedParts:
    """Return the version of each part (Python, Bazel, CUDA, …): from the log if possible, else from the profile."""
    knowledge, asked = context.knowledge, _asked(context)
    versions = {**asked, **{part: version for part, version in seen.versions.items() if version}}
    # A release in the log counts only if no profile sets the release.
    release = asked.get("tensorflow") or versions.get("tensorflow", "")
    minor, known = str(Version(release).minor) if release else "", knowledge.releases
    among = "" if release else seen.among.get("tensorflow", "")
    releases = [one for one in (*_BEFORE, *known, _AFTER) if (admits(among, one) if among else one == minor)]
    rows = [known[one] for one in releases if one in known]
    bounded = knowledge.log_parts if len(rows) == 1 else ()
    reports = (
        one
        for one in knowledge.evidence.values()
        # A build of one of the releases counts as well; a failure must be one of all.
        if (all if one.outcome == "fails" else any)(is_of(one.tensorflow, row.release) for row in rows)
    )
    return ObservedParts(
        parts=knowledge.log_parts,
        there=frozenset(seen.versions),
        versions={**versions, "tensorflow": release},
        releases=tuple(releases),
        rows=tuple(rows),
        reports=tuple(reports) if rows else (),
        required={part: required(knowledge, rows[0], part.replace("_", "-")) for part in bounded},
        problems=context.problems,
    )


def _asked(context: Context) -> dict[str, str]:
    """Return the versions that a profile requests, or that were resolved for it."""
    asked: dict[str, object] = {}
    if found := context.resolution:
        asked = {"tensorflow": found.version, "python": found.python, "bazel": found.bazel, **found.components}
        asked |= {found.gpu_compiler: found.gpu_compiler_version} if found.gpu_compiler else {}
    elif profile := context.profile:
        asked = {"tensorflow": profile.source.release, "python": profile.python, "bazel": profile.bazel.version}
        asked |= profile.components
    return {name: str(version) for name, version in asked.items() if version and Version(str(version)).parts}


def skews(seen: LogSightings, knowledge: KnowledgeBase, here: ObservedParts) -> list[Skew]:
    """Return the mismatched parts, each once, in the order of their errors."""
    errors = sorted({*seen.named, *seen.suspects}, key=lambda error: error.line)
    errors = [error for error in errors if is_said(comparable(error.text))]
    found: dict[str, Skew] = {}
    for error in errors:
        skew = _by_name(error, knowledge.came_and_went, here) or _by_part(error, here)
        # A name is better evidence than a part without one, even if it comes later.
        if skew and (skew.id not in found or (skew.name and not found[skew.id].name)):
            found[skew.id] = skew
    return sorted(found.values(), key=lambda skew: skew.error.line)


# --- a name ---------------------------------------------------------------------------------------------------------


def _by_name(error: SuspectLine, names: tuple[CameAndWent, ...], here: ObservedParts) -> Skew | None:
    """Return the best skew from an error's names: prefer one that a version confirms, then the longest name."""
    named = [skew for place in error.names if (skew := _of_name(error, names[place], here))]
    return max(named, key=lambda one: (one.confidence == "high", len(one.name.name) if one.name else 0), default=None)


def _of_name(error: SuspectLine, name: CameAndWent, here: ObservedParts) -> Skew | None:
    """Return the skew from a name; None if the known version contradicts it."""
    part, version = here.parts[name.part], here.versions.get(name.part, "")
    # A name without a version limit is only a hint, and the versions found are better evidence.
    way = (not (name.since or name.until) and here.way(part)) or _way(name, error)
    agrees = _agrees(name, way, version)
    if agrees is False:
        return None
    sure = agrees or (name.means == "other" and name.part == here.libc)
    return Skew(part=part, error=error, way=way, version=version, problem=here.refused(part), name=name, agrees=sure)


def _way(name: CameAndWent, error: SuspectLine) -> str:
    """Return the direction of a part's mismatch, by the error's text about a name, or else by the name's row."""
    if _HAS_IT.search(error.text) and name.since and name.means != "newer":
        return "too_new"
    if name.means == "either" and _LACKS.search(error.text) and bool(name.since) is not bool(name.until):
        return "too_old" if name.since else "too_new"
    return {"newer": "too_new", "older": "too_old"}.get(name.means, "")


def _agrees(name: CameAndWent, way: str, version: str) -> bool | None:
    """Return whether a version explains the error with this name; None if version, direction or limit is unknown."""
    bound = name.since if way == "too_old" else name.until or name.since
    if not version or not way or bound is None:
        return None
    here = _cut(version, len(Version(bound).parts))
    if way == "too_old":
        return here < Version(bound)
    return here > Version(bound) if name.until else here >= Version(bound)


# --- a part ---------------------------------------------------------------------------------------------------------


def _by_part(error: SuspectLine, here: ObservedParts) -> Skew | None:
    # Bazel only announces the failure: the tool's own message is below.
    part = None if only_announces(error.text) else _owner(error, here)
    if part is None:
        return None
    problem = here.refused(part)
    way = here.way(part) or ("too_new" if _GONE.search(error.text) else "")
    # At run time, a part alone proves nothing.
    if not (problem or way or _COMPILED.search(error.text)):
        return None
    return Skew(part=part, error=error, way=way, version=here.versions.get(part.part, ""), problem=problem)


def _owner(error: SuspectLine, here: ObservedParts) -> LogPart | None:
    """Return the part that an error's line, or else a line below, is about; None if unknown.

    On a system with another C library, a missing name counts as a name of glibc.
    """
    for text in (error.text, *error.below):
        # A failed download's address may have names of parts, but the error is not about them.
        said = _ADDRESS.sub("", comparable(text))
        if part := next((one for one in here.parts.values() if one.is_about(said)), None):
            return part
    return here.parts.get(here.libc) if _LACKS.search(error.text) else None


# --- words ----------------------------------------------------------------------------------------------------------


def cause(skew: Skew, here: ObservedParts) -> str:
    """Return a text about the error and the mismatched version, and about how `tfdock check` refuses it."""
    part, name, way, version, limit = skew.part, skew.name, skew.way, skew.version, ""
    if name:
        shown = f"{name.name} … {name.beside}".removesuffix(" … ").replace('"', "'")
        what = f"The error names `{shown}`"
        if way == "too_old" and name.since:
            what, limit = f"{what}, which exists from {part.title} {name.since} on", f"older than {name.since}"
        elif name.until:
            what, limit = f"{what}, removed or changed after {part.title} {name.until}", f"newer than {name.until}"
        elif name.since:
            what, limit = f"{what}, added or changed in {part.title} {name.since}", f"from {name.since} on"
        what += f" ({name.instead})." if name.instead else "."
    else:
        what = f"The error is about {part.title}."
        what += "" if skew.problem or way else f" {part.about} {here.outside()}".rstrip()
        what += f" Here it is {version}." if version and not way else ""
    title, tested = f"{part.title} {version or limit}".strip(), here.tested(part.part)
    told = f"{here.whom[0].upper()}{here.whom[1:]} was made with {part.title} {tested}." if tested else ""
    if way:
        made = f", which was made with {tested}" if tested else ""
        told = f"{title} is {way.replace('_', ' ')} for {here.whom}{made}."
    if problem := skew.problem:
        why = f" ({problem.why})" if problem.why else ""
        told = f"{told} `tfdock check` refuses the profile for it: {problem.message}{why}.".lstrip()
    releases = f"Known of: {name.releases}." if name and name.releases else ""
    return " ".join(filter(None, (what, told, releases)))


def fix(skew: Skew, here: ObservedParts) -> tuple[str, str]:
    """Return the fix, and the version to use."""
    part, name, way = skew.part, skew.name, skew.way
    made, tested = here.made_with(part.part), here.tested(part.part)
    if name and way == "too_new" and (name.until or name.since):
        good = [version for version in made if _agrees(name, way, version) is False]
        head, dot, last = (name.until or "0").rpartition(".")
        limit = f"<{head}{dot}{int(last) + 1}" if name.until else f"<{name.since}"
        wanted = good[-1] if good else f"{name.until} or older" if name.until else f"older than {name.since}"
    elif name and way == "too_old" and name.since:
        limit = f">={name.since}"
        wanted = tested if tested and _agrees(name, way, tested) is False else f"{name.since} or newer"
    else:
        limit, wanted = here.required.get(part.part, ""), tested
    known = f"{part.title} {wanted}" if wanted else f"the {part.title} that {here.whom} was made with"
    return (part.too_old if way == "too_old" else part.too_new).format(wanted=known, limit=limit), wanted


def place(error: SuspectLine) -> str:
    """Return the repository, tool and file that an error names, as text; empty if it names none."""
    repository, tool, name = _REPOSITORY.search(error.text), _TOOL.search(error.text), file(error.text)
    words = (
        f"`@{repository['path'] or repository['label']}`" if repository else "",
        f"the program `{tool['tool']}`" if tool else "",
        f"the file `{name}`" if name else "",
    )
    return ", ".join(filter(None, words))


def only_announces(error: str) -> bool:
    """Return whether a line only reports that something failed, or follows from an error in another line."""
    return _ANNOUNCED.search(error) is not None


def said_below(error: SuspectLine) -> str:
    """Return what the failed tool itself says below a line that only announces its failure; empty if unknown."""
    return next((text for text in error.below if not (_AROUND.match(text) or only_announces(text))), "")


def next_step(texts: Iterable[str], kinds: Sequence[ErrorKind]) -> str:
    """Return the next step for the first text with an error of one of these kinds; empty if no kind matches."""
    said = map(comparable, texts)
    return next((kind.step for text in said for kind in kinds if compiled(kind.says).search(text)), "")


def file(error: str) -> str:
    """Return the file at the beginning of an error's line; empty if there is none."""
    return match["file"] if (match := _FILE.match(error)) else ""
