"""What the rows of all tables share: types of text, `Row`, and `Accelerator`, which checks other rows. Pure."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, ClassVar, Protocol

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo

from tfdock.types import TARGET_FIELDS, Capability, ImageRef, Version

# `\Z` here and below: `$` also matches before a line break at the end.
#: A Debian package (policy 5.6.1), with an optional `=version`.
PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+(=[A-Za-z0-9.+:~-]+)?\Z")
#: A Python requirement pinned to one version (PEP 508).
REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[0-9][A-Za-z0-9.+!]*\Z")
_RANGE = re.compile(r"(?P<first>\d+\.\d+)(?P<open>\.\.(?P<last>\d+\.\d+)?)?\Z")


def placeholders(text: str) -> list[str]:
    """Return the names in braces. Refuse all but plain names: `{x.__class__}` would access an object's attribute."""
    names = []
    for _, name, spec, conversion in string.Formatter().parse(text):
        if name is not None and (not re.fullmatch(r"[a-z][a-z0-9_]*", name) or spec or conversion):
            raise ValueError(f"placeholder {{{name}}} is not a plain name")
        names += [] if name is None else [name]
    return names


def check_placeholders(text: str, names: Sequence[str]) -> None:
    """Raise ValueError if a placeholder is not among the names."""
    if unknown := [name for name in placeholders(text) if name not in names]:
        raise ValueError(f"placeholder {{{unknown[0]}}} is unknown here; known: {', '.join(names) or 'none'}")


def _image_name(text: str) -> None:
    placeholders(text)
    # A template is not an image name yet, so put `1` in place of each placeholder.
    ImageRef.parse(re.sub(r"\{\w+\}", "1", text))


def _expression(text: str) -> None:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r} is not a regular expression: {error}") from error


def _target_field(text: str) -> None:
    if text not in TARGET_FIELDS:
        raise ValueError(f"`{text}` is not a field for targets; such fields are {', '.join(TARGET_FIELDS)}")


def is_shipped(info: ValidationInfo) -> bool:
    """Return whether a row is shipped: the tests have checked its texts, and a start need not do so again."""
    return info.context is True


def checked_by(read: Callable[[str], object]) -> AfterValidator:
    """Return a check for text that `read` accepts. The ValueError of `read` says what is wrong with the text."""

    def checked(text: str, info: ValidationInfo) -> str:
        if not is_shipped(info):
            read(text)
        return text

    return AfterValidator(checked)


def text_like(pattern: re.Pattern[str], noun: str) -> AfterValidator:
    """Return a validator that accepts only text that matches `pattern`; the error calls such text a `noun`."""

    def read(text: str) -> None:
        if not pattern.match(text):
            raise ValueError(f"{text!r} is not a {noun}")

    return checked_by(read)


def template_with(*names: str) -> AfterValidator:
    """Return a check that a template has only these placeholders."""
    return checked_by(lambda text: check_placeholders(text, names))


Template = Annotated[str, checked_by(placeholders)]
ImageName = Annotated[str, checked_by(_image_name)]
ReleaseRange = Annotated[str, text_like(_RANGE, "release or range (`2.18`, `2.3..2.17`, `2.18..`)")]
Expression = Annotated[str, checked_by(_expression)]
Dotted = Annotated[str, checked_by(Capability.of_gpu)]
Branch = Annotated[str, text_like(re.compile(r"[0-9]+\Z"), "driver branch (`570`)")]
Driver = Annotated[str, text_like(re.compile(r"[0-9]+(\.[0-9]+)*\Z"), "driver version (`570.86.15`)")]
Package = Annotated[str, text_like(PACKAGE, "package")]
Versions = Annotated[
    str, text_like(re.compile(r"(?:(?:[<>=~]=|<)\d[\d.]*(?:,(?!$)|$))+\Z"), "range (`>=1.22,<1.24`)")
]
Requirement = Annotated[str, text_like(REQUIREMENT, "requirement pinned to one version (`numpy==1.26.4`)")]


@lru_cache(maxsize=16384)  # a resolution compares the same few releases and ranges thousands of times
def in_range(release: str, span: str) -> bool:
    """Return whether minor release `2.18` lies in `2.18`, `2.3..2.20` or `2.18..`."""
    match = _RANGE.match(span)
    assert match, span
    first, wanted = Version(match["first"]), Version(release)
    if not match["open"]:
        # A range of one number is exactly this release: 2.1 must not match 2.18.
        return wanted.parts == first.parts
    last = Version(match["last"]) if match["last"] else None
    return first <= wanted and (last is None or wanted <= last)


def lies_within(version: str, first: str, last: str) -> bool:
    """Return whether a version lies between two others, by the parts that both have: 12 may be 12.8, 11.7.1 is 11.7.

    Both ends belong to the range. An empty `last` leaves the range open.
    """
    low, high, held = Version(first).parts, Version(last).parts, Version(version).parts
    return held[: len(low)] >= low[: len(held)] and (not high or held[: len(high)] <= high)


class RowPart(BaseModel):
    """A row, or a map in a row."""

    # Deferred, so that a command that reads three tables does not build the validators of twenty.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)


