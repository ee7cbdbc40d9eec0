"""Bundles: made on one engine, built from on another that has nothing, in a network namespace without a route."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fake_engine import FakeRun
from refusals import refusal

from tfdock import events
from tfdock.builder.build import build
from tfdock.builder.session import BuildRequest, BuildResult, BuildSession
from tfdock.engine.protocol import ContainerSpec, ImageInfo
from tfdock.errors import Incompatible, Interrupted, ProfileError, TfdockError, VerificationFailed
from tfdock.host.settings import Settings
from tfdock.host.supervise import Stop
from tfdock.offline.bundle_file import open_bundle
from tfdock.offline.bundle_writer import WrittenBundle
from tfdock.offline.bundled_inputs import prepare
from tfdock.offline.fetch import Bundler, warm
from tfdock.plan.prepare import Preparer
from tfdock.run.supervisor import Supervisor
from tfdock.types import Machine

from .conftest import Workshop
from .elsewhere import empty_engine
from .harness import KNOWLEDGE, PLAYED_BUILD, Tfdock, archive_knowledge, file_server, record_of, write_profile
from .test_orchestration import BASE, DIGEST, RUNTIME, Engine, leaving, mounts, settings_of, verifying, wheel

DOWNLOAD = b"a library that the build downloads"
CACHED = f"content_addressable/sha256/{hashlib.sha256(DOWNLOAD).hexdigest()}/file"
TOOLCHAIN = b"bazel 4.2.3\npackage gcc 12 amd64\ntool /usr/bin/gcc " + b"5" * 64 + b"\nfiles " + b"6" * 64 + b"\n"


class Online(Engine):
    """An engine whose fetch downloads a file, and without a network takes it from Bazel's cache."""

    def __init__(self) -> None:
        super().__init__()
        self.images = dict(self.images)
        self.on_run = self.run
        self.sources_download = self.address_is_dead = False
        self.required: str | None = None
        self.compiled = wheel()

    def run(self, spec: ContainerSpec) -> FakeRun:
        words = " ".join(spec.command)
        if "phase.sh fetch" in words:
            return FakeRun(effect=self.fetched)
        if "phase.sh compile" in words:
            return FakeRun(effect=leaving(self.compiled))
        if "--create" in words:
            return FakeRun(effect=lambda spec: self.write(mounts(spec)["/tf/staging"] / "external.tar", b"all"))
        if "cp -R" in words:
            return FakeRun(effect=self.copied)
        if "--extract" in words:
            return FakeRun(effect=self.unpacked)
        if "setup.py" in words:
            return FakeRun(effect=self.asked)
        if "wheel" in spec.command:
            return FakeRun(effect=self.piped)
        return verifying(spec)

    def fetched(self, spec: ContainerSpec) -> None:
        file, mark = mounts(spec)["/tf/cache/repository"] / CACHED, mounts(spec)["/tf/output"] / "external"
        if spec.network != "none" and not self.address_is_dead:
            self.write(file, DOWNLOAD)
        elif self.sources_download and not mark.exists():
            raise ConnectionError("a rule that runs pip")
        assert file.read_bytes() == DOWNLOAD

    def copied(self, spec: ContainerSpec) -> None:
        assert spec.network == "none"
        shutil.copytree(mounts(spec)["/tf/given"], mounts(spec)["/tf/cache/repository"], dirs_exist_ok=True)

    def unpacked(self, spec: ContainerSpec) -> None:
        assert (mounts(spec)["/tf/given"] / "external.tar").read_bytes() == b"all"
        self.write(mounts(spec)["/tf/output"] / "external", b"")

    def asked(self, spec: ContainerSpec) -> None:
        assert self.required is not None
        self.write(mounts(spec)["/tf/staging"] / "requirements.json", json.dumps([self.required]).encode())

    def piped(self, spec: ContainerSpec) -> None:
        assert spec.network != "none"
        made = mounts(spec)["/tfdock/made"]
        asked = (mounts(spec)["/tfdock/given"] / "requirements.txt").read_text().strip()
        self.write(made / "wheels/wrapt-1.14-py3-none-any.whl", asked.encode())

    @staticmethod
    def write(path: Path, content: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def read_file(self, container: str, path: str) -> bytes | None:
        super().read_file(container, path)
        files = {"/opt/tfdock/toolchain": TOOLCHAIN, "/opt/tfdock/pins": b"bazel " + b"7" * 64 + b"\n"}
        return files.get(path)


class Elsewhere(Online):
    """An engine with no image, where nothing can be pulled and no container has a network."""

    def __init__(self) -> None:
        super().__init__()
        self.registry.clear()
        self.images.clear()

    def run(self, spec: ContainerSpec) -> FakeRun:
        assert spec.network == "none", spec.name
        return super().run(spec)


class Place:
    """A machine: settings of its own, an engine, and what was heard."""

    def __init__(self, folder: Path, engine: Online) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.engine, self.stop = folder, engine, Stop()
        self.heard: list[events.Event] = []
        self.settings = settings_of(folder)
        self.preparer = Preparer(self.settings, Machine(cpus=4, memory=16 << 30))

    @property
    def session(self) -> BuildSession:
        return BuildSession(
            connect=lambda: self.engine,
            settings=self.settings,
            knowledge=self.preparer.knowledge,
            stop=self.stop,
        )

    def bundle(self, *profiles: Path, target: Path) -> WrittenBundle:
        return Bundler(target, self.preparer, self.session, self.heard.append).make(
            [str(profile) for profile in profiles]
        )

    def build(self, bundle: Path, *names: str) -> list[BuildResult]:
        session = self.session
        return [
            build(session, BuildRequest(prepared=prepared, inputs=inputs), self.heard.append)
            for prepared, inputs in prepare(bundle, names, self.preparer)
        ]

    @property
    def notices(self) -> str:
        return "\n".join(event.text for event in self.heard if isinstance(event, events.Notice))

    @property
    def left(self) -> list[str]:
        folders = (self.settings.cache_dir / "output", self.settings.state_dir / "runs")
        return [str(path) for folder in folders for path in folder.glob("*")]


@pytest.fixture
def here(tmp_path: Path) -> Place:
    return Place(tmp_path / "here", Online())


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path / "there", Elsewhere())
    yield place
    assert place.left == []
    assert place.engine.called("pull") == place.engine.called("build") == []


