"""Download archives whose own addresses are dead, to where Bazel looks before it asks a server.

content_addressable/sha256/<sha256 of the file>/file     in the repository cache of every Bazel since 0.5
"""

from __future__ import annotations

import hashlib
import json
import re
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial

from tfdock.errors import NetworkError
from tfdock.host.files import FULL
from tfdock.host.supervise import Output
from tfdock.host.untrusted_folders import NotPlain, UntrustedFolder
from tfdock.knowledge.release_rows import SourceArchive
from tfdock.oci import http

_LARGEST = 4 << 30  #: Bytes. TensorFlow's largest download, LLVM, has a twentieth.
_CHUNK = 1 << 20
_SUM = re.compile(r'sha256"?\s*[=:]\s*"([0-9a-f]{64})"')
HOW_TO_ADD = "a row with this `sha256` in `source_archives.yaml` of a `--knowledge` folder"


def addresses(row: SourceArchive, mirror: str | None = None) -> tuple[str, ...]:
    """Return where an archive may be, in the order of asking. The mirror comes first, then what the row names.

    The mirror has an address below its own, without the scheme: `https://mirror.example/github.com/x/y.tar.gz`.
    """
    return (*(mirrored(mirror, url) for url in (row.original, *row.urls) if mirror), *row.urls)


def mirrored(mirror: str, url: str) -> str:
    """Return where a mirror has an address."""
    return f"{mirror.rstrip('/')}/{url.partition('://')[2]}"


def sum_beside(text: str, url: str) -> str:
    """Return the sha256 that a rule in a WORKSPACE or *.bzl gives an address; empty if the text has none for it."""
    for place in re.finditer(re.escape(url), text):
        # A rule ends with a line that begins with a bracket. Other rules have other sums.
        before = re.split(r"^ {0,8}\)", text[: place.start()], flags=re.MULTILINE)[-1]
        after = re.split(r"^ {0,8}\)", text[place.end() :], flags=re.MULTILINE)[0]
        if match := _SUM.search(before + after):
            return match[1]
    return ""


def example_row(url: str, sha256: str, release: str) -> str:
    """Return a row of the table, with words to fill in, for an archive that does not come from its address."""
    name = url.rpartition("/")[2]
    # As JSON, which is YAML too: an address of a stranger's source ends no line.
    values = {"sha256": sha256 or "…", "archive": name, "releases": release, "original": url, "gone": "2026"}
    return json.dumps({**values, "urls": ["https://…"], "source": "…"}, ensure_ascii=False)


def has_archive(repository: UntrustedFolder, row: SourceArchive) -> bool:
    """Return whether a repository cache has an archive. Its content was checked when it came."""
    return repository.exists(_name(row))


def download(row: SourceArchive, repository: UntrustedFolder, mirror: str | None, check: Callable[[], None]) -> None:
    """Put an archive into a repository cache, whole and with the right sum, or not at all.

    `check` is called meanwhile and raises to give up. Raises NetworkError (`source-archive-missing`) if no address
    has it, OSError where the cache cannot be written to.
    """
    reasons = []
    for url in addresses(row, mirror):
        fetch = partial(_fetch, url, row, repository, check)
        try:
            http.retry(fetch, breaks=True, check=check)
            return
        except http.HTTP_ERRORS as error:
            # These are errors of the cache, and another address would not mend them.
            if isinstance(error, NotPlain) or (isinstance(error, OSError) and error.errno in FULL):
                raise
            reasons.append(f"{url}: {http.failure_reason(error)}")
    raise NetworkError.of(
        "source-archive-missing",
        f"no server gave {row.archive}, whose own address is dead since {row.gone}: {'; '.join(reasons)}",
        (f"add an address that has it: {HOW_TO_ADD}", "set `archives` to a mirror that has it"),
        why=f"the source downloads {row.original} with the sha256 {row.sha256}",
    )


def _fetch(url: str, row: SourceArchive, repository: UntrustedFolder, check: Callable[[], None]) -> None:
    repository.write(_name(row), _chunks(url, row.sha256, check))


def _name(row: SourceArchive) -> str:
    return f"content_addressable/sha256/{row.sha256}/file"


def _chunks(url: str, sha256: str, check: Callable[[], None]) -> Iterator[bytes]:
    """Yield what an address gives. Raises StrangeAnswer at the end if the sum is another one."""
    digest, size = hashlib.sha256(), 0
    for chunk in http.receive(partial(_read, url), check):
        digest.update(chunk)
        size += len(chunk)
        if size > _LARGEST:
            raise http.StrangeAnswer("the answer is too long")
        yield chunk
    if digest.hexdigest() != sha256:
        raise http.StrangeAnswer(f"the file there has the sha256 {digest.hexdigest()}")


def _read(url: str, output: Output) -> None:
    """Put out what an address gives. Raises TruncatedAnswer if it ends early."""
    with http.send_once(urllib.request.Request(url)) as response:
        while chunk := response.read1(_CHUNK):
            output(chunk)
        if response.length:  # the missing bytes of the stated length
            raise http.TruncatedAnswer
