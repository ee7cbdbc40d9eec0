"""Artifacts under a name: what is asked for, and what their refusals say."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tfdock.bazel.cache.registry_cache import CACHES
from tfdock.errors import VerificationFailed
from tfdock.host.foreign_json import Malformed
from tfdock.images.lookup import WHEEL_IMAGES
from tfdock.oci.artifact import ArtifactKind, NamedArtifact, from_blob
from tfdock.types import ImageRef


@pytest.mark.parametrize(
    ("text", "reference"),
    [("me/x", "latest"), ("me/x:tag", "tag"), (f"me/x:tag@sha256:{'a' * 64}", f"sha256:{'a' * 64}")],
)
def test_the_digest_goes_before_the_tag_and_without_both_it_is_latest(text: str, reference: str) -> None:
    assert NamedArtifact(ImageRef.parse(text), lambda: None, CACHES).reference == reference


@pytest.mark.parametrize(
    ("kind", "code", "message"),
    [
        (WHEEL_IMAGES, "wheel-image-malformed", "the image `me/x` is refused: it is odd"),
        (CACHES, "cache-layers-malformed", "the cache `me/x` cannot be used: it is odd"),
    ],
)
def test_what_is_malformed_is_refused_in_the_words_of_its_kind(kind: ArtifactKind, code: str, message: str) -> None:
    named = NamedArtifact(ImageRef.parse("me/x"), lambda: None, kind)
    with pytest.raises(VerificationFailed) as caught, named.well_formed("sha256:…"):
        raise Malformed("it is odd")
    (problem,) = caught.value.problems
    assert (problem.code, problem.message) == (code, message)


def test_a_malformed_blob_is_read_to_its_end_before_it_is_refused() -> None:
    def contents() -> Iterator[bytes]:
        yield next(pieces)
        raise Malformed("it is odd")

    pieces = iter([b"1", b"2", b"3"])
    with pytest.raises(Malformed):
        list(from_blob(pieces, contents()))
    assert next(pieces, None) is None