PATCH = "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n"


@pytest.fixture
def profile(here: Place) -> Path:
    """A profile with a local checkout, a patch and a parent: all that a bundle must carry to plan it elsewhere."""
    tree = here.folder / "tree"
    tree.mkdir()
    (tree / "configure").write_text("#!/bin/sh\n")
    (here.folder / "a.patch").write_text(PATCH)
    write_profile(here.folder / "parent.yaml", None, base=f"{BASE}@{DIGEST}", accelerator="cpu", tensorflow=None)
    source = {"release": "99.18.0", "path": str(tree), "patches": ["a.patch"]}
    own = {"schema": 1, "extends": "parent.yaml", "tensorflow": source, "compute_capabilities": None}
    path = here.folder / "my.yaml"
    path.write_text(json.dumps({name: value for name, value in own.items() if value is not None}))
    parent = json.loads((here.folder / "parent.yaml").read_text())
    del parent["compute_capabilities"]
    (here.folder / "parent.yaml").write_text(json.dumps(parent))
    here.engine.registry[f"{BASE}@{DIGEST}"] = here.engine.registry[BASE]
    return path


@pytest.fixture
def bundle(here: Place, profile: Path) -> Path:
    target = here.folder / "bundle.tar"
    here.bundle(profile, target=target)
    return target


# --- on engines in memory -------------------------------------------------------------------------------------------


def test_downloads_of_a_bundle_go_through_no_link_that_a_container_left(there: Place, bundle: Path) -> None:
    repository, outside = there.settings.cache_dir / "repository", there.folder / "outside"
    repository.mkdir(parents=True)
    outside.mkdir()
    (repository / "content_addressable").symlink_to(outside)
    with pytest.raises(TfdockError):
        there.build(bundle)
    assert list(outside.iterdir()) == []


def test_a_bundle_builds_where_nothing_can_be_had(here: Place, there: Place, bundle: Path, profile: Path) -> None:
    assert here.left == []
    assert sorted(path.name for path in here.folder.iterdir() if path.name.startswith(".")) == []
    profile.unlink()
    (result,) = there.build(bundle)
    assert result.status == "built"
    assert result.record["verification"]["runtime"] == RUNTIME
    assert {check["status"] for check in result.record["verification"]["checks"] if check["name"] == "import"} == {
        "passed"
    }
    assert (there.settings.cache_dir / "repository" / CACHED).read_bytes() == DOWNLOAD
    assert [one.status for one in there.build(bundle)] == ["up-to-date"]
    assert len(there.engine.called("load")) == 1


