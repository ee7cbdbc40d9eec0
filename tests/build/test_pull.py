"""`pull`, and `build` that pulls, against a real registry: what arrives, what is refused, and what faults cost."""

from __future__ import annotations

import gzip
import io
import json
import os
import shlex
import signal
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from refusals import refusal
from wheelhouses import Made, made

from tfdock.errors import NetworkError, Problem, TfdockError
from tfdock.images import image_pull
from tfdock.images.image_pull import ImagePull, PulledImage, Read
from tfdock.images.image_tags import fingerprint_tag
from tfdock.images.lookup import ImageLookup, find_image, local_platform
from tfdock.images.wheel_image import SUMS
from tfdock.images.wheel_layer import LAYER_TYPE, frame
from tfdock.oci import manifest as oci
from tfdock.oci.http import TRIES as FEW
from tfdock.oci.manifest import Descriptor
from tfdock.oci.repository import TRIES
from tfdock.plan.build_plan import BuildPlan
from tfdock.plan.trust_domain import IN_RELEASE
from tfdock.types import ImageRef
from tfdock.wheel.inspection import inspect_wheel
from tfdock.wheelhouse.publication import publish
from tfdock.wheelhouse.store import WheelFile, Wheelhouse

from .harness import Tfdock, closed_port, pip_install
from .registries import Fault, OwnRegistry, Proxy, flipped, sha256
from .wheel_images import END, Forged, files_below, member, push, put, repository, written

pytestmark = pytest.mark.usefixtures("impatient")

MANIFESTS, BLOBS = "GET .*manifests", "GET .*blobs"
OTHER = "tf2.18.0-py3.11-cuda12.5.1-cudnn9.3.0-sm90-x86_64"


@pytest.fixture
def mark(request: pytest.FixtureRequest) -> str:
    """Other bytes in every test: what one has pushed, the registry has."""
    name: str = request.node.name
    return name


@pytest.fixture
def build(tmp_path: Path, mark: str) -> Made:
    """A finished build on another machine."""
    return made(tmp_path / "there", size=300_000, seed=mark)


class Here:
    """This machine: an empty wheelhouse, and a registry."""

    def __init__(self, folder: Path, where: str) -> None:
        folder.mkdir()
        self.folder, self.where = folder, where
        self.house = Wheelhouse(folder / "wheelhouse")
        self.said: list[str] = []
        self.tfdock = Tfdock(home=folder, cache=folder / "cache").with_variables(
            TFDOCK_REGISTRIES=where, TFDOCK_REGISTRY_MIRROR=""
        )

    def reference(self, tag: str) -> str:
        return f"{self.where}{'@' if oci.is_digest(tag) else ':'}{tag}"

    def pull(self, tag: str, platform: str = "linux/amd64", read: Read | None = None) -> list[PulledImage]:
        """Pull in this process."""
        image = find_image(ImageRef.parse(self.reference(tag)), platform, lambda: None)
        if image is None:
            raise NetworkError(Problem(code="image-not-found", message=tag))
        return ImagePull(self.house, lambda: None, self.said.append, read=read).pull_all(image)

    def told(self, tag: str, read: Read | None = None) -> tuple[int, Problem]:
        """What somebody is told whose pull fails: exit status and problem. Nothing of it is to be seen."""
        with pytest.raises(TfdockError) as caught:
            self.pull(tag, read=read)
        (found,) = caught.value.problems
        assert self.visible == []
        assert not list(self.house.record_files())
        return int(caught.value.exit_code), found

    @property
    def visible(self) -> list[str]:
        """What `ls` shows of the wheelhouse."""
        return sorted(path.name for path in self.house.root.glob("[!.]*"))

    @property
    def parts(self) -> list[Path]:
        """What has arrived of wheels that are not whole."""
        return sorted(self.house.root.rglob("*.part"))

    def has(self, build: Made) -> bool:
        """Whether a build is here as it was pushed, to the last byte."""
        record = self.house.record_folder(build.build_id, build.fingerprint).path / "record.json"  # type: ignore[arg-type]
        return (
            (self.house.root / build.wheel.name).read_bytes() == build.wheel.read_bytes()
            and json.loads(record.read_bytes()) == json.loads(build.record.read_bytes())
            and self.house.constraints(build.build_id).path.is_file()  # type: ignore[arg-type]
            and self.parts == []
        )


@pytest.fixture
def site(tmp_path: Path, before: Proxy, mark: str) -> Here:
    """A machine that talks to the registry through the proxy, with a repository of its own there."""
    return Here(tmp_path / "here", f"{before.address}/me/{sha256(mark.encode())[:16]}")


@pytest.fixture
def pushed(site: Here, build: Made) -> Made:
    """The finished build, in the registry."""
    push(site.where, build)
    return build


def layer_of(build: Made) -> str:
    """The digest of a wheel's layer."""
    data = build.wheel.read_bytes()
    head, tail = frame(build.wheel.name, len(data))
    return oci.digest(head + data + tail)


# --- what arrives ---------------------------------------------------------------------------------------------------


def test_what_was_pushed_arrives_by_build_id_fingerprint_moving_tag_and_digest(
    tmp_path: Path, site: Here, build: Made
) -> None:
    tags = push(site.where, build)
    digest = tags[build.build_id]
    names = [build.build_id, fingerprint_tag(build.fingerprint), "2.18-py3.11-cuda12.5-sm86", digest]
    for number, name in enumerate(names):
        there = Here(tmp_path / f"machine-{number}", site.where)
        (pulled,) = there.pull(name)
        assert (pulled.status, pulled.received, pulled.kept) == ("pulled", build.wheel.stat().st_size, 0)
        assert pulled.origin.endswith(f"@{digest}")
        assert there.has(build)
        assert pulled.record_path.read_bytes() == build.record.read_bytes(), "so that a push of it is the same image"
        assert there.visible == sorted([build.wheel.name, f"{build.build_id}.constraints.txt"])
        assert [one.status for one in there.pull(name)] == ["up-to-date"]
    assert push(site.where, build)[build.build_id] == digest
    record = json.loads(build.record.read_bytes())
    assert there.house.pulled_from(record) == {"reference": there.reference(digest), "digest": digest}


