"""Read an artifact from a registry by its name: the common part of wheel images and caches.

Each kind of artifact adds its media types, the contents of its manifest, and an `ArtifactKind` with the texts of its
errors.
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
    """A kind of artifact, and the texts of its errors.

    `noun` is the short name of the kind, `owned` its full name. `refusal` says that the artifact is malformed,
    `never_written` names what tfdock never writes. `malformed_…` and `other_…` are the code and fix of each error.
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
    """The artifact that a name in a registry stands for. The artifact should be of the given kind.

    `check` is called repeatedly, and raises to stop.
    """

    image: ImageRef
    check: Callable[[], None]
    kind: ArtifactKind

    @cached_property
    def repository(self) -> Repository:
        """The repository in the registry that has the artifact."""
        return Repository(self.image.registry, self.image.repository, check=self.check)

    @property
    def reference(self) -> str:
        """The digest or tag in requests to the registry."""
        # For a name without a tag, every client uses `latest`.
        return self.image.digest or self.image.tag or "latest"

    def manifest(self) -> FoundManifest | None:
        """Return the manifest that the name stands for now; None if the registry does not know the name."""
        return self.repository.manifest(self.reference)

    # --- refusals -----------------------------------------------------------------------------------------------

    @contextmanager
    def well_formed(self, digest: str) -> Iterator[None]:
        """Turn Malformed, raised while the contents with this digest are read, into VerificationFailed."""
        try:
            yield
        except Malformed as error:
            raise self.malformed(digest, str(error)) from error

    def malformed(self, digest: str, what: str) -> VerificationFailed:
        """Return the error for contents that tfdock does not write, or that contradict each other."""
        kind = self.kind
        return VerificationFailed.of(
            kind.malformed_code,
            f"the {kind.noun} `{self.image}` {kind.refusal}: {what}",
            kind.malformed_fix,
            why=f"the content of {digest} is undamaged, but tfdock never writes {kind.never_written}",
        )

    def other_kind(self, digest: str) -> ProfileError:
        """Return the error for a name that stands for an artifact of another kind."""
        message = f"`{self.image}` is not {self.kind.owned}: {digest}"
        return ProfileError.of(self.kind.other_code, message, self.kind.other_fix)


def from_blob(pieces: Iterator[bytes], contents: Iterable[_T]) -> Iterator[_T]:
    """Yield contents that are read from the pieces of a blob.

    If the contents are malformed, the rest of the blob is read first. Then the digest shows whether the registry
    damaged the blob, or whether a malformed blob was pushed.
    """
    try:
        yield from contents
    except Malformed:
        for _ in pieces:
            pass
        raise
