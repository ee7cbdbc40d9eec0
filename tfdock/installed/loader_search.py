"""Find shared libraries as glibc's loader does, without loading any: which file is found for a name, and where.

The order is that of ld.so(8): the folders of LD_LIBRARY_PATH, the DT_RUNPATH of the file that needs the library,
/etc/ld.so.cache, the default folders. A DT_RPATH comes first if the file has no DT_RUNPATH. In each folder,
`glibc-hwcaps` comes first. This module does not know libraries that the process has already loaded.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tfdock.host.hardware import ask
from tfdock.wheel import elf

_DEFAULTS = ("/lib64", "/usr/lib64", "/lib", "/usr/lib")
_LEVELS = ("x86-64-v4", "x86-64-v3", "x86-64-v2")
_CACHED = re.compile(r"^\s*(\S+) \(([^)]*)\) => (\S+)$", re.MULTILINE)
_CACHE_WORDS = {"x86_64": "x86-64", "aarch64": "AArch64"}
_MOST = 16 << 20  #: The most bytes of a string table. TensorFlow's largest string table has 14 MB.


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """The dynamic section of a file: DT_NEEDED, DT_RUNPATH and DT_RPATH, each in order."""

    machine: str = ""
    needed: tuple[str, ...] = ()
    runpath: tuple[str, ...] = ()
    rpath: tuple[str, ...] = ()
    strings: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundLibrary:
    """The result for a name: the `path` of the found file, or None; and `by` which part of the search it was found.

    `damaged`: the file is not a library, and the loader stops there. `lacks` are names of missing libraries that the
    file needs, directly or through others: each name with the file that needs the library.
    """

    name: str
    path: Path | None = None
    by: str = ""
    damaged: bool = False
    lacks: tuple[tuple[str, str], ...] = ()


def needs_of(path: Path) -> Needs | None:
    """Return the dynamic section of a library, empty for a 32-bit library; None for a file that is not a library."""
    try:
        with path.open("rb") as file:
            first = file.read(elf.HEADER_SIZE)
            if first.startswith(elf.MAGIC) and not elf.is_read(first):
                return Needs()
            head = elf.header(first)
            file.seek(head.program_headers)
            segments = elf.segments(file.read(head.program_bytes), head)
            place = next((one for one in segments if one.kind == elf.PT_DYNAMIC), None)
            if place is None:
                return Needs(machine=elf.MACHINES.get(head.machine, ""))
            file.seek(place.offset)
            rows = elf.dynamic(file.read(min(place.size, elf.MOST_DYNAMIC)))
            values = dict(rows)
            file.seek(elf.offset_of(segments, values[elf.DT_STRTAB]))
            strings = file.read(min(values[elf.DT_STRSZ], _MOST))
    except (OSError, KeyError, elf.ElfError):
        return None

    def texts(tag: int) -> tuple[str, ...]:
        return tuple(_string(strings, value) for kind, value in rows if kind == tag)

    def folders(tag: int) -> tuple[str, ...]:
        return tuple(dict.fromkeys(folder for text in texts(tag) for folder in text.split(":") if folder))

    return Needs(
        machine=elf.MACHINES.get(head.machine, ""),
        needed=texts(elf.DT_NEEDED),
        runpath=folders(elf.DT_RUNPATH),
        rpath=folders(elf.DT_RPATH),
        strings=strings,
    )


def _string(strings: bytes, at: int) -> str:
    # TensorFlow's DT_RUNPATH names each folder dozens of times: 30,000 characters.
    return strings[at : strings.find(b"\0", at)].decode("utf-8", "replace")


def cached_libraries() -> dict[str, list[tuple[str, Path]]]:
    """Return the entries of /etc/ld.so.cache, by `ldconfig -p`: name -> kind and file; empty if there is no cache."""
    tool = next((name for name in ("/sbin/ldconfig", "/usr/sbin/ldconfig") if os.access(name, os.X_OK)), "ldconfig")
    found: dict[str, list[tuple[str, Path]]] = {}
    for name, kind, path in _CACHED.findall(ask(tool, "-p").text):
        found.setdefault(name, []).append((kind, Path(path)))
    return found


@dataclass(slots=True)
class Loader:
    """Searches as one process does: with its LD_LIBRARY_PATH, the system's cache, and its machine (`x86_64`)."""

    library_path: str
    machine: str
    cached: Mapping[str, list[tuple[str, Path]]] = field(default_factory=cached_libraries)
    _needs: dict[Path, Needs | None] = field(default_factory=dict)

    def needs(self, path: Path) -> Needs | None:
        """Return the dynamic section of a file. Each file is read only once."""
        if path not in self._needs:
            self._needs[path] = needs_of(path)
        return self._needs[path]

    def find(self, name: str, opener: Path) -> FoundLibrary:
        """Return the library that dlopen finds for a name in `opener`, and the libraries that it lacks."""
        path, by = self._found(name, opener)
        if path is None or self.needs(path) is None:
            return FoundLibrary(name=name, path=path, by=by, damaged=path is not None)
        lacks, seen, left = dict[str, str](), {name}, [path]
        while left:
            asking = left.pop()
            for needed in (self.needs(asking) or Needs()).needed:
                if needed in seen:
                    continue
                seen.add(needed)
                below, _ = self._found(needed, asking)
                if below and self.needs(below):
                    left.append(below)
                else:
                    lacks[needed] = asking.name
        return FoundLibrary(name=name, path=path, by=by, lacks=tuple(lacks.items()))

    def _found(self, name: str, opener: Path) -> tuple[Path | None, str]:
        for folder, by in self._folders(opener):
            for candidate in (*(folder / "glibc-hwcaps" / level / name for level in _LEVELS), folder / name):
                if self._fits(candidate):
                    return candidate, by
        word = _CACHE_WORDS.get(self.machine, self.machine)
        for kind, path in self.cached.get(name, ()):
            if word in kind and self._fits(path):
                return path, "/etc/ld.so.cache"
        defaults = (f"/lib/{self.machine}-linux-gnu", f"/usr/lib/{self.machine}-linux-gnu", *_DEFAULTS)
        found = next((path for folder in defaults if self._fits(path := Path(folder, name))), None)
        return found, "the system's folders" if found else ""

    def _folders(self, opener: Path) -> Iterator[tuple[Path, str]]:
        own = self.needs(opener) or Needs()
        searched = [(self.library_path, "LD_LIBRARY_PATH")] if self.library_path else []
        if own.runpath:
            searched.append((":".join(own.runpath), f"the DT_RUNPATH of {opener.name}"))
        elif own.rpath:
            searched.insert(0, (":".join(own.rpath), f"the DT_RPATH of {opener.name}"))
        for folders, by in searched:
            for text in re.split("[:;]", folders):
                # An empty entry is the working folder. `$ORIGIN` is the folder of the opened path: for a link,
                # the folder of the link, not of its target.
                yield Path(re.sub(r"\$(ORIGIN|\{ORIGIN\})", lambda _: str(opener.parent), text) or os.curdir), by

    def _fits(self, path: Path) -> bool:
        """Return whether the loader takes the file at a path: it skips only libraries for other machines."""
        # Not `Path.exists`: like the loader, skip a folder that this user may not open.
        return os.access(path, os.F_OK) and ((found := self.needs(path)) is None or found.machine == self.machine)
