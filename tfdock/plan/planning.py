"""Decide a `BuildPlan` from a `Resolution` and a machine: fingerprint, trust domain, remote caches. Pure."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

from tfdock.errors import Incompatible, Problem
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.plan import remote_flags
from tfdock.plan.build_plan import EPOCH, OUTPUT, BuildPlan, with_resources, within
from tfdock.plan.render import BuildContext
from tfdock.plan.resources import BuildResources
from tfdock.plan.trust_domain import RELEASE, trust_domain
from tfdock.profile.endpoint import parse
from tfdock.profile.profile import Cache, Profile
from tfdock.resolve.naming import source_identity
from tfdock.resolve.resolution import Resolution
from tfdock.resolve.tools import NATIVE_SHARED, OF_OTHER_CPUS
from tfdock.types import NOWHERE, Machine, Remote

# Part of every fingerprint. Raise the number when a field changes its meaning, to separate old and new fingerprints.
FINGERPRINT_SCHEMA = 1


def make_plan(
    profile: Profile,
    resolution: Resolution,
    resources: BuildResources,
    context: BuildContext,
    knowledge: KnowledgeBase,
    machine: Machine,
    remote: Remote = NOWHERE,
    *,
    trusted: bool = False,
) -> BuildPlan:
    """Decide commands, mounts and limits. Pure: the same arguments give the same plan.

    `resources` are the part of the machine that the profile uses. `remote` has this machine's settings for remote
    caches and executors. A `trusted` build always shares the cache of `release`.
    """
    domain = trust_domain(profile, resolution, knowledge, remote)
    if trusted and not domain.is_release:
        # The record keeps `shared`, because later builds of the toolchain trust the results of this build.
        domain = replace(domain, name=RELEASE, shared=True)
    wheel = resolution.release.wheel
    plan = BuildPlan(
        build_id=resolution.build_id,
        fingerprint=fingerprint(resolution, context),
        resolution=resolution,
        context=context,
        environment=resolution.environment,
        startup_options=(
            f"--output_user_root={OUTPUT}/user",
            f"--output_base={OUTPUT}/base",
            # Otherwise Bazel's server would keep running for three hours.
            "--max_idle_secs=15",
            *resolution.startup,
        ),
        # These and the phases depend on the machine: `with_resources` fills them in.
        local_startup_options=(),
        bazel_flags=resolution.flags,
        local_flags=(),
        targets=(wheel.target,),
        # In old releases a script packs the wheel; in newer ones a target is the wheel.
        package=("run", *resolution.package) if resolution.package else ("collect", wheel.folder or ""),
        phases=(),
        resources=resources,
        requested=profile.resources,
        machine=machine,
        remote=within(remote_of(profile.cache, remote), domain),
        for_this_machine=profile.for_this_machine,
        trust=domain,
    )
    return with_resources(plan, resources, knowledge)


def fingerprint(resolution: Resolution, context: BuildContext) -> str:
    """Return a hash of all fields that decide the wheel's bytes: 64 hexadecimal digits.

    The fingerprint leaves out resources, caches, verification, paths of this machine, mirrors, and tfdock's version.
    """
    fields = {
        "schema": FINGERPRINT_SCHEMA,
        "source": hashlib.sha256(source_identity(resolution.source)).hexdigest(),
        "patches": [hashlib.sha256(patch).hexdigest() for patch in resolution.source.patches.values()],
        # Without a pin, only the name of the base is known.
        "base": resolution.base.digest or str(resolution.base),
        "versions": {
            "tensorflow": str(resolution.version),
            "python": resolution.python,
            "bazel": resolution.bazel,
            **resolution.components,
        },
        "targets": list(resolution.targets),
        "environment": dict(resolution.environment),
        "flags": list(resolution.flags),
        "startup": list(resolution.startup),
        "package": [resolution.release.wheel.target, *resolution.package],
        "context": {path: hashlib.sha256(data).hexdigest() for path, data in context.files.items()},
        # Without a platform, the text is the same as before platforms were supported.
        "wheel": [resolution.wheel_name, resolution.local_version, *filter(None, [resolution.platform])],
        "epoch": EPOCH,
    }
    # Sorted and without spaces, so that the same fields give the same text.
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


# --- remote caches and executors ------------------------------------------------------------------------------------


def remote_of(profile: Cache, machine: Remote) -> Remote:
    """Return the profile's endpoints. This machine's settings provide the endpoints that the profile does not name.

    Both profile and settings must allow uploads, because the profile may come from a stranger.
    """
    return Remote(
        cache=parse(profile.remote) if profile.remote else machine.cache,
        executor=parse(profile.executor) if profile.executor else machine.executor,
        instance=machine.instance if profile.instance is None else profile.instance,
        upload=profile.upload and machine.upload,
        jobs=profile.jobs or machine.jobs,
    )


def not_allowed(name: str, address: str) -> Problem:
    """Return the refusal of an endpoint in `cache` that this machine's settings do not allow."""
    role = "cache" if name == "remote" else name
    return Problem(
        "endpoint-not-allowed",
        f"the settings do not allow the remote {role} {address}",
        why="a profile may come from a stranger, and this machine would connect to the address",
        fixes=[
            f"if you trust the profile, allow the address: `--allow-endpoint {address}`, "
            f"`TFDOCK_ALLOW_ENDPOINTS={address}`, or `allow_endpoints: [{address}]` in the configuration file",
            f"remove `cache: {{{name}: …}}`",
        ],
        field=f"cache.{name}",
    )


def check_remote(remote: Remote, bazel: str, options: remote_flags.Options, *, native: bool = False) -> None:
    """Raise Incompatible if this Bazel cannot use an endpoint, or if the code is `native` (only for this CPU)."""
    # A cache's key does not contain the CPU, so another machine could get code with illegal instructions.
    if native and remote.endpoints:
        raise Incompatible.of(
            "native-shared",
            NATIVE_SHARED,
            "remove `optimize: native`, or build without "
            + " and ".join(f"TFDOCK_REMOTE_{role.upper()}" for role, _ in remote.endpoints),
            why=f"this machine's settings name {remote.endpoints[0][1]}; {OF_OTHER_CPUS}",
            field="optimize",
        )
    if remote.executor and remote.cache and remote.cache.http:
        raise Incompatible.of(
            "remote-http-executor",
            f"an executor ({remote.executor}) cannot be combined with an HTTP cache ({remote.cache})",
            why="Bazel: `Cannot combine gRPC based remote execution with disk caching or HTTP-based caching`",
            fixes=["remove the cache: an executor has its own cache", "use a cache that speaks gRPC"],
            field="cache",
        )
    for role, endpoint in remote.endpoints:
        # No option is passed: the name of the option in this Bazel version is not known.
        if not options(f"remote_{role}", {"url": ""}):
            raise Incompatible.of(
                "remote-bazel-too-old",
                f"the remote {role} {endpoint} cannot be used with Bazel {bazel}",
                f"leave out the remote {role} (TFDOCK_REMOTE_{role.upper()}, or `cache:` in the profile): "
                "the disk cache of this machine works with every Bazel",
                why="untested: Bazel before 0.26 names these options differently",
                field="cache",
            )
