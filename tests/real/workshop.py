"""Files made by real compilers, linkers and bundlers, and wheels around them.

What was made is kept in the test bed's store, under a hash of all that it was made of: compiling is done once.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from bed import bed, missing
from filelock import FileLock
from waits import FETCH, run_within
from wheelhouses import with_record, write_wheel

from tfdock.wheel.facts import GpuCode, Library
from tfdock.wheel.library import LibraryScan

#: The fixture `official_wheels`: (requirement, python="3.11") -> a wheel's file.
OfficialWheels = Callable[..., Path]

_BLOCK = 1 << 20


class Workshop:
    """Makes files, in and from `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def make(self, script: str, sources: Mapping[str, str | bytes], *keep: str) -> Path:
        """The folder with the files `keep`, which the shell script makes out of the sources.

        The script names tools by `$CUDA_12_4` (a toolkit's folder) and `$BUNDLER_18` (a program). Skips where there
        is no test bed that has them.
        """
        texts = {name: text.hex() if isinstance(text, bytes) else text for name, text in sources.items()}
        recipe = json.dumps([script, texts, keep], sort_keys=True).encode()
        folder = self._folder / hashlib.sha256(recipe).hexdigest()[:24]
        with FileLock(f"{folder}.lock", timeout=FETCH):
            if not folder.exists():
                with tempfile.TemporaryDirectory(dir=self._folder) as temporary:
                    self._made(script, sources, keep, Path(temporary)).rename(folder)
        return folder

    def _made(self, script: str, sources: Mapping[str, str | bytes], keep: tuple[str, ...], temporary: Path) -> Path:
        if not shutil.which("g++"):
            missing("no g++")
        for name, text in sources.items():
            (temporary / name).write_bytes(text.encode() if isinstance(text, str) else text)
        environment = {**os.environ, **_tools(script, temporary)}
        command = ["sh", "-e", "-c", script]
        done = run_within(FETCH, command, cwd=temporary, env=environment)
        assert done.returncode == 0, f"{script}\n{done.stderr[-3000:]}"
        kept = temporary / "kept"
        kept.mkdir()
        for name in keep:
            shutil.move(temporary / name, kept)
        return kept


def _tools(script: str, temporary: Path) -> dict[str, str]:
    found = {}
    for variable, version in set(re.findall(r"\$(CUDA_(\d+_\d+))\b", script)):
        found[variable] = str(cuda(version.replace("_", ".")))
    for variable, version in set(re.findall(r"\$(BUNDLER_(\d+))\b", script)):
        folder = temporary / variable
        folder.mkdir()
        bed("offload-bundler", version, str(folder))
        found[variable] = str(folder / "clang-offload-bundler")
    return found


@functools.cache
def cuda(version: str) -> Path:
    """A toolkit's folder, with bin/nvcc and bin/cuobjdump; 13.0 has the cuobjdump of 13.2."""
    return Path(bed("cuda", version))


def told(*command: str | Path) -> str:
    """What a program prints."""
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def cuobjdumped(text: str) -> Counter[str]:
    """Target -> how many cubins and PTX files cuobjdump has listed."""
    kinds = {"cubin": "sm", "ptx": "compute"}
    return Counter(f"{kinds[kind]}_{number}" for number, kind in re.findall(r"\.sm_(\w+)\.(cubin|ptx)$", text, re.M))


def listed(code: GpuCode) -> list[str]:
    """`2: sm_80 compute_80`: how many containers hold just that."""
    return [
        f"{one.count}: {' '.join((*one.sass, *one.ptx, *one.amdgpu))}{' (stub)' if one.stub else ''}"
        for one in code.containers
    ]


def section(path: Path, name: str) -> tuple[int, int]:
    """Offset and size of a section, by readelf."""
    text = told("readelf", "-SW", path)
    match = re.search(rf" {re.escape(name)} +PROGBITS +\w+ (\w+) (\w+) ", text)
    assert match, text
    return int(match[1], 16), int(match[2], 16)


def library(path: Path, name: str = "") -> Library:
    """What `LibraryScan` says of a file."""
    scan = LibraryScan(name or path.name, path.stat().st_size)
    while (found := scan.library()) is None:
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                scan.feed(block)
    return found


def wheel(folder: Path, members: Mapping[str, Path]) -> Path:
    """A minimal wheel around the files, with a right RECORD."""
    info = "fixture-1.0.dist-info"
    contents = {name: path.read_bytes() for name, path in members.items()}
    contents[f"{info}/METADATA"] = b"Metadata-Version: 2.1\nName: fixture\nVersion: 1.0\n"
    contents[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: cp311-cp311-linux_x86_64\n"
    path = folder / "fixture-1.0-cp311-cp311-linux_x86_64.whl"
    write_wheel(path, with_record(contents))
    return path
