"""The bundle's file: what is written is read back, and what is not what was written is told before it is used."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from document_schemas import faults

from tfdock.errors import TfdockError
from tfdock.knowledge import loader
from tfdock.oci.plain_tar import BLOCK
from tfdock.offline import bundle_format as bundle
from tfdock.offline.bundle_file import Bundle, BundleWriter, open_bundle
from tfdock.offline.bundle_format import (
    BundledBuild,
    BundledImage,
    BundledRuntime,
    BundleError,
    Index,
    ProfileTexts,
    Wheels,
)
from tfdock.offline.bundled_inputs import SharedInputs

from ..desk import problem_of

ZERO = "0" * 64
CACHED = b"a downloaded archive"
CACHED_PATH = f"content_addressable/sha256/{hashlib.sha256(CACHED).hexdigest()}/file"
IMAGES = b"layers" * 1_000_000  #: More than a piece.


def index_of(names: dict[str, str]) -> Index:
    image = BundledImage(name=f"tfdock/bundle:{'a' * 24}", id=f"sha256:{'a' * 64}", size=12)
    other = BundledImage(name=f"tfdock/bundle:{'b' * 24}", id=f"sha256:{'b' * 64}", size=12)
    build = BundledBuild(
        build_id="tf99.18.0-py3.11-cpu-x86_64",
        fingerprint="f" * 64,
        profile=ProfileTexts(
            file="my.yaml", text=names["text"], extended={}, patches={"a b.patch": names["patch"]}, tree="1" * 64
        ),
        lock=names["lock"],
        image=image,
        base_digest=None,
        source_ref="v99",
        runtime=BundledRuntime(reference="docker.io/library/python:3.11", image=other),
        wheels=Wheels(
            python_tag="cp311",
            requirements=("numpy<2",),
            limits=(),
            files={"numpy-1-py3-none-any.whl": names["wheel"]},
        ),
        external=None,
    )
    return Index(
        tfdock="1.0",
        knowledge="2026",
        builds=(build,),
        images=names["images"],
        repository={CACHED_PATH: names["cached"]},
    )


CONTENTS = {
    "text": b"schema: 1\n",
    "patch": b"--- a\n",
    "lock": b"schema: 1\n",  # the same as `text`
    "wheel": b"",
    "cached": CACHED,
    "images": IMAGES,
}


def write(path: Path) -> Index:
    with path.open("w+b") as file:
        writer = BundleWriter(file, index_of(dict.fromkeys(CONTENTS, ZERO)))
        names = {key: writer.add(iter([content[:7], content[7:]])) for key, content in CONTENTS.items()}
        return writer.finish(index_of(names))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write(tmp_path / "bundle.tar")
    return tmp_path / "bundle.tar"


def refused(path: Path, use: Callable[[Bundle], object] = lambda _: None) -> str:
    problem = problem_of(lambda: use(open_bundle(path)), TfdockError)
    assert problem.fix
    assert str(path) in problem.message
    return problem.code


def read_all(found: Bundle) -> dict[str, bytes]:
    return {blob.sha256: b"".join(found.chunks(blob.sha256)) for blob in found.index.blobs}


# --- what is written is read ----------------------------------------------------------------------------------------


def test_what_was_put_in_comes_out(path: Path, tmp_path: Path) -> None:
    found = open_bundle(path)
    assert found.index == write(tmp_path / "again.tar")
    assert set(read_all(found).values()) == set(CONTENTS.values())
    assert found.read(found.index.builds[0].profile.text) == b"schema: 1\n"


def test_equal_contents_are_stored_once_and_equal_bundles_are_equal_bytes(path: Path, tmp_path: Path) -> None:
    assert len(open_bundle(path).index.blobs) == len(set(CONTENTS.values()))
    write(tmp_path / "again.tar")
    assert path.read_bytes() == (tmp_path / "again.tar").read_bytes()


def test_any_tar_reads_it_with_its_index_first(path: Path) -> None:
    with tarfile.open(path) as archive:
        members = archive.getmembers()
        assert members[0].name == "index.json"
        index = archive.extractfile(members[0])
        assert index is not None
        assert faults("bundle", json.load(index)) == []
        for member in members[1:-1]:
            content = archive.extractfile(member)
            assert content is not None
            assert member.isreg()
            assert member.name == f"blobs/{hashlib.sha256(content.read()).hexdigest()}"


def test_contents_larger_than_a_plain_header_can_say_have_one() -> None:
    header = bundle.header("blobs/x", 20 << 30)
    assert len(header) == BLOCK
    assert tarfile.TarInfo.frombuf(header, "utf-8", "strict").size == 20 << 30


# --- what is not what was written -----------------------------------------------------------------------------------


def test_a_bundle_that_is_cut_anywhere_is_told_when_it_is_opened(path: Path) -> None:
    content = path.read_bytes()
    for length in (len(content) - 1, len(content) - 1024, len(content) // 2, 3 * BLOCK, 5000):
        path.write_bytes(content[:length])
        assert refused(path) == "bundle-damaged", length
    path.write_bytes(content + b"\0")
    assert refused(path) == "bundle-damaged"


@pytest.mark.slow
def test_every_flipped_byte_is_noticed_before_the_contents_have_an_end(path: Path) -> None:
    content = bytearray(path.read_bytes())
    begin = content.index(b"blobs/")
    places = [*range(100, begin, 97), *range(begin, begin + 4 * BLOCK, 61), len(content) // 2, len(content) - 1200]
    for place in places:
        content[place] ^= 1
        path.write_bytes(content)
        assert refused(path, read_all) in ("bundle-damaged", "bundle-malformed"), place
        content[place] ^= 1


@pytest.fixture
def damaged(path: Path) -> Bundle:
    """A bundle in whose images a byte has changed."""
    content = bytearray(path.read_bytes())
    content[content.index(b"layerslayers") + 10] ^= 1
    path.write_bytes(content)
    return open_bundle(path)


def test_the_last_piece_of_damaged_contents_is_never_handed_out(damaged: Bundle) -> None:
    got: list[int] = []
    with pytest.raises(TfdockError):
        got.extend(len(chunk) for chunk in damaged.chunks(damaged.index.images))
    assert 0 < sum(got) < len(IMAGES)


@pytest.mark.parametrize(
    "content",
    [b"", b"text", b"\0" * 10240, bytes(range(256)) * 8, tarfile.TarInfo("etc/passwd").tobuf() + bytes(9728)],
    ids=["empty", "short", "zeros", "noise", "another tar"],
)
def test_a_file_that_is_no_bundle_is_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    assert refused(path) == "bundle-malformed"


def test_a_bundle_that_is_not_there_is_told(tmp_path: Path) -> None:
    assert refused(tmp_path / "absent.tar") == "bundle-unreadable"


def with_index(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """A bundle whose index says something else, as somebody would make it who knows the format."""
    document = json.loads(bundle.to_text(write(path)))
    change(document)
    text = json.dumps(document).encode()
    sums = f"{hashlib.sha256(text).hexdigest()}\n".encode()
    with path.open("wb") as file:
        for name, content in (("index.json", text), ("index.sha256", sums)):
            file.write(bundle.header(name, len(content)) + content + bytes(-len(content) % BLOCK))
        file.write(bytes(2 * BLOCK))


def test_a_bundle_of_another_schema_names_both(path: Path) -> None:
    with_index(path, lambda index: index.update(schema="tfdock.bundle/2"))
    with pytest.raises(
        TfdockError, match=r"the schema is tfdock.bundle/2, but this tfdock reads only tfdock.bundle/1"
    ):
        open_bundle(path)
    assert refused(path) == "bundle-schema"


HOSTILE: dict[str, Callable[[dict[str, Any]], object]] = {
    "path": lambda index: index["repository"].update({"../../etc/passwd": ZERO}),
    "absolute": lambda index: index["repository"].update({"/etc/passwd": ZERO}),
    "wheel": lambda index: index["builds"][0]["wheels"]["files"].update({"../x.whl": ZERO}),
    "image": lambda index: index["builds"][0]["image"].update(name="debian:latest"),
    "name of another image": lambda index: index["builds"][0]["image"].update(id=f"sha256:{'e' * 64}"),
    "build id": lambda index: index["builds"][0].update(build_id="../x"),
    "no blob": lambda index: index.update(images=ZERO),
    "twice": lambda index: index["blobs"].append(index["blobs"][0]),
    "size": lambda index: index["blobs"][0].update(size=-512),
    "size of text": lambda index: index["blobs"][0].update(size="12"),
    "poisoned cache": lambda index: index.update(repository={CACHED_PATH: index["images"]}),
    "no builds": lambda index: index.pop("builds"),
    "no build": lambda index: index.update(builds=[]),
    "a build twice": lambda index: index["builds"].append(index["builds"][0]),
    "lines": lambda index: index.update(tfdock="1\x1b[2J"),
    "list": lambda index: index.update(repository=[]),
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE.keys())
def test_an_index_that_says_what_none_of_ours_would_is_refused(
    path: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    with_index(path, change)
    assert refused(path) == "bundle-malformed"


def test_json_that_nests_for_ever_is_an_error_of_ours() -> None:
    with pytest.raises(BundleError):
        bundle.from_text(b"[" * 100_000)


# --- what is taken out ----------------------------------------------------------------------------------------------


def test_threads_that_take_out_the_same_file_do_not_write_into_one(path: Path, tmp_path: Path) -> None:
    found, both = open_bundle(path), threading.Barrier(2, timeout=60)

    class Slow(Bundle):
        def chunks(self, sha256: str) -> Iterator[bytes]:
            both.wait()
            for chunk in found.chunks(sha256):
                yield chunk
                both.wait()

    slow, target = Slow(found.path, found.index, 0), tmp_path / "out" / "file"
    with ThreadPoolExecutor(2) as pool:
        supplies = [SharedInputs(slow, ()) for _ in range(2)]
        for done in [pool.submit(supply._write, found.index.images, target) for supply in supplies]:
            done.result()
    assert target.read_bytes() == IMAGES
    assert list(target.parent.iterdir()) == [target]


def test_of_damaged_contents_nothing_is_taken_out(damaged: Bundle, tmp_path: Path) -> None:
    with pytest.raises(TfdockError):
        SharedInputs(damaged, ())._write(damaged.index.images, tmp_path / "out" / "file")
    assert list((tmp_path / "out").iterdir()) == []


# --- images ---------------------------------------------------------------------------------------------------------

OWN = f"tfdock/bundle:{'a' * 24}"
NAMED = json.dumps([{"RepoTags": [OWN]}, {"RepoTags": None}]).encode()
INDEXED = {"manifests": [{"annotations": {"io.containerd.image.name": f"docker.io/{OWN}"}}, {}]}
STOLEN = b'[{"RepoTags": ["tensorflow/build:2.18-python3.11"]}]'


class Archived(Bundle):
    """A bundle whose images are `data`."""

    data: bytes

    def chunks(self, sha256: str) -> Iterator[bytes]:  # noqa: ARG002
        yield from (self.data[at : at + 700] for at in range(0, len(self.data), 700))


def supply(path: Path, data: bytes) -> SharedInputs:
    found = open_bundle(path)
    bundle = Archived(found.path, found.index, 0)
    object.__setattr__(bundle, "data", data)
    return SharedInputs(bundle, found.index.builds)


def member(name: str, content: bytes, *, kind: str = "0", size: bytes | None = None, link: str = "") -> bytes:
    """A member with its header, whose size field may say anything."""
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname = kind.encode(), len(content), link
    header = bytearray(info.tobuf(tarfile.USTAR_FORMAT))
    header[124:136] = size or header[124:136]
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + content + bytes(-len(content) % BLOCK)


A, B, C = "a" * 64, "b" * 64, "c" * 64
END = bytes(2 * BLOCK)
NAMING = member("manifest.json", NAMED)
REPOSITORIES = json.dumps({"tfdock/bundle": {"a" * 24: A}}).encode()
LAYERS = b"".join(
    (
        member(f"{A}.json", b"{}"),
        member(f"{A}/", b"", kind="5"),
        member(f"{A}/VERSION", b"1.0"),
        member(f"{A}/json", b"{}"),
        member(f"{A}/layer.tar", b"", kind="2", link=f"../{B}/layer.tar"),
        member(f"{B}/", b"", kind="5"),
        member(f"{B}/layer.tar", b"layer"),
    )
)
BLOBS = b"".join(
    (
        member("blobs/", b"", kind="5"),
        member("blobs/sha256/", b"", kind="5"),
        member(f"blobs/sha256/{A}", b"layer"),
        member("oci-layout", b'{"imageLayoutVersion":"1.0.0"}'),
        member("index.json", json.dumps(INDEXED).encode()),
    )
)
# Of a layer above 8 GiB, an engine writes the size into an extended header.
LARGE = member(f"{C}/PaxHeaders.0/layer.tar", b"10 size=5\n", kind="x") + member(
    f"{C}/layer.tar", b"layer", size=b"%011o\0" % 0
)


@pytest.mark.parametrize(
    "data",
    [
        LAYERS + NAMING + member("repositories", REPOSITORIES), BLOBS + NAMING + member("repositories", REPOSITORIES),
        LARGE + NAMING,
    ],
    ids=["Docker 20.10", "OCI layout", "large layer"],
)  # fmt: skip
def test_images_may_have_the_names_of_their_bundle(path: Path, data: bytes) -> None:
    supply(path, data + END)._check_names()


OTHER = member("manifest.json", STOLEN)


def with_keys(keys: dict[str, object]) -> bytes:
    return member("manifest.json", json.dumps([keys]).encode())


REFUSED = {
    # Names of other images, such as that of the base image of the next build.
    "in manifest.json": (OTHER, "would get further names: tensorflow/build:2.18-python3.11"),
    "in repositories": (
        NAMING + member("repositories", b'{"tensorflow/build": {"2.18": "x"}}'),
        "tensorflow/build:2.18",
    ),
    "in containerd's annotation": (
        NAMING + member("index.json", json.dumps(INDEXED).replace(OWN, "library/python:3").encode()),
        "library/python:3",
    ),
    "in OCI's annotation": (
        NAMING
        + member("index.json", b'{"manifests":[{"annotations":{"org.opencontainers.image.ref.name":"debian:12"}}]}'),
        "debian:12",
    ),
    "no map": (member("manifest.json", b"[[]]"), "not a valid archive"),
    "no JSON": (member("manifest.json", b"{"), "not a valid archive"),
    # What two readers could read differently.
    "absolute path": (NAMING + member("/manifest.json", STOLEN), "/manifest.json"),
    "dot path": (NAMING + member("./manifest.json", STOLEN), "./manifest.json"),
    "path through a folder": (NAMING + member("x/../manifest.json", STOLEN), "x/../manifest.json"),
    "other case": (NAMING + member("MANIFEST.json", STOLEN), "MANIFEST.json"),
    "twice": (NAMING + OTHER, "twice"),
    "through a link": (NAMING + member("d", b"", kind="2", link=".") + member("d/manifest.json", STOLEN), "`'d'`"),
    "through a link of a layer": (NAMING + member(A, b"", kind="2", link=".") + member(f"{A}/json", STOLEN), A),
    "link to the names": (NAMING + member(f"{A}/layer.tar", b"", kind="2", link="../manifest.json"), "layer.tar"),
    "hard link": (NAMING + member(f"{A}/layer.tar", b"", kind="1", link="manifest.json"), "a link"),
    "names as a link": (member("manifest.json", b"", kind="2", link=f"../{A}/layer.tar"), "manifest.json"),
    # Python reads this size as 0, Go as 512: each sees other members.
    "size with a leading zero byte": (
        NAMING + member(f"{A}.json", b"", size=b"\0%010o\0" % 512) + member(f"{B}.json", OTHER),
        "number",
    ),
    "folder with content": (NAMING + member("blobs/", OTHER, kind="5"), "blobs/"),
    "longer name": (member("PaxHeaders.0/x", b"21 path=manifest.json\n", kind="x") + NAMING, "extended headers"),
    "compressed beginning": (member("BZh91AY&SY", b"10 size=5\n", kind="x") + NAMING, "extended headers"),
    "no names": (member(f"{A}.json", b"{}"), "manifest.json is missing"),
    "after the end": (NAMING + bytes(BLOCK) + OTHER, "after the end"),
    "key of other case": (with_keys({"repotags": [OWN]}), "has the key RepoTags"),
    "key of other letters": (with_keys({"Repo\u0054ag\u017f": ["debian:12"]}), "has the key RepoTags"),
    "keys of both cases": (with_keys({"RepoTags": [OWN], "repotags": ["debian:12"]}), "twice"),
    "parent": (with_keys({"RepoTags": [OWN], "Parent": f"sha256:{A}"}), "`Parent`"),
    "names in one text": (with_keys({"RepoTags": OWN}), "not text"),
    "two equal keys": (
        member("manifest.json", b'[{"RepoTags": ["debian:12"], "RepoTags": ["%s"]}]' % OWN.encode()),
        "twice",
    ),
}


@pytest.mark.parametrize(("data", "says"), REFUSED.values(), ids=REFUSED)
def test_images_that_take_a_name_or_that_two_readers_could_read_differently_are_not_loaded(
    path: Path, data: bytes, says: str
) -> None:
    problem = problem_of(supply(path, data + END)._check_names, TfdockError)
    assert problem.code == "bundle-damaged"
    assert says in problem.message


# --- what a wheel requires, as its source says ----------------------------------------------------------------------


def said_by(folder: Path, text: str) -> list[str]:
    (folder / "setup.py").write_text(text)
    script, target = loader.templates()["run/requirements.py"], folder / "found.json"
    subprocess.run([sys.executable, "-c", script, folder, target], check=True)
    found: list[str] = json.loads(target.read_bytes())
    return found


def test_requirements_are_read_off_a_setup_py_that_does_what_real_ones_do(tmp_path: Path) -> None:
    text = """
import os
from setuptools import Command, Extension, find_namespace_packages, setup
from setuptools.command.install import install as InstallBase
from setuptools.dist import Distribution

class Binary(Distribution):
    def has_ext_modules(self):
        return True

class Install(InstallBase):
    def finalize_options(self):
        InstallBase.finalize_options(self)

assert Install and Command and Extension
REQUIRED = ["absl-py >= 1.0.0", "numpy >= 1.23.5,\\n  < 2.0.0"]
REQUIRED.append(["intel == 1 ; platform_system == 'Windows'"])
setup(
    name="x", packages=find_namespace_packages(), install_requires=REQUIRED,
    distclass=Binary, cmdclass={"install": Install},
)
"""
    expected = ["absl-py >= 1.0.0", "numpy >= 1.23.5,", "< 2.0.0", "intel == 1 ; platform_system == 'Windows'"]
    assert said_by(tmp_path, text) == expected
    assert said_by(tmp_path, "from setuptools import setup\nsetup(name='x')") == []
