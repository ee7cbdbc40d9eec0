"""Name the tags of wheel images; choose the images to push or pack; check what a tag promises.

Pure: no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tfdock.errors import ProfileError, WheelRefused
from tfdock.images.wheel_image import (
    MOST_PAPERS,
    MOST_WHEELS,
    ImageIndex,
    WheelBuild,
    WheelImage,
)
from tfdock.images.wheel_image_read import FoundBuild
from tfdock.plan.trust_domain import RELEASE, recorded
from tfdock.types import Version

Content = WheelImage | ImageIndex

_K = TypeVar("_K")

FINGERPRINT_TAG = "fp-"  #: Prefix of tags with a fingerprint.
_BUILD_ID = re.compile(r"tf(?P<release>.+?)-py(?P<python>\d+\.\d+)-(?P<words>.+)-(?P<machine>[^-]+)")
_RELEASE = re.compile(r"(?P<minor>\d+\.\d+)(?:\.\d+)*(?P<source>\.src[0-9a-f]{8})?")
_COMPONENT = re.compile(r"([a-z]+)(\d+\.\d+)(?:\.\d+)*")
_OF_FINGERPRINT = re.compile(rf"{FINGERPRINT_TAG}[0-9a-f]{{32}}")
_OF_BUILD = re.compile(r"tf[0-9][0-9A-Za-z._-]*-py\d+\.\d+-[A-Za-z0-9._-]+")


def fingerprint_tag(fingerprint: str) -> str:
    """Return `fp-` and 32 digits: the tag of this exact build. Later pushes under the same build id do not change
    it."""
    # 128 bits are enough to find it. The record's whole fingerprint is compared afterwards.
    return f"{FINGERPRINT_TAG}{fingerprint[:32]}"


def release_of(build_id: str) -> Version:
    """Return the release in a build id: `2.18.0`."""
    match = _BUILD_ID.fullmatch(build_id)
    return Version(match["release"] if match else "0")


def moving_tag(build_id: str) -> str | None:
    """Return the tag for the newest build of a minor release, for any platform; None if the build id has none.

    An example is `2.18-py3.11-cuda12.5-sm86`. The only component in the tag is the toolkit, with its minor version. A
    pre-release keeps its whole version, so that a request for the release does not match the pre-release.
    """
    match = _BUILD_ID.fullmatch(build_id)
    if not match:
        return None
    release = _RELEASE.fullmatch(match["release"])
    version = f"{release['minor']}{release['source'] or ''}" if release else match["release"]
    words, toolkit_seen = [], False
    for word in match["words"].split("-"):
        component = _COMPONENT.fullmatch(word)
        if component is None:
            words.append(word)
        elif not toolkit_seen:
            words.append(f"{component[1]}{component[2]}")
            toolkit_seen = True
    return "-".join((version, f"py{match['python']}", *words))


# --- promises -------------------------------------------------------------------------------------------------------


def is_promise(tag: str) -> bool:
    """Return whether a tag is fixed to one build: a tag with a fingerprint or a build id."""
    return bool(_OF_FINGERPRINT.fullmatch(tag) or _OF_BUILD.fullmatch(tag))


def broken_promise(tag: str, builds: Iterable[FoundBuild]) -> str:
    """Return in words how an image breaks the promise of its tag; empty if the promise is kept, or the tag has none.

    A build id or fingerprint tag is fixed to one build; every other tag may be moved.
    """
    builds = tuple(builds)
    if _OF_FINGERPRINT.fullmatch(tag):
        tags = [fingerprint_tag(build.fingerprint) for build in builds]
        return "" if tags == [tag] else f"the image has the build of {', '.join(tags)}"
    if _OF_BUILD.fullmatch(tag):
        ids = [build.build_id for build in builds]
        return "" if ids == [tag] else f"the image has the build {', '.join(ids)}"
    return ""


# --- images ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Shipment:
    """The images to send. `images` has each image once. `tags` maps each tag to an image or index.

    `unmoved`: build ids without a moving tag, because these builds are not in the trust domain `release`.
    """

    images: tuple[WheelImage, ...]
    tags: Mapping[str, Content]
    unmoved: tuple[str, ...] = ()

    @property
    def named(self) -> tuple[tuple[Content, tuple[str, ...]], ...]:
        """Each tagged image or index with its tags, in the order of the tags."""
        contents: dict[str, tuple[Content, list[str]]] = {}
        for tag, content in self.tags.items():
            contents.setdefault(content.digest, (content, []))[1].append(tag)
        return tuple((content, tuple(tags)) for content, tags in contents.values())


def shipment(builds: Sequence[WheelBuild], *, together: str | None = None, moving: bool = True) -> Shipment:
    """Return an image for each build. With `together`, also return one image of all builds, with this tag.

    Builds for several platforms give an index. With `moving`, the newest of these builds also get tags without the
    last numbers. Only builds in the trust domain `release` get such tags, because other builds have the same build
    ids. Raises WheelRefused (`image-platform-unknown`) and ProfileError (`image-builds-collide`, `image-too-large`).
    """
    alone = [_image([build]) for build in builds]
    tags: dict[str, Content] = {}
    for image in alone:
        (build,) = image.builds
        tags |= {str(build.build_id): image, fingerprint_tag(build.fingerprint): image}
    # A moving tag should never lead to the build of a stranger's source.
    released = [image for image in alone if recorded(image.builds[0].record) == RELEASE]
    tags |= _moving_tags(released) if moving else {}
    if together is not None:
        platforms = _group_by(alone, lambda image: image.platform)
        tags[together] = _content([_image([image.builds[0] for image in group]) for group in platforms.values()])
    images = {image.digest: image for content in tags.values() for image in members(content)}
    unmoved = tuple(image.builds[0].build_id for image in alone if moving and image not in released)
    return Shipment(images=tuple(images.values()), tags=tags, unmoved=unmoved)


def _moving_tags(images: Iterable[WheelImage]) -> dict[str, Content]:
    """Return the moving tags and their contents: for each platform the newest release, built last."""
    tagged = _group_by(images, lambda image: moving_tag(image.builds[0].build_id))
    return {
        tag: _content(
            [
                # Compare releases first: an old release that is built again is not the newest.
                max(group, key=_release_and_time)
                for group in _group_by(candidates, lambda image: image.platform).values()
            ]
        )
        for tag, candidates in tagged.items()
        if tag is not None
    }


def _release_and_time(image: WheelImage) -> tuple[Version, str]:
    (build,) = image.builds
    return release_of(build.build_id), str(build.record.get("finished"))


def _group_by(images: Iterable[WheelImage], key: Callable[[WheelImage], _K]) -> dict[_K, list[WheelImage]]:
    groups: dict[_K, list[WheelImage]] = {}
    for image in images:
        groups.setdefault(key(image), []).append(image)
    return groups


def _content(images: Iterable[WheelImage]) -> Content:
    """Return an image, or the index of several images for different platforms."""
    # The digest of an index follows from its images, not from their order here.
    ordered = tuple(sorted(images, key=lambda image: image.platform))
    return ordered[0] if len(ordered) == 1 else ImageIndex(images=ordered)


def members(content: Content) -> tuple[WheelImage, ...]:
    """Return the image itself, or the images of an index."""
    return content.images if isinstance(content, ImageIndex) else (content,)


def _image(builds: Sequence[WheelBuild]) -> WheelImage:
    _check_names(builds)
    try:
        image = WheelImage.of(builds)
    except ValueError as error:
        raise WheelRefused.of(
            "image-platform-unknown",
            f"{builds[0].build_id} cannot be put into an image: {error}",
            "images are for Linux; build the wheel in tfdock's own containers",
        ) from error
    # Nothing is pushed that `pull` would refuse.
    if len(image.wheels) > MOST_WHEELS or len(image.papers) > MOST_PAPERS:
        raise ProfileError.of(
            "image-too-large",
            f"one image of {len(builds)} builds would have {len(image.wheels)} wheels, and "
            f"{len(image.papers)} bytes of records and indexes",
            "push the builds one by one, without `--as`, or push fewer builds together",
            why=f"`tfdock pull` accepts at most {MOST_WHEELS} wheels, and {MOST_PAPERS} further bytes",
        )
    return image


def _check_names(builds: Sequence[WheelBuild]) -> None:
    """Raise ProfileError for a collision: an image has one place for each build id and each wheel name."""
    owners: dict[str, str] = {}
    for build in builds:
        for name, owner in (
            (build.build_id, build.fingerprint),
            *((wheel.file, wheel.sha256) for wheel in build.wheels),
        ):
            # The same build twice is no collision.
            if owners.setdefault(name, owner) != owner:
                raise ProfileError.of(
                    "image-builds-collide",
                    f"one image cannot have two different wheels with the name `{name}`",
                    (
                        "push the builds one by one, without `--as`",
                        "give the wheels different names: `wheel: {local_version: …}`",
                    ),
                )
