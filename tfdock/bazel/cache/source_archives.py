"""Archives with dead addresses: where they may be found, and how to use another address. Pure: no I/O."""

from __future__ import annotations

import json
import re

from tfdock.knowledge.release_rows import SourceArchive

_SUM = re.compile(r'sha256"?\s*[=:]\s*"([0-9a-f]{64})"')
HOW_TO_ADD = "a row with this `sha256` in `source_archives.yaml` of a `--knowledge` folder"


def addresses(row: SourceArchive, mirror: str | None = None) -> tuple[str, ...]:
    """Return the addresses to try for an archive. The mirror comes first, then the row's addresses.

    An address on the mirror ends with the archive's address without its scheme:
    `https://mirror.example/github.com/x/y.tar.gz`.
    """
    return (*(mirrored(mirror, url) for url in (row.original, *row.urls) if mirror), *row.urls)


def mirrored(mirror: str, url: str) -> str:
    """Return the address that an archive has on a mirror."""
    return f"{mirror.rstrip('/')}/{url.partition('://')[2]}"


def sum_beside(text: str, url: str) -> str:
    """Return the sha256 that a rule in a WORKSPACE or *.bzl states for an address; empty if it states none."""
    for place in re.finditer(re.escape(url), text):
        # A rule ends with a line that begins with a bracket. Other rules have other sums.
        before = re.split(r"^ {0,8}\)", text[: place.start()], flags=re.MULTILINE)[-1]
        after = re.split(r"^ {0,8}\)", text[place.end() :], flags=re.MULTILINE)[0]
        if match := _SUM.search(before + after):
            return match[1]
    return ""


def example_row(url: str, sha256: str, release: str) -> str:
    """Return a table row, with placeholders, for an archive whose address is dead."""
    name = url.rpartition("/")[2]
    # As JSON, which is YAML too: no address of a stranger's source can end the line.
    values = {"sha256": sha256 or "…", "archive": name, "releases": release, "original": url, "gone": "2026"}
    return json.dumps({**values, "urls": ["https://…"], "source": "…"}, ensure_ascii=False)
