"""Choose the contents of a runtime image: packages, variables, Dockerfile, missing libraries. Pure: no I/O."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tfdock.gpu.opened_libraries import (
    accelerator_of,
    built_with,
    opened_libraries,
    package_of,
    release_of,
    searched_folders,
)
from tfdock.knowledge.rows import in_range
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.knowledge.toolkit_rows import RuntimeToolkit
from tfdock.knowledge.wheel_rows import RuntimeLibrary
from tfdock.plan.render import BuildContext, from_template
from tfdock.types import ImageRef
from tfdock.wheel.inspection import Inspection
from tfdock.wheel.requirements import wanted

FOLDER = "/opt/tensorflow"  #: Folder of everything that is installed.
USER = 10001  #: User id in the image. This number is not in use on common systems.
#: Folders of wheels in the build context. Each becomes a layer of the image. The folder that changes least is first.
STAGES = ("required", "accelerator", "wheel")
#: Label of the image that the engine keeps for a stage. The value is the id of the run that built the image.
STAGE_LABEL = "io.tfdock.stage"
CONTENTS_LABEL = "io.tfdock.contents"  #: Label of a runtime image: a hash of everything in it.


@dataclass(frozen=True, slots=True, kw_only=True)
class Libraries:
    """The accelerator's libraries for a wheel. `lines` are requirements for pip. `lacking` says what is missing."""

    lines: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeSettings:
    """Variables of the image, and library folders for the loader (if the wheel itself does not search them)."""

    variables: Mapping[str, str]
    library_path: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeImage:
    """An image to build. `stages` are the STAGES that have wheels, with a pin for each wheel (`numpy==2.0.2`)."""

    build_id: str
    base: ImageRef
    python: str
    stages: Mapping[str, tuple[str, ...]]
    settings: RuntimeSettings
    labels: Mapping[str, str]
    constraints: str


# --- packages -------------------------------------------------------------------------------------------------------


def libraries(
    knowledge: KnowledgeBase,
    inspection: Inspection,
    offered: Sequence[str],
    python: str,
    components: Mapping[str, str] | None = None,
) -> Libraries:
    """Return the accelerator's libraries for a wheel and a `python` (`3.11`), in the toolkit's versions.

    `offered` are the lines of the wheel's own extra. They are used if their packages provide the libraries that the
    wheel opens, in the right version: a wheel built with another toolkit than the official wheel still has the
    official lines. `components` are the build's versions, if they are known more exactly than from the wheel.
    """
    rows = opened_libraries(knowledge, inspection, with_driver=False)
    versions = _Versions(knowledge, inspection, components or {})
    toolkit = _toolkit(knowledge, inspection)
    needed = {package_of(knowledge, inspection, row) for row in rows if row.use is None}
    # An extra for another major version of the toolkit has packages of other names. For another minor version,
    # the names are the same.
    if needed <= {requirement.package for requirement in wanted(offered)} and versions.agree(rows, offered):
        barred = _incompatible_packages(knowledge, inspection, python)
        lines = tuple(
            line for line in offered if not barred & {requirement.package for requirement in wanted([line])}
        )
        skipped = [line for line in offered if line not in lines]
        return Libraries(
            lines=lines, lacking=tuple(f"{line}, which has no files for Python {python}" for line in skipped)
        )
    minor = versions.minor(versions.toolkit)
    known = [row for row in rows if row.package]
    whole: tuple[str, ...] = ()
    compiling = toolkit.packages.get(versions.major, ()) if toolkit else ()
    if toolkit and minor in toolkit.published:
        extras = {*toolkit.extras.get(versions.major, ()), *(row.extra for row in known if row.extra)}
        whole, compiling = (f"{toolkit.package}[{','.join(sorted(extras))}]=={minor}.*",), ()
        known = [row for row in known if not row.extra]
    lines = (*whole, *(_line(package_of(knowledge, inspection, row), row, versions) for row in known), *compiling)
    return Libraries(lines=tuple(dict.fromkeys(lines)), lacking=tuple(_lacking(versions, rows)))


@dataclass(frozen=True, slots=True)
class _Versions:
    """The versions of the toolkit and its libraries that a wheel was built with."""

    knowledge: KnowledgeBase
    inspection: Inspection
    components: Mapping[str, str]

    @property
    def toolkit(self) -> str:
        """The name of the toolkit's component; empty without an accelerator."""
        accelerator = accelerator_of(self.knowledge, self.inspection)
        return accelerator.toolkit if accelerator else ""

    @property
    def major(self) -> str:
        """The major version of the toolkit."""
        return built_with(self.inspection, self.toolkit).partition(".")[0]

    def minor(self, component: str) -> str:
        """Return `13.0` for 13.0.2; empty if the minor version is not known."""
        built = built_with(self.inspection, component)
        exact = self.components.get(component, built)
        # A record may be untrusted, so the wheel's own metadata has priority.
        parts = (exact if exact.startswith(built) else built).split(".")
        return ".".join(parts[:2]) if len(parts) > 1 and all(part.isdecimal() for part in parts[:2]) else ""

    def agree(self, rows: Iterable[RuntimeLibrary], lines: Sequence[str]) -> bool:
        """Return whether these lines for pip have the toolkit's minor version, as far as this is known."""
        minor = self.minor(self.toolkit)
        packages = {package_of(self.knowledge, self.inspection, row) for row in rows if row.numbered}
        numbered = [line for line in lines if packages & {requirement.package for requirement in wanted([line])}]
        return not minor or all(f"=={minor}." in line.replace(" ", "") for line in numbered)