@pytest.mark.parametrize("which", ["made", "used", "both"])
def test_engines_on_other_machines_make_bundles_and_build_from_them(
    here: Place, there: Place, profile: Path, which: str
) -> None:
    for place, told in ((here, "made"), (there, "used")):
        far = which in (told, "both")
        place.engine.engine_info = replace(place.engine.engine_info, id=told, local=not far)
    here.engine.sources_download = there.engine.sources_download = True
    target = here.folder / "bundle.tar"
    made = here.bundle(profile, target=target)
    assert list(made.index.repository) == [CACHED]
    assert made.index.builds[0].external
    assert [one.status for one in there.build(target)] == ["built"]
    assert here.engine.volumes("io.tfdock.run") == there.engine.volumes("io.tfdock.run") == []


@pytest.mark.parametrize("local", [True, False])
def test_an_archive_whose_address_is_dead_is_there_before_bazel_and_in_the_bundle(
    here: Place, there: Place, profile: Path, tmp_path: Path, local: bool
) -> None:
    here.engine.address_is_dead = there.engine.address_is_dead = True
    here.engine.engine_info = replace(here.engine.engine_info, local=local)
    (tmp_path / "served").mkdir()
    (tmp_path / "served/x.tgz").write_bytes(DOWNLOAD)
    with file_server(tmp_path / "served") as url:
        known = archive_knowledge(tmp_path, "x (@x)", CACHED.split("/")[2], f"{url}/x.tgz")
        here.settings = replace(here.settings, knowledge=(KNOWLEDGE, known))
        here.preparer = Preparer(here.settings, Machine(cpus=4, memory=16 << 30))
        warm(here.preparer.prepare(str(profile)), here.session, here.heard.append)
        made = here.bundle(profile, target=here.folder / "bundle.tar")
    assert "x (@x) is no longer at its own address" in here.notices
    assert list(made.index.repository) == [CACHED]
    there.settings = replace(there.settings, knowledge=here.settings.knowledge)
    there.preparer = Preparer(there.settings, Machine(cpus=4, memory=16 << 30))
    assert [one.status for one in there.build(here.folder / "bundle.tar")] == ["built"]
    assert there.notices.count("is no longer at its own address") == 0, "a bundle has it"


def test_the_same_profile_elsewhere_builds_from_it_and_a_changed_one_does_not(
    there: Place, bundle: Path, profile: Path
) -> None:
    assert [one.status for one in there.build(bundle, str(profile))] == ["built"]
    (profile.parent / "a.patch").write_text(PATCH.replace("+b", "+c"))
    with refusal(ProfileError, "bundle-lacks-build"):  # another patch is another build id
        there.build(bundle, str(profile))
    (profile.parent / "a.patch").write_text(PATCH)
    (profile.parent / "tree/configure").write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(TfdockError) as changed:
        there.build(bundle, str(profile))
    assert changed.value.problems[0].code in ("bundle-outdated", "bundle-lacks-build")


def test_a_build_is_named_by_its_id_too(there: Place, bundle: Path) -> None:
    ((one, _),) = prepare(bundle, (), there.preparer)
    assert [result.status for result in there.build(bundle, one.plan.build_id)] == ["built"]


def test_flags_that_changed_make_a_bundle_that_is_no_longer_asked_for(
    there: Place, bundle: Path, profile: Path
) -> None:
    document = json.loads(profile.read_text())
    profile.write_text(json.dumps(document | {"bazel": {"flags": ["--verbose_failures"]}}))
    with refusal(Incompatible, "bundle-outdated", match="the profile, its source or its patches have changed"):
        there.build(bundle, str(profile))


def test_damage_is_told_before_the_engine_has_an_image(there: Place, bundle: Path) -> None:
    content = bytearray(bundle.read_bytes())
    content[content.rindex(b"sha256:")] ^= 1  # in the images
    bundle.write_bytes(content)
    with refusal(VerificationFailed, "bundle-damaged"):
        there.build(bundle)
    assert there.engine.images == {}
    assert list(there.settings.wheelhouse.glob("*.whl")) == []