def test_the_command_prints_the_wheel_and_pip_installs_what_was_pulled(site: Here, pushed: Made) -> None:
    outcome = site.tfdock.run("pull", site.reference(pushed.build_id), code=0)
    wheel = site.house.root / pushed.wheel.name
    assert outcome.stdout == f"{wheel}\n"
    assert "pulled" in outcome.stderr
    again = site.tfdock.run("pull", pushed.build_id, "--json")  # by build id, in the registries of the settings
    (found,) = again.document["pulls"]
    assert (again.code, again.document["schema"], again.document["ok"]) == (0, "tfdock.pull/1", True)
    (one,) = found["builds"]
    assert (one["status"], one["build_id"], one["platform"]) == ("up-to-date", pushed.build_id, local_platform())
    (row,) = one["wheels"]
    assert row["path"] == str(wheel)
    assert (row["sha256"], row["size"]) == (pushed.sha256, wheel.stat().st_size)
    assert shlex.split(row["install"]) == ["pip", "install", str(wheel)]
    assert site.tfdock.run("wheelhouse", "index").code == 0
    assert pushed.wheel.name.startswith(installed(site, "--index-url", f"{site.house.root.as_uri()}/simple/"))


def installed(site: Here, *words: str) -> str:
    """Which TensorFlow pip installs with that: `tensorflow-2.18.0+cuda12.5.sm86`."""
    folder = site.folder / "installed"
    target = ("--python-version", "3.11", "--platform", "linux_x86_64", "--only-binary", ":all:")
    name = pip_install(folder, *target, *words, "tensorflow")
    assert (folder / "tensorflow" / "bytes").is_file()
    return name


def test_an_index_gives_the_wheels_of_one_platform(tmp_path: Path, site: Here, mark: str) -> None:
    amd = made(tmp_path / "there", seed=mark)
    arm = made(tmp_path / "there", seed=mark, machine="aarch64")
    push(site.where, amd, together="all", others=(arm,))
    for platform, build in (("linux/amd64", amd), ("linux/arm64", arm)):
        there = Here(tmp_path / platform.replace("/", "-"), site.where)
        there.pull("all", platform)
        assert there.has(build)
    machine = Here(tmp_path / "machine", site.where)
    asked = ("pull", "--json", machine.reference("all"), "--platform", "linux/riscv64")
    outcome = machine.tfdock.run(*asked, code=3, problem="wheel-image-platform")
    assert "linux/amd64, linux/arm64" in outcome.problem["fix"]
    alone = machine.reference(arm.build_id)  # it is for one as well
    machine.tfdock.run("pull", "--json", alone, code=3, problem="wheel-image-platform")
    assert machine.tfdock.run("pull", machine.reference("all"), "--platform", "windows").code == 2


def test_an_image_of_several_builds_brings_all_of_them(tmp_path: Path, site: Here, mark: str) -> None:
    one = made(tmp_path / "there", seed=mark)
    other = made(tmp_path / "there", seed=mark, words="cuda12.5.1-cudnn9.3.0-sm90", local="cuda12.5.sm90")
    push(site.where, one, together="both", others=(other,))
    assert [pulled.status for pulled in site.pull("both")] == ["pulled", "pulled"]
    assert site.has(one)
    assert site.has(other)


def test_a_pull_writes_into_the_wheelhouse_and_nowhere_else(site: Here, pushed: Made) -> None:
    with written() as places:
        site.pull(pushed.build_id)
    assert site.house.root / pushed.wheel.name in places
    assert [place for place in places if not place.is_relative_to(site.house.root)] == []


def test_a_plan_is_looked_for_by_the_platform_of_its_wheel(
    site: Here, pushed: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = SimpleNamespace(build_id=pushed.build_id, fingerprint=pushed.fingerprint, trust=IN_RELEASE)
    monkeypatch.setattr("platform.machine", lambda: "aarch64")  # from where an engine elsewhere is used
    looking = ImageLookup(repositories=(ImageRef.parse(site.where),), check=lambda: None)
    (image,) = looking.images(cast("BuildPlan", plan), None, print)
    assert (image.platform, image.builds[0].build_id) == ("linux/amd64", pushed.build_id)


def test_a_build_id_is_looked_for_past_a_registry_that_is_down(site: Here, pushed: Made) -> None:
    first = f"{closed_port()}/me/wheels"
    asked = ("--registry", first, "--registry", site.where, "--json")
    site.tfdock.run("pull", pushed.build_id, *asked, code=0)
    assert site.has(pushed)
    # It may be there.
    site.tfdock.run("pull", OTHER, *asked, code=7, problem="registry-unreachable")


def test_a_wheelhouse_that_cannot_be_written_to_is_told(site: Here, pushed: Made) -> None:
    site.house.root.mkdir()
    (site.house.root / ".tfdock").write_bytes(b"a file")
    with refusal(TfdockError, "file-error"):
        site.pull(pushed.build_id)


def test_a_disk_that_takes_less_than_it_is_given_is_given_the_rest(tmp_path: Path) -> None:
    class Nearly(io.FileIO):
        def write(self, data: Any, /) -> int:
            return super().write(bytes(data)[:3])

    with Nearly(tmp_path / "file", "w") as file:
        image_pull._write(file, b"a wheel")
    assert (tmp_path / "file").read_bytes() == b"a wheel"


def test_a_wheel_of_that_name_from_elsewhere_is_left_alone(site: Here, pushed: Made) -> None:
    site.house.root.mkdir()
    own = site.house.root / pushed.wheel.name
    own.write_bytes(b"mine")
    with refusal(TfdockError, "wheel-name-taken"):
        site.pull(pushed.build_id)
    assert own.read_bytes() == b"mine"
    assert site.parts == []


def test_another_build_of_the_same_build_id_takes_the_place_of_the_one_before(
    tmp_path: Path, site: Here, pushed: Made
) -> None:
    site.pull(pushed.build_id)
    newer = made(tmp_path / "newer", seed="newer")
    push(site.where, newer)
    (pulled,) = site.pull(newer.build_id)
    assert pulled.status == "pulled"
    assert site.has(newer)
    assert len(list(site.house.record_files())) == 2, "the record of the one before stays"
    (again,) = site.pull(fingerprint_tag(pushed.fingerprint))
    assert again.status == "pulled", "and it can come back"


# --- what is not there ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "status", "code"),
    [
        (("https://ghcr.io/me/wheels:1",), 2, "reference-malformed"),
        (("no-such-profile",), 2, "profile-not-found"),
        (("./no/such/profile.yaml",), 2, "profile-not-found"),
        (("rtx3080",), 2, "registries-unset"),
        ((OTHER,), 2, "registries-unset"),
        (("cpu-native", "--registry", "ghcr.io/me/wheels"), 3, "native-pulled"),
        (("rtx3080", "--registry", "ghcr.io/me/wheels:1"), 2, "settings-bad-value"),
    ],
)
def test_what_cannot_be_pulled_is_said_before_anything_is_asked(
    alone: Tfdock, words: tuple[str, ...], status: int, code: str
) -> None:
    alone.run("pull", *words, "--json", code=status, problem=code)


