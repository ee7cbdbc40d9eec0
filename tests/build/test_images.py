"""`image pack` and `image push`: one image from whoever packs it, sent once, and taken by plain engines and pip."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bed import missing, needs_root
from wheelhouses import Made, made

from tfdock.errors import Interrupted, NetworkError, Problem
from tfdock.host.settings import load
from tfdock.images import image_pack
from tfdock.images.image_tags import shipment
from tfdock.images.selection import WheelLayer, WheelSelection
from tfdock.images.wheel_image import ARTIFACT_TYPE
from tfdock.images.wheel_layer import LAYER_TYPE, ImageWheel
from tfdock.oci import manifest as oci
from tfdock.oci.http import TRIES as FEW
from tfdock.oci.repository import CHUNK, TRIES
from tfdock.types import ImageRef
from tfdock.wheelhouse.store import Wheelhouse

from . import wheel_images
from .conftest import USER, Finished
from .harness import Json, Outcome, Tfdock, as_user, pip_install
from .logins import PASSWORD, basic, docker_config, guarded
from .registries import Fault, OwnRegistry, Proxy, proxy
from .wheel_images import no_plan

REPOSITORY = "team/wheels"
CUDA, MOVING = "tf2.18.0-py3.11-cuda12.5.1-cudnn9.3.0-sm86-x86_64", "2.18-py3.11-cuda12.5-sm86"


@pytest.fixture
def repository(before: Proxy, request: pytest.FixtureRequest) -> str:
    """A repository of the test's own, through the proxy."""
    return f"{before.address}/{REPOSITORY}/{hashlib.sha256(request.node.name.encode()).hexdigest()[:12]}"


def push(alone: Tfdock, *words: str | Path, code: int = 0, problem: str = "") -> Json:
    """The document of a push, or its one problem."""
    outcome = alone.run("image", "push", "--json", *words, code=code, problem=problem)
    return outcome.problem if problem else outcome.document


def pack(alone: Tfdock, name: str | Path, *, code: int = 0, problem: str = "") -> Outcome:
    """Pack an image of that build into the file `image.tar` of the command's home."""
    return alone.run("image", "pack", "--json", name, "-o", alone.home / "image.tar", code=code, problem=problem)


def manifest(registry: OwnRegistry, repository: str, reference: str, accept: str = oci.MANIFEST) -> Any:
    """What a tag stands for in the registry."""
    _, _, name = repository.partition("/")
    status, data = registry.asked(f"/v2/{name}/manifests/{reference}", accept)
    return json.loads(data) if status == 200 else None


