"""Look up a build: search the repositories of the settings for the fingerprint of a plan.

An image is found by tag or digest, for one platform, and checked before it is used.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from tfdock.errors import Incompatible, NetworkError, TfdockError, VerificationFailed
from tfdock.host.foreign_json import Malformed
from tfdock.images import wheel_image_read
from tfdock.images.image_tags import broken_promise, fingerprint_tag, is_promise
from tfdock.images.wheel_image import MOST_PAPERS
from tfdock.images.wheel_image_read import FoundBuild, machine_platform
from tfdock.images.wheel_layer import PACKED_TYPES, unpacked
from tfdock.oci import manifest as oci
from tfdock.oci.artifact import ArtifactKind, NamedArtifact
from tfdock.oci.manifest import Descriptor, Manifest
from tfdock.oci.repository import FoundManifest, Repository
from tfdock.plan.build_plan import BuildPlan
from tfdock.plan.lock_file import LockFile
from tfdock.plan.trust_domain import stands_for
from tfdock.types import NATIVE, Digest, ImageRef

_INDEXES = (oci.INDEX, oci.DOCKER_LIST)
WHEEL_IMAGES = ArtifactKind(
    noun="image",
    owned="an image of tfdock's wheels",
    refusal="is refused",
    never_written="such an image",
    malformed_code="wheel-image-malformed",
    malformed_fix="check who can push to this registry, and use another image",
    other_code="reference-no-wheels",
    other_fix="name an image of `tfdock image push`; pull any other image with `docker pull`",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredImage:
    """An image of wheels in a registry. Its form is valid; its wheels have not been read yet.

    `named` is the requested name. `digest` identifies the manifest for this platform.
    """

    named: NamedArtifact
    digest: Digest
    platform: str
    builds: tuple[FoundBuild, ...]

    @property
    def image(self) -> ImageRef:
        """The requested name."""
        return self.named.image

    @property
    def origin(self) -> str:
        """The name with the digest: `ghcr.io/me/wheels:tag@sha256:…`."""
        return str(ImageRef(self.image.repository, self.image.registry, self.image.tag, self.digest))


def find_image(image: ImageRef, platform: str, check: Callable[[], None]) -> StoredImage | None:
    """Return the image with this name in a registry, for a platform (`linux/amd64`); None if the name is unknown.

    Raises the errors of `Repository`, ProfileError (`reference-no-wheels`), Incompatible (`wheel-image-platform`),
    and VerificationFailed (`wheel-image-malformed`, `wheel-image-moved`).
    """
    named = NamedArtifact(image, check, WHEEL_IMAGES)
    stored = named.manifest()
    if stored is None:
        return None
    with named.well_formed(stored.digest):
        if stored.media_type in _INDEXES:
            stored = _platform_manifest(named, stored, platform)
        manifest = Manifest.read(stored.data)
        of_wheels = wheel_image_read.is_wheel_image(manifest)
        # Another image may have a configuration of any size.
        if not of_wheels and (manifest.artifact_type or manifest.config.size > wheel_image_read.MOST_CONFIG):
            raise _no_wheels_error(named, stored.digest)
        config = _small_blob(named.repository, manifest.config, wheel_image_read.MOST_CONFIG)
        if not of_wheels and not wheel_image_read.is_reencoded(config):
            raise _no_wheels_error(named, stored.digest)
        labelled = wheel_image_read.read_labels(manifest, config)
        if labelled.platform != platform:
            raise _platform_error(image, platform, [labelled.platform])
        papers = _small_blob(named.repository, labelled.papers, MOST_PAPERS)
        if labelled.papers.media_type in PACKED_TYPES:
            papers = b"".join(unpacked([papers], labelled.papers_content, MOST_PAPERS))
        builds = wheel_image_read.builds(labelled, papers)
    if reason := broken_promise(image.tag or "", builds):
        raise _moved_tag_error(image, stored.digest, reason)
    return StoredImage(named=named, digest=stored.digest, platform=platform, builds=builds)


def _platform_manifest(named: NamedArtifact, index: FoundManifest, platform: str) -> FoundManifest:
    """Return the manifest that an index has for a platform."""
    image = named.image
    # Docker's list cannot declare wheels. Then the labels of the platform's image declare them.
    if index.media_type != oci.DOCKER_LIST and not wheel_image_read.says_wheels(index.data):
        raise _no_wheels_error(named, index.digest)
    known = wheel_image_read.platforms(index.data)
    if platform not in known:
        raise _platform_error(image, platform, known)
    manifest = named.repository.manifest(known[platform].digest)
    if manifest is None:
        message = (
            f"the registry {image.registry} has no {known[platform].digest}, which `{image}` names for {platform}"
        )
        fix = "push the image again, or report this to the operator of the registry"
        raise NetworkError.of("image-not-found", message, fix)
    return manifest


def _small_blob(repository: Repository, blob: Descriptor, most: int) -> bytes:
    # Check the size in the manifest before a byte is fetched.
    if blob.size > most:
        raise Malformed(f"{blob.digest} has {blob.size} bytes, but tfdock writes at most {most}")
    return repository.small_blob(blob, most)


# --- refusals -------------------------------------------------------------------------------------------------------


def _no_wheels_error(named: NamedArtifact, digest: Digest) -> TfdockError:
    # A build's tag must never name anything else: this tag was moved, which is worse than a wrong name.
    if is_promise(named.image.tag or ""):
        return _moved_tag_error(named.image, digest, "the new image is not an image of wheels")
    return named.other_kind(digest)


def _platform_error(image: ImageRef, platform: str, known: Collection[str]) -> Incompatible:
    return Incompatible.of(
        "wheel-image-platform",
        f"`{image}` has no wheels for {platform}",
        f"the image has wheels for {', '.join(known)}; for another machine: `--platform {next(iter(known), '')}`",
    )


def _moved_tag_error(image: ImageRef, digest: Digest, reason: str) -> VerificationFailed:
    return VerificationFailed.of(
        "wheel-image-moved",
        f"the tag of `{image}` was moved to another image, {digest}: {reason}",
        "check who can push to this registry. If you want this image, name it by its digest: "
        f"`{ImageRef(image.repository, image.registry, None, digest)}`",
        why="a tag that is a build id or a fingerprint must always stand for the same build",
    )


def local_platform() -> str:
    """Return the platform of this machine, as images name it."""
    return machine_platform(platform.machine())


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageLookup:
    """Searches for the exact build of a plan, in one repository after another.

    `check` is called now and then and raises to stop.
    """

    repositories: tuple[ImageRef, ...]
    check: Callable[[], None]
    #: Images that were found but not used: other builds of the same build id.
    others: list[ImageRef] = field(default_factory=list)

    def images(
        self, plan: BuildPlan, lock: LockFile | None, failed: Callable[[NetworkError], object]
    ) -> Iterator[StoredImage]:
        """Yield the images with the build, as they are found. `failed` is called with the error of a registry.

        Raises VerificationFailed for a malformed image.
        """
        for repository in self.repositories:
            try:
                image = self._find_in(repository, plan)
            # A registry that is down does not end the lookup: the next registry is queried.
            except NetworkError as error:
                failed(error)
                continue
            # With a lock (`--locked`), only a build of exactly these pins counts.
            if image and (lock is None or image.builds[0].record.get("lock") == lock.sha256):
                yield image

    def _find_in(self, repository: ImageRef, plan: BuildPlan) -> StoredImage | None:
        # Try the fingerprint first: another build may have been pushed under the build id since.
        tags = (fingerprint_tag(plan.fingerprint), plan.build_id)
        # The platform of the wheel, not of this machine: the engine may run on another machine.
        platform = machine_platform(plan.build_id.rpartition("-")[2])
        for tag in tags:
            image = find_image(repository.tagged(tag), platform, self.check)
            # An image of several builds breaks the promise of such a tag.
            if image and len(image.builds) == 1 and _is_of(plan, image.builds[0]):
                return image
            if image:  # it has another base or other flags, or a trust domain that may not stand for the plan's
                self.others.append(image.image)
        return None


def _is_of(plan: BuildPlan, build: FoundBuild) -> bool:
    return build.fingerprint == plan.fingerprint and stands_for(build.record, plan.trust.name, pulled=True)


def native_refusal(plan: BuildPlan) -> Incompatible | None:
    """Return why no registry is queried for a plan; None if a query is allowed."""
    resolution = plan.resolution
    # The fingerprint does not name the CPU, so another machine's build would look the same.
    if not any(NATIVE.search(option) for option in (*resolution.flags, *resolution.optimize)):
        return None
    return Incompatible.of(
        "native-pulled",
        f"{plan.build_id} is for the CPU of the machine that builds it",
        "build the wheel on this machine, or name the instruction sets: `optimize: [avx2, fma]`",
        why="a wheel built on another machine may not run on this machine",
        field="optimize",
    )
