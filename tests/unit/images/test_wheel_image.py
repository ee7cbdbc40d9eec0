"""Wheel images as values: tags, layers, labels, manifests, indexes, and the file that holds them."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from tfdock.errors import WheelRefused
from tfdock.images import wheel_layout
from tfdock.images.image_tags import fingerprint_tag, moving_tag, shipment
from tfdock.images.wheel_image import (
    ARTIFACT_TYPE,
    ImageIndex,
    Platform,
    WheelBuild,
    WheelImage,
    common_platform,
)
from tfdock.images.wheel_layer import LAYER_TYPE, ImageWheel, frame
from tfdock.oci import manifest as oci
from tfdock.oci.manifest import Descriptor, Manifest
from tfdock.oci.plain_tar import archive
from tfdock.plan.build_plan import EPOCH
from tfdock.wheelhouse.build_record import verified
from tfdock.wheelhouse.simple_index import IndexedWheel

from ..desk import problem_of

CUDA = "tf2.18.0-py3.11-cuda12.5.1-cudnn9.3.0-sm86-x86_64"
METADATA = b"Metadata-Version: 2.1\nName: tensorflow\nVersion: 2.18.0+cuda12.5.sm86\nLicense: Apache 2.0\n"


def wheel(file: str, data: bytes = b"a wheel") -> ImageWheel:
    head, tail = frame(file, len(data))
    sha256 = hashlib.sha256(data).hexdigest()
    return ImageWheel(
        listed=IndexedWheel(file=file, sha256=sha256, requires_python=">=3.9"),
        metadata=METADATA,
        size=len(data),
        layer=Descriptor.of(LAYER_TYPE, head + data + tail),
    )


def build(
    build_id: str = CUDA,
    *files: str,
    fingerprint: str = "1" * 64,
    data: bytes = b"a wheel",
    **changes: Any,
) -> WheelBuild:
    files = files or ("tensorflow-2.18.0+cuda12.5.sm86-cp311-cp311-linux_x86_64.whl",)
    record: dict[str, Any] = {
        "build_id": build_id,
        "fingerprint": fingerprint,
        "finished": "2026-01-02T03:04:05+00:00",
        "plan": {
            "choices": [{"field": "tensorflow", "value": "2.18.0"}, {"field": "python", "value": "3.11"}],
            "image": {"source": {"kind": "git", "location": "https://example.org/tensorflow", "commit": None}},
        },
        "source": {"ref": "v2.18.0", "found": "6550e4b"},
        "verification": {
            "checks": [{"name": "file-integrity", "status": "passed"}, {"name": "import", "status": "passed"}],
            "gpu_code": {"sass": ["sm_86"], "ptx": ["compute_90"], "amdgpu": []},
        },
        **changes,
    }
    return WheelBuild(
        record=record, document=json.dumps(record).encode(), wheels=tuple(wheel(one, data) for one in files)
    )


def arm(release: str = "2.18.0", **changes: Any) -> WheelBuild:
    file = f"tensorflow-{release}+cuda12.5.sm86-cp311-cp311-manylinux_2_17_aarch64.manylinux2014_aarch64.whl"
    build_id = CUDA.replace("x86_64", "aarch64").replace("2.18.0", release)
    return build(build_id, file, **{"fingerprint": "2" * 64, **changes})


CPU = build("tf2.18.0-py3.11-cpu-x86_64", "tensorflow_cpu-2.18.0-cp311-cp311-linux_x86_64.whl", fingerprint="3" * 64)

# --- tags -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build_id", "tag"),
    [
        (CUDA, "2.18-py3.11-cuda12.5-sm86"),
        ("tf2.18.0-py3.11-cuda12.5.1-cudnn9.3.0-sm80-ptx86-nvcc-x86_64", "2.18-py3.11-cuda12.5-sm80-ptx86-nvcc"),
        ("tf2.16.2-py3.12-cpu-x86_64", "2.16-py3.12-cpu"),
        ("tf2.16.2-py3.12-cpu-native-dbg-x86_64", "2.16-py3.12-cpu-native-dbg"),
        ("tf2.18.0-py3.11-rocm6.2.0-gfx90a-x86_64", "2.18-py3.11-rocm6.2-gfx90a"),
        ("tf1.4.1-py2.7-cuda8.0-cudnn6.0-sm61-x86_64", "1.4-py2.7-cuda8.0-sm61"),
        ("tf2.18.0.src1a2b3c4d-py3.11-cuda12.5.1-cudnn9.3.0-sm86-p01234567-x86_64",
         "2.18.src1a2b3c4d-py3.11-cuda12.5-sm86-p01234567"),
        # A pre-release takes no name of the release.
        ("tf2.19.0-rc1-py3.11-cpu-x86_64", "2.19.0-rc1-py3.11-cpu"),
        ("something-else", None),
    ],
)  # fmt: skip
def test_a_moving_tag_has_what_tells_two_wheels_apart_but_no_last_numbers(build_id: str, tag: str | None) -> None:
    assert moving_tag(build_id) == tag


def test_the_tag_of_a_fingerprint_is_one_that_registries_take() -> None:
    assert fingerprint_tag("ab" * 32) == "fp-" + "ab" * 16


# --- platforms ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tag", "platform"),
    [
        ("linux_x86_64", "linux/amd64"),
        ("manylinux_2_17_x86_64.manylinux2014_x86_64", "linux/amd64"),
        ("manylinux2014_aarch64", "linux/arm64"),
        ("musllinux_1_2_aarch64", "linux/arm64"),
        ("linux_armv7l", "linux/arm/v7"),
        ("manylinux1_i686", "linux/386"),
    ],
)
def test_the_architecture_is_that_of_the_platform_tag(tag: str, platform: str) -> None:
    assert str(common_platform([f"tensorflow-2.18.0-cp311-cp311-{tag}.whl"])) == platform


@pytest.mark.parametrize("tags", [["any"], ["macosx_12_0_arm64"], ["linux_x86_64", "linux_aarch64"], ["linux_vax"]])
def test_wheels_without_one_platform_are_no_image(tags: list[str]) -> None:
    files = [f"tensorflow-2.18.{number}-py3-none-{tag}.whl" for number, tag in enumerate(tags)]
    assert problem_of(lambda: shipment([build(CUDA, *files)]), WheelRefused).code == "image-platform-unknown"


# --- layers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["tensorflow-2.18.0-cp311-cp311-linux_x86_64.whl", f"tensorflow-2.18.0+{'x' * 150}-py3-none-any.whl"]
)
@pytest.mark.parametrize("size", [0, 1, 511, 512, 513])
def test_a_wheels_layer_is_a_tar_of_one_folder_and_the_wheel(name: str, size: int) -> None:
    head, tail = frame(name, size)
    layer = head + b"x" * size + tail
    assert len(layer) % 512 == 0
    with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
        folder, file = tar.getmembers()
        assert (folder.name, folder.type, folder.mode) == ("wheels", tarfile.DIRTYPE, 0o755)
        assert (file.name, file.size, file.mode) == (f"wheels/{name}", size, 0o644)
        content = tar.extractfile(file)
        assert content is not None
        assert content.read() == b"x" * size
        for member in (folder, file):
            assert (member.uid, member.gid, member.uname, member.gname, member.mtime) == (0, 0, "", "", EPOCH)


def files_of(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        names = [f"{one.name}/" if one.isdir() else one.name for one in tar.getmembers()]
        assert names == sorted(names)
        return {one.name: tar.extractfile(one).read() for one in tar.getmembers() if one.isfile()}  # type: ignore[union-attr]


def test_the_last_layer_has_sums_record_index_metadata_and_constraints() -> None:
    one = build()
    (file,) = (wheel.file for wheel in one.wheels)
    papers = files_of(WheelImage.of([one]).papers)
    assert set(papers) == {
        f"meta/{CUDA}/record.json", "simple/index.html", "simple/tensorflow/index.html", "wheels/SHA256SUMS",
        f"wheels/{CUDA}.constraints.txt", f"wheels/{file}.metadata",
    }  # fmt: skip
    assert papers[f"meta/{CUDA}/record.json"] == one.document
    assert papers["wheels/SHA256SUMS"].decode() == f"{hashlib.sha256(b'a wheel').hexdigest()}  {file}\n"
    assert papers[f"wheels/{file}.metadata"] == METADATA
    assert b"../../wheels/tensorflow-2.18.0%2Bcuda12.5.sm86-" in papers["simple/tensorflow/index.html"]
    assert papers[f"wheels/{CUDA}.constraints.txt"].endswith(b"tensorflow==2.18.0+cuda12.5.sm86\n")


def test_folders_come_before_what_is_in_them() -> None:
    with tarfile.open(fileobj=io.BytesIO(archive({"b/c/d": b"1", "a": b"2", "b-": b"3"}))) as tar:
        assert tar.getnames() == ["a", "b-", "b", "b/c", "b/c/d"]


# --- images ---------------------------------------------------------------------------------------------------------


def test_an_image_is_an_ordinary_one_that_says_what_it_is() -> None:
    image = WheelImage.of([build()])
    manifest, config = Manifest.read(image.manifest), json.loads(image.config)
    assert manifest.artifact_type == ARTIFACT_TYPE
    assert manifest.config == Descriptor.of("application/vnd.oci.image.config.v1+json", image.config)
    assert [layer.media_type for layer in manifest.layers] == [LAYER_TYPE] * 2
    assert config["rootfs"] == {"type": "layers", "diff_ids": [layer.digest for layer in manifest.layers]}
    assert (config["os"], config["architecture"], config["config"]["Cmd"]) == ("linux", "amd64", ["/wheels"])
    assert config["created"] == "1980-01-01T00:00:00Z" == manifest.annotations["org.opencontainers.image.created"]
    assert len(config["history"]) == len(manifest.layers)
    assert config["config"]["Labels"] == manifest.annotations == image.labels


def test_labels_are_what_is_known() -> None:
    said = WheelImage.of([build()]).labels
    assert {key.removeprefix("org.opencontainers.image."): said[key] for key in said if key.startswith("org.")} == {
        "title": "tensorflow 2.18.0+cuda12.5.sm86",
        "description": "TensorFlow 2.18.0 for Python 3.11, GPU code for sm_86, compute_90. Built by tfdock.",
        "version": "2.18.0+cuda12.5.sm86",
        "created": "1980-01-01T00:00:00Z",
        "source": "https://example.org/tensorflow",
        "revision": "6550e4b",
        "licenses": "Apache-2.0",
    }
    own = {key.removeprefix("io.tfdock."): said[key] for key in said if key.startswith("io.")}
    assert json.loads(own.pop("gpu-code")) == {"sass": ["sm_86"], "ptx": ["compute_90"], "amdgpu": []}
    (listed,) = json.loads(own.pop("wheels"))
    assert listed == {"file": build().wheels[0].file, "sha256": build().wheels[0].sha256, "size": 7}
    assert own == {
        "build-id": CUDA, "fingerprint": "1" * 64, "python": "3.11", "platform": "linux_x86_64", "verified": "tried",
    }  # fmt: skip


def test_labels_leave_out_what_a_record_does_not_say() -> None:
    local = {"image": {"source": {"kind": "path", "location": "local checkout", "commit": None}}}
    said = WheelImage.of([build(plan=local, verification={})]).labels
    assert not {f"org.opencontainers.image.{name}" for name in ("source", "revision")} & set(said)
    assert said["io.tfdock.verified"] == "no"
    assert "io.tfdock.python" not in said


@pytest.mark.parametrize(
    ("checks", "word"),
    [
        ([("file-integrity", "passed"), ("import", "passed")], "tried"),
        ([("file-integrity", "passed"), ("import", "skipped")], "files"),
        ([("file-integrity", "passed"), ("import", "failed")], "failed"),
        ([("import", "skipped")], "no"),
        ([], "no"),
    ],
)
def test_how_a_build_was_verified(checks: list[tuple[str, str]], word: str) -> None:
    found = {"checks": [{"name": name, "status": status} for name, status in checks]}
    assert verified({"verification": found}) == word


def test_several_builds_in_one_image_have_a_layer_for_each_wheel_in_whatever_order_they_come() -> None:
    image = WheelImage.of([build(), CPU])
    assert image.manifest == WheelImage.of([CPU, build()]).manifest
    assert [wheel.file for wheel in image.wheels] == sorted([build().wheels[0].file, CPU.wheels[0].file])
    assert len(image.layers) == 3
    assert image.labels["io.tfdock.build-id"] == f"tf2.18.0-py3.11-cpu-x86_64 {CUDA}"
    assert {path for path in files_of(image.papers) if path.startswith("meta/")} == {
        f"meta/{one}/record.json" for one in (CUDA, CPU.build_id)
    }


def test_other_bytes_anywhere_are_another_image() -> None:
    first = WheelImage.of([build()]).digest
    assert WheelImage.of([build()]).digest == first
    for other in (build(data=b"A wheel"), build(finished="2026-01-02T03:04:06+00:00"), build(fingerprint="4" * 64)):
        assert WheelImage.of([other]).digest != first


# --- what is pushed -------------------------------------------------------------------------------------------------


def test_a_build_gets_three_names() -> None:
    found = shipment([build()])
    (image,) = found.images
    assert found.tags == {CUDA: image, "fp-" + "1" * 32: image, "2.18-py3.11-cuda12.5-sm86": image}
    assert list(shipment([build()], moving=False).tags) == [CUDA, "fp-" + "1" * 32]


def test_only_a_build_in_release_gets_a_moving_tag() -> None:
    trust = {"trust": {"domain": "f" * 16, "reasons": ["x"], "shared": False}}
    evil = build(fingerprint="6" * 64, finished="2027-02-01T03:04:05+00:00", plan=trust)
    alone = shipment([evil])
    assert (list(alone.tags), alone.unmoved) == ([CUDA, "fp-" + "6" * 32], (CUDA,))
    assert shipment([evil], moving=False).unmoved == ()
    found = shipment([evil, build()])
    assert found.tags["2.18-py3.11-cuda12.5-sm86"].digest == WheelImage.of([build()]).digest
    trusted = build(plan={"trust": {"domain": "release", "reasons": ["x"], "shared": True}})
    assert "2.18-py3.11-cuda12.5-sm86" in shipment([trusted]).tags


def test_the_moving_tag_of_two_platforms_is_an_index() -> None:
    found = shipment([build(), arm()])
    assert len(found.images) == 2
    index = found.tags["2.18-py3.11-cuda12.5-sm86"]
    assert isinstance(index, ImageIndex)
    document = json.loads(index.manifest)
    assert (document["mediaType"], document["artifactType"]) == (oci.INDEX, ARTIFACT_TYPE)
    assert [one["platform"] for one in document["manifests"]] == [
        {"architecture": "amd64", "os": "linux"}, {"architecture": "arm64", "os": "linux"},
    ]  # fmt: skip
    assert [one["digest"] for one in document["manifests"]] == [image.digest for image in found.images]
    assert found.tags[CUDA] is found.images[0]


def test_the_moving_tag_goes_to_the_newest_release_and_then_to_what_was_built_last() -> None:
    old, new = arm("2.18.9"), arm("2.18.10", fingerprint="5" * 64)
    found = shipment([new, old])
    assert found.tags["2.18-py3.11-cuda12.5-sm86"].digest == found.tags[new.build_id].digest
    later = replace(build(fingerprint="6" * 64), record=build(fingerprint="6" * 64, finished="2026-02-01").record)
    found = shipment([later, build()])
    assert found.tags["2.18-py3.11-cuda12.5-sm86"].digest == WheelImage.of([later]).digest


def test_together_they_are_one_image_or_an_index_under_that_tag() -> None:
    found = shipment([build(), CPU], together="all")
    assert isinstance(found.tags["all"], WheelImage)
    assert len(found.tags["all"].wheels) == 2
    assert len(found.images) == 3
    found = shipment([build(), CPU, arm()], together="all")
    index = found.tags["all"]
    assert isinstance(index, ImageIndex)
    assert [(image.platform, len(image.wheels)) for image in index.images] == [
        (Platform(architecture="amd64"), 2), (Platform(architecture="arm64"), 1),
    ]  # fmt: skip
    assert {image.digest for image in index.images} <= {image.digest for image in found.images}
    assert shipment([build()], together="one").tags["one"].digest == WheelImage.of([build()]).digest


@pytest.mark.parametrize(
    "other", [{"fingerprint": "3" * 64}, {"build_id": "tf2.18.0-py3.11-cpu-x86_64", "data": b"other"}]
)
def test_one_image_does_not_hold_two_of_one_name(other: dict[str, Any]) -> None:
    both = [build(), build(**other)]
    shipment(both)
    assert problem_of(lambda: shipment(both, together="all")).code == "image-builds-collide"


@pytest.mark.parametrize("limit", ["MOST_WHEELS", "MOST_PAPERS"])
def test_nothing_is_pushed_that_nobody_could_pull(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    most = 1 if limit == "MOST_WHEELS" else len(WheelImage.of([build(), CPU]).papers) - 1
    monkeypatch.setattr(f"tfdock.images.image_tags.{limit}", most)
    assert len(shipment([build(), CPU]).images) == 2
    assert problem_of(lambda: shipment([build(), CPU], together="all")).code == "image-too-large"


# --- the file -------------------------------------------------------------------------------------------------------


def documents(builds: Iterable[WheelBuild], **options: Any) -> dict[str, Any]:
    found = shipment(list(builds), **options)
    return {path: json.loads(data) for path, data in wheel_layout.documents(found.images, found.tags)}


def test_the_file_is_a_layout_that_docker_loads_as_well() -> None:
    image = WheelImage.of([build()])
    found = documents([build()], moving=False)
    assert found["oci-layout"] == {"imageLayoutVersion": "1.0.0"}
    # Several descriptors of one image are several images to skopeo and podman, which then ask for a name.
    (described,) = found["index.json"]["manifests"]
    assert described["digest"] == image.digest
    assert described["annotations"] == {
        "org.opencontainers.image.ref.name": CUDA,
        "io.containerd.image.name": f"docker.io/tfdock/wheels:{CUDA}",
    }
    (loaded,) = found["manifest.json"]
    assert loaded["RepoTags"] == ["tfdock/wheels:fp-" + "1" * 32, f"tfdock/wheels:{CUDA}"]
    assert loaded["Layers"] == [f"blobs/sha256/{layer.digest[7:]}" for layer in image.layers]
    assert loaded["Config"] == f"blobs/sha256/{hashlib.sha256(image.config).hexdigest()}"


def test_an_engine_that_loads_gets_the_images_of_an_index_by_their_own_names() -> None:
    found = documents([build(), arm()])
    assert len(found["manifest.json"]) == 2
    assert not any("2.18-py3.11-cuda12.5-sm86" in name for one in found["manifest.json"] for name in one["RepoTags"])
    indexes = [one for one in found["index.json"]["manifests"] if one["mediaType"] == oci.INDEX]
    assert [one["annotations"]["org.opencontainers.image.ref.name"] for one in indexes] == [
        "2.18-py3.11-cuda12.5-sm86"
    ]
