"""Trust domains: which builds share a disk cache, and which may replace each other. Pure.

A build writes to the cache of its own domain only. It also reads the cache of the domain `release`. So only builds of
the same domain, and builds of `release`, can change the results of a build.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tfdock.profile.endpoint import parse
from tfdock.types import NOWHERE, ImageRef, Remote

if TYPE_CHECKING:
    from tfdock.knowledge.tables import KnowledgeBase
    from tfdock.profile.profile import Profile
    from tfdock.resolve.resolution import Resolution

RELEASE = "release"  #: The domain of unchanged releases.
_SHORTEST = 4  #: The fewest digits that can name a domain.
NAME = re.compile(r"[0-9a-f]{16}")  #: The form of the name of any other domain.

UNKNOWN = "unknown"  #: Replaces an invalid domain in a record.


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """A trust domain: `release`, or 16 hexadecimal digits. `reasons` say why a domain is not `release`.

    With `--trust`, a build is in `release` despite the reasons.
    """

    name: str = RELEASE
    reasons: tuple[str, ...] = ()
    shared: bool = False  #: Whether the user chose to share `release` (`--trust`).
    #: The domains of this build without its last patch, its last two patches, and so on. Builds in them have the same
    #: source, possibly at another commit.
    with_fewer_patches: tuple[str, ...] = ()

    @property
    def is_release(self) -> bool:
        """Return whether this is the domain of unchanged releases."""
        return self.name == RELEASE

    def cache_key(self, toolchain: str) -> str:
        """Return the name of the domain's disk cache for a toolchain key."""
        return toolchain if self.is_release else f"{toolchain}-{self.name}"


IN_RELEASE = Domain()


def split_key(key: str) -> tuple[str, str]:
    """Return the toolchain key and the domain that the name of a disk cache contains."""
    toolchain, _, name = key.partition("-")
    return toolchain, name or RELEASE


def in_domains(key: str, domains: Iterable[str]) -> bool:
    """Return whether a disk cache is in one of the domains: `release`, `all`, a name, or the start of a name."""
    domain = split_key(key)[1]
    return any(
        asked in ("all", domain) or (domain != RELEASE and len(asked) >= _SHORTEST and domain.startswith(asked))
        for asked in domains
    )


def as_json(domain: Domain) -> dict[str, object]:
    """Return the domain's entry for a plan, a record and a disk cache's description."""
    return {"domain": domain.name, "reasons": list(domain.reasons), "shared": domain.shared}


def recorded(record: Mapping[str, Any]) -> str:
    """Return the domain that a record names, or `UNKNOWN`; a record older than trust domains is in `release`."""
    plan = record.get("plan")
    trust = plan.get("trust") if isinstance(plan, Mapping) else None
    if trust is None:
        return RELEASE
    name = trust.get("domain") if isinstance(trust, Mapping) else None
    return name if isinstance(name, str) and (name == RELEASE or NAME.fullmatch(name)) else UNKNOWN


def replaces(domain: str, other: str) -> bool:
    """Return whether a build of one domain may replace a build of another.

    Other domains may not replace a build of `release`, but they may replace each other: edited options or a moved
    checkout change the domain, not the build id.
    """
    return domain == RELEASE or other != RELEASE


def stands_for(record: Mapping[str, Any], domain: str, *, pulled: bool) -> bool:
    """Return whether a recorded build may be used for a build with the same fingerprint in a domain.

    A build in `release` or in the same domain may be used. Outside `release`, a pulled build may be used too: the
    settings name its registry, and a checkout's domain has another name on each machine.
    """
    # A pulled build counts as `release` only if its record says `release`.
    return recorded(record) in (RELEASE, domain) or (pulled and domain != RELEASE)


def trust_domain(
    profile: Profile, resolution: Resolution, knowledge: KnowledgeBase, remote: Remote = NOWHERE
) -> Domain:
    """Return the domain of a build.

    It is `release` if four conditions hold: the source is the official source of a release without patches; the base
    image is from the knowledge base; no option can run a program; all remote endpoints are from the settings. If one
    does not hold, the name is a hash of the differences. The content of a checkout is not part of the name: an edited
    checkout keeps its cache. `remote` has the remote endpoints of this machine's settings.
    """
    foreign = [
        *_source(resolution),
        *_patches(resolution),
        *_base(profile, resolution),
        *_options(profile, knowledge),
    ]
    foreign += _remote(profile, remote)
    # Nothing differs from the official release, so the build may write to the cache of `release`.
    if not foreign:
        return Domain()
    identities = [identity for identity, _ in foreign]
    patches = [index for index, identity in enumerate(identities) if identity[0] == "patch"]
    fewer = [[one for at, one in enumerate(identities) if at not in patches[kept:]] for kept in range(len(patches))]
    return Domain(
        name=_named(identities),
        reasons=tuple(reason for _, reason in foreign),
        # An empty list would be `release`. It is left out, because every domain reads that cache anyway.
        with_fewer_patches=tuple(_named(one) for one in reversed(fewer) if one),
    )


