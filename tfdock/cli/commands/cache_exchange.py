"""The `cache push` and `cache pull` commands: copy Bazel's disk caches to and from a registry."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated

import typer

from tfdock.bazel.cache.cache_folder import CacheFolder, DiskCache
from tfdock.bazel.cache.cache_pull import PulledCache
from tfdock.bazel.cache.cache_push import PushedCache
from tfdock.bazel.cache.exchange import Exchange
from tfdock.bazel.cache.registry_cache import StoredCache
from tfdock.cli import console
from tfdock.cli.app import AsJson, command, parse_reference, preparer_for, print_result, stoppable
from tfdock.cli.lazy_commands import cache_group
from tfdock.errors import ProfileError
from tfdock.host.settings import Settings
from tfdock.host.supervise import Stop, until_stopped
from tfdock.plan.trust_domain import RELEASE, in_domains, split_key
from tfdock.types import Digest, ImageRef

Reference = Annotated[
    str, typer.Argument(help="The cache's name in a registry, such as ghcr.io/me/project/cache:main.", metavar="REF")
]
Toolchains = Annotated[
    list[str] | None, typer.Option("--toolchain", help="Only this toolchain key. Repeatable.", metavar="KEY")
]

Domains = Annotated[
    list[str] | None,
    typer.Option(
        "--domain",
        help="Use this trust domain instead of `release`: its name, the start of its name, or `all`. Repeatable.",
        metavar="NAME",
    ),
]

_REFERENCE_FIX = "write `host/name:tag`, such as `ghcr.io/me/project/cache:main`: no `https://`, no capitals"


@cache_group.command(epilog="Example: `tfdock cache push ghcr.io/me/project/cache:main`, at the end of a CI job.")
@command("tfdock.cache-push/1", "cache_dir", "knowledge", "allow_paths", "allow_endpoints")
def push(
    settings: Settings,
    reference: Reference,
    profiles: Annotated[
        list[str] | None,
        typer.Argument(help="Push only the caches of the toolchains that these profiles use.", metavar="PROFILE…"),
    ] = None,
    toolchains: Toolchains = None,
    domains: Domains = None,
    as_json: AsJson = False,
) -> None:
    """Only data that the registry lacks is sent. Needs `docker login`."""
    image = parse_reference(reference, _REFERENCE_FIX)
    if image.digest:
        raise ProfileError.of(
            "reference-malformed",
            f"`{reference}` names a cache by its digest: a push needs a tag",
            "name a tag: `host/name:tag`",
        )
    cache, keys = _select_toolchains(settings, profiles or [], toolchains or [], domains or [RELEASE])
    pushed: list[PushedCache] = []
    digest: Digest | None = None
    if keys:
        with _exchange(cache, image) as (exchange, stop):
            pushed, digest = until_stopped(lambda: exchange.push(keys), stop)
    else:
        console.say(f"the cache {settings.cache_dir} is empty: nothing is pushed")
    for toolchain in pushed:
        others = {
            "packs replaced": toolchain.gone,
            "actions left out: their outputs are not on this machine": toolchain.incomplete,
            "actions left out: compiled for this machine's CPU only": toolchain.native,
        }
        _show(toolchain, "pushed", toolchain.sent, others)
    document = {"reference": str(image), "digest": digest, "toolchains": pushed}
    print_result("tfdock.cache-push/1", document, [f"{image}@{digest}"] if digest else [], as_json=as_json)


@cache_group.command(epilog="Example: `tfdock cache pull ghcr.io/me/project/cache:main`, at the start of a CI job.")
@command("tfdock.cache-pull/1", "cache_dir")
def pull(
    settings: Settings,
    reference: Reference,
    toolchains: Toolchains = None,
    domains: Domains = None,
    as_json: AsJson = False,
) -> None:
    """Download only missing entries, and keep only entries with the right digest."""
    # Mirrors are only read: a push goes to the registry in the name.
    image = settings.mirrored(parse_reference(reference, _REFERENCE_FIX))
    cache = CacheFolder.opened(settings.cache_dir)
    with _exchange(cache, image) as (exchange, stop):
        pulled = until_stopped(lambda: exchange.pull(toolchains or [], domains or [RELEASE]), stop)
    for toolchain in pulled:
        others = {"actions left out: their outputs are missing": toolchain.incomplete}
        _show(toolchain, "pulled", toolchain.received, others)
    print_result("tfdock.cache-pull/1", {"reference": str(image), "toolchains": pulled}, (), as_json=as_json)


def _select_toolchains(
    settings: Settings, profiles: list[str], toolchains: list[str], domains: list[str]
) -> tuple[CacheFolder, list[str]]:
    """Return the cache and the disk caches to push: of these toolchains or all, in these trust domains.

    The list may be empty: a build that stops before it compiles leaves an empty cache.
    """
    cache = CacheFolder.existing(settings.cache_dir)
    disks = cache.disks() if cache else []
    here = [disk.key for disk in disks]
    wanted = [*toolchains, *(_built_with(disks, settings, profile) for profile in profiles)] or here
    unknown = [key for key in wanted if key not in here]
    if cache is None or unknown:
        missing = f"no toolchain {', '.join(unknown)}" if unknown else "no entries to push"
        raise ProfileError.of(
            "cache-toolchain-unknown",
            f"the cache {settings.cache_dir} has {missing}",
            f"toolchains in it: {', '.join(here) or 'none yet, so build first'}; see `tfdock cache list`",
        )
    # A full key includes the domain.
    chosen = [key for key in dict.fromkeys(wanted) if in_domains(key, domains) or key in toolchains]
    if wanted and not chosen:
        present = sorted({split_key(key)[1] for key in wanted})
        raise ProfileError.of(
            "cache-domain-not-named",
            f"nothing to push in the trust domain {' or '.join(domains)}",
            f"push another domain: `--domain {present[0]}`; everybody who pulls the cache then trusts the source of "
            "this domain",
            why=f"the cache of {'these builds' if profiles else 'this machine'} has only {', '.join(present)}",
        )
    return cache, chosen


def _built_with(disks: list[DiskCache], settings: Settings, profile: str) -> str:
    """Return the key of the toolchain of a profile's last build."""
    build_id = preparer_for(settings).prepare(profile).plan.build_id
    builds = [(when, disk.key) for disk in disks if (when := disk.last_build(build_id)) is not None]
    if not builds:
        raise ProfileError.of(
            "cache-toolchain-unknown",
            f"the cache {settings.cache_dir} has no build of {build_id}",
            (f"build it first: `tfdock build {profile}`", "name a toolchain: `--toolchain KEY`"),
            file=profile,
        )
    return max(builds)[1]


@contextmanager
def _exchange(cache: CacheFolder, image: ImageRef) -> Iterator[tuple[Exchange, Stop]]:
    with stoppable("completed downloads are kept") as stop:
        stored = StoredCache(image, stop.check)
        yield Exchange(cache, stored, console.say, stop), stop


def _show(done: PushedCache | PulledCache, verb: str, size: int, others: Mapping[str, int]) -> None:
    """Print what was pushed or pulled of a toolchain, in packs of `size` bytes, and the `others` that are not 0."""
    packs = "1 pack" if done.packs == 1 else f"{done.packs} packs"
    text = f"{verb} {done.entries} entries, {console.size(size)} in {packs}; {done.there} were there"
    more = "".join(f"; {count} {what}" for what, count in others.items() if count)
    console.say(f"{console.Style(sys.stderr).good(done.toolchain)}: {text}{more}")
