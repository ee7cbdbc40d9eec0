"""Read an artifact under a name in a registry: the common part of wheel images and caches.

A kind of artifact adds its media types, the contents of its manifest, and an `ArtifactKind` with the words of a
refusal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from tfdock.errors import ProfileError, VerificationFailed
from tfdock.host.foreign_json import Malformed
from tfdock.oci.repository import FoundManifest, Repository
from tfdock.types import ImageRef

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactKind:
    """A kind of artifact, in the words of its refusals.

    `noun` is its name, `owned` its full name. `refusal` is for a malformed artifact,
    `never_written` for one that tfdock does not write. Each of the two refusals has a code and a fix.
    """

    noun: str
    owned: str
    refusal: str
    never_written: str
    malformed_code: str
    malformed_fix: str
    other_code: str
    other_fix: str


@dataclass
class NamedArtifact:
    """The artifact that a name in a registry stands for. It should be of one kind.

    `check` is called now and then, and raises to stop.
    """

    image: ImageRef
    check: Callable[[], None]
    kind: ArtifactKind

    @cached_property
    def repository(self) -> Repository:
        """The repository of the registry that has it."""
        return Repository(self.image.registry, self.image.repository, check=self.check)

    @property
    def reference(self) -> str:
        """The digest or tag in requests to the registry."""
        # The tag that every client means by a name without one.
        return self.image.digest or self.image.tag or "latest"

    def manifest(self) -> FoundManifest | None:
        """Return the manifest that the name stands for now; None if the registry does not have the name."""
        return self.repository.manifest(self.reference)

    # --- refusals -----------------------------------------------------------------------------------------------

    @contextmanager
    def well_formed(self, digest: str) -> Iterator[None]:
        """Turn Malformed, raised while the contents of that digest are read, into VerificationFailed."""
        try:
            yield
        except Malformed as error:
            raise self.malformed(digest, str(error)) from error

    def malformed(self, digest: str, what: str) -> VerificationFailed:
        """Return the refusal of contents that tfdock does not write, or that contradict themselves."""
        kind = self.kind
        return VerificationFailed.of(
            kind.malformed_code,
            f"the {kind.noun} `{self.image}` {kind.refusal}: {what}",
            kind.malformed_fix,
            why=f"the content of {digest} is undamaged, but tfdock never writes {kind.never_written}",
        )

    def other_kind(self, digest: str) -> ProfileError:
        """Return the refusal of a name that stands for something else."""
        message = f"`{self.image}` is not {self.kind.owned}: {digest}"
        return ProfileError.of(self.kind.other_code, message, self.kind.other_fix)


def from_blob(pieces: Iterator[bytes], contents: Iterable[_T]) -> Iterator[_T]:
    """Yield contents that are read from the pieces of a blob.

    If they are malformed, the rest of the blob is read first. Its digest tells whether it was pushed so, or whether
    the registry damaged it.
    """
    try:
        yield from contents
    except Malformed:
        for _ in pieces:
            pass
        raise
