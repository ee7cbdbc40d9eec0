"""Where templates, knowledge and shipped profiles lie, in a checkout and when installed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tfdock.errors import Problem, ProfileError
from tfdock.read.knowledge import KnowledgeBase

_PACKAGE = Path(__file__).resolve().parent.parent
TABLES = (
    "accelerators", "architectures", "archives", "bazel", "codes", "companions", "compilers", "cpu_features",
    "drivers", "estimates", "flags", "gpus", "images", "interpreters", "libraries", "redistributables", "releases",
    "toolkits", "variables",
)  # fmt: skip


def _shipped(folder: str) -> Path:
    """Inside the package when installed, beside it in a checkout."""
    inside = _PACKAGE / folder
    return inside if inside.is_dir() else _PACKAGE.parent / folder


def templates() -> dict[str, str]:
    """Every file below `dockerfiles/`, by its path there."""
    root = _shipped("dockerfiles")
    return {path.relative_to(root).as_posix(): path.read_text("utf-8") for path in sorted(root.rglob("*.*"))}


def profiles() -> Path:
    """The folder of the shipped profiles."""
    return _shipped("profiles")


class _LazyTables(Mapping[str, list[tuple[str, str]]]):
    """Reads a table's files when it is asked for: most commands need few of them."""

    def __init__(self, folders: list[Path]) -> None:
        self._folders = folders

    def __getitem__(self, table: str) -> list[tuple[str, str]]:
        files = [folder / f"{table}.yaml" for folder in self._folders]
        return [(str(file), file.read_text("utf-8")) for file in files if file.is_file()]

    def __iter__(self) -> Iterator[str]:
        return iter(TABLES)

    def __len__(self) -> int:
        return len(TABLES)


def knowledge(overlays: Iterable[Path] = ()) -> KnowledgeBase:
    """The shipped knowledge with the rows of further folders merged over it."""
    folders = [_PACKAGE / "knowledge"]
    for folder in overlays:
        unknown = (
            sorted(file.name for file in folder.glob("*.yaml") if file.stem not in TABLES) if folder.is_dir() else []
        )
        if not folder.is_dir() or unknown:
            raise ProfileError(
                Problem(
                    code="knowledge-folder",
                    message=f"`{folder}` holds {', '.join(unknown)}" if unknown else f"`{folder}` is not a folder",
                    fix=f"a knowledge folder holds some of {', '.join(f'{table}.yaml' for table in TABLES)}",
                    file=str(folder),
                )
            )
        folders.append(folder)
    return KnowledgeBase(_LazyTables(folders))
