"""The modules of the program as syntax trees, each parsed when a test first looks into it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import tfdock

ROOT = Path(tfdock.__file__).parent


class _Trees(Mapping[str, ast.Module]):
    """Path below the package -> its tree. To know the paths, nothing is parsed."""

    def __init__(self) -> None:
        self._paths = [path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py")]

    def __getitem__(self, module: str) -> ast.Module:
        return _tree(module)

    def __contains__(self, module: object) -> bool:
        return module in self._paths

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)


@cache
def _tree(module: str) -> ast.Module:
    return ast.parse((ROOT / module).read_text("utf-8"))


@cache
def walk(tree: ast.AST) -> tuple[ast.AST, ...]:
    """Return all nodes of a tree, as `ast.walk` does: a dozen tests look at each."""
    return tuple(ast.walk(tree))


MODULES = _Trees()
