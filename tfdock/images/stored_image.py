"""A wheel image as a registry keeps it: found by tag or digest, for one platform, and judged before it is used."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NoReturn

from tfdock.errors import Incompatible, NetworkError, Problem, ProfileError, VerificationFailed
from tfdock.images import wheel_image_read
from tfdock.images.wheel_image import MOST_PAPERS
from tfdock.images.wheel_image_read import FoundBuild, Labelled
from tfdock.oci import manifest as oci
from tfdock.oci.manifest import Descriptor, MalformedManifest, Manifest
from tfdock.oci.repository import FoundManifest, Repository
from tfdock.types import Digest, ImageRef

_INDEXES = (oci.INDEX, oci.DOCKER_LIST)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredImage:
    """An image of wheels that is what it says, as far as that is known without its wheels.

    `image` is what was asked for, `digest` that of the manifest for its platform.
    """

    image: ImageRef
    digest: Digest
    platform: str
    builds: tuple[FoundBuild, ...]
    repository: Repository = field(repr=False)

    @property
    def origin(self) -> str:
        """`ghcr.io/me/wheels:tag@sha256:…`: what it was asked for as, and who it is."""
        return str(ImageRef(self.image.repository, self.image.registry, self.image.tag, self.digest))


def stored(image: ImageRef, platform: str, check: Callable[[], None]) -> StoredImage | None:
    """What a registry has under a name for a platform (`linux/amd64`); None where it has nothing of that name.

    Raises what `Repository` does, ProfileError (`reference-no-wheels`), Incompatible (`wheel-image-platform`), and
    VerificationFailed (`wheel-image-malformed`, `wheel-image-moved`).
    """
    repository = Repository(image.registry, image.repository, check=check)
    found = repository.manifest(image.digest or image.tag or "latest")
    if found is None:
        return None
    with well_formed(image, found.digest):
        if found.media_type in _INDEXES:
            found = _of_platform(image, repository, found, platform)
        manifest = Manifest.read(found.data)
        if not wheel_image_read.is_wheel_image(manifest):
            _no_wheels(image, found.digest)
        about = wheel_image_read.labelled(manifest, _small(repository, manifest.config, wheel_image_read.MOST_CONFIG))
        if about.platform != platform:
            raise _other_platform(image, platform, [about.platform])
        builds = _builds(repository, about)
    _check_promise(image, found.digest, builds)
    return StoredImage(image=image, digest=found.digest, platform=platform, builds=builds, repository=repository)


def _of_platform(image: ImageRef, repository: Repository, index: FoundManifest, platform: str) -> FoundManifest:
    """The manifest that an index has for a platform."""
    if not wheel_image_read.says_wheels(index.data):
        _no_wheels(image, index.digest)
    known = wheel_image_read.platforms(index.data)
    if platform not in known:
        raise _other_platform(image, platform, known)
    found = repository.manifest(known[platform].digest)
    if found is None:
        message = (
            f"the registry {image.registry} has no {known[platform].digest}, which `{image}` names for {platform}"
        )
        fix = "push the image anew, or tell who runs the registry"
        raise NetworkError(Problem(code="image-not-found", message=message, fix=fix))
    return found


def _builds(repository: Repository, about: Labelled) -> tuple[FoundBuild, ...]:
    return wheel_image_read.builds(about, _small(repository, about.papers, MOST_PAPERS))


def _small(repository: Repository, blob: Descriptor, most: int) -> bytes:
    if blob.size > most:
        raise MalformedManifest(f"{blob.digest} has {blob.size} bytes, where tfdock writes {most} at most")
    return repository.small_blob(blob, most)


# --- refusals -------------------------------------------------------------------------------------------------------


@contextmanager
def well_formed(image: ImageRef, digest: Digest) -> Iterator[None]:
    """Tell what is malformed in an image."""
    try:
        yield
    except MalformedManifest as error:
        raise malformed(image, digest, str(error)) from error


def malformed(image: ImageRef, digest: Digest, what: str) -> VerificationFailed:
    """The refusal of an image that is not what an image of wheels must be, or not what it says."""
    return VerificationFailed(
        Problem(
            code="wheel-image-malformed",
            message=f"the image `{image}` is refused: {what}",
            why=f"{digest} has the bytes that it should have, but tfdock does not write such an image",
            fix="who can push there? Take another image",
        )
    )


def _no_wheels(image: ImageRef, digest: Digest) -> NoReturn:
    if wheel_image_read.is_promise(image.tag or ""):
        raise _moved(image, digest, "it is something else than wheels")
    raise ProfileError(
        Problem(
            code="reference-no-wheels",
            message=f"`{image}` is something else than an image of tfdock's wheels: {digest}",
            fix="name one that `tfdock image push` made; any other image is for `docker pull`",
        )
    )


def _other_platform(image: ImageRef, platform: str, known: Collection[str]) -> Incompatible:
    return Incompatible(
        Problem(
            code="wheel-image-platform",
            message=f"`{image}` has no wheels for {platform}",
            fix=f"it has them for {', '.join(known)}; for another machine: `--platform {next(iter(known), '')}`",
        )
    )


def _check_promise(image: ImageRef, digest: Digest, builds: tuple[FoundBuild, ...]) -> None:
    """A tag that is a build id or a fingerprint stands for that build, and may not be moved to another."""
    broken = wheel_image_read.broken_promise(image.tag or "", builds)
    if broken:
        raise _moved(image, digest, broken)


def _moved(image: ImageRef, digest: Digest, what: str) -> VerificationFailed:
    return VerificationFailed(
        Problem(
            code="wheel-image-moved",
            message=f"the tag of `{image}` was moved to another image, {digest}: {what}",
            why="a tag that is a build id or a fingerprint stands for that build and no other",
            fix="who can push there? If it is that image you want, name it by its digest: "
            f"`{ImageRef(image.repository, image.registry, None, digest)}`",
        )
    )