# --- pack -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def common_place() -> Iterator[Path]:
    """A folder that every user may enter."""
    with tempfile.TemporaryDirectory(prefix="tfdock-tests-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_two_users_at_two_times_pack_the_same_bytes(alone: Tfdock, common_place: Path) -> None:
    needs_root("running as another user")
    one = made(alone.wheelhouse)
    variables = {"TZ": "Asia/Tokyo", "PYTHONHASHSEED": "7", "LC_ALL": "C"}
    home = common_place / "home"
    other = Tfdock(home=home, cache=home / "cache", prefix=as_user(USER), variables=variables)
    shutil.copytree(alone.wheelhouse, other.wheelhouse)
    for path in (home, *home.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o600)
        os.utime(path, (1, 1))
        os.chown(path, USER, USER)
    digests = []
    for command, name in ((alone, one.build_id), (other, str(other.wheelhouse / one.wheel.name))):
        outcome = command.run("image", "pack", name, "-o", command.home / "image.tar", code=0)
        digests.append(outcome.stdout)
        time.sleep(1.1)
    assert digests[0] == digests[1] == f"{digests[0].split()[0]}  {CUDA}\n"
    assert (other.home / "image.tar").stat().st_uid == USER
    assert (alone.home / "image.tar").read_bytes() == (other.home / "image.tar").read_bytes()


def test_the_file_is_a_layout_whose_blobs_have_the_digests_that_they_are_named_by(alone: Tfdock) -> None:
    one = made(alone.wheelhouse)
    outcome = pack(alone, one.wheel)
    (image,) = outcome.document["images"]
    assert image["tags"] == [CUDA, f"fp-{one.fingerprint[:32]}", MOVING]
    assert image["wheels"] == [{"file": one.wheel.name, "sha256": one.sha256, "size": one.wheel.stat().st_size}]
    with tarfile.open(alone.home / "image.tar") as tar:
        files = {member.name: tar.extractfile(member).read() for member in tar if member.isfile()}  # type: ignore[union-attr]
    for name, data in files.items():
        if name.startswith("blobs/"):
            assert name == f"blobs/sha256/{hashlib.sha256(data).hexdigest()}"
    (described,) = json.loads(files["index.json"])["manifests"]
    assert described["digest"] == image["digest"]
    assert described["annotations"]["org.opencontainers.image.ref.name"] == CUDA
    found = json.loads(files[f"blobs/sha256/{image['digest'][7:]}"])
    assert [layer["mediaType"] for layer in found["layers"]] == [LAYER_TYPE] * 2
    assert one.wheel.read_bytes() in files[f"blobs/sha256/{found['layers'][0]['digest'][7:]}"]
    assert outcome.document["file"]["size"] == (alone.home / "image.tar").stat().st_size


def test_a_wheel_is_never_wholly_in_memory_and_is_hashed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = made(tmp_path / "house", size=96 << 20)
    hashed: list[Path] = []
    original = WheelLayer.hashed

    def counted(layer: WheelLayer, check: Callable[[], None]) -> ImageWheel:
        hashed.append(layer.path)
        return original(layer, check)

    monkeypatch.setattr(WheelLayer, "hashed", counted)
    tracemalloc.start()
    try:
        with WheelSelection(Wheelhouse(tmp_path / "house"), no_plan, lambda: None) as choosing:
            shipped = shipment(choosing.builds([one.build_id, str(one.wheel)]), together="nightly")
            image_pack.pack(shipped, choosing.stream, tmp_path / "image.tar", lambda: None)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert hashed == [one.wheel]
    assert peak < 24 << 20
    assert (tmp_path / "image.tar").stat().st_size > 96 << 20


def test_a_pack_that_is_stopped_leaves_the_file_that_was_there(tmp_path: Path) -> None:
    one, target = made(tmp_path / "house", size=8 << 20), tmp_path / "image.tar"

    def stop() -> None:
        if any(tmp_path.glob(".image.tar.*")) and next(tmp_path.glob(".image.tar.*")).stat().st_size:
            raise Interrupted

    with WheelSelection(Wheelhouse(tmp_path / "house"), no_plan, lambda: None) as choosing:
        shipped = shipment(choosing.builds([one.build_id]))
        image_pack.pack(shipped, choosing.stream, target, lambda: None)
        was = target.read_bytes()
        with pytest.raises(Interrupted):
            image_pack.pack(shipped, choosing.stream, target, stop)
    assert target.read_bytes() == was
    assert sorted(path.name for path in tmp_path.iterdir()) == ["house", "image.tar"]


def test_what_is_no_file_of_images_is_not_replaced(alone: Tfdock) -> None:
    one = made(alone.wheelhouse)
    notes = alone.home / "notes.txt"
    notes.write_text("mine")
    for target in (notes, alone.home / "nowhere" / "image.tar"):
        alone.run("image", "pack", one.build_id, "-o", target, "--json", code=2, problem="image-file-taken")
    assert notes.read_text() == "mine"


# --- what can be an image -------------------------------------------------------------------------------------------


def test_a_copy_of_a_wheel_elsewhere_is_the_wheel_of_the_wheelhouse(alone: Tfdock, tmp_path: Path) -> None:
    one = made(alone.wheelhouse)
    copy = shutil.copy(one.wheel, tmp_path)
    found = [alone.run("image", "pack", name, "-o", alone.home / "image.tar") for name in (copy, one.wheel)]
    assert [outcome.code for outcome in found] == [0, 0], found[0].told
    assert found[0].stdout == found[1].stdout


def test_of_two_builds_with_one_name_it_is_the_one_whose_bytes_are_here(alone: Tfdock) -> None:
    made(alone.wheelhouse, seed="first", finished="2026-02-02T03:04:05+00:00")
    second = made(alone.wheelhouse, seed="second")  # takes the place of the first one's wheel
    outcome = pack(alone, second.build_id)
    assert outcome.document["images"][0]["tags"][1] == f"fp-{second.fingerprint[:32]}"


def test_of_two_builds_with_one_build_id_it_is_the_one_in_release(alone: Tfdock) -> None:
    release = made(alone.wheelhouse)
    made(alone.wheelhouse, local="evil", seed="evil", finished="2027-02-02T03:04:05+00:00", domain="f" * 16)
    outcome = pack(alone, release.build_id)
    assert outcome.document["images"][0]["tags"] == [CUDA, f"fp-{release.fingerprint[:32]}", MOVING]


def test_a_profile_does_not_mean_a_build_of_another_trust_domain_and_that_moves_no_tag(alone: Tfdock) -> None:
    alone.home.mkdir()
    profile = alone.home / "cpu.yaml"
    profile.write_text('schema: 1\ntensorflow: "2.18.0"\npython: "3.11"\naccelerator: cpu\n')
    plan = alone.run("plan", profile, "--json").document
    evil = made(alone.wheelhouse, local="", words="cpu", fingerprint=plan["fingerprint"], domain="f" * 16)
    assert evil.build_id == plan["build_id"]
    outcome = pack(alone, profile, code=2, problem="build-not-here")
    assert outcome.problem["why"] == f"its trust domain is {'f' * 16}, the profile's is release"
    outcome = pack(alone, evil.build_id)
    assert outcome.document["images"][0]["tags"] == [evil.build_id, f"fp-{evil.fingerprint[:32]}"]
    assert f"{evil.build_id} gets no moving tag" in outcome.stderr


def test_only_wheels_with_a_record_of_checks_that_passed_can_be_pushed(alone: Tfdock, repository: str) -> None:
    one = made(alone.wheelhouse)
    without = made(alone.wheelhouse, release="2.17.0")
    without.record.unlink()
    unverified = made(alone.wheelhouse, release="2.16.0", status="failed")
    damaged = made(alone.wheelhouse, release="2.15.0")
    damaged.record.write_text(damaged.record.read_text().replace(damaged.fingerprint, "none"))
    for wheel, why in (
        (without, ""),
        (unverified, "does not say that the wheel passed its checks"),
        (damaged, "cannot be used"),
    ):
        outcome = alone.run(
            "image", "push", "--json", wheel.wheel, repository, code=4, problem="wheel-without-record"
        )
        assert why in outcome.problem["why"]
    data = one.wheel.read_bytes()
    one.wheel.write_bytes(data[:5000] + bytes([data[5000] ^ 1]) + data[5001:])
    push(alone, one.build_id, repository, code=4, problem="wheel-changed")
    one.wheel.unlink()
    push(alone, one.build_id, repository, code=2, problem="build-not-here")
    push(alone, one.wheel, repository, code=2, problem="wheel-not-found")


def test_a_profile_that_was_not_built_is_not_pushed_and_one_that_has_changed_says_so(alone: Tfdock) -> None:
    alone.wheelhouse.mkdir(parents=True)
    outcome = pack(alone, CUDA, code=2, problem="build-not-here")
    outcome = pack(alone, "cpu-native", code=2, problem="build-not-here")
    build_id = outcome.problem["message"].rpartition(" ")[2]
    release, _, words = build_id.removeprefix("tf").partition("-py3.11-")
    made(alone.wheelhouse, release=release, local="", words=words.removesuffix("-x86_64"))
    outcome = pack(alone, "cpu-native", code=2, problem="build-not-here")
    assert f"by its build id: `{build_id}`" in outcome.problem["fix"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ((CUDA,), "registries-unset"),
        (("ghcr.io/me/wheels",), "image-nothing-named"),
        ((CUDA, "https://ghcr.io/me/wheels"), "reference-malformed"),
        ((CUDA, "ghcr.io/Me/wheels"), "reference-malformed"),
        ((CUDA, "ghcr.io/me/wheels:2.18"), "reference-malformed"),
        ((CUDA, "ghcr.io/me/wheels", "--as", "a tag"), "reference-malformed"),
        ((CUDA, "ghcr.io/me/wheels", "--as", CUDA), "reference-malformed"),
        ((CUDA, "ghcr.io/me/wheels", "--as", f"fp-{'1' * 32}"), "reference-malformed"),
    ],
)
def test_names_that_cannot_be_what_they_should_are_refused_at_once(
    alone: Tfdock, words: tuple[str, ...], code: str
) -> None:
    alone.home.mkdir()
    push(alone, *words, code=2, problem=code)


