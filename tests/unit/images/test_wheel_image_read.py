"""A stranger's image of wheels, judged as values: records, layers as they come, indexes, tags."""

from __future__ import annotations

import json
import random
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tfdock.host import settings
from tfdock.host.foreign_json import Malformed
from tfdock.images import wheel_image_read
from tfdock.images.image_tags import broken_promise
from tfdock.images.wheel_image import CONFIG_TYPE
from tfdock.images.wheel_image_read import FoundBuild, machine_platform
from tfdock.images.wheel_layer import LAYER_TYPE, FoundWheel, frame, wheel_bytes
from tfdock.oci import manifest as oci
from tfdock.oci.manifest import Descriptor, Manifest
from tfdock.oci.plain_tar import archive, members
from tfdock.wheelhouse import build_record
from tfdock.wheelhouse.build_record import read_record

ID = "tf2.18.0-py3.11-cuda12.5.1-cudnn9.3.0-sm86-x86_64"
FILE = "tensorflow-2.18.0+cuda12.5.sm86-cp311-cp311-linux_x86_64.whl"
LONG = f"tensorflow-2.18.0+{'.'.join(['sm86'] * 12)}-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"

# --- records --------------------------------------------------------------------------------------------------------


def record(**changes: Any) -> dict[str, Any]:
    return {
        "schema": build_record.SCHEMA,
        "build_id": ID,
        "fingerprint": "1" * 64,
        "tfdock": "0.1.0",
        "log": "20260102-030405-abcdef.log",
        "wheels": [{"file": FILE, "sha256": "2" * 64, "size": 10}],
        "plan": {"environment": {"TF_NEED_CUDA": "1"}, "bazel_flags": ["--config=cuda"], "image": {}},
        "toolchain_key": "0123456789abcdef",
        "base_digest": None,
        "source": {},
        "lock": None,
        "seconds": {"compile": 1.5, "image": 2},
        "attempts": 1,
        "resources": [{"jobs": 2}],
        "machine": {"cpus": 2, "memory": 1 << 34},
        "estimate": {"weight": 1.1},
        "untested": [],
        "verification": {},
        "started": "2026-01-02T03:00:00+00:00",
        "finished": "2026-01-02T03:04:05+00:00",
        "bazel": {"hits": 1, "executed": 2},
        "kept": {"inputs": "x.inputs.gz"},
        "what a later tfdock writes": [1, 2, 3],
    } | changes


def test_a_record_as_builds_write_it_is_taken_as_it_is() -> None:
    assert read_record(json.dumps(record()).encode()) == record()


@pytest.mark.parametrize(
    "changes",
    [
        {"schema": "tfdock.record/2"},
        {"build_id": "../../etc"},
        {"build_id": "staging"},
        {"build_id": f"{ID}/x"},
        {"fingerprint": "1" * 63},
        {"fingerprint": f"{'1' * 63}\n"},
        {"log": "../x.log"},
        {"wheels": []},
        {"wheels": [{"file": "../x.whl", "sha256": "2" * 64, "size": 10}]},
        {"wheels": [{"file": FILE, "sha256": "2" * 64, "size": -1}]},
        {"wheels": [{"file": FILE, "sha256": "2" * 64, "size": True}]},
        {"wheels": [{"file": FILE, "sha256": "2" * 64, "size": 10}] * 2},
        {"wheels": {"file": FILE}},
        {"plan": {"environment": {"A": 1}, "bazel_flags": []}},
        {"plan": None},
        {"plan": {"environment": {}, "bazel_flags": [], "choices": 5}},
        {"plan": {"environment": {}, "bazel_flags": [], "choices": [5]}},
        {"verification": {"checks": 5}},
        {"verification": {"checks": [{"name": [], "status": "passed"}]}},
        {"verification": {"gpu_code": {"sass": 5}}},
        {"verification": {"gpu_code": ["sm_86"]}},
        {"tfdock": "\ud800"},
        {"what a later tfdock writes": {"\udfff": 1}},
        {"seconds": {"compile": "1"}},
        {"seconds": {"compile": float("nan")}},
        {"seconds": {"compile": float("inf")}},
        {"seconds": {"compile": -1}},
        {"attempts": None},
        {"machine": {}},
        {"resources": [1]},
        {"estimate": {"weight": "much"}},
        {"lock": "none"},
        {"finished": "yesterday"},
        {"bazel": {"hits": 1}},
        {"kept": {"inputs": 1}},
        {"untested": "x" * 10},
    ],
)
def test_a_record_that_would_lead_others_astray_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(Malformed):
        read_record(json.dumps(record(**changes)).encode())