def of_bundle(images: str) -> Domain:
    """Return the domain of a bundle, from the sha256 of its images: the source of these images is unknown."""
    return Domain(name=_named([["bundle", images]]), reasons=("the image comes from a bundle",))


def _named(identities: list[list[str]]) -> str:
    # JSON quotes the parts, so that two different lists never give the same text.
    text = json.dumps(identities, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


_Found = Iterator[tuple[list[str], str]]  #: A part of the domain's name, and the reason as readable text.


def _source(resolution: Resolution) -> _Found:
    source = resolution.source
    known = resolution.release.commits.get(str(resolution.version))
    # A tag can be moved, so only the commit identifies the release's source.
    if source.official and known is not None and source.commit == known:
        return
    if source.kind == "path":
        # Use the real folder, so that two links to one checkout have the same domain.
        yield ["path", source.folder or source.location], "the source is a local checkout"
    elif source.kind == "archive":
        # Identified by its bytes if they are known: several addresses may serve the same archive.
        yield ["archive", source.sha256 or source.location], f"the source is the archive {source.location}"
    else:
        # A branch's commit changes, but all builds of the branch share one domain.
        reason = f"the source is {source.location} at {' or '.join(source.refs)}"
        yield ["git", source.location, *source.refs], reason


def _patches(resolution: Resolution) -> _Found:
    for name, patch in resolution.source.patches.items():
        yield ["patch", hashlib.sha256(patch).hexdigest()], f"the source is changed by the patch {name}"


def _base(profile: Profile, resolution: Resolution) -> _Found:
    if profile.base_image is None:
        return
    base = ImageRef.parse(profile.base_image)
    # The row's placeholders are for versions. Only registry and repository are compared.
    known = ImageRef.parse(re.sub(r"\{\w+\}", "1", resolution.image.image))
    if (base.registry, base.repository) != (known.registry, known.repository):
        yield ["base", str(base)], f"the base image {base} is not from the repository in the knowledge base"


def _options(profile: Profile, knowledge: KnowledgeBase) -> _Found:
    for of, option in _asked(profile):
        if not _is_harmless(knowledge, of, option):
            yield ["option", of, option], f"the option `{option}` is not known to be harmless"


def _remote(profile: Profile, remote: Remote) -> _Found:
    """Yield servers and tenants of remote caches that only the profile names: their results enter the disk cache."""
    for url in (profile.cache.remote, profile.cache.executor):
        endpoint = parse(url) if url else None
        if endpoint and endpoint not in (remote.cache, remote.executor):
            # The whole address is in the domain's hash. The reason is kept in records, so it shows no path.
            yield ["endpoint", str(endpoint), endpoint.path], f"the profile chooses the remote endpoint {endpoint}"
    name = profile.cache.instance
    if name is not None and name != remote.instance:
        yield ["instance", name], f"the profile chooses the instance {name} of a remote cache or executor"


def _asked(profile: Profile) -> Iterator[tuple[str, str]]:
    """Yield (field, option) for each option that the profile adds to a build's commands."""
    bazel, debug, compiler = profile.bazel, profile.debugging, profile.host_compiler
    yield from (("config", name) for name in bazel.configs)
    for flag in bazel.flags:
        name, _, value = flag.partition("=")
        # A configuration may stand among the flags as well.
        yield ("config", value) if name == "--config" else ("flag", flag)
    yield from (("startup", option) for option in bazel.startup)
    yield from (("copt", option) for option in bazel.copts)
    yield from (("copt", option) for rule in (debug.per_file if debug else []) for option in rule.copts)
    # If the profile names a path, the program there may be any program.
    if compiler is not None and not isinstance(compiler, str) and compiler.path:
        yield "host_compiler", compiler.path


def _is_harmless(knowledge: KnowledgeBase, of: str, option: str) -> bool:
    matches = (re.fullmatch(row.pattern, option) for row in knowledge.harmless_options if row.of == of)
    # A flag may contain a compiler option, which must be harmless too.
    inner = [match.groupdict().get("copt") for match in matches if match]
    return any(copt is None or _is_harmless(knowledge, "copt", copt) for copt in inner)