def test_what_no_registry_has_is_told_with_the_ways_out(site: Here) -> None:
    outcome = site.tfdock.run("pull", "rtx3080", site.reference("nothing"), "--json")
    assert outcome.code == 7
    profile, image = (pull["problems"][0] for pull in outcome.document["pulls"])
    assert (profile["code"], image["code"]) == ("image-not-found", "image-not-found")
    assert "tfdock build rtx3080" in profile["fix"]
    assert site.reference("nothing") in image["message"]


DOCKER = "application/vnd.docker.image.rootfs.diff.tar.gzip"
PACKED = {
    "too large": (lambda layer: gzip.compress(layer + bytes(1 << 25)), "unpacks to more than"),
    "other bytes": (lambda layer: gzip.compress(layer[:-1] + b"x"), ""),
    "cut short": (lambda layer: gzip.compress(layer)[:-9], "does not have the digest sha256:"),
    "more behind it": (lambda layer: gzip.compress(layer) + b"more", "unpacks to more than"),
    "no gzip": (lambda layer: layer, "cannot be unpacked"),
}


def reencoded(image: Forged, *packing: Callable[[bytes], bytes]) -> tuple[bytes, dict[str, bytes]]:
    """The image as `docker push` writes it: Docker's manifest, packed layers, the same configuration."""
    manifest, blobs = image.manifest()
    node = json.loads(manifest)
    packed = [pack(blobs[layer["digest"]]) for pack, layer in zip(packing, node["layers"], strict=True)]
    document = {
        "schemaVersion": 2,
        "mediaType": oci.DOCKER_MANIFEST,
        "config": node["config"] | {"mediaType": "application/vnd.docker.container.image.v1+json"},
        "layers": [Descriptor.of(DOCKER, layer).document() for layer in packed],
    }
    return json.dumps(document).encode(), blobs | {oci.digest(layer): layer for layer in packed}


def test_an_image_that_another_tool_wrote_anew_is_pulled_by_its_labels(site: Here, build: Made) -> None:
    put(site.where, build.build_id, *reencoded(Forged(build), gzip.compress, gzip.compress))
    site.pull(build.build_id)
    assert site.has(build)


@pytest.mark.parametrize("part", ["wheel", "papers"])
@pytest.mark.parametrize("kind", PACKED)
def test_a_packed_layer_that_is_not_what_its_configuration_names_is_refused(
    site: Here, build: Made, kind: str, part: str
) -> None:
    pack, told = PACKED[kind]
    packing = (pack, gzip.compress) if part == "wheel" else (gzip.compress, pack)
    put(site.where, build.build_id, *reencoded(Forged(build), *packing))
    _, found = site.told(build.build_id)
    assert found.code == "wheel-image-malformed"
    assert told in found.message
    assert site.parts == []


def test_an_image_of_something_else_is_no_wheel(site: Here, build: Made) -> None:
    Forged(build, artifact_type="application/vnd.example").push(site.where, "something")
    status, found = site.told("something")
    assert (status, found.code) == (2, "reference-no-wheels")


# --- moved tags -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["build id", "fingerprint", "something else", "index"])
def test_a_tag_that_stands_for_a_build_and_was_moved_is_refused(
    tmp_path: Path, site: Here, pushed: Made, kind: str, mark: str
) -> None:
    other = made(tmp_path / "other", seed=f"other {mark}", words="cuda12.5.1-cudnn9.3.0-sm90", local="cuda12.5.sm90")
    foreign = "application/vnd.example" if kind == "something else" else "application/vnd.tfdock.wheels.v1"
    tag = fingerprint_tag(pushed.fingerprint) if kind == "fingerprint" else pushed.build_id
    if kind == "index":
        index = {"schemaVersion": 2, "mediaType": oci.INDEX, "manifests": []}
        digest = put(site.where, tag, oci.canonical_json(index), {})
    else:
        digest = Forged(other, artifact_type=foreign).push(site.where, tag)
    status, found = site.told(tag)
    assert (status, found.code) == (4, "wheel-image-moved")
    assert digest in found.message
    assert "moved to another image" in found.message
    if kind == "build id":
        assert other.build_id in found.message
        site.pull(digest)  # whoever names it by its digest means it
        assert site.has(other)


# --- faults ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["status", "reset", "lost", "torn", "truncated"])
@pytest.mark.parametrize("request_", [MANIFESTS, f"{BLOBS}.*config", f"{BLOBS}.*papers", f"{BLOBS}.*wheel"])
def test_a_pull_survives_whatever_fails_once(
    site: Here, before: Proxy, build: Made, kind: str, request_: str
) -> None:
    digest = push(site.where, build)[build.build_id]
    before.faults.append(Fault(kind, blob_request(site, digest, request_)))
    site.pull(build.build_id)
    assert [fault.times for fault in before.faults] == [0], "it did fail"
    assert site.has(build)


def blob_request(site: Here, digest: str, request: str) -> str:
    """The expression for the request of one of an image's blobs, by what it is called here."""
    verb, _, what = request.partition(".*")
    if what == "manifests":
        return request
    node = json.loads(manifest_of(site, digest))
    blobs = {"config": node["config"], "wheel": node["layers"][0], "papers": node["layers"][-1]}
    return f"{verb}.*{blobs[what.rpartition('.*')[2]]['digest']}"


def manifest_of(site: Here, reference: str) -> bytes:
    found = repository(site.where).manifest(reference)
    assert found
    return found.data


