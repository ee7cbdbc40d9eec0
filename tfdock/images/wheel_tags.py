"""Name the tags of wheel images: the tags of a build, and which of them are permanent. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tfdock.images.wheel_image_read import FoundBuild
from tfdock.types import Version

FINGERPRINT_TAG = "fp-"  #: Prefix of the tags of fingerprints.
_BUILD_ID = re.compile(r"tf(?P<release>.+?)-py(?P<python>\d+\.\d+)-(?P<words>.+)-(?P<machine>[^-]+)")
_RELEASE = re.compile(r"(?P<minor>\d+\.\d+)(?:\.\d+)*(?P<source>\.src[0-9a-f]{8})?")
_COMPONENT = re.compile(r"([a-z]+)(\d+\.\d+)(?:\.\d+)*")
_OF_FINGERPRINT = re.compile(rf"{FINGERPRINT_TAG}[0-9a-f]{{32}}")
_OF_BUILD = re.compile(r"tf[0-9][0-9A-Za-z._-]*-py\d+\.\d+-[A-Za-z0-9._-]+")


def fingerprint_tag(fingerprint: str) -> str:
    """Return `fp-` and 32 digits: the tag of this exact build, whatever was pushed under its build id since."""
    # 128 bits are enough to find it. The record's whole fingerprint is compared afterwards.
    return f"{FINGERPRINT_TAG}{fingerprint[:32]}"


def release_of(build_id: str) -> Version:
    """Return the release in a build id: `2.18.0`."""
    match = _BUILD_ID.fullmatch(build_id)
    return Version(match["release"] if match else "0")


def moving_tag(build_id: str) -> str | None:
    """Return the tag of the newest build of a minor release, for any platform; None if there is none.

    An example is `2.18-py3.11-cuda12.5-sm86`. Of the components only the toolkit stays, by its minor version. A
    pre-release keeps its whole version: who asks for the release does not mean it.
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
    """Return whether a tag stands for one build, by its fingerprint or build id, and for no other ever."""
    return bool(_OF_FINGERPRINT.fullmatch(tag) or _OF_BUILD.fullmatch(tag))


def broken_promise(tag: str, builds: Iterable[FoundBuild]) -> str:
    """Return how an image breaks the promise of its tag, in words; empty if it keeps it, or if the tag promises
    nothing.

    A build id and a fingerprint stand for one build; every other tag may be moved.
    """
    builds = tuple(builds)
    if _OF_FINGERPRINT.fullmatch(tag):
        tags = [fingerprint_tag(build.fingerprint) for build in builds]
        return "" if tags == [tag] else f"it is the build of {', '.join(tags)}"
    if _OF_BUILD.fullmatch(tag):
        ids = [build.build_id for build in builds]
        return "" if ids == [tag] else f"it is the build {', '.join(ids)}"
    return ""