# --- push -----------------------------------------------------------------------------------------------------------


def test_a_push_gives_every_name_and_the_same_again_sends_nothing(
    alone: Tfdock, before: Proxy, registry: OwnRegistry, repository: str
) -> None:
    one = made(alone.wheelhouse, size=CHUNK + 1000)
    document = push(alone, one.wheel, repository)
    (image,) = document["images"]
    assert image["tags"] == [CUDA, f"fp-{one.fingerprint[:32]}", MOVING]
    for tag in (*image["tags"], image["digest"]):
        found = manifest(registry, repository, tag)
        assert oci.digest(oci.canonical_json(found)) == image["digest"]
    assert found["artifactType"] == ARTIFACT_TYPE
    layer = registry.blob(found["layers"][0]["digest"]).read_bytes()
    assert layer[1024 : 1024 + one.wheel.stat().st_size] == one.wheel.read_bytes()
    assert document["sent"] > one.wheel.stat().st_size > CHUNK
    before.forget()
    again = push(alone, one.build_id, repository)
    assert (again["sent"], again["there"], again["images"]) == (0, document["sent"], document["images"])
    assert before.count("^(POST|PUT|PATCH)") == 0
    lines = alone.run("image", "push", one.build_id, repository).stdout.splitlines()
    assert lines == [f"{repository}:{CUDA}@{image['digest']}"]


def test_who_has_pulled_a_wheel_pushes_the_very_same_image(alone: Tfdock, tmp_path: Path, repository: str) -> None:
    one = made(alone.wheelhouse)
    (image,) = push(alone, one.build_id, repository)["images"]
    other = Tfdock(home=tmp_path / "other", cache=tmp_path / "other" / "cache")
    other.run("pull", f"{repository}@{image['digest']}", code=0)
    document = push(other, one.build_id, repository)
    assert (document["sent"], document["images"]) == (0, [image])