@pytest.mark.parametrize(
    ("fault", "code", "attempts"),
    [
        (Fault("status", MANIFESTS, times=99), "registry-unreachable", FEW),
        (Fault("reset", MANIFESTS, times=99), "registry-unreachable", FEW),
        (Fault("truncated", MANIFESTS, times=99), "registry-unreachable", FEW),
        (Fault("status", MANIFESTS, times=99, status=429), "registry-rate-limited", FEW),
        (Fault("status", MANIFESTS, times=99, status=429, patience="3600"), "registry-rate-limited", 1),
        (Fault("status", MANIFESTS, times=99, status=401), "registry-denied", 1),
        (Fault("status", MANIFESTS, times=99, status=403), "registry-denied", 1),
        (Fault("status", MANIFESTS, times=99, status=404), "image-not-found", 1),
        (Fault("status", f"{BLOBS}.*wheel", times=99), "registry-unreachable", TRIES),
        (Fault("reset", f"{BLOBS}.*wheel", times=99), "registry-unreachable", TRIES),
        (Fault("lost", f"{BLOBS}.*papers", times=99), "registry-unreachable", TRIES),
        (Fault("truncated", f"{BLOBS}.*papers", times=99), "registry-unreachable", TRIES),
        (Fault("torn", f"{BLOBS}.*wheel", times=99), "registry-unreachable", TRIES),
        (Fault("status", f"{BLOBS}.*wheel", times=99, status=429), "registry-rate-limited", TRIES),
        (Fault("status", f"{BLOBS}.*wheel", times=99, status=429, patience="3600"), "registry-rate-limited", 1),
        (Fault("status", f"{BLOBS}.*wheel", times=99, status=401), "registry-denied", 1),
        (Fault("status", f"{BLOBS}.*wheel", times=99, status=403), "registry-denied", 1),
        (Fault("status", f"{BLOBS}.*wheel", times=99, status=404), "image-not-found", 1),
        (Fault("status", f"{BLOBS}.*config", times=99, status=404), "image-not-found", 1),
    ],
)  # fmt: skip
def test_what_always_fails_is_tried_so_often_and_told_with_the_registry(
    site: Here, before: Proxy, build: Made, fault: Fault, code: str, attempts: int
) -> None:
    digest = push(site.where, build)[build.build_id]
    request = blob_request(site, digest, fault.request)
    before.forget()
    before.faults.append(Fault(fault.kind, request, fault.times, fault.status, fault.patience))
    status, found = site.told(build.build_id)
    assert (status, found.code) == (7, code)
    assert before.count(request) == attempts
    if code != "image-not-found" or fault.request != MANIFESTS:
        assert before.address in found.message
        assert found.fix


def test_a_registry_that_asks_for_patience_is_given_it(
    site: Here, before: Proxy, pushed: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    before.faults.append(Fault("status", f"GET .*{layer_of(pushed)}", status=429, patience="2"))
    waits: list[float] = []
    monkeypatch.setattr("tfdock.oci.http.wait", lambda seconds, _: waits.append(seconds))
    site.pull(pushed.build_id)
    assert waits == [2.0]
    assert site.has(pushed)


def test_nobody_answers(tmp_path: Path) -> None:
    there = Here(tmp_path / "here", f"{closed_port()}/me/wheels")
    there.tfdock.run("pull", there.reference("tag"), "--json", code=7, problem="registry-unreachable")


@pytest.mark.parametrize("part", ["config", "papers", "wheel"])
@pytest.mark.parametrize("where", ["on the way", "in the store"])
def test_a_byte_that_flips_is_refused_with_the_digest(
    site: Here, before: Proxy, registry: OwnRegistry, build: Made, part: str, where: str
) -> None:
    digest = push(site.where, build)[build.build_id]
    request = blob_request(site, digest, f"{BLOBS}.*{part}")
    blob = request.rpartition(".*")[2]
    if where == "on the way":
        before.faults.append(Fault("corrupted", request, times=9))
    else:
        registry.blob(blob).write_bytes(flipped(registry.blob(blob).read_bytes()))
    before.asked.clear()
    status, found = site.told(build.build_id)
    assert (status, found.code) == (7, "registry-damaged-content")
    assert blob in found.message
    assert site.parts == []
    assert before.count(request) == 1, "a retry would fetch the same bytes"


def test_a_manifest_in_which_a_byte_flips_on_the_way_is_refused(site: Here, before: Proxy, build: Made) -> None:
    digest = push(site.where, build)[build.build_id]
    before.forget()
    before.faults.append(Fault("corrupted", MANIFESTS, times=9))
    status, found = site.told(build.build_id)
    assert (status, found.code) == (7, "registry-damaged-content")
    assert digest in found.message
    assert before.count(MANIFESTS) == 1


def test_a_registry_that_serves_another_manifest_for_a_digest_is_refused(
    site: Here, registry: OwnRegistry, build: Made
) -> None:
    digest = push(site.where, build)[build.build_id]
    file = registry.blob(digest)
    file.write_bytes(file.read_bytes().replace(b"cp311", b"cp312"))
    status, found = site.told(digest)
    assert (status, found.code) == (7, "registry-damaged-content")


# --- goes on where it was -------------------------------------------------------------------------------------------


def test_a_download_that_breaks_off_goes_on_where_it_was(site: Here, before: Proxy, pushed: Made) -> None:
    before.forget()
    before.faults.append(Fault("truncated", f"GET .*{layer_of(pushed)}"))
    site.pull(pushed.build_id)
    assert site.has(pushed)
    assert before.count(f"GET .*{layer_of(pushed)}") == 2
    assert before.received < pushed.wheel.stat().st_size + 30_000, "no byte came twice"


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, None], ids=["killed", "control-c", "network"])
def test_a_pull_that_ends_half_way_is_continued_by_the_next_one(
    site: Here, before: Proxy, pushed: Made, how: signal.Signals | None
) -> None:
    layer = f"GET .*{layer_of(pushed)}"
    # The first answer is cut in the middle, and who asks for the rest is told to wait, or to go.
    before.faults.append(Fault("truncated", layer))
    if how is None:
        before.faults.append(Fault("status", layer, times=99, status=403))
    else:
        before.faults.append(Fault("status", layer, times=99, patience="30"))
    running = site.tfdock.start("pull", site.reference(pushed.build_id), "--json")
    if how is not None:
        running.until(lambda: before.count(layer) == 2)
        running.signal(how)
    outcome = running.finish(30, code={signal.SIGKILL: -9, signal.SIGINT: 130, None: 7}[how])
    assert site.visible == []
    (part,) = site.parts
    arrived = part.stat().st_size
    assert arrived > 100_000
    assert pushed.wheel.read_bytes().startswith(part.read_bytes())
    if how is None:
        assert "finished downloads are kept" in outcome.problem["fix"]
    before.forget()
    again = site.tfdock.run("pull", site.reference(pushed.build_id), "--json", code=0)
    ((one,),) = [pull["builds"] for pull in again.document["pulls"]]
    assert (one["kept"], one["received"]) == (arrived, pushed.wheel.stat().st_size - arrived)
    assert site.has(pushed)
    assert before.received < pushed.wheel.stat().st_size - arrived + 30_000, "only what was missing"


