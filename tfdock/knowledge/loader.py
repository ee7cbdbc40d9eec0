"""Find and load templates, knowledge and shipped profiles, in a checkout and when installed."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tfdock.errors import ProfileError
from tfdock.host.files import make_private, other_writers, read_text
from tfdock.host.hardware import nearest
from tfdock.host.untrusted_folders import UntrustedPath

if TYPE_CHECKING:
    from tfdock.knowledge.tables import KnowledgeBase

_T = TypeVar("_T")

MATRIX = "matrix.yaml"  #: The name of the file in the profiles folder that is a matrix, not a profile.
_PACKAGE = Path(__file__).resolve().parent.parent
# The names are listed here, not read from the folder: a file with a misspelt name must be refused.
TABLES = (
    "accelerators", "architectures", "archives", "bazel", "bench_operations", "cachebusters", "came_and_went",
    "ci_actions", "codes", "companions", "compilers", "configs", "cpu_features", "distributions", "drivers",
    "edits", "error_kinds", "estimates", "evidence", "failures", "flags", "forks", "generated_kernels", "gpus",
    "harmless_options", "host_compilers", "image_tags", "images", "interpreters", "libraries", "log_parts",
    "meanings", "other_devices", "probes", "published_builds", "redistributables", "releases", "requirement_limits",
    "runtime_compilers", "runtime_libraries", "runtime_toolkits", "runtimes", "size_limits", "slow_causes",
    "source_archives", "switches", "target_reports", "toolkits", "topics", "variables", "wheel_libraries",
)  # fmt: skip


def _shipped(folder: str) -> Path:
    """Return a shipped folder: inside the package when installed, beside it in a checkout."""
    inside = _PACKAGE / folder
    # A wheel has the folders in the package; a checkout has them at the top level, where people look.
    return inside if inside.is_dir() else _PACKAGE.parent / folder


def templates(folder: str = "dockerfiles") -> dict[str, str]:
    """Return relative path -> text of every file below a shipped folder, without Python's compiled files."""
    root = _shipped(folder)
    files = (path for path in sorted(root.rglob("*.*")) if path.suffix != ".pyc")
    return {path.relative_to(root).as_posix(): path.read_text("utf-8") for path in files}


def profiles() -> Path:
    """Return the folder of the shipped profiles."""
    return _shipped("profiles")


def profile_files() -> list[Path]:
    """Return the shipped profiles' files by name, without the matrix file in the same folder."""
    return sorted((file for file in profiles().glob("*.yaml") if file.name != MATRIX), key=lambda file: file.stem)


def _files(folder: Path, table: str) -> list[Path]:
    """Return the paths of a table: `<table>.yaml`, and the files in the folder `<table>`."""
    return [folder / f"{table}.yaml", *sorted((folder / table).glob("*.yaml"))]


class _LazyTables(Mapping[str, list[tuple[str, str]]]):
    """Reads a table's files only when the table is needed: most commands need few tables."""

    def __init__(self, folders: list[Path]) -> None:
        self._folders = folders

    def __getitem__(self, table: str) -> list[tuple[str, str]]:
        # Overlays come after the shipped folder, so that their rows win.
        files = [file for folder in self._folders for file in _files(folder, table)]
        return [(str(file), read_text(file)) for file in files if file.is_file()]

    def __iter__(self) -> Iterator[str]:
        return iter(TABLES)

    def __len__(self) -> int:
        return len(TABLES)


#: A knowledge folder: its path as given, its absolute path, and (name, time, size) of its files.
_Folder = tuple[Path, Path, tuple[tuple[str, int, int], ...]]


def knowledge(overlays: Iterable[Path] = (), cache: Path | None = None) -> KnowledgeBase:
    """Return the shipped knowledge, with the rows of the overlay folders merged over it.

    For the same folders, a process reads and checks each table only once. See `read_knowledge` for the errors.
    """
    return _shared_knowledge(tuple(_folder_state(folder) for folder in overlays), cache)


def overlay_files(folder: Path) -> list[Path]:
    """Return the files of a folder that are either read as knowledge or refused."""
    # Do not search other subfolders: a user's folder may be a repository with a million files.
    return sorted([*folder.glob("*.yaml"), *(file for table in TABLES for file in (folder / table).glob("*.yaml"))])


def _folder_state(folder: Path) -> _Folder:
    states = []
    for file in overlay_files(folder):
        with suppress(OSError):  # `read_knowledge` refuses files that cannot be read
            state = file.stat()
            # Compare time and size, as make does: reading all files would cost the time that this saves.
            states.append((str(file), state.st_mtime_ns, state.st_size))
    # After a change of the working folder, a relative path names another folder.
    return folder, folder.absolute(), tuple(states)


@lru_cache(maxsize=4)
def _shared_knowledge(folders: tuple[_Folder, ...], cache: Path | None) -> KnowledgeBase:
    return read_knowledge([folder for folder, _, _ in folders], cache)