def _toolkit(knowledge: KnowledgeBase, inspection: Inspection) -> RuntimeToolkit | None:
    accelerator, release = accelerator_of(knowledge, inspection), release_of(inspection)
    rows = (row for row in knowledge.runtime_toolkits if accelerator and row.accelerator == accelerator.accelerator)
    return next((row for row in rows if in_range(release, row.releases)), None)


def _incompatible_packages(knowledge: KnowledgeBase, inspection: Inspection, python: str) -> set[str]:
    """Return packages that an extra names, and that cannot be installed with that Python."""
    accelerator, release = accelerator_of(knowledge, inspection), release_of(inspection)
    name = accelerator.accelerator if accelerator else ""
    return {
        row.package
        for row in knowledge.companions
        if row.package and row.accelerator == name and row.pythons and python not in row.pythons
        if in_range(release, row.releases)
    }


def _line(package: str, row: RuntimeLibrary, versions: _Versions) -> str:
    """Return a line for pip, with the build's own minor version if PyPI has it, else the library's major version.

    Such a package has the major version of its library: `libcufft.so.11` is in nvidia-cufft-cu12 11.2.
    """
    minor = versions.minor(row.component)
    if minor in row.published.get(versions.major, ()):
        return f"{package}=={minor}.*"
    major = row.library.partition(".so.")[2].partition(".")[0]
    return f"{package}=={major}.*" if major else package


def _lacking(versions: _Versions, rows: Sequence[RuntimeLibrary]) -> Iterable[str]:
    unknown = [row for row in rows if not row.package]
    needed = [row.library for row in unknown if row.use is None]
    if needed:
        yield f"{', '.join(needed)}: no known package has these libraries; without them, the wheel uses no GPU"
    yield from (f"{row.library}, for {row.use}: no known package has this library" for row in unknown if row.use)
    toolkit = _toolkit(versions.knowledge, versions.inspection)
    if toolkit and versions.major not in toolkit.packages:
        yield f"{posixpath.basename(toolkit.marker)}, for XLA: no known package has this file"


# --- variables ------------------------------------------------------------------------------------------------------


def settings(knowledge: KnowledgeBase, inspection: Inspection, site: str, members: Iterable[str]) -> RuntimeSettings:
    """Return the image's variables and library folders.

    `site` is the folder of packages in the image. `members` are the files of the accelerator's packages there.
    """
    members = list(members)
    accelerator, toolkit = accelerator_of(knowledge, inspection), _toolkit(knowledge, inspection)
    variables = dict(accelerator.container) if accelerator else {}
    if toolkit:
        end = f"/{toolkit.marker}"
        folders = [member.removesuffix(end) for member in members if member.endswith(end)]
        # TensorFlow looks into the other folders by itself.
        if folders and folders[0] not in toolkit.searched:
            folder = f"{site}/{folders[0]}"
            variables |= {name: value.format_map({"folder": folder}) for name, value in toolkit.setting.items()}
    folders_of = {posixpath.basename(member): posixpath.dirname(member) for member in members if ".so" in member}
    opened = [row for row in opened_libraries(knowledge, inspection, with_driver=False) if row.library in folders_of]
    path: tuple[str, ...] = ()
    # Leave LD_LIBRARY_PATH out if possible: it affects every program in the image.
    if any(folders_of[row.library] not in searched_folders(inspection, row) for row in opened):
        top_folders = {folders_of[row.library].partition("/")[0] for row in opened}
        path = tuple(
            f"{site}/{home}" for home in sorted(set(folders_of.values())) if home.partition("/")[0] in top_folders
        )
    return RuntimeSettings(variables=dict(sorted(variables.items())), library_path=path)


# --- the context ----------------------------------------------------------------------------------------------------


def render_runtime(image: RuntimeImage, templates: Mapping[str, str]) -> BuildContext:
    """Return the build context without the wheels. The wheels belong in the folders of the stages."""
    values = {
        "build_id": image.build_id,
        "base": image.base,
        "python": image.python,
        "folder": FOLDER,
        "user": USER,
        "stages": list(image.stages),
        "stage_label": STAGE_LABEL,
        "environment": dict(image.settings.variables),
        "library_path": list(image.settings.library_path),
        "labels": dict(image.labels),
    }
    scripts = {f"tfdock/{name}": templates[f"runtime/{name}"].encode() for name in ("environment.sh", "install.sh")}
    files = {
        "Dockerfile": from_template(templates, "runtime/Dockerfile.j2", values),
        "wheel/constraints.txt": image.constraints.encode(),
        **{f"{stage}/requirements.txt": _lines(pins) for stage, pins in image.stages.items()},
        **scripts,
    }
    # Sorted: the same contents give the same context, which the engine finds in its cache.
    return BuildContext(files=dict(sorted(files.items())))


def _lines(words: Iterable[str]) -> bytes:
    return "".join(f"{word}\n" for word in words).encode()


def site_packages(python: str) -> str:
    """Return the folder of packages for a Python (`3.11`) in the image."""
    return f"{FOLDER}/lib/python{python}/site-packages"