def test_on_a_slow_line_what_has_come_is_kept_and_counted(site: Here, before: Proxy, pushed: Made) -> None:
    before.faults.append(Fault("stalled", f"GET .*{layer_of(pushed)}"))
    running = site.tfdock.start("pull", site.reference(pushed.build_id))
    half = pushed.wheel.stat().st_size // 2
    running.until(lambda: any(part.stat().st_size > half - 10_000 for part in site.parts))
    (part,) = site.parts
    arrived = part.stat().st_size
    assert running.end_by(signal.SIGINT, 10).code == 130
    assert part.stat().st_size == arrived
    assert site.visible == []


@pytest.mark.parametrize(
    ("kind", "request_", "number", "code"),
    [
        ("silent", MANIFESTS, signal.SIGINT, 130),
        ("stalled", MANIFESTS, signal.SIGINT, 130),
        ("silent", BLOBS, signal.SIGINT, 130),
        ("silent", BLOBS, signal.SIGTERM, 143),
    ],
)
def test_a_pull_is_stopped_while_a_registry_is_silent(
    site: Here, before: Proxy, pushed: Made, kind: str, request_: str, number: signal.Signals, code: int
) -> None:
    before.forget()
    before.faults.append(Fault(kind, request_))
    running = site.tfdock.start("pull", site.reference(pushed.build_id), "--json")
    running.until(lambda: before.count(request_))
    running.end_by(number, 10, code=code, problem="interrupted")
    assert site.visible == []


@pytest.mark.parametrize("left", ["damaged", "too long", "whole", "a link"])
def test_what_an_earlier_pull_left_is_not_believed(
    site: Here, before: Proxy, pushed: Made, tmp_path: Path, left: str
) -> None:
    folder = site.house.record_folder(pushed.build_id, pushed.fingerprint).path  # type: ignore[arg-type]
    folder.mkdir(parents=True)
    part = folder / f"pull-{layer_of(pushed)[7:23]}.part"
    data = pushed.wheel.read_bytes()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"somebody's file")
    if left == "a link":
        part.symlink_to(elsewhere)
        with refusal(TfdockError, "file-error"):
            site.pull(pushed.build_id)
        assert elsewhere.read_bytes() == b"somebody's file"
        return
    kinds = {"damaged": b"\0" * 50_000, "too long": data + b"more", "whole": data}
    part.write_bytes(kinds[left])
    (folder / "pull-0000000000000000.part").write_bytes(b"of another image")
    before.forget()
    (pulled,) = site.pull(pushed.build_id)
    assert site.has(pushed)
    assert pulled.kept == (0 if left == "damaged" else len(data))
    assert ("is damaged" in "".join(site.said)) is (left == "damaged")
    if left == "whole":
        assert before.received < 30_000


