"""Make the names of a build from the decisions about it: the build id, and the wheel's local version."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tfdock.types import BuildId, Source, Version

MAX_NAME = 128  #: Maximum length of an image tag; a file name has at most 255 bytes.
MAX_WORDS = 8  #: In names, longer lists of targets or CPU features are replaced by a hash.


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelNameParts:
    """The parts of the names of wheels and images. `components` are (name, version) pairs in their order in a name.

    `compiler` is set only if it is not the usual compiler. `project` is spelt as in file names (`my_tensorflow`), and
    set only if it is not the release's own project.
    """

    version: Version
    python: str
    accelerator: str
    toolkit: str
    components: tuple[tuple[str, str], ...]
    targets: tuple[str, ...]
    compiler: str
    cpu: str | tuple[str, ...]
    debug: bool
    xla: bool
    cloud: bool
    source: Source
    project: str
    machine: str

    @property
    def build_id(self) -> BuildId:
        """`tf2.18.0-py3.11-cuda12.5.1-cudnn9.3.0-sm86-x86_64`, at most 128 characters."""
        release = f"tf{self.version}" + "".join(f".{word}" for word in self._source)
        parts = [release, f"py{self.python}"]
        # Without components, as for the CPU, the accelerator is part of the name.
        parts += [f"{name}{version}" for name, version in self.components] or [self.accelerator]
        return BuildId(
            # A wheel's file name begins with the project, so the local version leaves the project out.
            _fitting(lambda most: "-".join((*parts, *self._words(most), *self._project(most), self.machine)))
        )

    @property
    def local_version(self) -> str | None:
        """How this wheel differs from the official wheel (`cuda12.5.sm86`); None without a difference.

        At most 128 characters, because the wheel's whole name must be valid as a file name.
        """
        toolkit = [f"{name}{Version(version).minor}" for name, version in self.components if name == self.toolkit]
        return _fitting(lambda most: ".".join((*toolkit, *self._words(most), *self._source))) or None

    @property
    def _source(self) -> list[str]:
        """`src1a2b3c4d` for anything but the release's own tag."""
        return [] if self.source.official else [f"src{_short_hash(source_identity(self.source))}"]

    def _project(self, most: int) -> list[str]:
        return [self.project if most else _short_hash(self.project.encode())] if self.project else []

    def _words(self, most: int) -> list[str]:
        """Return targets and the build's other differences; a list of more than `most` words is hashed."""
        words = _short_list([word for target in self.targets for word in _target_words(target)], most)
        # `portable` is the default and adds nothing to the name.
        features = () if isinstance(self.cpu, str) else self.cpu
        words += ["native"] if self.cpu == "native" else []
        # Words are joined by `.` and `-`, so a word must not contain them.
        words += _short_list([re.sub(r"[^a-z0-9]", "", name) for name in features], most)
        words += ["dbg"] if self.debug else []
        words += [self.compiler] if self.compiler else []
        words += [] if self.xla else ["noxla"]
        words += [] if self.cloud else ["nocloud"]
        # The order counts: the same patches in another order may give another source.
        words += [f"p{_short_hash(b''.join(self.source.patches.values()))}"] if self.source.patches else []
        return words


def source_identity(source: Source) -> bytes:
    """Return the identity of a source without its patches, for fingerprints and names."""
    # The location of a hashed source does not matter: the content is the same everywhere.
    parts = (source.kind, source.sha256 or "", source.commit or "", *(() if source.sha256 else (source.location,)))
    # A commit identifies the source, whichever ref led to it.
    refs = () if source.commit else source.refs
    return "\n".join((*parts, *refs)).encode()


def _target_words(target: str) -> list[str]:
    """Return `sm80` for sm_80, `sm86` and `ptx86` for compute_86, `gfx90axnackon` for gfx90a:xnack+."""
    kind, _, number = target.partition("_")
    if kind == "compute":
        return [f"sm{number}", f"ptx{number}"]
    # Image tags and local versions allow letters and digits only.
    return [re.sub(r"[^A-Za-z0-9]", "", target.replace("+", "on").replace("-", "off"))]


def _fitting(join: Callable[[int], str]) -> str:
    """Return a name with its lists written out, or hashed if it would be too long."""
    name = join(MAX_WORDS)
    return name if len(name) <= MAX_NAME else join(0)


def _short_list(words: Sequence[str], most: int) -> list[str]:
    if len(words) > most:
        # The number of words shows that the list is long.
        return [f"x{len(words)}", _short_hash(" ".join(words).encode())]
    return list(words)


def _short_hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:8]