@pytest.mark.parametrize("name", sorted(set(record()) - {"what a later tfdock writes"}))
def test_every_part_of_a_record_is_looked_at(name: str) -> None:
    with pytest.raises(Malformed):
        read_record(json.dumps(record(**{name: [[[]]]})).encode())


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"\xff", b"[" * 100_000, b'{"schema":' * 2000])
def test_what_is_no_record_is_refused(data: bytes) -> None:
    with pytest.raises(Malformed):
        read_record(data)


def test_a_record_is_neither_deep_nor_huge() -> None:
    deep: Any = []
    for _ in range(60):
        deep = [deep]
    with pytest.raises(Malformed, match="too deeply"):
        read_record(json.dumps(record(more=deep)).encode())
    with pytest.raises(Malformed, match="more than"):
        read_record(b" " * (build_record.LARGEST_RECORD + 1))


# --- the layer of a wheel -------------------------------------------------------------------------------------------


def found(file: str, data: bytes) -> tuple[FoundWheel, bytes]:
    head, tail = frame(file, len(data))
    layer = head + data + tail
    return FoundWheel(file=file, sha256="", size=len(data), layer=Descriptor.of(LAYER_TYPE, layer)), layer


def cut(data: bytes, source: random.Random) -> list[bytes]:
    """The same bytes in pieces of all sizes."""
    pieces = []
    while data:
        size = source.choice([1, 7, 511, 512, 513, 4096])
        pieces.append(data[:size])
        data = data[size:]
    return pieces


@pytest.mark.parametrize("file", [FILE, LONG], ids=["a name", "a long name"])
@pytest.mark.parametrize("size", [1, 511, 512, 5000])
def test_the_wheel_is_found_in_its_layer_in_whatever_pieces_that_comes(file: str, size: int) -> None:
    source = random.Random(size)
    data = source.randbytes(size)
    wheel, layer = found(file, data)
    head = len(frame(file, size)[0])
    for _ in range(20):
        assert b"".join(wheel_bytes(wheel, cut(layer, source))) == data
        taken = source.randint(1, size)
        assert b"".join(wheel_bytes(wheel, cut(layer[head + taken :], source), taken)) == data[taken:]


def test_nothing_around_a_wheel_can_be_other_than_it_is() -> None:
    data = b"a wheel" * 100
    wheel, layer = found(FILE, data)
    head = len(frame(FILE, len(data))[0])
    for place in (*range(head), *range(head + len(data), len(layer))):
        other = layer[:place] + bytes([layer[place] ^ 1]) + layer[place + 1 :]
        with pytest.raises(Malformed):
            list(wheel_bytes(wheel, [other]))
    for end in (0, 100, 512, head, head + 10, len(layer) - 1):
        with pytest.raises(Malformed, match="too early"):
            list(wheel_bytes(wheel, [layer[:end]]))
    with pytest.raises(Malformed, match="data after"):
        list(wheel_bytes(wheel, [layer, b"\0"]))


# --- manifest and configuration -------------------------------------------------------------------------------------


def test_a_label_that_is_no_text_is_refused() -> None:
    labels = {"io.tfdock.wheels": "\ud800"}
    config = json.dumps({"config": {"Labels": labels}}).encode()
    manifest = Manifest(config=Descriptor.of(CONFIG_TYPE, config), layers=(), annotations=labels)
    with pytest.raises(Malformed, match="characters outside ASCII"):
        wheel_image_read.read_labels(manifest, config)


# --- papers ---------------------------------------------------------------------------------------------------------


def test_the_files_of_a_layer_are_read_as_they_were_written() -> None:
    files = {"wheels/SHA256SUMS": b"x", f"wheels/{LONG}.metadata": b"y" * 600, "simple/index.html": b""}
    assert dict(members(archive(files), lambda path: path in ("wheels", "simple"))) == files


def test_every_byte_of_a_header_counts() -> None:
    layer = archive({"wheels/SHA256SUMS": b"x"})
    header = layer[512:1024]
    for place in range(len(header)):
        other = layer[: 512 + place] + bytes([header[place] ^ 0x41]) + layer[513 + place :]
        try:
            read = dict(members(other, lambda _: True))
        except Malformed:
            continue
        raise AssertionError(f"byte {place} is not looked at: {read}")


def with_extended(**headers: str) -> bytes:
    info = tarfile.TarInfo("wheels/x")
    info.pax_headers = headers
    return info.tobuf(tarfile.PAX_FORMAT) + bytes(1024)


