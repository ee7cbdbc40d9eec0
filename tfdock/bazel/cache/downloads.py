"""Check Bazel's repository cache after a fetch. Remove entries whose content does not match the hash in their name.

content_addressable/<algorithm>/<hash of the bytes>/file           the content
content_addressable/<algorithm>/<hash of the bytes>/id-<hash>      empty; <hash> is the hash of the download's id
"""

from __future__ import annotations

import itertools
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from hashlib import file_digest
from pathlib import Path

from tfdock.bazel.cache.cache_folder import opened
from tfdock.host.untrusted_folders import FoundFile, UntrustedFolder, has_holes, open_up

#: The hash algorithms in the names of downloads, with the number of hexadecimal digits.
_DIGITS = {"sha1": 40, "sha256": 64, "sha384": 96, "sha512": 128}
EVERYTHING = "everything"
#: The most names in a repository cache. A download has a folder, a file, and an empty file for each address.
_MOST = 1_000_000
_ENTRY = re.compile(r"content_addressable/(?P<algorithm>[a-z0-9]+)/(?P<hash>[0-9a-f]+)")
_MARK = re.compile(r"id-[0-9a-f]{64}")
_UNFINISHED = re.compile(r"tmp-[0-9a-f-]{36}")


def unchecked_since(unchecked: Path) -> int:
    """Return the creation time of the file `unchecked`, in nanoseconds; create the file if it is missing.

    The file marks a fetch whose downloads have not been checked yet. The caller removes the file after the check.
    Until then the caller holds the repository cache exclusively.
    """
    unchecked.parent.mkdir(parents=True, exist_ok=True)
    # An older mark stays: it tells when the fetch of a killed run began.
    with suppress(FileExistsError):
        unchecked.touch(exist_ok=False)
    return unchecked.lstat().st_mtime_ns


def remove_changed_downloads(repository: Path, since: int) -> list[str]:
    """Remove entries that changed at `since` (nanoseconds) or later and do not match their name; return the names.

    If the cache has more names than fetches can leave, remove everything, and return only EVERYTHING.

    An entry's time is the kernel's time of status change, because no program can set this time. The caller holds the
    repository cache exclusively, and no container writes to the cache.
    """
    with suppress(FileNotFoundError):
        # A fetch can remove permissions on folders. The folders of single downloads are on the third level.
        open_up(repository.resolve(), 3)
    with suppress(FileNotFoundError), opened(repository) as folder:
        # Count the names before listing them: a fetch can create more names than fit into memory.
        if next(itertools.islice(folder.walk(), _MOST, None), None):
            folder.empty()
            return [EVERYTHING]
        # Make a list first: otherwise entries would be removed from folders that are being read.
        changed = list(_changed_names(folder, since))
        for name, _ in changed:
            if stat.S_ISDIR(folder.status(name).st_mode):
                folder.remove_folder(name)
            else:
                folder.remove(name)
        return [name for name, is_reported in changed if is_reported]
    return []


def _changed_names(folder: UntrustedFolder, since: int) -> Iterator[tuple[str, bool]]:
    """Yield the names to remove, and whether to report them.

    What a killed Bazel left half written is not reported.
    """
    for entry in folder.entries(2):
        match = _ENTRY.fullmatch(entry.name)
        if not match or len(match["hash"]) != _DIGITS.get(match["algorithm"], 0) or not entry.is_folder:
            if entry.status.st_ctime_ns >= since and not _is_expected_folder(entry):
                yield entry.name, True
            continue
        with folder.folder(entry.name) as download:
            yield from _changed_names_in(download, entry, match, since)


def _is_expected_folder(entry: FoundFile) -> bool:
    parts = entry.name.split("/")
    expected = parts[0] == "content_addressable" and (len(parts) == 1 or parts[1] in _DIGITS)
    return entry.is_folder and expected and len(parts) < 3


def _changed_names_in(
    entry: UntrustedFolder, listed: FoundFile, match: re.Match[str], since: int
) -> Iterator[tuple[str, bool]]:
    # Renaming a folder changes the folder's times, but not the times of the files in it.
    renamed = listed.status.st_ctime_ns >= since
    for file in entry.entries():
        if not renamed and file.status.st_ctime_ns < since:
            continue
        name = f"{listed.name}/{file.name}"
        if _UNFINISHED.fullmatch(file.name) and file.is_plain:
            yield name, False
        # Bazel takes the contents from this name only.
        elif file.name == "file" and file.is_plain:
            with entry.open("file", unnoticed=True) as content:
                # No download has holes, and hashing terabytes of nothing would take days.
                if (
                    has_holes(content.fileno())
                    or file_digest(content, match["algorithm"]).hexdigest() != match["hash"]
                ):
                    yield name, True
        # Bazel asks only whether a mark exists. A mark with contents is not Bazel's.
        elif not (_MARK.fullmatch(file.name) and file.is_plain and file.status.st_size == 0):
            yield name, True
