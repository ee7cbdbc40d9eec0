"""Download archives with dead addresses into Bazel's repository cache. Bazel looks there first.

content_addressable/sha256/<sha256 of the file>/file     in the repository cache of every Bazel since 0.5
"""

from __future__ import annotations

import hashlib
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial

from tfdock.bazel.cache.source_archives import HOW_TO_ADD, addresses
from tfdock.errors import NetworkError
from tfdock.host.files import FULL
from tfdock.host.supervise import Output
from tfdock.host.untrusted_folders import NotPlain, UntrustedFolder
from tfdock.knowledge.release_rows import SourceArchive
from tfdock.oci import http

_LARGEST = 4 << 30  #: The most bytes of an archive: 20 times as many as TensorFlow's largest download, LLVM.
_CHUNK = 1 << 20


def has_archive(repository: UntrustedFolder, row: SourceArchive) -> bool:
    """Return whether a repository cache has an archive. The archive was checked when it was downloaded."""
    return repository.exists(_name(row))


def download(row: SourceArchive, repository: UntrustedFolder, mirror: str | None, check: Callable[[], None]) -> None:
    """Download an archive into a repository cache: complete and with the right checksum, or not at all.

    `check` is called during the download, and raises to stop. Raises NetworkError (`source-archive-missing`) if no
    address has the archive, and OSError if the cache cannot be written to.
    """
    reasons = []
    for url in addresses(row, mirror):
        fetch = partial(_fetch, url, row, repository, check)
        try:
            http.retry(fetch, breaks=True, check=check)
            return
        except http.HTTP_ERRORS as error:
            # These are errors of the cache, and another address would not help.
            if isinstance(error, NotPlain) or (isinstance(error, OSError) and error.errno in FULL):
                raise
            reasons.append(f"{url}: {http.failure_reason(error)}")
    raise NetworkError.of(
        "source-archive-missing",
        f"no server gave {row.archive}, whose own address is dead since {row.gone}: {'; '.join(reasons)}",
        (f"add an address that has the archive: {HOW_TO_ADD}", "set `archives` to a mirror that has the archive"),
        why=f"the source downloads {row.original} with the sha256 {row.sha256}",
    )


def _fetch(url: str, row: SourceArchive, repository: UntrustedFolder, check: Callable[[], None]) -> None:
    repository.write(_name(row), _chunks(url, row.sha256, check))


def _name(row: SourceArchive) -> str:
    return f"content_addressable/sha256/{row.sha256}/file"


def _chunks(url: str, sha256: str, check: Callable[[], None]) -> Iterator[bytes]:
    """Yield the content of an address. Raises StrangeAnswer at the end if the sha256 is another one."""
    digest, size = hashlib.sha256(), 0
    for chunk in http.receive(partial(_read, url), check):
        digest.update(chunk)
        size += len(chunk)
        if size > _LARGEST:
            raise http.StrangeAnswer(f"the archive there has more than {_LARGEST:,} bytes")
        yield chunk
    if digest.hexdigest() != sha256:
        raise http.StrangeAnswer(f"the file there has the sha256 {digest.hexdigest()}")


def _read(url: str, output: Output) -> None:
    """Pass the content of an address to `output`. Raises TruncatedAnswer if the content ends early."""
    with http.send_once(urllib.request.Request(url)) as response:
        while chunk := response.read1(_CHUNK):
            output(chunk)
        if response.length:  # the missing bytes of the stated length
            raise http.TruncatedAnswer
