"""Find where the sources of TensorFlow register operations and their kernels."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from tfdock.errors import ProfileError
from tfdock.host.untrusted_folders import UntrustedPath

_PLACES = ("tensorflow/core/ops", "tensorflow/core/kernels", "tensorflow/core/common_runtime")
_ENDINGS = (".cc", ".h")
_MOST_FILE = 1 << 24


def source_files(tree: Path) -> list[UntrustedPath]:
    """Return the files that may register operations, in the order in which people look for them.

    Raises ProfileError for a folder without TensorFlow's sources.
    """
    root = UntrustedPath(tree)
    found = [
        root / place / name
        for place in _PLACES
        for name in sorted(file.name for file in (root / place).walk() if file.is_plain)
        if name.endswith(_ENDINGS)
    ]
    if not found:
        fix = "give the folder that contains `tensorflow/core`"
        raise ProfileError.of("source-missing", f"{tree} has no sources of TensorFlow", fix)
    return found


def registrations(files: Iterable[UntrustedPath], types: Sequence[str]) -> dict[str, Sequence[str]]:
    """Return where operations of these types and their kernels are registered: type -> `file:line`.

    Only the first line in each file is listed. Names that macros build are not found.
    """
    names = "|".join(map(re.escape, types))
    # `REGISTER_OP("MatMul")`, `REGISTER6(BinaryOp, CPU, "AddV2", …)`, and `Name("MatMul")` in a macro of many lines.
    pattern = re.compile(rf'\b(?:REGISTER(?!_OP_GRADIENT)\w*\([^;"]*|Name\()"({names})"'.encode())
    found: dict[str, dict[str, int]] = {}
    for file in files:
        text = file.read(_MOST_FILE)
        for match in pattern.finditer(text):
            line = text.count(b"\n", 0, match.start(1)) + 1
            found.setdefault(match[1].decode(), {}).setdefault(file.inside, line)
    return {name: [f"{file}:{line}" for file, line in found[name].items()] for name in types if name in found}
