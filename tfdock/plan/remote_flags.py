"""Bazel's flags for a remote cache and executor. Pure.

The compile container has no network. In it, a program of ours listens on its loopback and hands each connection to a
Unix socket in the run's folder; outside, the relay takes it to the endpoint and nowhere else, and adds TLS and
credentials. So Bazel is told of plain addresses on its own loopback, whatever the endpoint is.
"""

from __future__ import annotations

from collections.abc import Callable

from tfdock.errors import Incompatible, Problem
from tfdock.profile.endpoint import parse
from tfdock.profile.profile import Cache
from tfdock.resolve.tools import NATIVE_SHARED, OF_OTHER_CPUS
from tfdock.types import Endpoint, Remote

#: Where the run's folder with the sockets and the forwarder is in the container, which cannot write to it.
FOLDER = "/tf/remote"
PORTS = {"cache": 8980, "executor": 8981}  #: Of the compile container's own loopback, where nobody else listens.
DEFAULT_JOBS = 50  #: Actions at once with an executor: what they need is there, not here.

#: (purpose, values) -> the options of Bazel that say so.
Options = Callable[[str, dict[str, object]], tuple[str, ...]]


def asked(profile: Cache, machine: Remote) -> Remote:
    """Return the profile's endpoints, and this machine's for those that the profile leaves out.

    Uploads need the consent of both: the profile may be a stranger's.
    """
    return Remote(
        cache=parse(profile.remote) if profile.remote else machine.cache,
        executor=parse(profile.executor) if profile.executor else machine.executor,
        instance=machine.instance if profile.instance is None else profile.instance,
        upload=profile.upload and machine.upload,
        jobs=profile.jobs or machine.jobs,
    )


def not_allowed(name: str, address: str) -> Problem:
    """Return the refusal of an endpoint in `cache` that no setting of this machine allows."""
    role = "cache" if name == "remote" else name
    return Problem(
        "endpoint-not-allowed",
        f"no setting allows the remote {role} {address}",
        why="a profile may be a stranger's, and this machine would connect to the address",
        fixes=[
            f"if you trust the profile, allow the address: `--allow-endpoint {address}`, "
            f"`TFDOCK_ALLOW_ENDPOINTS={address}`, or `allow_endpoints: [{address}]` in the configuration file",
            f"remove `cache: {{{name}: …}}`",
        ],
        field=f"cache.{name}",
    )


def check(remote: Remote, bazel: str, options: Options, *, native: bool = False) -> None:
    """Raise Incompatible where this Bazel cannot be told of an endpoint, or code is `native`: for this CPU alone."""
    # A cache's key does not name the CPU: another machine would die of an illegal instruction.
    if native and remote.endpoints:
        raise Incompatible.of(
            "native-shared",
            NATIVE_SHARED,
            "leave `optimize: native` out, or build without "
            + " and ".join(f"TFDOCK_REMOTE_{role.upper()}" for role, _ in remote.endpoints),
            why=f"this machine's settings name {remote.endpoints[0][1]}; {OF_OTHER_CPUS}",
            field="optimize",
        )
    if remote.executor and remote.cache and remote.cache.http:
        raise Incompatible.of(
            "remote-http-executor",
            f"an executor ({remote.executor}) cannot be combined with an HTTP cache ({remote.cache})",
            why="Bazel: `Cannot combine gRPC based remote execution with disk caching or HTTP-based caching`",
            fixes=["leave the cache out: an executor has its own cache", "name one that speaks gRPC"],
            field="cache",
        )
    for role, endpoint in remote.endpoints:
        # No option of that purpose: this Bazel's words for it are not known.
        if not options(f"remote_{role}", {"url": ""}):
            raise Incompatible.of(
                "remote-bazel-too-old",
                f"the remote {role} {endpoint} cannot be used with Bazel {bazel}",
                f"leave out the remote {role} (TFDOCK_REMOTE_{role.upper()}, or `cache:` in the profile): "
                "the disk cache of this machine works with every Bazel",
                why="untested: Bazel before 0.26 names these options differently",
                field="cache",
            )


def as_json(remote: Remote) -> dict[str, object] | None:
    """Return what a plan and a record show of the endpoints: scheme and host, nothing more of an address."""
    if not remote.endpoints:
        return None
    where = {role: str(endpoint) for role, endpoint in remote.endpoints}
    return {"cache": None, "executor": None, **where, "upload": remote.upload}


def flags(remote: Remote, options: Options) -> tuple[str, ...]:
    """Return flags of the compile phase; none without an endpoint."""
    chosen: list[str] = []
    for role, endpoint in remote.endpoints:
        chosen += options(f"remote_{role}", {"url": _address(role, endpoint)})
    if not chosen:
        return ()
    chosen += options("remote_grpc_cache", {}) if remote.cache and not remote.cache.http else ()
    chosen += options("remote", {"upload": str(remote.upload).lower()})
    chosen += options("remote_instance", {"instance": remote.instance}) if remote.instance else ()
    # Without an executor this machine's own number of jobs holds.
    chosen += options("remote_jobs", {"jobs": remote.jobs or DEFAULT_JOBS}) if remote.executor else ()
    return tuple(chosen)


def command(remote: Remote) -> tuple[str, ...]:
    """Return what precedes the command of the compile phase: the forwarder, which runs it."""
    if not remote.endpoints:
        return ()
    pairs = (f"{PORTS[role]}={FOLDER}/{role}" for role, _ in remote.endpoints)
    # The forwarder runs the command, so that it lives as long as the build.
    return ("python3", f"{FOLDER}/forward.py", *pairs, "--")


def _address(role: str, endpoint: Endpoint) -> str:
    return f"{'http' if endpoint.http else 'grpc'}://127.0.0.1:{PORTS[role]}"
