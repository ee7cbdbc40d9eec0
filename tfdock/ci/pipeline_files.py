"""Render the CI pipeline of a matrix, compare it with the files in the repository, and write it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tfdock.ci import pipeline
from tfdock.ci.pipeline import Service, State
from tfdock.errors import Problem, ProfileError
from tfdock.host.hardware import local_machine
from tfdock.host.project_files import located
from tfdock.host.settings import Settings
from tfdock.host.untrusted_folders import NotPlain, UntrustedFolder
from tfdock.knowledge import loader
from tfdock.matrix import planned_matrix
from tfdock.matrix.planned_matrix import WrittenMatrix
from tfdock.plan.prepare import Preparer

_MOST = 1 << 20  #: The most bytes that are read of an existing file.


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """One file of a pipeline: its path, the rendered text, and the current text (None without a file)."""

    path: Path
    rendered: str
    current: str | None

    @property
    def state(self) -> State:
        """How the current file compares with the rendered text."""
        return pipeline.state(self.current, self.rendered)

    @property
    def difference(self) -> str:
        """The changes that rendering would make, as a unified diff."""
        return pipeline.difference(self.current or "", self.rendered, str(self.path))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """The pipeline of a matrix for a service.

    `folder` is the repository's folder. `refusal` is the reason why the pipeline cannot be used. `warnings` are hints
    about the pipeline.
    """

    service: Service
    folder: Path
    files: tuple[File, ...]
    refusal: Problem | None
    warnings: tuple[Problem, ...]

    @property
    def is_rendered(self) -> bool:
        """Whether the pipeline was rendered into this folder."""
        return any(file.state not in ("missing", "another", "foreign") for file in self.files)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Why the pipeline cannot be used, and why each file differs from the matrix."""
        refusals = [self.refusal] if self.refusal else []
        return (*refusals, *(_problem(file, self.service) for file in self.files if file.state != "fresh"))


def render(services: Iterable[Service], file: Path, folder: Path, settings: Settings) -> list[Pipeline]:
    """Return the pipelines of a matrix with their files below `folder` and the current texts; write nothing.

    `folder` is the repository's folder: jobs find the matrix by its path from there. The cells are planned with the
    knowledge that the jobs have. Raises ProfileError, for example if the path contains a link of the repository.
    Raises Incompatible if no cell can be built.
    """
    written = planned_matrix.read(file, settings.allow_paths)
    matrix, path = written.matrix, _path_in_repository(file, folder)
    folders = _knowledge(written)
    preparer = Preparer(replace(settings, knowledge=folders), local_machine())
    knowledge, templates = preparer.knowledge, loader.templates("ci/templates")
    planned = planned_matrix.cells(file, preparer)
    # The largest possible number of jobs: the missing wheels are known only when the pipeline runs.
    cells = sum(1 for cell in planned.cells if cell.status != "excluded")
    impossible = sum(1 for cell in planned.cells if cell.status == "impossible")
    longest = max((cell.seconds or 0 for cell in planned.wanted), default=0)
    variable = os.pathsep.join(_path_in_repository(own, folder) for own in folders)
    pipelines = []
    for service in services:
        # After `--`, a path that begins with a dash is not an option.
        words = ["tfdock", "ci", "render", service, *(["--"] if path.startswith("-") else []), path]
        command = " ".join(map(pipeline.shell_word, words))
        texts = pipeline.files(
            service,
            matrix,
            path=path,
            command=command,
            cells=cells,
            knowledge=variable,
            templates=templates,
            actions=knowledge.ci_actions,
        )
        files = (File(path=folder / name, rendered=text, current=_read(folder, name)) for name, text in texts.items())
        pipelines.append(
            Pipeline(
                service=service,
                folder=folder,
                files=tuple(files),
                refusal=pipeline.refusal(service, matrix),
                warnings=pipeline.warnings(service, matrix, longest, impossible),
            )
        )
    return pipelines


def _knowledge(written: WrittenMatrix) -> tuple[Path, ...]:
    """Return the folders of knowledge that a matrix names; raises ProfileError for a folder outside its project."""
    matrix, folders = written.matrix, []
    for place, name in enumerate(matrix.ci.knowledge or ()):
        field = f"ci.knowledge[{place}]"
        try:
            own = Path(matrix.file).parent / name
            written.project.resolve(own, name=name, folder=True)
            # The files in the folder may be links to other places.
            for file in loader.overlay_files(own):
                written.project.resolve(file, name=f"{name}/{file.relative_to(own)}")
        except ProfileError as error:
            raise located(error, matrix.file, field, matrix.document.at_field(field)) from error
        folders.append(own)
    return tuple(folders)


def not_carried(settings: Settings, file: Path) -> Problem | None:
    """Return a warning if this machine's settings change the build, but the CI jobs lack these settings."""
    written = planned_matrix.read(file, settings.allow_paths)
    own = {folder.resolve() for folder in _knowledge(written)}
    names = [name for name in _NOT_CARRIED if getattr(settings, name)]
    if any(folder.resolve() not in own for folder in settings.knowledge):
        names.insert(0, "knowledge")
    if not names:
        return None
    return Problem(
        "ci-setting-not-carried",
        f"the pipeline does not have these settings of this machine: {', '.join(names)}",
        (
            "name your knowledge folders in the matrix: `ci: {knowledge: [DIR]}`",
            "set the other settings on the machines of the jobs",
        ),
        severity="warning",
        file=str(file),
    )