def test_the_first_of_the_registries_is_where_a_push_goes_by_default(
    alone: Tfdock, registry: OwnRegistry, repository: str
) -> None:
    one = made(alone.wheelhouse)
    command = alone.with_variables(TFDOCK_REGISTRIES=f"{repository},ghcr.io/me/wheels")
    assert push(command, one.build_id, "--no-moving-tags")["repository"] == repository
    assert manifest(registry, repository, CUDA)
    assert manifest(registry, repository, MOVING) is None


def test_a_new_record_of_the_same_wheel_sends_no_wheel(alone: Tfdock, registry: OwnRegistry, repository: str) -> None:
    one = made(alone.wheelhouse, size=300_000)
    (first,) = push(alone, one.build_id, repository)["images"]
    record = json.loads(one.record.read_text())
    one.record.write_text(json.dumps(record | {"finished": "2026-03-03T03:03:03+00:00"}))
    document = push(alone, one.build_id, repository)
    assert document["sent"] < 30_000 < document["there"]
    assert document["images"][0]["digest"] != first["digest"]
    assert oci.digest(oci.canonical_json(manifest(registry, repository, MOVING))) == document["images"][0]["digest"]


def test_two_platforms_are_an_index_under_the_tag_that_moves(
    alone: Tfdock, registry: OwnRegistry, repository: str
) -> None:
    builds = [made(alone.wheelhouse, machine=machine) for machine in ("x86_64", "aarch64")]
    push(alone, *(build.build_id for build in builds), repository, "--as", "all")
    for tag in (MOVING, "all"):
        index = manifest(registry, repository, tag, oci.INDEX)
        assert [one["platform"]["architecture"] for one in index["manifests"]] == ["amd64", "arm64"]
        for row, build in zip(index["manifests"], builds, strict=True):
            assert manifest(registry, repository, row["digest"]) == manifest(registry, repository, build.build_id)


def test_several_builds_are_one_image_with_a_layer_each(
    alone: Tfdock, registry: OwnRegistry, repository: str
) -> None:
    builds = [made(alone.wheelhouse), made(alone.wheelhouse, local="", words="cpu")]
    document = push(alone, *(build.build_id for build in builds), repository, "--as", "all", "--no-moving-tags")
    assert [len(image["wheels"]) for image in document["images"]] == [1, 1, 2]
    both = manifest(registry, repository, "all")
    layers = {manifest(registry, repository, build.build_id)["layers"][0]["digest"] for build in builds}
    assert {layer["digest"] for layer in both["layers"][:-1]} == layers


def test_a_tag_that_stands_for_something_else_is_left_alone(
    alone: Tfdock, before: Proxy, registry: OwnRegistry, repository: str
) -> None:
    one = made(alone.wheelhouse)
    push(alone, one.build_id, repository)
    foreign = manifest(registry, repository, CUDA)
    del foreign["artifactType"]
    wheel_images.repository(repository).put_manifest("latest", oci.MANIFEST, json.dumps(foreign).encode())
    before.forget()
    push(alone, one.build_id, repository, "--as", "latest", code=2, problem="image-tag-taken")
    assert before.count("^(POST|PUT|PATCH)") == 0
    assert manifest(registry, repository, "latest") == foreign


def test_plain_http_is_spoken_with_a_registry_elsewhere_only_where_that_is_asked_for(
    alone: Tfdock, registry: OwnRegistry
) -> None:
    one = made(alone.wheelhouse)
    with proxy(registry.address, own_address()) as elsewhere:
        repository = f"{elsewhere.address}/{REPOSITORY}/elsewhere"
        push(alone, one.build_id, repository, code=7, problem="registry-unreachable")
        assert elsewhere.asked == []
        asked_for = alone.with_variables(TFDOCK_PLAIN_HTTP=f"registry.lan,{elsewhere.address}")
        (image,) = push(asked_for, one.build_id, repository)["images"]
        assert asked_for.run("pull", f"{repository}@{image['digest']}").code == 0
    assert manifest(registry, repository, CUDA)


