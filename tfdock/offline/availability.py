"""Check that a build's downloads still exist: base image, source, Bazel, archives. Nothing is downloaded."""

from __future__ import annotations

import math
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import Literal

from tfdock.bazel.cache import source_archives
from tfdock.builder import pins
from tfdock.errors import ExitCode, NetworkError, Problem
from tfdock.host.settings import Settings
from tfdock.knowledge.fits import source_archives_of
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.oci import http
from tfdock.oci.repository import Repository
from tfdock.plan.lock_file import COMMIT, Lock
from tfdock.plan.render import bazel_address
from tfdock.profile import endpoint
from tfdock.resolve.resolution import Resolution
from tfdock.types import ImageRef

Kind = Literal["base", "source", "bazel", "archive"]
Status = Literal["there", "gone", "changed", "unreachable", "not-asked"]

_SECONDS = 20.0  #: The most seconds to wait for an answer. TensorFlow's repository lists 10 MB of refs.
_AT_ONCE = 16
_LOOK_SECONDS = 0.5
_GONE = (404, 410)  #: HTTP statuses of a resource that does not exist (RFC 9110, 15.5).
_NAME_ANOTHER = "name another image, ref or version in the profile, or add a row in a `--knowledge` folder"
_LOCK_AGAIN = "find out why the download changed; then run `tfdock lock` again, or name the version in the profile"
_ASK_AGAIN = "check the network and proxies, then try again"


@dataclass(frozen=True, slots=True)
class Availability:
    """A download of a build, and whether it still exists."""

    kind: Kind  #: The kind of download.
    name: str  #: The name of the image, the ref, the version, or the name of the archive.
    status: Status  #: Whether the download exists now. `changed`: it differs from the lock or the knowledge.
    found: str = ""  #: The digest, commit or address that was found; if none was found, the reason.

    @property
    def exit_code(self) -> ExitCode:
        """3 if the download is gone or has changed, 7 if a server could not be reached, otherwise 0."""
        codes = {"gone": ExitCode.INCOMPATIBLE, "changed": ExitCode.INCOMPATIBLE, "unreachable": ExitCode.NETWORK}
        return codes.get(self.status, ExitCode.OK)

    @property
    def problem(self) -> Problem:
        """The problem. It exists only if the exit code is not 0."""
        code, words, fix = {
            "gone": ("download-gone", "is gone", _NAME_ANOTHER),
            "changed": ("download-changed", "has changed", _LOCK_AGAIN),
            "unreachable": ("download-unreachable", "could not be checked", _ASK_AGAIN),
        }[self.status]
        return Problem(code, f"{self.kind} {self.name} {words}: {self.found}", fix)


_Question = Callable[[], Availability]


def ask(
    resolutions: Sequence[tuple[Resolution, Lock | None]],
    knowledge: KnowledgeBase,
    settings: Settings,
    check: Callable[[], None] = http.no_check,
) -> list[list[Availability]]:
    """Check the downloads of each build, in parallel; return their states. A lock gives the pinned state.

    `check` is called during the check, and raises to stop.
    """
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        asked = [
            # Python waits for the pool's threads when it exits, so `http.ask` waits for a server in another thread.
            [
                pool.submit(http.ask, question, check, math.inf)
                for question in _questions(resolution, lock, knowledge, settings)
            ]
            for resolution, lock in resolutions
        ]
        waiting = {answer for answers in asked for answer in answers}
        while waiting:
            # Wait with a timeout: a signal received by another thread does not wake the main thread, which must
            # handle it.
            waiting = wait(waiting, _LOOK_SECONDS).not_done
        return [[answer.result() for answer in answers] for answers in asked]


