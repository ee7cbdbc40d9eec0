"""A matrix's CI pipeline and the files of it that are there: rendered, compared, written."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tfdock.ci import pipeline
from tfdock.ci.pipeline import Service, State
from tfdock.errors import Problem, ProfileError
from tfdock.host.beneath import Beneath, NotPlain
from tfdock.knowledge import loader
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.matrix import planned_matrix
from tfdock.matrix.cells import expand
from tfdock.matrix.matrix_file import Matrix

_MOST = 1 << 20
"""Bytes of a file that is in the place of a rendered one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """One file of a pipeline: where it belongs, what it is to be, what is there instead, if anything."""

    path: Path
    wanted: str
    found: str | None

    @property
    def state(self) -> State:
        """What the file that is there is, beside the one that is to be."""
        return pipeline.state(self.found, self.wanted)

    @property
    def difference(self) -> str:
        """What rendering would change in it, as a unified diff."""
        return pipeline.difference(self.found or "", self.wanted, str(self.path))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """The pipeline of a matrix for a service.

    `folder` is the repository's. `refusal` is why it cannot be used. `warnings` are what a user should know of it.
    """

    service: Service
    folder: Path
    files: tuple[File, ...]
    refusal: Problem | None
    warnings: tuple[Problem, ...]

    @property
    def there(self) -> bool:
        """Whether it was rendered here."""
        return any(file.state not in ("missing", "another", "foreign") for file in self.files)

    @property
    def amiss(self) -> tuple[Problem, ...]:
        """Why it is not what its matrix asks for, for each file that is not."""
        found = (_amiss(file, self.service) for file in self.files if file.state != "fresh")
        return (*([self.refusal] if self.refusal else []), *found)


def rendered(
    service: Service, file: Path, folder: Path, knowledge: KnowledgeBase, allowed: Iterable[Path] = ()
) -> Pipeline:
    """The files of a matrix's pipeline below `folder`, and what is there; writes nothing.

    Jobs find the matrix by its path from there, which is the repository's folder. Raises ProfileError, also where a
    link of the repository is in the way.
    """
    found = planned_matrix.read(file, allowed).matrix
    cells = sum(1 for cell in expand(found) if not cell.excluded)
    path = _in_repository(file, folder, found)
    words = ["tfdock", "ci", "render", service, *(["--"] if path.startswith("-") else []), path]
    files = pipeline.files(
        service,
        found,
        path=path,
        command=" ".join(map(pipeline.shell_word, words)),
        cells=cells,
        templates=loader.pipeline_templates(),
        actions=knowledge.ci_actions,
    )
    return Pipeline(
        service=service,
        folder=folder,
        files=tuple(
            File(path=folder / name, wanted=text, found=_found(folder, name)) for name, text in files.items()
        ),
        refusal=pipeline.refusal(service, found),
        warnings=pipeline.warnings(service, found),
    )


def _in_repository(file: Path, folder: Path, found: Matrix) -> str:
    """The path from the repository's folder, whichever way it was named."""
    path = Path(os.path.relpath(file, folder))
    if ".." in path.parts:
        raise ProfileError(
            Problem(
                code="ci-matrix-outside",
                message=f"{file} is not in the folder of the repository, where a job would look for it",
                fix="run this there, with the matrix in it, or name it: `-o DIR`",
                file=found.file,
            )
        )
    if any("\ud800" <= one <= "\udfff" for one in str(path)):  # how Python shows bytes that are no UTF-8
        raise ProfileError(
            Problem(
                code="ci-matrix-name",
                message="the path of the matrix is not UTF-8, and a YAML file cannot say it",
                fix="give the file another name",
                file=found.file,
            )
        )
    return path.as_posix()


def _opened(folder: Path) -> Beneath:
    """Open the repository's folder. The user names the folder, so it may be a link."""
    return Beneath.opened(Path(os.path.realpath(folder)))


def _found(folder: Path, name: str) -> str | None:
    """Return the text of a file of the repository, None if there is no such file; raises ProfileError."""
    try:
        with _opened(folder) as top, top.open(name) as file:
            size = os.fstat(file.fileno()).st_size
            data = b"" if size > _MOST else file.read(_MOST + 1)
        if max(size, len(data)) > _MOST:
            code, message = (
                "file-too-large",
                f"the file has {max(size, len(data)):,} bytes; at most {_MOST:,} are read",
            )
            fix = "move the file away"
        else:
            return data.decode("utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        code, message = "file-unreadable", f"not UTF-8 text (byte {error.start})"
        fix = "save it as UTF-8; is it a YAML file at all?"
    except NotPlain as error:
        raise _in_the_way(folder / name, error) from error
    except OSError as error:
        code, message = "file-unreadable", f"cannot be read: {error.strerror}"
        fix = "check the file's owner and mode"
    raise ProfileError(Problem(code=code, message=message, fix=fix, file=str(folder / name)))


def _in_the_way(path: Path, error: NotPlain) -> ProfileError:
    message = f"`{error.name}` is {error.kind}; a pipeline is read and written as plain files in plain folders"
    fix = f"remove `{error.name}`, then render the pipeline"
    return ProfileError(Problem(code="file-not-plain", message=message, fix=fix, file=str(path)))


def write(wanted: Pipeline, *, force: bool = False) -> Iterator[tuple[File, bool]]:
    """Write what is not there as it should be; gives each file, and whether it was written.

    Raises ProfileError, before anything is written, where the pipeline cannot be used, or where that would replace
    what somebody else has written. Raises ProfileError for a file that cannot be written. Follows no link.
    """
    if wanted.refusal:
        raise ProfileError(wanted.refusal)
    others = [file for file in wanted.files if file.state in _OTHERS and not force]
    if others:
        raise ProfileError(*(_amiss(file, wanted.service) for file in others))
    for file in wanted.files:
        if file.state != "fresh":
            _write(wanted.folder, file)
        yield file, file.state != "fresh"


def _write(folder: Path, file: File) -> None:
    try:
        with _opened(folder) as top:
            top.write(file.path.relative_to(folder).as_posix(), [file.wanted.encode()])
    except NotPlain as error:  # it was put there after the file was read
        raise _in_the_way(file.path, error) from error
    except OSError as error:
        message, fix = f"cannot write {file.path}: {error.strerror}", "check the folder, its owner and its mode"
        raise ProfileError(Problem(code="file-error", message=message, fix=fix)) from error


_OTHERS: tuple[State, ...] = ("edited", "another", "foreign")
"""What rendering would take from somebody."""


def _amiss(file: File, service: Service) -> Problem:
    """Why a file is not as rendered."""
    again, path = f"`tfdock ci render {service}`", str(file.path)
    match file.state:
        case "edited":
            message = "it was changed after it was rendered"
            fix = "change the matrix instead; `--force` drops what was changed"
            return Problem(code="ci-file-edited", message=message, fix=fix, file=path)
        case "another":
            message = f"it was rendered from another matrix, {pipeline.origin(file.found or '')}"
            fix = "give one of the two another name; `--force` replaces it"
            return Problem(code="ci-file-foreign", message=message, fix=fix, file=path)
        case "foreign":
            message, fix = "tfdock has not rendered this file", "move it away; `--force` replaces it"
            return Problem(code="ci-file-foreign", message=message, fix=fix, file=path)
        case "missing":
            message, fix = "it is not there", again
        case _:
            message, fix = "it is not what the matrix asks for now", f"{again}, and commit it"
    return Problem(code="ci-file-stale", message=message, fix=fix, file=path)