def test_a_disk_without_room_is_told_before_anything_is_asked_for(
    site: Here, before: Proxy, pushed: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    before.forget()
    monkeypatch.setattr("tfdock.host.files.free_disk", lambda _: 1000)
    status, found = site.told(pushed.build_id)
    assert (status, found.code) == (8, "disk-full")
    assert before.count(f"GET .*{layer_of(pushed)}") == 0


def test_several_who_pull_the_same_at_once_leave_it_whole(site: Here, pushed: Made) -> None:
    outcomes = [one.finish() for one in [site.tfdock.start("pull", pushed.build_id, "--json") for _ in range(4)]]
    assert {outcome.code for outcome in outcomes} <= {0, 9}, [outcome.told for outcome in outcomes]
    assert 0 in {outcome.code for outcome in outcomes}
    assert site.has(pushed)


# --- hostile images -------------------------------------------------------------------------------------------------


def extra(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> Callable[[bytes, bytes], list[bytes]]:
    """A member more among the papers."""
    return lambda wheel, papers: [wheel, papers[: -len(END)] + member(name, b"", kind, link) + END]


def in_front(block: bytes) -> Callable[[bytes, bytes], list[bytes]]:
    """Something before the wheel in its layer, whose size stays what it is."""
    return lambda wheel, papers: [block + wheel[len(block) :], papers]


def many(count: int) -> bytes:
    return b"".join(member(f"wheels/{number}") for number in range(count)) + END


HOSTILE: dict[str, tuple[Callable[[bytes, bytes], list[bytes]], str]] = {
    "a name that leads out": (extra("../../.bashrc"), "which tfdock does not write"),
    "an absolute name": (extra("/etc/cron.d/x"), "which tfdock does not write"),
    "a name that leads out of a known folder": (extra("wheels/../../x"), "which tfdock does not write"),
    "a symbolic link": (extra("wheels/x", tarfile.SYMTYPE, "/etc"), "is a symbolic link"),
    "a hard link": (extra("wheels/x", tarfile.LNKTYPE, "/etc/passwd"), "is a link"),
    "a device": (extra("wheels/x", tarfile.CHRTYPE), "is a device"),
    "a pipe": (extra("wheels/x", tarfile.FIFOTYPE), "is a pipe"),
    "a sparse file": (extra("wheels/x", tarfile.GNUTYPE_SPARSE), "is a sparse file"),
    "a folder of its own": (extra("etc", tarfile.DIRTYPE), "it has a folder"),
    "another wheel among the papers": (extra("wheels/evil-1-py3-none-any.whl"), "which tfdock does not write"),
    "the sums twice": (extra(SUMS), "is in it twice"),
    "a member larger than its layer": (
        lambda wheel, _: [wheel, member("simple/index.html", size=1 << 32) + END], "is larger than its layer"),
    "a hundred thousand members": (lambda wheel, _: [wheel, many(100_000)], "but tfdock writes"),
    "thousands of members": (lambda wheel, _: [wheel, many(5000)], "too many members"),
    "no end": (lambda wheel, papers: [wheel, papers[: -len(END)]], "has no valid end"),
    "something behind the end": (lambda wheel, papers: [wheel, papers + b"more" * 128], "has no valid end"),
    "no tar": (lambda wheel, _: [wheel, b"something else" * 100], "a header that tfdock never writes"),
    "a member before the wheel": (in_front(member("../../.bashrc")), "(0 bytes) instead of"),
    "a link instead of the wheel": (in_front(member("wheels/x", kind=tarfile.SYMTYPE, link="/etc")), "symbolic link"),
    "something behind the wheel": (lambda wheel, papers: [wheel[:-512] + b"x" * 512, papers], "data after"),
    "a longer layer": (lambda wheel, papers: [wheel + bytes(512), papers], "bytes instead of"),
    "a huge layer": (lambda wheel, papers: [wheel + bytes(20 << 20), papers], "bytes instead of"),
    "huge papers": (lambda wheel, papers: [wheel, papers + bytes(17 << 20)], "but tfdock writes at most 16777216"),
    "no papers": (lambda wheel, _: [wheel], "but has 1 layers"),
    "a layer more": (lambda wheel, papers: [wheel, papers, many(1)], "but has 3 layers"),
    "a layer twice": (lambda _, papers: [papers, papers], "the manifest lists a layer twice"),
}  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_layer_that_holds_something_else_is_refused_and_nothing_is_written(
    site: Here, build: Made, tmp_path: Path, kind: str
) -> None:
    layers, said = HOSTILE[kind]
    Forged(build, layers=layers).push(site.where, "hostile")
    everything = files_below(tmp_path)
    with written() as places:
        status, found = site.told("hostile")
    assert (status, found.code) == (4, "wheel-image-malformed")
    assert said in found.message
    assert {name for name in files_below(tmp_path) if name not in everything} <= of_a_lock(build)
    assert [place for place in places if not place.is_relative_to(site.house.root)] == []


def of_a_lock(build: Made) -> set[str]:
    """What is left where a build was taken up and nothing came of it."""
    return {f"here/wheelhouse/.tfdock/{build.build_id}/lock"}


def forged(build: Made) -> dict[str, tuple[Forged, str]]:
    """Images whose parts do not agree."""
    name, other = build.wheel.name, "0" * 64
    short = json.dumps([{"file": name, "sha256": build.sha256, "size": 10}])
    evil = json.dumps([{"file": "../evil-1-py3-none-any.whl", "sha256": build.sha256, "size": 10}])
    row = {"file": name, "sha256": build.sha256, "size": build.wheel.stat().st_size}
    papers = Forged(build).papers
    labels = Forged(build).labels
    record = f"meta/{build.build_id}/record.json"
    lying = {**Forged(build).record, "fingerprint": other}
    return {
        "no sums": (Forged(build, papers={key: papers[key] for key in papers if key != SUMS}), f"has no {SUMS}"),
        "sums that lie": (Forged(build, papers=papers | {SUMS: f"{other}  {name}\n".encode()}), "SHA256SUMS and the"),
        "sums that are none": (Forged(build, papers=papers | {SUMS: b"\xff\x00"}), "has invalid lines"),
        "no record": (Forged(build, papers={key: papers[key] for key in papers if key != record}), "the records"),
        "a record of another": (Forged(build, papers=papers | {record: json.dumps(lying).encode()}), "other builds"),
        "a record that is none": (Forged(build, papers=papers | {record: b"{}"}), "a record: `schema`: missing"),
        "a record that breaks others": (
            Forged(build, papers=papers | {record: json.dumps(lying | {"seconds": [1]}).encode()}), "`seconds`"),
        "a record in another's place": (
            Forged(build, papers={f"meta/{OTHER}/record.json" if key == record else key: data
                                  for key, data in papers.items()}), "is for"),
        "labels of another size": (Forged(build, labels=labels | {"io.tfdock.wheels": short}), "bytes instead of"),
        "a label that leads out": (Forged(build, labels=labels | {"io.tfdock.wheels": evil}), "`0.file`: '"),
        "two wheels of one name": (
            Forged(build, labels=labels | {"io.tfdock.wheels": json.dumps([row, row])}), "with the same name"),
        "another fingerprint": (Forged(build, labels=labels | {"io.tfdock.fingerprint": other}), "other builds"),
        "annotations that differ": (Forged(build, annotations=labels | {"io.tfdock.build-id": OTHER}), "different"),
        "no labels": (Forged(build, config={"config": {}}), "no labels"),
        "another platform": (Forged(build, config={"architecture": "s390x"}), "its wheels do not"),
        "a huge config": (Forged(build, config={"comment": "x" * (2 << 20)}), "but tfdock writes at most 1048576"),
        "other diff_ids": (Forged(build, config={"rootfs": {"diff_ids": []}}), "different layers"),
        "a packed layer": (Forged(build, layer_type=f"{LAYER_TYPE}+gzip"), "not `application"),
        "another sum for all": (Forged(build).claims(sha256=other), "has the sha256"),
    }  # fmt: skip


LIES = [
    "no sums", "sums that lie", "sums that are none", "no record", "a record of another", "a record that is none",
    "a record that breaks others", "a record in another's place", "labels of another size", "a label that leads out",
    "two wheels of one name", "another fingerprint", "annotations that differ", "no labels", "another platform",
    "a huge config", "other diff_ids", "a packed layer", "another sum for all",
]  # fmt: skip


@pytest.mark.parametrize("kind", LIES)
def test_an_image_whose_parts_do_not_agree_is_refused(site: Here, build: Made, kind: str) -> None:
    images = forged(build)
    assert sorted(images) == sorted(LIES)
    image, said = images[kind]
    image.push(site.where, "lying")
    status, found = site.told("lying")
    assert (status, found.code) == (4, "wheel-image-malformed")
    assert said in found.message
    assert site.parts == []


@pytest.mark.parametrize(
    ("layer", "size", "code"),
    [
        (0, 1 << 40, "wheel-image-malformed"),
        (1, 1 << 40, "wheel-image-malformed"),
        (1, 1024, "registry-damaged-content"),
        (1, 1 << 20, "registry-unreachable"),  # it never brings as much
    ],
)
def test_a_manifest_that_lies_about_sizes_is_refused(
    site: Here, build: Made, layer: int, size: int, code: str
) -> None:
    manifest, blobs = Forged(build).manifest()
    document = json.loads(manifest)
    document["layers"][layer]["size"] = size
    put(site.where, "lying", oci.canonical_json(document), blobs)
    _, found = site.told("lying")
    assert found.code == code
    assert site.parts == []


@pytest.mark.parametrize(("old", "new", "code"), [("=", "=A", "record-wrong-hash"), ("RECORD,,", "x,,", "record-")])
def test_a_wheel_whose_own_list_is_wrong_is_refused(site: Here, build: Made, old: str, new: str, code: str) -> None:
    image = Forged(build, wheel=relisted(build.wheel, lambda text: text.replace(old, new, 1)))
    image.claims(sha256=oci.digest(image.wheel).removeprefix("sha256:")).push(site.where, "wrong")
    status, found = site.told("wrong")
    assert (status, found.code[: len(code)]) == (4, code)
    assert build.wheel.name in found.message
    assert site.parts == []


def relisted(wheel: Path, edit: Callable[[str], str]) -> bytes:
    """A wheel with another RECORD."""
    file = io.BytesIO()
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(file, "w") as new:
        for item in old.infolist():
            data = old.read(item)
            new.writestr(item, edit(data.decode()) if item.filename.endswith("/RECORD") else data)
    return file.getvalue()


@pytest.mark.parametrize("looked_at", [False, True])
def test_a_wheel_that_was_given_other_tags_is_refused_also_where_a_gpu_is(
    site: Here, build: Made, looked_at: bool
) -> None:
    other = build.wheel.rename(build.wheel.with_name(build.wheel.name.replace("-cp311-cp311-", "-cp312-cp312-")))
    Forged(replace(build, wheel=other)).claims().push(site.where, "renamed")
    read: Read = lambda file, name: inspect_wheel(file, name).wheel  # noqa: E731
    status, found = site.told("renamed", read if looked_at else None)
    assert (status, found.code) == (4, "wheel-tag-mismatch")
    assert site.parts == []


def test_what_is_no_wheel_is_refused(site: Here, build: Made) -> None:
    data = b"no archive at all"
    image = Forged(build, wheel=data)
    image.claims(sha256=oci.digest(data).removeprefix("sha256:")).push(site.where, "none")
    status, _ = site.told("none")
    assert status == 4
    assert site.parts == []


# --- a build that pulls ---------------------------------------------------------------------------------------------

ENGINE = 6  #: The exit status of a build that would begin: nobody here has an engine.


@pytest.fixture
def planned(site: Here, tmp_path: Path, mark: str) -> Made:
    """A finished build of the profile `cpu.yaml` of this machine, somewhere else."""
    (site.folder / "cpu.yaml").write_text('schema: 1\ntensorflow: "2.18.0"\npython: "3.11"\naccelerator: cpu\n')
    plan = site.tfdock.run("plan", "cpu.yaml", "--json").document
    return identified(made(tmp_path / "there", local="", seed=mark), plan["build_id"], plan["fingerprint"])


@pytest.fixture
def offered(site: Here, planned: Made) -> Made:
    """The same, in the registry."""
    push(site.where, planned)
    return planned


def identified(build: Made, build_id: str, fingerprint: str) -> Made:
    """The same build with another identity."""
    record = json.loads(build.record.read_bytes()) | {"build_id": build_id, "fingerprint": fingerprint}
    file = build.record.parents[2] / build_id / fingerprint[:12] / "record.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    build.record.unlink()
    return Made(build_id=build_id, fingerprint=fingerprint, wheel=build.wheel, record=file)


def test_a_build_takes_what_a_registry_has_and_asks_no_engine(site: Here, before: Proxy, offered: Made) -> None:
    outcome = site.tfdock.build("cpu.yaml", code=0)
    build = outcome.build
    assert (build["status"], build["build_id"], build["log"]) == ("pulled", offered.build_id, None)
    assert build["origin"].startswith(f"{site.where}:{fingerprint_tag(offered.fingerprint)}@sha256:")
    assert build["wheels"][0]["sha256"] == offered.sha256
    assert site.has(offered)
    before.forget()
    again = site.tfdock.build("cpu.yaml")
    assert (again.code, again.build["status"], again.build["origin"]) == (0, "up-to-date", None)
    assert before.asked == [], "what is here is not looked for elsewhere"
    pulled = site.tfdock.run("pull", "cpu.yaml", "--json")
    assert pulled.document["pulls"][0]["builds"][0]["status"] == "up-to-date"


def test_wheels_of_a_registry_that_only_the_matrix_names_are_not_taken(
    site: Here, before: Proxy, offered: Made
) -> None:
    matrix = f'schema: 1\nbase: cpu.yaml\naxes: {{python: ["3.11"]}}\nci: {{registry: "{site.where}"}}\n'
    (site.folder / "m.yaml").write_text(matrix)
    before.forget()
    stranger = site.tfdock.with_variables(TFDOCK_REGISTRIES="")
    for words, code in ((("build",), ENGINE), (("build", "--missing"), ENGINE), (("pull",), 2)):
        outcome = stranger.run(*words, "--matrix", "m.yaml", code=code)
        assert outcome.stderr.count("[matrix-registry-not-allowed]") == 1
        assert f"`--registry {site.where}`" in outcome.stderr
    assert before.asked == []
    assert site.visible == []
    outcome = stranger.run("pull", "--matrix", "m.yaml", "--registry", site.where, code=0)
    assert site.has(offered)


def test_a_profile_is_pulled_as_it_is_planned_and_not_as_another_build_of_its_name(site: Here, planned: Made) -> None:
    other = identified(
        made(planned.record.parents[3].with_name("other"), local="", seed="other"), planned.build_id, "0" * 64
    )
    push(site.where, other)
    outcome = site.tfdock.run("pull", "cpu.yaml", "--json", code=7, problem="image-not-found")
    assert planned.build_id in outcome.problem["fix"], "the other one can be had by its name"
    assert site.tfdock.build("cpu.yaml").code == ENGINE, "so it would be built"
    assert site.visible == []
    push(site.where, planned)
    assert site.tfdock.run("pull", "cpu.yaml").code == 0
    assert site.has(planned)


def test_a_build_of_another_trust_domain_is_not_pulled_for_a_release(site: Here, planned: Made) -> None:
    record = json.loads(planned.record.read_bytes())
    record["plan"]["trust"]["domain"] = "f" * 16
    planned.record.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    push(site.where, planned)
    assert site.tfdock.build("cpu.yaml").code == ENGINE
    assert site.visible == []
    assert site.tfdock.run("pull", "cpu.yaml").code == 7
    site.pull(planned.build_id)
    assert site.has(planned), "by its name it can be had"
    assert site.tfdock.build("cpu.yaml").code == ENGINE, "and does not stand for the release"


def test_a_pull_does_not_give_a_build_id_to_another_trust_domain(tmp_path: Path, site: Here, pushed: Made) -> None:
    site.pull(pushed.build_id)
    evil = made(tmp_path / "evil", seed="evil", domain="f" * 16)
    push(site.where, evil)
    with refusal(TfdockError, "wheel-name-taken"):
        site.pull(evil.build_id)
    assert site.has(pushed)


@pytest.mark.usefixtures("offered")
@pytest.mark.parametrize("word", ["--no-pull", "--force"])
def test_a_build_that_is_to_build_asks_no_registry(site: Here, before: Proxy, word: str) -> None:
    before.forget()
    site.tfdock.build("cpu.yaml", word, code=ENGINE)
    assert before.asked == []
    assert site.visible == []


@pytest.mark.parametrize("fault", ["nobody", "status", "denied", "breaks off"])
def test_a_registry_that_is_down_is_a_warning_and_the_next_one_is_asked(
    site: Here, before: Proxy, registry: OwnRegistry, offered: Made, fault: str
) -> None:
    second = f"{registry.address}/{site.where.partition('/')[2]}"
    first = f"{closed_port()}/me/wheels" if fault == "nobody" else site.where
    faults = {
        "status": Fault("status", MANIFESTS, times=99),
        "denied": Fault("status", MANIFESTS, times=99, status=403),
        "breaks off": Fault("status", f"GET .*{layer_of(offered)}", times=99, status=403),
    }
    before.faults += [faults[fault]] if fault in faults else []
    alone = site.tfdock.build("cpu.yaml", "--registry", first)
    assert alone.code == ENGINE, "the build goes on, and is compiled"
    assert "the build continues without this registry" in alone.stderr
    assert first.partition("/")[0] in alone.stderr
    assert site.visible == []
    outcome = site.tfdock.build("cpu.yaml", "--registry", first, "--registry", second)
    assert (outcome.code, outcome.build["status"]) == (0, "pulled"), outcome.told
    assert outcome.build["origin"].startswith(second)
    assert site.has(offered)


@pytest.mark.parametrize("kind", ["damaged", "moved", "lying"])
def test_an_image_that_is_not_what_it_says_is_not_compiled_over(
    site: Here, before: Proxy, planned: Made, kind: str, tmp_path: Path
) -> None:
    tag = fingerprint_tag(planned.fingerprint)
    if kind == "damaged":
        push(site.where, planned)
        before.faults.append(Fault("corrupted", f"GET .*{layer_of(planned)}", times=9))
    elif kind == "moved":
        Forged(made(tmp_path / "other", seed="other")).push(site.where, tag)
    else:
        Forged(planned, layers=extra("../x")).push(site.where, tag)
    outcome = site.tfdock.build("cpu.yaml")
    assert (outcome.code, outcome.build["status"]) == (7 if kind == "damaged" else 4, "refused"), outcome.told
    (found,) = outcome.build["problems"]
    codes = {"damaged": "registry-damaged-content", "moved": "wheel-image-moved", "lying": "wheel-image-malformed"}
    assert found["code"] == codes[kind]
    assert "tfdock build --no-pull" in found["fix"]
    assert site.visible == []


def test_code_for_one_cpu_is_neither_looked_for_nor_pulled(site: Here, before: Proxy) -> None:
    before.forget()
    outcome = site.tfdock.build("cpu-native")
    assert outcome.code == ENGINE
    assert "no registry is used" in outcome.stderr
    assert before.asked == []


def test_a_build_that_was_pulled_is_no_build_of_this_machine(site: Here, offered: Made) -> None:
    site.pull(offered.build_id)
    (record,) = site.house.records()
    assert site.house.pulled_from(record)
    # Built here after all: the record is the new one's, and says nothing of a registry.
    part = site.folder / "sealed.whl"
    part.write_bytes(offered.wheel.read_bytes())
    file = WheelFile(file=offered.wheel.name, sha256=offered.sha256, size=part.stat().st_size)
    publish(site.house, offered.build_id, record, {part: file})  # type: ignore[arg-type]
    assert site.house.pulled_from(record) is None


def test_what_is_pulled_is_said_to_run_as_this_machines_gpu_runs_it(site: Here, pushed: Made) -> None:
    programs = site.folder / "programs"
    programs.mkdir()
    driver = programs / "nvidia-smi"
    driver.write_text("#!/bin/sh\necho 'NVIDIA GeForce RTX 3080, 8.6, 560.35.03, 10240 MiB'\n")
    driver.chmod(0o755)
    machine = site.tfdock.with_variables(PATH=f"{programs}:{os.environ['PATH']}")
    for status in ("pulled", "up-to-date"):
        outcome = machine.run("pull", pushed.build_id, "--json", code=0)
        (one,) = outcome.document["pulls"][0]["builds"]
        assert one["status"] == status
        (gpu,) = one["gpus"]
        assert (gpu["name"], gpu["compute_capability"], gpu["runs"]) == ("rtx3080", "8.6", "no")
        assert "does not run on it" in outcome.stderr, "this wheel has no GPU code at all"


def test_a_mirror_is_asked_instead_of_the_registry_that_is_named(site: Here, before: Proxy, pushed: Made) -> None:
    before.forget()
    name = site.where.partition("/")[2]
    behind = site.tfdock.with_variables(
        TFDOCK_REGISTRY_MIRROR=f"wheels.example={before.address}", TFDOCK_REGISTRIES=f"wheels.example/{name}"
    )
    behind.run("pull", f"wheels.example/{name}:{pushed.build_id}", code=0)
    assert site.has(pushed)
    assert behind.run("pull", pushed.build_id).code == 0
    assert before.count("GET .*/manifests/") == 2


@pytest.mark.parametrize("how", ["pull", "push"])
def test_a_wheel_that_was_damaged_here_is_said_to_be(site: Here, pushed: Made, how: str) -> None:
    site.pull(pushed.build_id)
    wheel = site.house.root / pushed.wheel.name
    wheel.write_bytes(wheel.read_bytes()[:-100])
    words = ("pull", pushed.build_id) if how == "pull" else ("image", "push", pushed.build_id)
    outcome = site.tfdock.run(*words)
    assert (outcome.code, "[wheel-changed]" in outcome.stderr) == (4, True), outcome.told
    assert "was not built here" not in outcome.stderr
    wheel.unlink()
    assert site.tfdock.run("pull", pushed.build_id).code == 0, "as it was told"
    assert site.has(pushed)


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("some.whl", "reference-malformed", "install it with pip"),
        ("latest", "profile-not-found", "an image: `host/name:tag`"),
        ("UPPER/x:1", "reference-malformed", "no capitals"),
    ],
)
def test_a_name_that_cannot_be_pulled_says_what_can(site: Here, name: str, code: str, words: str) -> None:
    outcome = site.tfdock.run("pull", name, "--json", code=2, problem=code)
    assert words in outcome.problem["fix"]


@pytest.mark.usefixtures("planned")
def test_no_other_build_is_offered_where_there_is_none(site: Here) -> None:
    found = site.tfdock.run("pull", "cpu.yaml", "--json").problem
    assert "tfdock build" in found["fix"]
    assert "another build" not in found["fix"]