class Row(RowPart):
    """The fields of every row. `KEY` are the fields that identify a row in its table."""

    KEY: ClassVar[tuple[str, ...]] = ()

    source: tuple[str, ...] | str  #: The source of the row: short names from `sources`, or text.
    #: The day on which the row was compared with its source, such as `2026-01-31`. It is the table's day, unless the
    #: row has its own day or is from `memory` alone.
    checked: str = ""
    note: str | None = None  #: What else to know.
    unverified: bool | str = False  #: The part of the row that nobody has checked; false if all is checked.

    @property
    def sources(self) -> tuple[str, ...]:
        """The sources of the row."""
        return (self.source,) if isinstance(self.source, str) else self.source

    def find_mistake(self, known: AcceleratorTable) -> tuple[str, str] | None:  # noqa: ARG002 - few kinds of rows ask it
        """Return (field, mistake) if the row contradicts the rows of accelerators; else None."""
        return None


class AcceleratorTable(Protocol):
    """The tables that are needed to check rows of other tables; each is read when a row first needs it."""

    @property
    def accelerators(self) -> Mapping[str, Accelerator]:
        """Name -> row."""

    @property
    def log_parts(self) -> Mapping[str, Row]:
        """Name -> row."""


class Accelerator(Row):
    """A family of devices: its toolkit and other components, and the form of its targets.

    The build id contains the `components` in this order. `target_pattern` must match a whole target; `target_field`
    is the profile's field that lists such targets. `capabilities`: targets are compute capabilities, with SASS and
    PTX. `config_pattern` matches the names of Bazel configurations that turn the accelerator on, except those of the
    contract. `template` names `dockerfiles/accelerator/<template>.j2`. `vendor` is the word that drivers may put
    before a GPU's name, `tools` are the toolkit's compilers, below the image's paths. `versions` maps a component to
    a command that prints its version in an image.

    Containers see its GPUs if the engine has the runtime `engine_runtime`, or if the engine's machine has one of the
    equivalent `engine_programs`. Otherwise they get the `device_files`, the first of which exists if there is such a
    GPU. `container` are the variables by which an image requests the GPUs.

    `installed` matches the folders into which the vendor's packages install the toolkit: a library may search there.
    `packages` matches, for each component, the names of the Python packages that contain it. `without_compiler` are
    patterns of the vendor's images that have libraries but no compiler. `compilers` can compile its GPU code, besides
    the release's own compiler; `titles` are the components' names as people write them. `symptoms` maps the code of a
    refusal to the failure that would happen without it, with `{target}` and `{number}`.
    """

    KEY = ("accelerator",)

    accelerator: str
    toolkit: str = ""
    components: tuple[str, ...] = ()
    target_pattern: Expression | None = None
    target_field: Annotated[str, checked_by(_target_field)] = "targets"
    capabilities: bool = False
    config_pattern: Expression | None = None
    template: str | None = None
    vendor: str = ""
    tools: tuple[Template, ...] = ()
    versions: dict[str, tuple[Template, ...]] = Field(default_factory=dict)
    engine_runtime: str | None = None
    engine_programs: tuple[str, ...] = ()
    device_files: tuple[str, ...] = ()
    container: dict[str, str] = Field(default_factory=dict)
    installed: Expression | None = None
    packages: dict[str, Expression] = Field(default_factory=dict)
    without_compiler: tuple[str, ...] = ()
    compilers: tuple[str, ...] = ()
    titles: dict[str, str] = Field(default_factory=dict)
    symptoms: dict[str, Annotated[str, template_with("target", "number")]] = Field(default_factory=dict)

    @property
    def title(self) -> str:
        """The name of the toolkit as people write it; without a toolkit, the accelerator's own."""
        return self.titles.get(self.toolkit, self.toolkit or self.accelerator)

    def title_of(self, component: str) -> str:
        """Return a component's name as people write it."""
        return self.titles.get(component, component)

    def has(self, target: str) -> bool:
        """Return whether a GPU's target (`8.6`, `gfx90a`) belongs to this family."""
        return can_read(Capability.of_gpu, target) if self.capabilities else self.matches(target)

    def lists(self, target: str) -> bool:
        """Return whether a profile for this family can list a target (`sm_86`, `gfx90a`)."""
        return self.matches(target) and (not self.capabilities or can_read(Capability.parse, target))

    def matches(self, word: str) -> bool:
        """Return whether a word looks like this family's targets in profiles; False if the family has no targets."""
        # A CPU has no targets, and so no pattern.
        return bool(self.target_pattern and re.fullmatch(self.target_pattern, word))


def can_read(read: Callable[[str], object], text: str) -> bool:
    """Return whether `read` accepts a text; it raises ValueError for other texts."""
    try:
        read(text)
    except ValueError:
        return False
    return True


def not_of(row: Accelerator | None, field: str, targets: Iterable[str]) -> tuple[str, str] | None:
    """Return the field and the mistake if a target is not of that family of GPUs; None without a mistake."""
    # With a misspelt accelerator, nobody would find the GPU.
    if row is None or row.target_pattern is None:
        return "accelerator", "no known accelerator of this name has targets"
    like = "8.6" if row.capabilities else row.target_pattern
    for target in targets:
        if not row.has(target):
            return (
                field,
                f"`{target}` is not the target of a GPU of {row.accelerator}: its targets look like `{like}`",
            )
    return None