def read_knowledge(
    overlays: Iterable[Path] = (), cache: Path | None = None, *, checks_shipped: bool = False
) -> KnowledgeBase:
    """Return knowledge that shares no table with other callers. Raises ProfileError for an unusable folder.

    With `cache`, the parsed tables are kept in its folder `knowledge` for later processes. The texts in the shipped
    rows (expressions, placeholders, examples) are checked only with `checks_shipped`: the tests do so.
    """
    shipped = _PACKAGE / "knowledge"
    folders = [shipped]
    for folder in overlays:
        # In an unreadable folder `glob` finds nothing and raises no error.
        usable = folder.is_dir() and os.access(folder, os.R_OK | os.X_OK)
        unknown = sorted(file.name for file in folder.glob("*.yaml") if file.stem not in TABLES) if usable else []
        if not usable or unknown:
            fault = f"holds {', '.join(unknown)}" if unknown else "is not a readable folder"
            fix = f"a knowledge folder holds some of {', '.join(f'{table}.yaml' for table in TABLES)}"
            raise ProfileError.of("knowledge-folder", f"`{folder}` {fault}", fix, file=str(folder))
        folders.append(folder)
    from tfdock.knowledge.tables import KnowledgeBase, plain  # here: completion of names needs no rows

    def table(text: str, file: str) -> object:
        return _cached(cache, text, lambda: plain(text, file)) if cache else plain(text, file)

    def is_shipped(file: str) -> bool:
        return not checks_shipped and Path(file).is_relative_to(shipped)

    return KnowledgeBase(_LazyTables(folders), table, is_shipped)


def names(
    kind: str, find: Callable[[KnowledgeBase], Iterable[str]], overlays: tuple[Path, ...], cache: Path
) -> list[str]:
    """Return the names of this kind, sorted. `find` finds them in the knowledge; later processes read no table.

    See `read_knowledge` for the errors.
    """
    states = [_folder_state(folder) for folder in (_PACKAGE / "knowledge", *overlays)]
    return _cached(cache, f"{kind} {states}", lambda: sorted(find(knowledge(overlays, cache))))


# --- data that was read before ------------------------------------------------------------------------------------

_FORMAT = b"1"  #: Part of each file's name. Raise it when the same text gives other data.
_KEPT = 100  #: The most cache files. Every table has a file, and every change of a table leaves an old file.
_NAME = re.compile(r"[0-9a-f]{64}\.json")
_LARGEST = 64 << 20  #: The most bytes of a cache file. The largest table has a hundredth of this.


def _cached(cache: Path, text: str, read: Callable[[], _T]) -> _T:
    """Return what `read` makes of a text, from the cache file that is named by the text's hash, or by calling `read`.

    Reading JSON takes a fiftieth of the time of reading YAML with its places. A cache file holds the sha256 of its
    second line, and the data in that line. A file that cannot be read, is incomplete or cannot be written counts as
    absent; so does one that another user could have written.
    """
    # The name is a hash of the text: a changed table has another file, so no times need to be compared.
    folder, name = cache / "knowledge", f"{hashlib.sha256(_FORMAT + text.encode()).hexdigest()}.json"
    kept = UntrustedPath(folder.parent, folder.name) / name
    with suppress(OSError, ValueError):
        # Its PermissionError is suppressed as well: the file counts as absent.
        _check_private(folder)
        # The digest recognises an incomplete file.
        digest, _, data = kept.read(_LARGEST).partition(b"\n")
        if digest == hashlib.sha256(data).hexdigest().encode():
            values: _T = json.loads(data)
            return values
    values = read()
    with suppress(OSError):
        _keep(kept, json.dumps(values).encode())
    return values


def _check_private(folder: Path) -> None:
    """Raise OSError if another user could have put a file there: the tables decide which options are harmless."""
    # A user who can write to the parent folder can replace the folder.
    for path in (folder.parent, folder):
        if who := other_writers(path):
            raise PermissionError(errno.EPERM, who, str(path))


def _keep(kept: UntrustedPath, data: bytes) -> None:
    folder = kept.parent
    if nearest(folder.path).stat().st_uid != os.geteuid():
        return  # `sudo` with the user's HOME: a folder owned by root would break the user's later builds
    make_private(folder.root)
    folder.make(private=True)
    _check_private(folder.path)
    # Not durable: after a power cut an incomplete file has another hash.
    kept.write(hashlib.sha256(data).hexdigest().encode() + b"\n" + data, durable=False)
    # Remove the oldest files: their tables have changed since.
    files = [
        (status.st_mtime_ns, file)
        for file in folder.entries()
        if _NAME.fullmatch(file.name) and (status := file.status())
    ]
    for _, old in sorted(files)[:-_KEPT]:
        old.remove()
