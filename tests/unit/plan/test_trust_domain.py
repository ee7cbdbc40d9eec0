"""Which builds share a disk cache: a profile's trust domain, and why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tfdock.plan.build_plan import BuildPlan, as_json, in_domain
from tfdock.plan.planning import make_plan
from tfdock.plan.trust_domain import NAME, Domain, of_bundle, split_key, trust_domain
from tfdock.profile import profile as profiles
from tfdock.profile.endpoint import parse
from tfdock.resolve.question import LocalSource
from tfdock.types import Remote

from ..desk import MACHINE, Desk

HEAD = 'schema: 1\npython: "3.11"\n'
PLAIN = HEAD + 'tensorflow: "2.18.0"\n'
PROFILES = Path(__file__).parents[3] / "profiles"
CHECKOUT = LocalSource(tree="0" * 64, folder="/home/me/tensorflow")


def plan_of(desk: Desk, text: str) -> BuildPlan:
    profile, _ = profiles.read(text, "x.yaml")
    patches = dict.fromkeys(profile.source.patches, b"--- a\n+++ b\n")
    return desk.plan(
        text, local=replace(CHECKOUT, patches=patches) if profile.source.path else LocalSource(patches=patches)
    )


@pytest.mark.parametrize(
    "more",
    [
        "",
        "gpus: [rtx3080]\n",
        "debug: true\n",
        "optimize: native\n",
        "optimize: [avx2, fma]\n",
        "wheel: {name: mine}\n",
        "verify: {run: false}\n",
        "resources: {jobs: 2}\n",
        "host_compiler: {name: clang, path: /usr/lib/llvm-18/bin/clang}\n",
        "bazel: {copts: [-O3, -march=haswell, -mavx2, -mno-avx512f, -g, -DNDEBUG, -D_FORTIFY_SOURCE=2, -Wno-x]}\n",
        "bazel: {copts: [-std=c++17, -fno-omit-frame-pointer, -ffp-contract=off, -fvisibility=hidden, -flto=thin]}\n",
        "bazel: {flags: [--subcommands, --verbose_failures, --copt=-O2, --define=framework_shared_object=true]}\n",
        "bazel: {flags: [--linkopt=-lm, --linkopt=-fuse-ld=lld, --strip=never, --config=mkl]}\n",
        "bazel: {configs: [mkl], startup: [--host_jvm_args=-Xmx4g]}\n",
    ],
)
def test_an_unchanged_release_with_harmless_options_is_in_the_domain_release(desk: Desk, more: str) -> None:
    assert plan_of(desk, PLAIN + more).trust == Domain()


def test_a_domain_knows_those_with_fewer_of_its_last_patches(desk: Desk) -> None:
    def domain(*patches: str, path: bool = True) -> Domain:
        of = "{path: tree, " if path else "{"
        tensorflow = f'{of}release: "2.18.0", patches: [{", ".join(patches)}]}}'
        profile, _ = profiles.read(HEAD + f"tensorflow: {tensorflow}\n", "x.yaml")
        local = LocalSource(patches={name: name.encode() for name in profile.source.patches})
        local = replace(CHECKOUT, patches=local.patches) if path else local
        return desk.plan(HEAD + f"tensorflow: {tensorflow}\n", local=local).trust

    none, one, two = domain(), domain("a.patch"), domain("a.patch", "b.patch")
    assert two.with_fewer_patches == (one.name, none.name)
    assert one.with_fewer_patches == (none.name,)
    assert none.with_fewer_patches == ()
    assert one.name not in domain("b.patch", "a.patch").with_fewer_patches
    # Below the patches of a release is `release` itself.
    assert domain("a.patch", path=False).with_fewer_patches == ()


def test_every_shipped_profile_of_a_release_is_in_the_domain_release(desk: Desk) -> None:
    texts = {file.name: file.read_text() for file in PROFILES.glob("*.yaml") if file.name != "matrix.yaml"}
    own: dict[str, tuple[str, ...]] = {}
    for name, text in texts.items():
        profile, _ = profiles.read(text, name, texts)
        if profile.for_this_machine or profile.source.path:
            continue
        domain = desk.plan(text, others=texts).trust
        own |= {} if domain.is_release else {name: domain.reasons}
    # A branch moves: only a commit makes a source the release.
    assert own == {"rocm.yaml": ("the source is https://github.com/ROCm/tensorflow-upstream at r2.18-rocm-enhanced",)}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (HEAD + 'tensorflow: {release: "2.18.0", path: ../tensorflow}\n', "a local checkout"),
        (HEAD + 'tensorflow: {release: "2.18.0", git: "https://x.example/tf.git"}\n', "https://x.example/tf.git"),
        (HEAD + 'tensorflow: {release: "2.18.0", ref: master}\n', "master"),
        (HEAD + 'tensorflow: {release: "2.18.0", fallback: [master]}\n', "v2.18.0 or master"),
        (
            HEAD + f'tensorflow: {{release: "2.18.0", archive: "https://x.example/a.zip", sha256: {"a" * 64}}}\n',
            "the archive https://x.example/a.zip",
        ),
        (HEAD + 'tensorflow: {release: "2.18.0", patches: [fix.patch]}\n', "the patch fix.patch"),
        (PLAIN + "base: evil.example/tensorflow/build:2.18-python3.11\n", "evil.example/tensorflow/build"),
        (PLAIN + "base: me/ubuntu-bazel:22.04\n", "me/ubuntu-bazel:22.04"),
        (PLAIN + "host_compiler: {name: clang, path: /tf/tensorflow/clang}\n", "/tf/tensorflow/clang"),
        (PLAIN + "cache: {instance: another}\n", "the instance another"),
        (PLAIN + "cache: {remote: 'grpcs://team-b.example'}\n", "the remote endpoint grpcs://team-b.example:443"),
        (PLAIN + "cache: {executor: 'grpc://team-b.example:1'}\n", "the remote endpoint grpc://team-b.example:1"),
    ],
)
def test_what_is_not_the_release_has_a_domain_of_its_own(desk: Desk, text: str, reason: str) -> None:
    domain = plan_of(desk, text).trust
    assert NAME.fullmatch(domain.name)
    assert len(domain.reasons) == 1
    assert reason in domain.reasons[0]


@pytest.mark.parametrize(
    "option",
    [
        "copts: [-fplugin=/tf/cache/x.so]",
        "copts: [-fpass-plugin=x.so]",
        "copts: [-B/tf/tensorflow/bin]",
        "copts: [-wrapper]",
        'copts: ["-Wl,--plugin=x.so"]',
        'copts: ["-Wa,@file"]',
        'copts: ["-Wp,-fplugin=x"]',
        "copts: [-Xclang, -load]",
        "copts: [-mllvm]",
        "copts: [-specs=x]",
        "copts: [-include]",
        "copts: [-I/tf/cache/disk]",
        "copts: [-Dexit=system]",
        "copts: [-DEXIT=system]",
        'copts: ["-DX=system(\\"id\\")"]',
        "copts: [-fuse-ld=/tf/x]",
        "copts: [-o]",
        "flags: [--run_under=/bin/x]",
        "flags: [--workspace_status_command=./x]",
        "flags: [--override_repository=a=/b]",
        "flags: [--action_env=PATH=/x]",
        "flags: [--repo_env=PATH=/x]",
        "flags: [--copt=-fplugin=x]",
        'flags: ["--per_file_copt=x@-fplugin=y"]',
        "flags: [--linkopt=-fuse-ld=/x]",
        'flags: ["--linkopt=-Wl,--plugin"]',
        "flags: [--crosstool_top=//x]",
        "flags: [--extra_toolchains=//x]",
        "flags: [--bes_backend=grpc://x]",
        "flags: ['--define=x=$(id)']",
        "startup: ['--host_jvm_args=-XX:OnOutOfMemoryError=id']",
        "startup: [--host_jvm_args=-javaagent:x.jar]",
        "startup: [--server_javabase=/x]",
    ],
)
def test_an_option_that_may_run_a_program_gives_a_domain_of_its_own(desk: Desk, option: str) -> None:
    domain = plan_of(desk, f"{PLAIN}bazel: {{{option}}}\n").trust
    assert not domain.is_release
    assert all("is not known to be harmless" in reason for reason in domain.reasons)


def test_options_for_some_files_are_judged_like_all_others(desk: Desk) -> None:
    text = PLAIN + "debug: {per_file: [{files: '+x', copts: [%s]}]}\n"
    assert plan_of(desk, text % "-O0").trust.is_release
    assert not plan_of(desk, text % "-fplugin=x").trust.is_release


def test_another_tag_or_digest_of_the_known_base_changes_nothing(desk: Desk) -> None:
    known = plan_of(desk, PLAIN).resolution.base
    for tail in (":2.18-python3.11-old", "@sha256:" + "ab" * 32):
        name = f"{known.repository}{tail}"
        text = f"{PLAIN}base: {name if known.registry == 'docker.io' else known.registry + '/' + name}\n"
        assert plan_of(desk, text).trust.is_release


def test_a_commit_that_only_a_lock_names_is_not_the_release(desk: Desk) -> None:
    plan = plan_of(desk, PLAIN)
    profile, _ = profiles.read(PLAIN, "x.yaml")
    known = plan.resolution.release.commits["2.18.0"]
    for commit, is_release in ((known, True), ("d" * 40, False)):
        source = replace(plan.resolution.source, commit=commit)
        resolution = replace(plan.resolution, source=source)
        assert trust_domain(profile, resolution, desk.knowledge).is_release == is_release


def test_the_name_follows_from_what_differs_and_not_from_a_checkouts_content(desk: Desk) -> None:
    path = HEAD + 'tensorflow: {release: "2.18.0", path: ../tensorflow}\n'

    def name(text: str, local: LocalSource) -> str:
        return desk.plan(text, local=local).trust.name

    first = name(path, CHECKOUT)
    assert name(path, replace(CHECKOUT, tree="1" * 64)) == first
    assert name(path, replace(CHECKOUT, folder="/home/you/tensorflow")) != first
    assert name(path + "gpus: [rtx3080]\n", CHECKOUT) == first
    assert name(path + "bazel: {copts: [-fplugin=x]}\n", CHECKOUT) != first
    patched = HEAD + 'tensorflow: {release: "2.18.0", patches: [a.patch]}\n'
    one, other = (name(patched, LocalSource(patches={"a.patch": text})) for text in (b"1", b"2"))
    assert one != other
    assert name(patched.replace("a.patch", "b.patch"), LocalSource(patches={"b.patch": b"1"})) == one


def test_a_reason_holds_no_folder_of_this_machine(desk: Desk) -> None:
    path = HEAD + 'tensorflow: {release: "2.18.0", path: /home/me/tensorflow}\n'
    assert "/home" not in " ".join(plan_of(desk, path).trust.reasons)


def test_the_phases_mount_the_domains_own_cache_and_the_fetch_phase_mounts_none(desk: Desk) -> None:
    plan = plan_of(desk, HEAD + 'tensorflow: {release: "2.18.0", ref: master}\n')
    fetch, compiling = plan.phases
    disk = next(one for one in compiling.mounts if one.target == "/tf/cache/disk")
    assert disk.source == f"{{cache}}/disk/{{toolchain}}-{plan.trust.name}"
    assert disk.volume == f"disk-{{toolchain}}-{plan.trust.name}"
    assert not any("disk" in one.source for one in fetch.mounts)
    assert not any("--disk_cache" in word for word in fetch.command)
    assert "--disk_cache=/tf/cache/disk" in compiling.command
    repository = [one.read_only for phase in plan.phases for one in phase.mounts if "repository" in one.source]
    assert repository == [False, True]
    assert as_json(plan)["trust"] == {
        "domain": plan.trust.name,
        "reasons": list(plan.trust.reasons),
        "shared": False,
    }


def test_an_endpoint_of_this_machines_settings_changes_nothing_and_any_other_is_part_of_the_name(desk: Desk) -> None:
    def domain(url: str) -> Domain:
        text = f"{PLAIN}cache: {{remote: '{url}'}}\n"
        profile, _ = profiles.read(text, "x.yaml")
        return trust_domain(profile, plan_of(desk, PLAIN).resolution, desk.knowledge, ours)

    ours = Remote(cache=parse("https://ours.example/a"), executor=parse("grpcs://run.example"))
    assert domain("https://ours.example:443/a").is_release
    assert domain("grpcs://run.example").is_release
    others = ["https://ours.example/secret", "https://ours.example/b", "http://ours.example/a", "grpcs://x.example"]
    names = [domain(url) for url in others]
    assert len({"release", *(one.name for one in names)}) == 5
    assert "secret" not in str(names[0].reasons), "a path may be a password"


def test_trust_puts_a_build_into_release_and_keeps_the_reasons(desk: Desk) -> None:
    text = HEAD + 'tensorflow: {release: "2.18.0", ref: master}\ncache: {remote: "grpc://x.example:1"}\n'
    profile, _ = profiles.read(text, "x.yaml")
    own = plan_of(desk, text)
    plan, trusting = (
        make_plan(profile, own.resolution, own.resources, own.context, desk.knowledge, MACHINE, trusted=one)
        for one in (False, True)
    )
    assert trusting.trust == replace(plan.trust, name="release", shared=True)
    assert "{cache}/disk/{toolchain}" in [one.source for one in trusting.compile.mounts]
    assert trusting.fingerprint == plan.fingerprint
    assert (plan.remote.upload, trusting.remote.upload) == (False, True), "others read what is uploaded"
    assert in_domain(trusting, plan.trust, desk.knowledge) == plan


def test_an_image_of_a_bundle_has_a_domain_of_its_own() -> None:
    first, other = of_bundle("sha256:" + "a" * 64), of_bundle("sha256:" + "b" * 64)
    assert first.name != other.name
    assert NAME.fullmatch(first.name)


def test_a_disk_caches_name_tells_toolchain_and_domain() -> None:
    own = Domain(name="0" * 16, reasons=("x",))
    assert split_key(own.cache_key("a" * 16)) == ("a" * 16, "0" * 16)
    assert split_key(Domain().cache_key("a" * 16)) == ("a" * 16, "release")