def _questions(
    resolution: Resolution, lock: Lock | None, knowledge: KnowledgeBase, settings: Settings
) -> Iterator[_Question]:
    pinned = {(pin.kind, pin.name): pin.value for pin in lock.pins} if lock else {}
    # A stranger may have written the profile: only servers that the settings allow are asked.
    chosen = {choice.field for choice in resolution.choices if choice.source == "profile"}
    base, image = resolution.base, settings.mirrored(resolution.base)
    if "base" in chosen and not settings.allows_registry(base.registry):
        yield partial(_not_asked, "base", str(base), f"https://{base.registry}")
    else:
        yield partial(_base, base, image, pinned.get(("base", str(base))))
    source = resolution.source
    known = endpoint.server(resolution.release.repository)
    if source.kind != "path":
        name = source.refs[0] if source.refs else source.location
        if endpoint.server(source.location) != known and not settings.allows_server(source.location):
            yield partial(_not_asked, "source", name, endpoint.server(source.location))
        elif source.kind == "archive":
            yield partial(_file, "source", name, (source.location,))
        else:
            yield partial(_git, resolution, pinned)
    if address := bazel_address(resolution):
        yield partial(_file, "bazel", resolution.bazel, (address,))
    for archive in resolution.archives:
        yield partial(_file, "archive", f"{archive.component} {archive.version}", (archive.url,))
    for row in source_archives_of(knowledge, resolution.release):
        yield partial(_file, "archive", row.archive, source_archives.addresses(row, settings.archives))


def _not_asked(kind: Kind, name: str, server: str) -> Availability:
    found = f"only the profile names {server}; `--allow-endpoint {server}` allows this machine to query it"
    return Availability(kind, name, "not-asked", found)


def _base(base: ImageRef, image: ImageRef, pinned: str | None) -> Availability:
    """Ask a registry, or the mirror in its place, for the image's manifest."""
    repository, reference = Repository(image.registry, image.repository), image.digest or image.tag or "latest"
    try:
        with repository.error_context(f"`{image}`"):
            digest = http.ask(partial(repository.digest, reference), http.no_check, _SECONDS)
    except NetworkError as error:
        (problem,) = error.problems
        status: Status = "gone" if problem.code == "image-not-found" else "unreachable"
        return Availability("base", str(base), status, problem.message)
    if pinned and digest != pinned:
        return Availability("base", str(base), "changed", f"the lock has {pinned}, the registry has {digest}")
    return Availability("base", str(base), "there", digest)


def _git(resolution: Resolution, pinned: dict[tuple[str, str], str]) -> Availability:
    """Ask a git server for the first existing ref, and compare the ref's commit with the known commit."""
    source = resolution.source
    for ref in source.refs:
        if COMMIT.fullmatch(ref):
            return Availability("source", ref, "not-asked", "a git server lists tags and branches, not commits")
        try:
            commit = http.ask(partial(pins.commit, source.location, ref), http.no_check, _SECONDS)
        except (NetworkError, http.StrangeAnswer) as error:
            cause = error.__cause__
            gone = isinstance(cause, urllib.error.HTTPError) and cause.code in _GONE
            found = error.problems[0].message if isinstance(error, NetworkError) else f"{source.location}: {error}"
            return Availability("source", ref, "gone" if gone else "unreachable", found)
        known = source.commit or pinned.get(("source", ref))
        if commit and known and commit != known:
            return Availability("source", ref, "changed", f"the known commit is {known}, the server has {commit}")
        if commit:
            return Availability("source", ref, "there", commit)
    found = f"{source.location} has neither a tag nor a branch with this name"
    return Availability("source", ", ".join(source.refs), "gone", found)


def _file(kind: Kind, name: str, urls: Sequence[str]) -> Availability:
    """Ask web servers, in turn, for a file's headers. The first that has the file is enough."""
    reasons, gone = [], True
    for url in urls:
        try:
            http.ask(partial(_head, url), http.no_check, _SECONDS)
        except http.HTTP_ERRORS as error:
            gone = gone and isinstance(error, urllib.error.HTTPError) and error.code in _GONE
            reasons.append(f"{url}: {http.failure_reason(error)}")
        else:
            return Availability(kind, name, "there", url)
    found = "; ".join(reasons) or "no known server has this download"
    return Availability(kind, name, "gone" if gone else "unreachable", found)


def _head(url: str) -> None:
    http.send(urllib.request.Request(url, method="HEAD", headers={"User-Agent": "tfdock"})).close()