#: Settings besides `knowledge` that change the build or its sources, and that are not in rendered files.
_NOT_CARRIED = (
    "mirrors",
    "plain_http",
    "allow_paths",
    "allow_endpoints",
    "network",
    "remote_cache",
    "remote_executor",
    "remote_instance",
)


def _path_in_repository(file: Path, folder: Path) -> str:
    """Return the path of a file relative to the repository's folder; raises ProfileError."""
    path = Path(os.path.relpath(file, folder))
    if ".." in path.parts:
        code = "ci-matrix-outside"
        message = f"{file} is not in the folder of the repository, where a job would look for it"
        fix = "run the command in the folder of the repository, or name that folder: `-o DIR`"
    elif any("\ud800" <= character <= "\udfff" for character in str(path)):  # bytes that are not UTF-8, in Python
        code, fix = "ci-matrix-name", "give the file another name"
        message = "the path is not UTF-8, and a YAML file cannot contain it"
    else:
        return path.as_posix()
    raise ProfileError.of(code, message, fix, file=str(file))


def _open_folder(folder: Path) -> UntrustedFolder:
    """Open the repository's folder. The user names the folder, so it may be a link."""
    return UntrustedFolder.opened(Path(os.path.realpath(folder)))


def _read(folder: Path, name: str) -> str | None:
    """Return the text of a file in the repository, None if there is no such file; raises ProfileError."""
    try:
        with _open_folder(folder) as top, top.open(name) as file:
            size = os.fstat(file.fileno()).st_size
            # Limit the read too: the size may be 0, as in `/proc`, or the file may grow meanwhile.
            data = b"" if size > _MOST else file.read(_MOST + 1)
        if max(size, len(data)) > _MOST:
            message = f"the file has {max(size, len(data)):,} bytes; at most {_MOST:,} are read"
            code, fix = "file-too-large", "move the file away"
        else:
            return data.decode("utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        code, message = "file-unreadable", f"not UTF-8 text (byte {error.start})"
        fix = "save it as UTF-8, and check that it is a YAML file"
    except NotPlain as error:
        raise _in_the_way(folder / name, error) from error
    except OSError as error:
        code, message = "file-unreadable", f"cannot be read: {error.strerror}"
        fix = "check the file's owner and mode"
    raise ProfileError.of(code, message, fix, file=str(folder / name))


def _in_the_way(path: Path, error: NotPlain) -> ProfileError:
    message = f"`{error.name}` is {error.kind}; a pipeline must consist of plain files in plain folders"
    fix = f"remove `{error.name}`, then render the pipeline"
    return ProfileError.of("file-not-plain", message, fix, file=str(path))


def write(rendered: Pipeline, *, force: bool = False) -> Iterator[tuple[File, bool]]:
    """Write the outdated files; yield each file, and whether it was written.

    Raises ProfileError before the first write if the pipeline cannot be used, or if a file was edited or is not from
    this matrix (`force` overwrites such files). Also raises ProfileError for a file that cannot be written. Follows
    no link.
    """
    if rendered.refusal:
        raise ProfileError(rendered.refusal)
    # Check all files before writing the first: half a pipeline is worse than an old pipeline.
    others = [file for file in rendered.files if file.state in _OTHERS and not force]
    if others:
        raise ProfileError(*(_problem(file, rendered.service) for file in others))
    for file in rendered.files:
        if file.state != "fresh":
            _write(rendered.folder, file)
        yield file, file.state != "fresh"


def _write(folder: Path, file: File) -> None:
    try:
        with _open_folder(folder) as top:
            # Use descriptors: in a stranger's repository, a link may be in the place of the workflow.
            top.write(file.path.relative_to(folder).as_posix(), [file.rendered.encode()])
    except NotPlain as error:  # it appeared after the file was read
        raise _in_the_way(file.path, error) from error
    except OSError as error:
        message, fix = f"cannot write {file.path}: {error.strerror}", "check the folder, its owner and its mode"
        raise ProfileError.of("file-error", message, fix) from error


_OTHERS: tuple[State, ...] = ("edited", "another", "foreign")  #: The states of files that only `force` overwrites.


def _problem(file: File, service: Service) -> Problem:
    """Return the problem of a file that differs from its rendered text."""
    command = f"`tfdock ci render {service}`"
    match file.state:
        case "edited":
            code, message = "ci-file-edited", "it was changed after it was rendered"
            fix = "change the matrix instead; `--force` overwrites the edits"
        case "another":
            origin = pipeline.origin(file.current or "")
            code, message = "ci-file-foreign", f"it was rendered from another matrix, {origin}"
            fix = "rename one of the two matrices; `--force` replaces the file"
        case "foreign":
            code, message = "ci-file-foreign", "tfdock did not render this file"
            fix = "move the file away; `--force` replaces it"
        case "missing":
            code, message, fix = "ci-file-stale", "it does not exist", command
        case _:
            code, message = "ci-file-stale", "it differs from the matrix"
            fix = f"{command}, and commit it"
    return Problem(code, message, fix, file=str(file.path))
