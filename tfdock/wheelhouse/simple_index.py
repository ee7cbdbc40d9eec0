"""Write the pages of a static package index (PEP 503) with core metadata (PEP 658).

Pure: the same files give the same bytes, whatever their order.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from typing import BinaryIO

from packaging.utils import canonicalize_name, is_normalized_name

from tfdock.host.foreign_json import Sha256
from tfdock.wheel.facts import fail
from tfdock.wheel.wheel import core_metadata, variant_label
from tfdock.wheelhouse.build_record import WheelName

#: Version of the simple API (PEP 629) that every client knows. Later versions changed its JSON form only.
API_VERSION = "1.0"
#: Suffix that a client appends to a wheel's address to get its METADATA.
#:
#: The file is in the folder of the wheel, not of the page.
METADATA_SUFFIX = ".metadata"


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedWheel:
    """A wheel as an index names it.

    `file` is its name and `sha256` the hash of its bytes (64 hexadecimal digits). `requires_python` is as in
    METADATA. `metadata_sha256` is the hash of METADATA, which is served as `<file>.metadata`; None if METADATA is not
    served.
    """

    file: WheelName
    sha256: Sha256
    requires_python: str | None = None
    metadata_sha256: str | None = None

    @property
    def project(self) -> str:
        """The folder of the project's page: `tensorflow-cpu`."""
        return canonicalize_name(self.file.partition("-")[0])


def read_indexed_wheel(file: BinaryIO, filename: str, sha256: str) -> tuple[IndexedWheel, bytes]:
    """Return the index row of an open wheel, and the bytes of its METADATA. `sha256` is the hash of the whole file.

    Raises `WheelError` if the file is not a wheel of this name. The members of the wheel are not unpacked.
    """
    about, data = core_metadata(file, filename)
    project = filename.partition("-")[0]
    if not is_normalized_name(canonicalize_name(project)):  # no installer could request this project
        fail(
            "wheel-bad-name",
            f"`{project}` is not a valid project name: its ends must be letters or digits.",
        )
    if label := variant_label(filename):
        fail(
            "wheel-bad-name",
            f"`{filename}` has the variant label `{label}`. The index describes no variants.",
        )
    row = IndexedWheel(
        file=filename,
        sha256=sha256,
        requires_python=about.requires_python,
        metadata_sha256=hashlib.sha256(data).hexdigest(),
    )
    return row, data


def pages(files: Iterable[IndexedWheel], *, wheels: str = "../../") -> dict[str, bytes]:
    """Return all pages of an index, by paths in the index: `<project>/index.html` and, at the end, `index.html`.

    `wheels` is the relative address of the folder of wheels from a project's page. It ends with a slash.
    """
    projects: dict[str, list[IndexedWheel]] = defaultdict(list)
    for file in files:
        # One page for all spellings of a name: by PEP 503, clients request the normalised spelling.
        projects[file.project].append(file)
    made = {}
    for project, rows in projects.items():
        links = (_link(row, wheels) for row in sorted(rows, key=lambda row: row.file))
        made[f"{project}/index.html"] = _page(_title(project), links)
    # PEP 503: the address of a project ends with a slash.
    links = (f'<a href="{escape(project)}/">{escape(project)}</a>' for project in sorted(projects))
    return {**made, "index.html": _page(_title(), links)}


def is_ours(page: bytes, project: str = "") -> bool:
    """Return whether tfdock made a page, of a project or of all projects. Other programs' pages are not replaced."""
    # Compare only the head, so that pages with other wheels are recognised too.
    return page.startswith(_head(_title(project)).encode())


def _title(project: str = "") -> str:
    return f"Links for {project}" if project else "Simple index"


def _page(title: str, links: Iterable[str]) -> bytes:
    return "\n".join((_head(title), *(f"{link}<br>" for link in links), "</body>", "</html>", "")).encode()


def _head(title: str) -> str:
    lines = (
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta name="pypi:repository-version" content="{API_VERSION}">',
        f"<title>{escape(title)}</title>",
        "</head>",
        "<body>",
        f"<h1>{escape(title)}</h1>",
    )
    return "\n".join(lines)


def _link(row: IndexedWheel, wheels: str) -> str:
    # PEP 503: the hash is the fragment of the address.
    attributes = {"href": f"{wheels}{quoted(row.file)}#sha256={row.sha256}"}
    if row.requires_python is not None:
        # PEP 503: `<` and `>` must be escaped here, as `escape` does below.
        attributes["data-requires-python"] = row.requires_python
    if row.metadata_sha256 is not None:
        attributes["data-core-metadata"] = f"sha256={row.metadata_sha256}"
        # PEP 714 renamed the attribute. pip before 23.2 reads only the old name; without it, pip downloads the wheel.
        # That pip refuses METADATA whose Name is spelt unlike the requirement: `tensorflow-cpu`, `tensorflow_cpu`.
        if row.file.startswith(f"{row.project}-"):
            attributes["data-dist-info-metadata"] = attributes["data-core-metadata"]
    written = " ".join(f'{name}="{escape(value)}"' for name, value in attributes.items())
    return f"<a {written}>{escape(row.file)}</a>"


_OTHER = re.compile(rb"[^A-Za-z0-9._~-]")


def quoted(name: str) -> str:
    """Return a file name as part of an address. `+` is escaped as well: some servers read `+` as a space."""
    return _OTHER.sub(lambda match: b"%%%02X" % match[0][0], name.encode()).decode()