def own_address() -> str:
    """An address of this machine that is not only its own."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one, contextlib.suppress(OSError):
        one.connect(("192.0.2.1", 9))  # nothing is sent
        if not one.getsockname()[0].startswith("127."):
            return str(one.getsockname()[0])
    pytest.skip("this machine has no address but 127.0.0.1")


def test_a_push_that_takes_long_says_how_far_it_is(tmp_path: Path, before: Proxy, repository: str) -> None:
    one, said = made(tmp_path, size=5 * CHUNK), list[str]()
    # Every chunk takes a while.
    wheel_images.push(repository, one, say=said.append, clock=lambda: 8.0 * before.count("^PATCH"))
    assert said == [f"{one.wheel.name}: {text}" for text in ("17 of 42 MB", "34 of 42 MB", "42 of 42 MB", "sent")]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    "fault",
    [
        Fault("status", "PATCH .*uploads", status=503),
        Fault("reset", "PATCH .*uploads", after=1),
        Fault("lost", "PATCH .*uploads"),
    ],
    ids=lambda fault: f"{fault.kind}-{fault.request[:5].strip()}",
)
def test_a_push_goes_on_after_a_fault(
    tmp_path: Path, before: Proxy, registry: OwnRegistry, repository: str, fault: Fault
) -> None:
    # Other bytes each time: what one test has pushed, the registry has.
    one = made(tmp_path, size=2 * CHUNK, seed=f"{fault.kind} {fault.request}")
    fault = replace(fault)
    before.faults.append(fault)
    digest = wheel_images.push(repository, one)[CUDA]
    assert fault.times == 0, "it has happened"
    assert oci.digest(oci.canonical_json(manifest(registry, repository, CUDA))) == digest
    assert before.count("^PATCH") < 8, "no chunk but the one that broke is sent again"


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("kind", ["status", "reset", "lost"])
@pytest.mark.parametrize("request_", ["HEAD", "POST", "PATCH", "PUT .*uploads", "GET .*manifests", "PUT .*manifests"])
def test_a_push_survives_whatever_fails_once(
    tmp_path: Path, before: Proxy, registry: OwnRegistry, repository: str, kind: str, request_: str
) -> None:
    one = made(tmp_path, seed=f"{kind} {request_}")
    before.faults.append(Fault(kind, request_))
    pushed = wheel_images.push(repository, one)
    assert [fault.times for fault in before.faults] == [0], "it did fail"
    found = manifest(registry, repository, CUDA)
    assert oci.digest(oci.canonical_json(found)) == pushed[CUDA]
    layer = registry.blob(found["layers"][0]["digest"]).read_bytes()
    assert layer[1024 : 1024 + one.wheel.stat().st_size] == one.wheel.read_bytes()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("fault", "code", "tries", "said"),
    [
        (Fault("status", "HEAD", times=99), "registry-unreachable", FEW, "503"),
        (Fault("reset", "GET .*manifests", times=99), "registry-unreachable", FEW, "reset"),
        (Fault("status", "POST", times=99), "registry-unreachable", TRIES, "503"),
        (Fault("status", "PATCH", times=99), "registry-unreachable", TRIES, "503"),
        (Fault("reset", "PATCH", times=99), "registry-unreachable", TRIES, "reset"),
        (Fault("reset", "PUT .*uploads", times=99), "registry-unreachable", TRIES, "reset"),
        (Fault("status", "PUT .*manifests", times=99, status=500), "registry-unreachable", FEW, "500"),
        (Fault("reset", "PUT .*manifests", times=99), "registry-unreachable", FEW, "reset"),
        (Fault("status", "PATCH", times=99, status=429), "registry-rate-limited", TRIES, "too many requests"),
        (Fault("status", "PUT .*manifests", times=99, status=429), "registry-rate-limited", FEW, "too many requests"),
        (Fault("status", "POST", times=9, status=429, patience="3600"), "registry-rate-limited", 1, "too many"),
        (Fault("status", "GET .*manifests", times=9, status=401), "registry-denied", 1, "without a login"),
        (Fault("status", "POST", times=9, status=401), "registry-denied", 1, "without a login"),
        (Fault("status", "POST", times=9, status=403), "registry-denied", 1, "refuses to take"),
        (Fault("status", "PUT .*manifests", times=9, status=403), "registry-denied", 1, "refuses to take"),
        (Fault("status", "POST", times=9, status=404), "image-not-found", 1, "no repository"),
    ],
    ids=lambda value: f"{value.kind}-{value.status}-{value.request}" if isinstance(value, Fault) else "",
)
def test_a_push_that_always_fails_is_tried_so_often_leaves_no_tag_and_the_next_one_ends_it(
    tmp_path: Path,
    before: Proxy,
    registry: OwnRegistry,
    repository: str,
    fault: Fault,
    code: str,
    tries: int,
    said: str,
) -> None:
    one = made(tmp_path, seed=repr(fault))
    before.faults.append(replace(fault))
    found = refused(one, repository)
    assert (found.code, before.count(fault.request)) == (code, tries)
    assert before.address in found.message
    assert said in found.message
    assert found.fix
    assert manifest(registry, repository, CUDA) is None
    before.forget()
    assert set(wheel_images.push(repository, one)) == {CUDA, MOVING, f"fp-{one.fingerprint[:32]}"}


def refused(one: Made, repository: str) -> Problem:
    """What is told of a push that the registry, or the way to it, does not let happen."""
    with pytest.raises(NetworkError) as caught:
        wheel_images.push(repository, one)
    assert caught.value.exit_code == 7
    (found,) = caught.value.problems
    return found


@pytest.mark.parametrize(
    ("fault", "asked", "why"),
    [
        (Fault("spoiled", "PATCH"), "PUT .*uploads", "it says DIGEST_INVALID"),
        # The registry said that it had the wheel, and then it has not.
        (Fault("status", "HEAD", status=200), "PUT .*manifests", "it says MANIFEST_BLOB_UNKNOWN"),
    ],
    ids=["damaged on the way", "a blob that is missing"],
)
def test_what_the_registry_itself_finds_wrong_is_not_sent_again(
    tmp_path: Path, before: Proxy, registry: OwnRegistry, repository: str, fault: Fault, asked: str, why: str
) -> None:
    one = made(tmp_path, seed=repr(fault))
    before.faults.append(replace(fault))
    found = refused(one, repository)
    assert (found.why, before.count(asked)) == (why, 1)
    assert "answers 400 Bad Request" in found.message
    assert before.address in found.message
    assert manifest(registry, repository, CUDA) is None
    pushed = wheel_images.push(repository, one)
    layer = manifest(registry, repository, CUDA)["layers"][0]["digest"]
    assert oci.digest(registry.blob(layer).read_bytes()) == layer
    assert pushed[CUDA]


def test_a_push_waits_as_long_as_the_registry_asks_for(
    tmp_path: Path, before: Proxy, repository: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = made(tmp_path, seed="patience")
    before.faults.append(Fault("status", "PATCH", status=429, patience="2"))
    waits: list[float] = []
    monkeypatch.setattr("tfdock.oci.http.wait", lambda seconds, _: waits.append(seconds))
    wheel_images.push(repository, one)
    assert waits == [2.0]
    assert before.count("PATCH") >= 2


@pytest.mark.parametrize("kind", ["basic", "token"])
@pytest.mark.parametrize("kept", ["config", "helper", "wrong", "nothing"])
def test_push_and_pull_show_a_registry_the_login_that_docker_keeps(
    alone: Tfdock, registry: OwnRegistry, tmp_path: Path, kind: str, kept: str
) -> None:
    one = made(alone.wheelhouse, seed=f"{kind} {kept}")
    with guarded(registry, kind) as (address, told):
        repository = f"{address}/{REPOSITORY}/{kind}-{kept}"
        there = Tfdock(home=tmp_path / "there", cache=tmp_path / "there" / "cache")
        variables = docker_config(tmp_path / "docker", address, kept)
        sent = alone.with_variables(**variables).run("image", "push", "--json", one.build_id, repository)
        taken = there.with_variables(**variables).run("pull", "--json", f"{repository}:{one.build_id}")
        if kept in ("config", "helper"):
            assert (sent.code, taken.code) == (0, 0), sent.told + taken.told
            assert (there.wheelhouse / one.wheel.name).read_bytes() == one.wheel.read_bytes()
        else:
            assert (sent.code, sent.problem["code"]) == (7, "registry-denied"), sent.told
            assert taken.code == 7, taken.told
            assert list(there.wheelhouse.glob("*")) == []
        assert ({"basic": basic(), "token": "Bearer t0k3n"}[kind] in {shown for _, shown in told}) is (sent.code == 0)
        for secret in (PASSWORD, basic().partition(" ")[2], "t0k3n"):
            assert secret not in sent.told + taken.told


def test_a_push_that_is_stopped_leaves_no_tag(
    alone: Tfdock, before: Proxy, registry: OwnRegistry, repository: str
) -> None:
    one = made(alone.wheelhouse, size=6 * CHUNK)
    before.faults.append(Fault("status", "PATCH .*uploads", times=1, status=503, patience="30", after=2))
    running = alone.start("image", "push", "--json", one.build_id, repository)
    running.until(lambda: before.count("^PATCH") >= 3)
    running.end_by(signal.SIGINT, 30, code=130, problem="interrupted")
    assert manifest(registry, repository, CUDA) is None
    assert push(alone, one.build_id, repository)["sent"] > 6 * CHUNK


@pytest.mark.parametrize("request_", ["HEAD .*blobs", "POST .*uploads", "PATCH .*uploads", "PUT .*manifests"])
def test_a_push_is_stopped_while_a_registry_is_silent(
    alone: Tfdock, before: Proxy, registry: OwnRegistry, repository: str, request_: str
) -> None:
    one = made(alone.wheelhouse, size=2 * CHUNK, seed=repository)
    before.faults.append(Fault("silent", request_))
    running = alone.start("image", "push", "--json", one.build_id, repository)
    running.until(lambda: before.count(request_))
    running.end_by(signal.SIGINT, 10, code=130, problem="interrupted")
    assert manifest(registry, repository, CUDA) is None


# --- without tfdock -------------------------------------------------------------------------------------------------

PYTHON = ImageRef.parse("python:3.11-slim-bookworm")


class Published:
    """The miniature's wheel as an image in a registry, which engines know by `name`."""

    def __init__(self, finished: Finished, registry: OwnRegistry) -> None:
        self.name = f"{registry.address}/{REPOSITORY}/miniature"
        self.finished = finished
        outcome = finished.tfdock.run("image", "push", "--json", finished.profile, self.name, code=0)
        (image,) = outcome.document["images"]
        self.digest, self.tags = image["digest"], image["tags"]

    def engine(self, *words: str | Path, text: str | None = None) -> str:
        """What Docker's own program says."""
        environment = {**os.environ, "DOCKER_HOST": self.finished.tfdock.engine, "DOCKER_BUILDKIT": "0"}
        result = subprocess.run(
            ("docker", *map(str, words)), env=environment, input=text, capture_output=True, text=True, timeout=100
        )
        assert result.returncode == 0, result.stderr
        return result.stdout.strip()

    def copied(self, reference: str, folder: Path) -> Path:
        """All that is in an image, by `docker create` and `docker cp`."""
        container = self.engine("create", reference)
        folder.mkdir()
        try:
            for part in ("wheels", "simple", "meta"):
                self.engine("cp", f"{container}:/{part}", folder)
        finally:
            self.engine("rm", container)
        return folder