def test_a_name_that_another_bundle_took_does_not_bring_its_image_into_an_own_bundle(
    here: Place, there: Place, bundle: Path, profile: Path
) -> None:
    (made,) = open_bundle(bundle).index.builds
    evil = ImageInfo(id=f"sha256:{'e' * 64}", tags=(made.image.name,))
    here.engine.images[made.image.name] = evil
    there.build(here.bundle(profile, target=here.folder / "another.tar").path)
    loaded = there.engine.image(made.image.name)
    assert loaded is not None
    assert loaded.id == made.image.id
    assert here.engine.image(made.image.name) is None, "the name goes when the bundle is written"


def test_a_name_that_another_bundle_takes_meanwhile_does_not_change_the_image_that_builds(
    there: Place, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ((prepared, inputs),) = prepare(bundle, (), there.preparer)
    (made,) = open_bundle(bundle).index.builds
    provide = inputs.shared.provide

    def provided(supervisor: Supervisor, settings: Settings) -> None:
        provide(supervisor, settings)
        there.engine.images[made.image.id] = there.engine.images[made.image.name]
        there.engine.images[made.image.name] = ImageInfo(id=f"sha256:{'e' * 64}", tags=(made.image.name,))

    monkeypatch.setattr(inputs.shared, "provide", provided)
    build(there.session, BuildRequest(prepared=prepared, inputs=inputs), there.heard.append)
    assert there.engine.specs["compile"].image == made.image.id


def test_what_the_wheel_requires_goes_along_as_its_source_says(here: Place, there: Place, profile: Path) -> None:
    here.engine.required = "wrapt >=1.11"
    there.engine.compiled = wheel(requires="Requires-Dist: wrapt>=1.11\n")
    target = here.folder / "bundle.tar"
    here.bundle(profile, target=target)
    (result,) = there.build(target)
    dependencies = next(path for path in there.settings.cache_dir.glob("dependencies/*/*.whl"))
    assert dependencies.read_text() == "wrapt>=1.11"
    assert "skipped" not in {
        check["status"] for check in result.record["verification"]["checks"] if check["name"] == "import"
    }


def test_what_the_bundle_could_not_know_is_told_and_the_wheel_is_there(
    here: Place, there: Place, bundle: Path
) -> None:
    assert "the requirements of the wheel are known only after a build" in here.notices
    there.engine.compiled = wheel(requires="Requires-Dist: wrapt>=1.11\n")
    (result,) = there.build(bundle)
    assert "the bundle lacks requirements of the wheel: wrapt>=1.11" in there.notices
    assert result.wheels[0].exists()


def test_a_wheel_that_is_built_says_what_it_requires(here: Place, there: Place, profile: Path) -> None:
    here.engine.compiled = there.engine.compiled = wheel(requires="Requires-Dist: wrapt>=1.11\n")
    target = here.folder / "bundle.tar"
    here.bundle(profile, target=target)
    prepared = here.preparer.prepare(str(profile))
    assert build(here.session, BuildRequest(prepared=prepared), here.heard.append).status == "built"
    here.heard.clear()
    here.bundle(profile, target=target)
    assert "known only after a build" not in here.notices
    there.build(target)
    assert "was not tried" not in there.notices


def test_rules_that_download_by_themselves_put_what_they_made_into_the_bundle(
    here: Place, there: Place, profile: Path
) -> None:
    here.engine.sources_download = there.engine.sources_download = True
    target = here.folder / "bundle.tar"
    made = here.bundle(profile, target=target)
    assert made.index.builds[0].external
    assert [one.status for one in there.build(target)] == ["built"]


@pytest.mark.parametrize("kind", ["link", "fifo", "sparse", "second name"])
@pytest.mark.parametrize("name", ["external.tar", "requirements.json"])
def test_what_stands_for_a_part_of_a_bundle_is_not_taken(here: Place, profile: Path, name: str, kind: str) -> None:
    secret = here.folder / "secret"
    secret.write_text(f"[{json.dumps('a file of the user')}]")

    def leave(spec: ContainerSpec) -> None:
        path = mounts(spec)["/tf/staging"] / name
        if kind == "link":
            path.symlink_to(secret)
        elif kind == "fifo":
            os.mkfifo(path)
        elif kind == "sparse":
            path.touch()
            os.truncate(path, 1 << 37)
        else:
            (path.parent / "other").write_text(secret.read_text())
            path.hardlink_to(path.parent / "other")

    here.engine.sources_download = True
    words = "--create" if name == "external.tar" else "setup.py"
    honest = here.engine.run
    here.engine.on_run = lambda spec: FakeRun(effect=leave) if words in " ".join(spec.command) else honest(spec)
    target = here.folder / "bundle.tar"
    with refusal(TfdockError, "container-file-refused"):
        here.bundle(profile, target=target)
    assert not target.exists()
    assert here.left == []


def test_a_source_that_downloads_anew_whatever_it_has_is_refused_when_the_bundle_is_made(
    here: Place, profile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.engine.sources_download = True
    monkeypatch.setattr(here.engine, "unpacked", lambda _: None)
    target = here.folder / "bundle.tar"
    with refusal(TfdockError, "bundle-incomplete"):
        here.bundle(profile, target=target)
    assert not target.exists()
    assert here.left == []


def test_a_second_fetch_replaces_the_bundle_and_one_that_fails_leaves_it(
    here: Place, bundle: Path, profile: Path
) -> None:
    before = bundle.read_bytes()
    assert here.bundle(profile, target=bundle).sha256 == hashlib.sha256(bundle.read_bytes()).hexdigest()
    here.stop.requests = 1
    with pytest.raises(Interrupted):
        here.bundle(profile, target=bundle)
    assert bundle.read_bytes() == before
    assert here.left == []


def test_nothing_but_a_bundle_is_replaced(here: Place, profile: Path) -> None:
    target = here.folder / "precious.tar"
    target.write_text("precious")
    with refusal(ProfileError, "bundle-name-taken"):
        here.bundle(profile, target=target)
    assert target.read_text() == "precious"


def test_a_build_from_a_bundle_takes_its_lock_and_the_record_says_so(there: Place, bundle: Path) -> None:
    ((one, _),) = prepare(bundle, (), there.preparer)
    assert one.lock is not None
    (result,) = there.build(bundle)
    assert result.record["lock"] == one.lock.sha256


def test_fetching_without_a_bundle_warms_the_caches_that_builds_share(here: Place, profile: Path) -> None:
    warm(here.preparer.prepare(str(profile)), here.session, here.heard.append)
    assert (here.settings.cache_dir / "repository" / CACHED).read_bytes() == DOWNLOAD
    assert here.left == []
    phases = [event.phase for event in here.heard if isinstance(event, events.PhaseStarted)]
    assert phases[:2] == ["image", "fetch"]
    assert "compile" not in phases


# --- on real engines ------------------------------------------------------------------------------------------------


@pytest.mark.engine
@pytest.mark.limit(300)
def test_a_bundle_gives_the_same_wheel_on_an_empty_engine_in_a_namespace_without_a_route(
    workshop: Workshop, tfdock: Tfdock, tmp_path: Path
) -> None:
    profile = write_profile(tmp_path / "profile.yaml", workshop.tree("played"), **PLAYED_BUILD)
    bundle = tmp_path / "bundle.tar"
    fetched = tfdock.run("fetch", profile, "-o", bundle, "--json", code=0)
    (build,) = fetched.document["builds"]
    assert bundle.stat().st_size == fetched.document["bundle"]["size"]
    reference = tfdock.build(profile).build["wheels"][0]["sha256"]

    with empty_engine() as host:
        there = replace(workshop.tfdock("unshare", "--net"), cache=tmp_path / "cache", engine=host)
        away = there.with_variables(TFDOCK_REGISTRY_MIRROR="", TFDOCK_NETWORK="")
        outcome = away.run("build", "--json", "--from", bundle, build["build_id"], code=0)
        assert outcome.build["wheels"][0]["sha256"] == reference
        record = record_of(outcome.build)
        checks = {check["name"]: check["status"] for check in record["verification"]["checks"]}
        assert checks["op"] == "passed", checks
        again = away.run("build", "--json", "--from", bundle)
        assert again.build["status"] == "up-to-date"
        assert away.leftovers == []

    with bundle.open("r+b") as file:
        file.truncate(bundle.stat().st_size // 2)
    away.run("build", "--json", "--from", bundle, code=4, problem="bundle-damaged")
