"""Rows about images, and what base images lack. Pure."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tfdock.knowledge.rows import ImageName, Package, ReleaseRange, Requirement, Row, Template, template_with


class ImageRow(Row):
    """A base image. The first row that fits a release, Python, accelerator and asked compiler is used.

    `template` names `dockerfiles/base/<template>.j2`; `paths` where its tools are (`python`, `clang`, `gcc`,
    `cuda`, `rocm`), its compilers by version as well (`gcc-7`, `clang-17`: any version that agrees as far as both
    are written); `holds` is a component's full version where it is known that the image has that one only;
    `compilers` limits the row to builds that ask for such a version of a host compiler (`12`, `6..8`); `packages` are
    installed on top, then `pip` from PyPI without dependencies. `interpreter`: the image has not the Python that is
    asked for, which is compiled from the source archive in `interpreters.yaml`. `archives` are the components that it
    has not either: they come from `archives.yaml`. `unknown` are the components whose version in the image nobody
    knows: a profile that asks for one gets an untested plan. `sysroots` are folders with an older C library, by the
    version of that: compilers below them build against it.
    """

    image: ImageName
    releases: ReleaseRange
    pythons: tuple[str, ...] = ()
    accelerators: tuple[str, ...] = ()
    components: dict[str, str] = Field(default_factory=dict)
    compilers: dict[str, str] = Field(default_factory=dict)
    template: str
    machine: str = "x86_64"
    interpreter: bool = False
    archives: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    paths: dict[str, Template] = Field(default_factory=dict)
    holds: dict[str, str] = Field(default_factory=dict)
    sysroots: dict[str, str] = Field(default_factory=dict)
    packages: tuple[Package, ...] = ()
    # Pinned: a newer version on PyPI must not make another image of the same row.
    pip: tuple[Requirement, ...] = ()


class ImageTags(Row):
    """The versions, which a tag begins with, for which images of these names exist: from `since` to `until`, without
    those that are `gone`. `images` is a shell pattern."""

    KEY = ("images",)

    images: str
    since: str | None = None
    until: str | None = None
    gone: tuple[str, ...] = ()


class Distribution(Row):
    """A Linux distribution. `images` are shell patterns of its images' names, `alike` of names with its C library.

    `holds` are the versions of its C library (`glibc`, `musl`) and of what `gcc` and `clang` mean, `compilers` those
    that it has as packages, by name, and `pythons` its Pythons; `end` is the last day of its free support. `apt`:
    packages are installed with it.
    """

    KEY = ("distribution",)

    distribution: str
    images: tuple[str, ...]
    alike: tuple[str, ...] = ()
    holds: dict[str, str]
    compilers: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    pythons: tuple[str, ...] = ()
    end: str = ""
    apt: bool = True


class Interpreter(Row):
    """A Python that base images do not carry: its newest patch release, and its source archive."""

    KEY = ("python",)

    python: str
    version: str
    url: str
    # A server may give other bytes for the same address later.
    sha256: str


class ArchiveRow(Row):
    """A component that base images do not carry, as an archive to download: an image with `archives` is given it.

    It serves a build that asks for `version` or a prefix of it, with other components that match `components`.
    `arguments` are the words for a program that installs itself, with `{prefix}` for where to; without them the
    archive's `include` and `lib` are copied.
    """

    component: str
    version: str
    url: str
    sha256: str
    components: dict[str, str] = Field(default_factory=dict)
    arguments: tuple[Annotated[str, template_with("prefix")], ...] = ()


class RuntimeRow(Row):
    """A clean image with a Python and its pip, in which wheels are tried.

    It serves wheels that link no library of their accelerator's; what these link, it has not.
    """

    KEY = ("python",)

    python: str
    image: ImageName