@pytest.fixture(scope="module")
def published(finished: Finished, registry: OwnRegistry) -> Iterator[Published]:
    one = Published(finished, registry)
    yield one
    names = one.engine("images", "--quiet", "--filter", f"reference={one.name}").split()
    one.engine("rmi", "--force", *dict.fromkeys(names)) if names else None


@pytest.fixture(scope="module")
def unpacked(published: Published, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image that the engine has pulled by its tag, copied out of a container that was never started."""
    published.engine("pull", "--quiet", f"{published.name}:{published.tags[0]}")
    return published.copied(f"{published.name}:{published.tags[0]}", tmp_path_factory.mktemp("unpacked") / "image")


@pytest.mark.engine
def test_an_engine_pulls_the_image_and_a_container_of_it_has_the_very_wheel(
    published: Published, unpacked: Path
) -> None:
    wheel = published.finished.wheel
    assert (unpacked / "wheels" / wheel.name).read_bytes() == wheel.read_bytes()
    sums = subprocess.run(
        ["sha256sum", "--check", "SHA256SUMS"], cwd=unpacked / "wheels", capture_output=True, text=True
    )
    assert (sums.returncode, sums.stdout) == (0, f"{wheel.name}: OK\n"), sums.stderr
    (record,) = unpacked.glob("meta/*/record.json")
    assert record.read_bytes() == published.finished.record.read_bytes()
    said = json.loads(published.engine("image", "inspect", f"{published.name}:{published.tags[0]}"))[0]
    assert said["RepoDigests"] == [f"{published.name}@{published.digest}"], "the digest that tfdock said"
    assert said["Config"]["Labels"]["io.tfdock.build-id"] == published.tags[0]


@pytest.mark.engine
def test_an_engine_takes_from_an_index_what_is_for_its_machine(
    published: Published, alone: Tfdock, registry: OwnRegistry
) -> None:
    name = f"{registry.address}/{REPOSITORY}/platforms"
    builds = [made(alone.wheelhouse, machine=machine) for machine in ("x86_64", "aarch64")]
    push(alone, *(build.build_id for build in builds), name)
    published.engine("pull", "--quiet", f"{name}:{MOVING}")
    said = json.loads(published.engine("image", "inspect", f"{name}:{MOVING}"))[0]
    published.engine("rmi", "--force", f"{name}:{MOVING}")
    assert (said["Architecture"], said["Config"]["Labels"]["io.tfdock.build-id"]) == ("amd64", CUDA)


@pytest.mark.engine
def test_every_name_leads_an_engine_to_the_same_image(published: Published) -> None:
    ids = set()
    for name in (*(f":{tag}" for tag in published.tags), f"@{published.digest}"):
        published.engine("pull", "--quiet", f"{published.name}{name}")
        ids.add(published.engine("image", "inspect", "--format", "{{.Id}}", f"{published.name}{name}"))
    assert len(ids) == 1


def installed(folder: Path, *words: str | Path) -> str:
    """Which version of the miniature pip installs with that; nothing is asked for but what is named."""
    return pip_install(folder, *words, "tensorflow-miniature").partition("-")[2]


@pytest.mark.engine
def test_pip_installs_from_the_folder_and_from_the_index_in_the_image(
    published: Published, unpacked: Path, tmp_path: Path
) -> None:
    version = published.finished.wheel.name.split("-")[1]
    assert installed(tmp_path / "one", "--no-index", "--find-links", unpacked / "wheels") == version
    assert installed(tmp_path / "two", "--index-url", f"file://{unpacked}/simple/") == version
    constraints = unpacked / "wheels" / f"{published.tags[0]}.constraints.txt"
    pinned = installed(tmp_path / "three", "--index-url", f"file://{unpacked}/simple/", "-c", constraints)
    assert pinned == version


@pytest.mark.engine
def test_a_dockerfile_copies_the_wheel_out_of_the_image_and_installs_it(published: Published) -> None:
    base = load({}, os.environ).mirrored(PYTHON)
    tag = f"{published.name}:application"
    lines = (
        f"FROM {base}",
        f"COPY --from={published.name}@{published.digest} /wheels /wheels",
        "RUN pip install --no-index --no-deps --find-links /wheels --constraint /wheels/*.constraints.txt "
        "tensorflow-miniature",
    )
    published.engine("build", "--quiet", "--tag", tag, "-", text="\n".join(lines))
    try:
        shown = published.engine("run", "--rm", "--network=none", tag, "pip", "show", "tensorflow-miniature")
    finally:
        published.engine("rmi", "--force", tag)
    assert f"Version: {published.finished.wheel.name.split('-')[1]}" in shown.splitlines()


@pytest.mark.engine
def test_a_build_comes_back_by_tag_by_digest_and_by_its_profile_where_nothing_of_it_is_left(
    published: Published, tmp_path: Path
) -> None:
    finished = published.finished
    lines: dict[str, tuple[str | Path, ...]] = {
        "tag": ("pull", f"{published.name}:{published.tags[0]}"),
        "digest": ("pull", f"{published.name}@{published.digest}"),
        "profile": ("build", finished.profile),
    }
    for name, words in lines.items():
        # Another machine, without an engine: it can only be pulled.
        machine = Tfdock(home=tmp_path / name, cache=tmp_path / name / "cache").with_variables(
            TFDOCK_REGISTRIES=published.name
        )
        outcome = machine.run(*words, "--json", code=0)
        (build,) = outcome.builds if name == "profile" else outcome.document["pulls"][0]["builds"]
        assert build["status"] == "pulled"
        wheel = machine.wheelhouse / finished.wheel.name
        assert wheel.read_bytes() == finished.wheel.read_bytes()
        assert Path(build["record"]).read_bytes() == finished.record.read_bytes()
    assert machine.run("wheelhouse", "index").code == 0
    index = ("--index-url", f"{machine.wheelhouse.as_uri()}/simple/")
    assert installed(tmp_path / "installed", *index) == wheel.name.split("-")[1]
    imported = (sys.executable, "-c", "import tensorflow; print(tensorflow.__file__)")
    done = subprocess.run(imported, cwd=tmp_path / "installed", capture_output=True, text=True)
    assert done.stdout.startswith(str(tmp_path / "installed")), done.stderr


@pytest.mark.engine
def test_an_engine_loads_the_file_of_images(published: Published, tmp_path: Path) -> None:
    finished, file = published.finished, tmp_path / "image.tar"
    outcome = finished.tfdock.run("image", "pack", finished.profile, "-o", file)
    assert outcome.stdout == f"{published.digest}  {published.tags[0]}\n", "as pushed, so packed"
    assert f"  tags  {', '.join(published.tags)}\n" in outcome.stderr
    said = published.engine("load", "--input", file)
    names = [line.removeprefix("Loaded image: ") for line in said.splitlines()]
    try:
        assert sorted(names) == sorted(f"tfdock/wheels:{published.tags[index]}" for index in (0, 2))
        found = published.copied(names[0], tmp_path / "image")
        assert (found / "wheels" / finished.wheel.name).read_bytes() == finished.wheel.read_bytes()
    finally:
        published.engine("rmi", "--force", *names)


def skopeo(*words: str | Path) -> None:
    """Run skopeo, a client that is neither Docker nor tfdock."""
    if not shutil.which("skopeo"):
        missing("skopeo is not installed")
    done = subprocess.run(("skopeo", "--insecure-policy", *words), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_skopeo_copies_a_file_of_one_image_without_a_name_and_one_of_several_by_build_id(
    alone: Tfdock, tmp_path: Path
) -> None:
    one = made(alone.wheelhouse)
    file = tmp_path / "image.tar"
    assert alone.run("image", "pack", one.wheel, "-o", file).code == 0
    skopeo("copy", f"oci-archive:{file}", f"dir:{tmp_path / 'one'}")
    two = made(alone.wheelhouse, local="", words="cpu")
    assert alone.run("image", "pack", one.wheel, two.wheel, "-o", file).code == 0
    skopeo("copy", f"oci-archive:{file}:{two.build_id}", f"dir:{tmp_path / 'two'}")
    for folder, wheel in (("one", one.wheel), ("two", two.wheel)):
        layers = [path.read_bytes() for path in (tmp_path / folder).iterdir()]
        assert sum(wheel.read_bytes() in layer for layer in layers) == 1


def test_an_index_that_skopeo_rewrote_is_pulled_by_the_labels_of_its_images(
    alone: Tfdock, registry: OwnRegistry, repository: str, tmp_path: Path
) -> None:
    builds = [made(alone.wheelhouse, machine=machine) for machine in ("x86_64", "aarch64")]
    push(alone, *(build.build_id for build in builds), repository, "--as", "all")
    plain = ("--src-tls-verify=false", "--dest-tls-verify=false")
    skopeo("copy", "--all", "--format", "v2s2", *plain, f"docker://{repository}:all", f"docker://{repository}:copy")
    assert manifest(registry, repository, "copy", oci.DOCKER_LIST)["mediaType"] == oci.DOCKER_LIST
    for machine, build in zip(("amd64", "arm64"), builds, strict=True):
        other = Tfdock(home=tmp_path / machine, cache=tmp_path / "cache")
        other.run("pull", f"{repository}:copy", "--platform", f"linux/{machine}", code=0)
        assert (other.wheelhouse / build.wheel.name).read_bytes() == build.wheel.read_bytes()
