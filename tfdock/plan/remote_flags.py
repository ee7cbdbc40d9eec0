"""Bazel's flags for a remote cache and executor. Pure.

The compile container has no network. In the container, a forwarder listens on the loopback and passes each connection
to a Unix socket in the run's folder. Outside the container, the relay connects this socket only to the endpoint, and
adds TLS and credentials. So Bazel uses plain addresses on its own loopback for every endpoint.
"""

from __future__ import annotations

from collections.abc import Callable

from tfdock.types import Remote

#: The path in the container of the run's folder with the sockets and the forwarder. It is read-only.
FOLDER = "/tf/remote"
PORTS = {"cache": 8980, "executor": 8981}  #: Ports on the container's own loopback, where nothing else listens.
DEFAULT_JOBS = 50  #: Parallel actions with an executor: they run on its machines, not on this one.

#: A function: (purpose, values) -> Bazel's options for this purpose.
Options = Callable[[str, dict[str, object]], tuple[str, ...]]


def as_json(remote: Remote) -> dict[str, object] | None:
    """Return the endpoints as plans and records show them: scheme and host only."""
    if not remote.endpoints:
        return None
    where = {role: str(endpoint) for role, endpoint in remote.endpoints}
    return {"cache": None, "executor": None, **where, "upload": remote.upload}


def flags(remote: Remote, options: Options) -> tuple[str, ...]:
    """Return flags of the compile phase; none without an endpoint."""
    chosen: list[str] = []
    for role, endpoint in remote.endpoints:
        scheme = "http" if endpoint.http else "grpc"
        chosen += options(f"remote_{role}", {"url": f"{scheme}://127.0.0.1:{PORTS[role]}"})
    if not chosen:
        return ()
    chosen += options("remote_grpc_cache", {}) if remote.cache and not remote.cache.http else ()
    chosen += options("remote", {"upload": str(remote.upload).lower()})
    chosen += options("remote_instance", {"instance": remote.instance}) if remote.instance else ()
    # Without an executor, this machine's number of jobs applies.
    chosen += options("remote_jobs", {"jobs": remote.jobs or DEFAULT_JOBS}) if remote.executor else ()
    return tuple(chosen)


def command(remote: Remote) -> tuple[str, ...]:
    """Return the words to put before the command of the compile phase: the forwarder, which then runs the command."""
    if not remote.endpoints:
        return ()
    pairs = (f"{PORTS[role]}={FOLDER}/{role}" for role, _ in remote.endpoints)
    # The forwarder runs the command, so that it lives as long as the build.
    return ("python3", f"{FOLDER}/forward.py", *pairs, "--")
