"""Expected renders: folders of files that somebody has read; `make golden` writes them anew.

A script that is copied as it stands is compared with its source, and not kept here.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from tfdock.knowledge import loader

SCRIPTS = {text.encode() for text in loader.templates().values()}


def held_against(folder: Path, files: Mapping[str, bytes], *, refresh: bool) -> None:
    """These files, by path, are the folder's to the last byte; with `refresh` the folder becomes these files."""
    files = {path: data for path, data in files.items() if data not in SCRIPTS}
    if refresh:
        shutil.rmtree(folder, ignore_errors=True)
        for path, data in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)
    expected = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert set(files) == expected
    for path, data in files.items():
        assert data.decode() == (folder / path).read_text("utf-8"), "if it is meant: make golden, and read the diff"
