"""Read a TensorFlow wheel's own facts about its build, without importing it: `build_info.py` and headers."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Mapping

#: The paths of `build_info.py` in a wheel; releases 1.15 to 2.1 use the second path.
PATHS = ("tensorflow/python/platform/build_info.py", "tensorflow_core/python/platform/build_info.py")
# A stranger may have written the file: parsing a megabyte of Python would waste time and memory.
MOST_BYTES = 64 << 10
_INCLUDED = "tensorflow/include/third_party/gpus/cuda/"
#: Headers that state the CUDA version of the build, the most exact header first.
HEADERS = (f"{_INCLUDED}cuda_config.h", f"{_INCLUDED}include/cuda.h")
MOST_HEADER_BYTES = 4 << 20
_CUDA = re.compile(
    rb'^#define[ \t]+(?:TF_CUDA_VERSION[ \t]+"([0-9.]{1,20})"|CUDA_VERSION[ \t]+([0-9]{4,6})\b)', re.MULTILINE
)
_MAPPINGS = {"dict", "OrderedDict"}


def build_info(source: bytes) -> Mapping[str, object] | None:
    """Return the file's entries: `cuda_version`, `is_cuda_build`, …; None if it is not Python or has no constants.

    From release 2.3 on, the file assigns a mapping to `build_info`; older files have one variable for each entry.
    Only constants and lists of constants are read; nothing is evaluated.
    """
    try:
        with warnings.catch_warnings():
            # Ignore warnings about untrusted code: `1if x` would print one on standard error.
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    # NUL bytes raise a ValueError; deep nesting raises one of the last two.
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    entries: dict[str, object] = {}
    for name, value in _assignments(tree):
        pairs = _pairs(value) if name == "build_info" else [(name, value)]
        for key, node in pairs:
            constant = _constant(node)
            if constant is not None:
                entries[key] = constant
    return entries or None


def cuda_version(header: bytes) -> str:
    """Return the version in `#define TF_CUDA_VERSION "12.5.1"` or `#define CUDA_VERSION 12050`; empty without one."""
    match = _CUDA.search(header)
    if match is None:
        return ""
    if match[1]:
        return match[1].decode()
    number = int(match[2])
    return f"{number // 1000}.{number % 1000 // 10}"


def _assignments(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    # Only the top level: an assignment in a function or a condition may never run.
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, node.value


def _pairs(node: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """Return the items of a literal mapping, or of `collections.OrderedDict([...])`."""
    if isinstance(node, ast.Dict):
        items = list(zip(node.keys, node.values, strict=True))
    elif isinstance(node, ast.Call) and _called(node) in _MAPPINGS:
        first = node.args[0] if node.args else None
        if isinstance(first, ast.Dict):
            yield from _pairs(first)
        pairs = first.elts if isinstance(first, ast.List | ast.Tuple) else []
        items = [
            (pair.elts[0], pair.elts[1]) for pair in pairs if isinstance(pair, ast.Tuple) and len(pair.elts) == 2
        ]
    else:
        return
    for key, value in items:
        if isinstance(key, ast.Constant) and isinstance(key.value, str) and key.value.isprintable():
            yield key.value, value


def _called(node: ast.Call) -> str:
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def _constant(node: ast.expr) -> object | None:
    if isinstance(node, ast.Constant):
        value = node.value
        # Accept what JSON and a terminal can show: no lone surrogates, no endless numbers.
        if isinstance(value, str):
            return value if value.isprintable() else None
        return value if isinstance(value, bool) or (isinstance(value, int) and abs(value) < 1 << 63) else None
    if isinstance(node, ast.List | ast.Tuple):
        values = [_constant(element) for element in node.elts]
        return values if None not in values else None
    return None