@pytest.mark.parametrize(
    "headers", [{"GNU.sparse.size": "9" * 12}, {"path": "a\nb"}, {"linkpath": "/etc"}, {"size": "9"}]
)
def test_extended_headers_give_a_longer_name_and_nothing_else(headers: dict[str, str]) -> None:
    with pytest.raises(Malformed):
        dict(members(with_extended(**headers), lambda _: True))


# --- indexes --------------------------------------------------------------------------------------------------------


def row(**changes: Any) -> dict[str, Any]:
    platform = {"os": "linux", "architecture": "amd64"}
    return {"mediaType": oci.MANIFEST, "digest": f"sha256:{'1' * 64}", "size": 10, "platform": platform} | changes


def index(*rows: object, **changes: object) -> bytes:
    return oci.canonical_json({"schemaVersion": 2, "mediaType": oci.INDEX, "manifests": list(rows)} | changes)


def test_an_index_says_what_it_has_for_each_platform() -> None:
    arm = {"os": "linux", "architecture": "arm", "variant": "v7"}
    assert list(wheel_image_read.platforms(index(row(), row(platform=arm)))) == ["linux/amd64", "linux/arm/v7"]


@pytest.mark.parametrize(
    "data",
    [
        index(row(), row()),
        index(row(platform=None)),
        index(row(platform={"os": "../x", "architecture": "amd64"})),
        index(row(mediaType=oci.INDEX)),
        index("x"),
        index(manifests={}),
        index(row(), schemaVersion=1),
        b"no JSON",
    ],
)
def test_an_index_of_something_else_is_refused(data: bytes) -> None:
    with pytest.raises(Malformed):
        wheel_image_read.platforms(data)


@pytest.mark.parametrize(
    ("machine", "platform"), [("x86_64", "linux/amd64"), ("aarch64", "linux/arm64"), ("vax", ""), ("../x", "")]
)
def test_a_machine_has_the_platform_that_images_name(machine: str, platform: str) -> None:
    assert machine_platform(machine) == platform


# --- tags -----------------------------------------------------------------------------------------------------------


def of(build_id: str = ID, fingerprint: str = "1" * 64) -> FoundBuild:
    return FoundBuild(build_id=build_id, fingerprint=fingerprint, record={}, wheels=())


@pytest.mark.parametrize(
    ("tag", "builds", "kept"),
    [
        (ID, [of()], True),
        (ID, [of("tf2.18.0-py3.11-cpu-x86_64")], False),
        (ID, [of(), of()], False),
        (ID, [], False),
        ("tf2.19.0-rc1-py3.11-cpu-x86_64", [of()], False),
        (f"fp-{'1' * 32}", [of()], True),
        (f"fp-{'1' * 32}", [of(fingerprint="2" * 64)], False),
        ("2.18-py3.11-cuda12.5-sm86", [of("tf2.18.1-py3.11-cpu-x86_64")], True),
        ("nightly", [of(), of()], True),
        ("tf-nightly", [of()], True),
        ("", [of()], True),
    ],
)
def test_a_build_id_and_a_fingerprint_are_promises_and_other_tags_are_not(
    tag: str, builds: list[FoundBuild], kept: bool
) -> None:
    assert (broken_promise(tag, builds) == "") is kept


# --- settings -------------------------------------------------------------------------------------------------------


def test_registries_are_given_by_flag_then_variable_then_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config.yaml"
    monkeypatch.setattr(settings, "configuration_file", lambda: file)
    assert settings.load({}, {}).registries == ()
    file.write_text("registries: [ghcr.io/me/wheels, me/wheels]\n")
    assert settings.load({}, {}).registries == ("ghcr.io/me/wheels", "me/wheels")
    file.write_text("registries: ghcr.io/me/wheels\n")
    assert settings.load({}, {}).registries == ("ghcr.io/me/wheels",)
    variable = {"TFDOCK_REGISTRIES": "localhost:5000/a, b/c,localhost:5000/a"}
    assert settings.load({}, variable).registries == ("localhost:5000/a", "b/c")
    assert settings.load({"registries": ("x.example/y",)}, variable).registries == ("x.example/y",)


def test_a_repository_is_asked_for_by_its_mirror_and_once() -> None:
    names = ("me/wheels", "ghcr.io/me/wheels", "docker.io/me/wheels", "hub.example/me/wheels")
    asked = settings.Settings(registries=names, mirrors={"docker.io": "hub.example", "hub.example": "not.twice"})
    found = [str(repository) for repository in asked.repositories]
    assert found == ["hub.example/me/wheels", "ghcr.io/me/wheels", "not.twice/me/wheels"]
