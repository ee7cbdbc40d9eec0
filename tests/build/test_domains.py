"""Builds that do not trust each other, on a real engine: each writes to its own cache and reads that of `release`."""

from __future__ import annotations

import difflib
import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from tfdock.bazel.cache.cache_folder import CacheFolder, DiskCache
from tfdock.builder.held_caches import LABEL

from .conftest import Finished, Workshop
from .harness import UNTRIED, Json, Tfdock, contents, copy_cache, record_of, write_profile

pytestmark = [pytest.mark.engine, pytest.mark.limit(300)]

GENERATOR = "tensorflow/tools/build_info/gen_build_info.py"
#: What a tool of a hostile source does: it puts another result into the cache in the place of the right one.
PAYLOAD = """\
import glob, hashlib, os, re
for entry in glob.glob("/tf/cache/disk/ac/*/*"):
    data = open(entry, "rb").read()
    for name in re.findall(rb"[0-9a-f]{64}", data):
        blob = "/tf/cache/disk/cas/%s/%s" % (name[:2].decode(), name.decode())
        text = open(blob, "rb").read() if os.path.exists(blob) else b""
        if b"build_info = " in text and b"argparse" not in text:
            text = b"print('POISONED')".ljust(len(text) - 1, b"#") + b"\\n"
            new = hashlib.sha256(text).hexdigest()
            os.makedirs("/tf/cache/disk/cas/" + new[:2], exist_ok=True)
            open("/tf/cache/disk/cas/%s/%s" % (new[:2], new), "wb").write(text)
            data = data.replace(name, new.encode())
            os.unlink(entry)
            open(entry, "wb").write(data)
            print("poisoned", entry)
"""


@pytest.fixture(scope="module")
def shop(workshop: Workshop, finished: Finished) -> Tfdock:
    """The command that has done the cold build, with a cache of its own."""
    return finished.copy(workshop).tfdock


def disks(shop: Tfdock) -> dict[str, DiskCache]:
    return {disk.domain: disk for disk in CacheFolder.opened(shop.cache).disks()}


def entries(disk: DiskCache) -> dict[str, str]:
    """Every file with the hash of its bytes, and its time of change."""
    files = sorted(path for path in disk.folder.rglob("*") if path.is_file())
    return {str(path): f"{hashlib.sha256(path.read_bytes()).hexdigest()} {path.stat().st_mtime_ns}" for path in files}


def executed(build: Json) -> int:
    bazel = record_of(build)["bazel"]
    assert isinstance(bazel["executed"], int)
    return bazel["executed"]


def shipped(build: Json) -> bytes:
    (wheel,) = build["wheels"]
    (data,) = (data for name, data in contents(Path(wheel["path"])).items() if name.endswith("build_info.py"))
    return data


def patch_of(file: Path, name: str, more: str) -> str:
    """A patch that puts more lines before the first one of a file."""
    before = file.read_text().splitlines(keepends=True)
    after = [*more.splitlines(keepends=True), *before]
    return "".join(difflib.unified_diff(before, after, f"a/{name}", f"b/{name}"))


def test_a_hostile_patch_changes_no_other_build_and_takes_what_it_did_not_touch(
    shop: Tfdock, finished: Finished, workshop: Workshop, tmp_path: Path
) -> None:
    tree = workshop.tree()
    benign = write_profile(tmp_path / "benign.yaml", tree, verify=UNTRIED)
    release = disks(shop)["release"]
    before = entries(release)
    shared = finished.copy(workshop).tfdock

    (tmp_path / "evil.patch").write_text(patch_of(tree / GENERATOR, GENERATOR, PAYLOAD))
    source = {"release": "99.18.0", "path": str(tree), "patches": ["evil.patch"]}
    evil = write_profile(tmp_path / "evil.yaml", None, tensorflow=source, verify=UNTRIED)
    stranger = replace(shop, trusted=False)
    hostile = stranger.build(evil, code=0)
    assert entries(release) == before
    (domain,) = disks(shop).keys() - {"release"}
    own = disks(shop)[domain]
    assert any(b"POISONED" in Path(name).read_bytes() for name in entries(own)), "it did what it could"
    record = record_of(hostile.build)
    assert record["plan"]["trust"]["domain"] == domain
    # With one cache for all it is the action that runs the tool, and the wheel.
    in_one_cache = shared.build(evil, code=0)
    assert executed(hostile.build) <= executed(in_one_cache.build) + 2
    # Two builds of the domain at once share one mount.
    other = replace(stranger, home=shop.home / "other")
    other.home.mkdir()
    running = other.start("build", "--json", evil)
    again = stranger.build("--force", evil)
    beside = running.finish()
    assert (again.code, executed(again.build)) == (0, 0), again.told
    assert (beside.code, executed(beside.build)) == (0, 0), beside.told
    assert disks(shop).keys() == {"release", domain}

    clean = shop.build("--force", benign)
    assert (clean.code, executed(clean.build)) == (0, 0), clean.told
    assert shipped(clean.build) == shipped(finished.outcome.build)
    assert b"POISONED" not in shipped(clean.build)
    assert entries(release).keys() == before.keys()
    assert workshop.sdk.volumes(filters={"label": f"{LABEL}={own.key}"})["Volumes"] in (None, [])
    listed = shop.run("cache", "list", "--json").document["toolchains"]
    assert {(one["domain"], bool(one["reasons"])) for one in listed} == {("release", True), (domain, True)}


def test_with_one_more_patch_only_what_it_touches_is_executed(
    tfdock: Tfdock, workshop: Workshop, tmp_path: Path
) -> None:
    tree, here = workshop.tree(), replace(tfdock, cache=tfdock.home / "cache", trusted=False)
    kernel, module = "tensorflow/core/kernels/matmul_op.cc", "tensorflow/python/nn.py"
    (tmp_path / "kernel.patch").write_text(patch_of(tree / kernel, kernel, "// mended\n"))
    (tmp_path / "module.patch").write_text(patch_of(tree / module, module, "patched = True\n"))

    def built(*patches: str) -> Json:
        source = {"release": "99.18.0", "path": str(tree), "patches": list(patches)}
        outcome = here.build(
            write_profile(tmp_path / "patched.yaml", None, tensorflow=source, verify=UNTRIED), code=0
        )
        return outcome.build

    cold = executed(built("kernel.patch"))
    assert cold > 10, "no cache had anything"
    (first,) = (disk for domain, disk in disks(here).items() if domain != "release")
    before = entries(first)
    more = built("kernel.patch", "module.patch")
    assert executed(more) == 1, "the wheel"
    assert entries(first) == before, "the earlier domain's cache stays as it is"
    assert executed(built("module.patch")) == cold, "another first patch shares nothing"


def test_where_the_engine_cannot_mount_an_overlay_the_domain_stands_alone(
    shop: Tfdock, workshop: Workshop, tmp_path: Path
) -> None:
    # A comma separates the options of a mount.
    odd = replace(shop, home=shop.home / "odd", cache=shop.home / "odd/cache,odd", trusted=False)
    copy_cache(shop.cache, odd.cache)
    outcome = odd.build("--force", write_profile(tmp_path / "mine.yaml", workshop.tree(), verify=UNTRIED), code=0)
    assert "[disk-cache-alone]" in outcome.stderr
    assert executed(outcome.build) > 0
