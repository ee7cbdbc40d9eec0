"""Rows about images, and what base images lack. Pure."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tfdock.knowledge.rows import ImageName, Package, ReleaseRange, Requirement, Row, Template, template_with


class ImageRow(Row):
    """A base image.

    The first row that fits a release, Python, accelerator and requested compiler is used. `template` names
    `dockerfiles/base/<template>.j2`. `paths` are the paths of its tools (`python`, `clang`, `gcc`, `cuda`, `rocm`),
    and of its compilers by version (`gcc-7`, `clang-17`: versions match as far as both are written). `holds` maps a
    component to its full version if the image is known to have only that version. `compilers` limits the row to
    builds that request such a version of a host compiler (`12`, `6..8`). `packages` are installed in addition, then
    `pip` from PyPI without dependencies. `interpreter`: the image lacks the requested Python, so it is compiled from
    the source archive in `interpreters.yaml`. `archives` are components that the image lacks; they are installed from
    `archives.yaml`. `unknown` are components whose version in the image is not known: a profile that requests a
    version of them gets an untested plan. `sysroots` maps the version of an older C library to its folder: compilers
    in this folder build against it.
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
    """The versions for which images with these names exist; tags begin with the version.

    The versions go from `since` to `until`, without those in `gone`. `images` is a shell pattern for the names.
    """

    KEY = ("images",)

    images: str
    since: str | None = None
    until: str | None = None
    gone: tuple[str, ...] = ()


class Distribution(Row):
    """A Linux distribution.

    `images` are shell patterns for the names of its images, `alike` for names of other images with its C library.
    `holds` are the versions of its C library (`glibc`, `musl`) and of its commands `gcc` and `clang`. `compilers` are
    the versions that it has as packages, by name, and `pythons` its Pythons. `end` is the last day of its free
    support. `apt`: packages are installed with apt.
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
    """A Python that base images lack: its newest patch release, and its source archive."""

    KEY = ("python",)

    python: str
    version: str
    url: str
    # A server may give other bytes for the same address later.
    sha256: str


class ArchiveRow(Row):
    """A component that base images lack, as an archive to download.

    It is installed in images with `archives`. It serves a build that requests `version` or a prefix of `version`,
    with other components that match `components`. `arguments` are for an archive that is an installer, with
    `{prefix}` for the target folder; without them, the archive's `include` and `lib` are copied.
    """

    component: str
    version: str
    url: str
    sha256: str
    components: dict[str, str] = Field(default_factory=dict)
    arguments: tuple[Annotated[str, template_with("prefix")], ...] = ()


class RuntimeRow(Row):
    """A clean image with a Python and its pip, in which wheels are tried.

    It has no accelerator libraries, so it serves only wheels that are not linked with such libraries.
    """

    KEY = ("python",)

    python: str
    image: ImageName
