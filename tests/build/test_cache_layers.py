"""`cache push` and `cache pull` against a real registry: what is sent, what is refused, and what faults cost."""

from __future__ import annotations

import json
import random
import signal
from dataclasses import asdict
from functools import partial
from pathlib import Path

import pytest

from tfdock.bazel.cache import packs, push_plan
from tfdock.bazel.cache.cache_folder import CacheFolder
from tfdock.bazel.cache.exchange import Exchange
from tfdock.bazel.cache.packs import CONTENTS_TYPE, PACK_TYPE, PackContents, PackEntry, in_order
from tfdock.bazel.cache.registry_cache import CONFIG_TYPE, Layers, Pack, Shelf, StoredCache
from tfdock.builder import pins
from tfdock.errors import Problem, TfdockError
from tfdock.host.supervise import Stop
from tfdock.oci import manifest as oci
from tfdock.oci.manifest import Descriptor, Manifest
from tfdock.oci.repository import CHUNK, TRIES, Repository
from tfdock.types import ImageRef

from .conftest import EditedTree, Finished, Workshop
from .harness import UNTRIED, Json, Outcome, Running, Tfdock, write_profile
from .logins import PASSWORD, basic, docker_config, guarded
from .registries import (
    REPOSITORY,
    Fault,
    OwnRegistry,
    Proxy,
    action_result,
    add_action,
    entries,
    flipped,
    proxy,
    sha256,
)

pytestmark = pytest.mark.usefixtures("impatient")

KEY = "0123456789abcdef"
OTHER = "fedcba9876543210"
PER_PACK = 64 << 10  #: Bytes that a push may send for each pack besides the entries.


class Machine:
    """A machine with a cache folder, and nothing else."""

    def __init__(self, folder: Path, address: str, tag: str) -> None:
        folder.mkdir()
        self.tfdock = Tfdock(home=folder, cache=CacheFolder.opened(folder / "cache").root)
        self.address, self.tag = address, tag
        self.said: list[str] = []

    @property
    def reference(self) -> str:
        return f"{self.address}/{REPOSITORY}:{self.tag}"

    @property
    def disk(self) -> Path:
        return self.tfdock.cache / "disk" / KEY

    @property
    def entries(self) -> dict[str, bytes]:
        return entries(self.disk)

    def run(self, verb: str, *words: str, code: int | None = None, problem: str = "") -> Outcome:
        """The command itself."""
        return self.tfdock.run("cache", verb, self.reference, "--json", *words, code=code, problem=problem)

    def start(self, verb: str) -> Running:
        return self.tfdock.start("cache", verb, self.reference, "--json")

    def push(self) -> Json:
        """The figures of a push, in this process."""
        ((figures,), _) = self.exchange.push([KEY])
        return asdict(figures)

    def pull(self) -> Json:
        (figures,) = self.exchange.pull([])
        return asdict(figures)

    @property
    def exchange(self) -> Exchange:
        stored = StoredCache(ImageRef.parse(self.reference), lambda: None)
        return Exchange(CacheFolder.opened(self.tfdock.cache), stored, self.said.append, Stop())

    def told(self, verb: str) -> tuple[int, Problem]:
        """What somebody is told whose push or pull fails: exit status and problem."""
        with pytest.raises(TfdockError) as caught:
            self.push() if verb == "push" else self.pull()
        (found,) = caught.value.problems
        return int(caught.value.exit_code), found

    @property
    def leftovers(self) -> list[Path]:
        return [*self.tfdock.cache.glob("downloads/*"), *self.tfdock.cache.glob("locks/layers*")]


class Site:
    """Machines that share a name in the registry."""

    def __init__(self, folder: Path, address: str, tag: str) -> None:
        self.folder, self.address, self.tag = folder, address, tag

    def machine(self, name: str, actions: int = 0) -> Machine:
        """A machine, with some actions of two outputs each in its cache; their bytes do not shrink."""
        machine = Machine(self.folder / name, self.address, self.tag)
        for number in range(actions):
            # Other bytes in every test: what one has pushed, the registry has.
            text = f"{self.tag} {name} {number}"
            add_action(machine.disk, f"{name} {number}", random.Random(text).randbytes(40_000), text.encode() * 9)
        return machine

    def pulled(self) -> Machine:
        """Another machine, which has pulled."""
        there = self.machine("there")
        there.pull()
        return there


@pytest.fixture
def site(tmp_path: Path, before: Proxy, request: pytest.FixtureRequest) -> Site:
    return Site(tmp_path, before.address, sha256(request.node.name.encode())[:16])


# --- what is sent ---------------------------------------------------------------------------------------------------


def test_what_one_machine_has_pushed_another_has_after_a_pull(site: Site, before: Proxy) -> None:
    here = site.machine("here", 20)
    (here.disk / "cas/00").mkdir(exist_ok=True)
    (here.disk / "cas/00" / ("0" * 64)).write_bytes(b"what no action needs: Bazel's own messages")
    pushed = here.push()
    assert (pushed["entries"], pushed["packs"], pushed["there"], pushed["incomplete"]) == (60, 1, 0, 0)
    there = site.machine("there")
    pulled = there.pull()
    assert (pulled["toolchain"], pulled["entries"], pulled["there"]) == (KEY, 60, 0)
    assert there.entries == {name: data for name, data in here.entries.items() if "0" * 64 not in name}
    assert there.leftovers == here.leftovers == []
    before.forget()
    assert there.pull()["entries"] == 0
    packs_of = [layer["digest"] for layer in manifest(site, before)["layers"] if layer["mediaType"] == PACK_TYPE]
    assert not any(digest in one for one in before.asked for digest in packs_of), "nothing was missing"


def manifest(site: Site, before: Proxy) -> Json:
    image = ImageRef.parse(f"{before.address}/{REPOSITORY}:{site.tag}")
    found = Repository(image.registry, image.repository).manifest(site.tag)
    assert found
    document: Json = json.loads(found.data)
    return document


def test_a_second_push_sends_nothing(site: Site, before: Proxy) -> None:
    here = site.machine("here", 5)
    here.push()
    before.forget()
    again = here.push()
    assert (again["entries"], again["sent"], again["there"]) == (0, 0, 15)
    assert before.count("^(POST|PUT|PATCH)") == 0


def test_a_changed_file_costs_its_own_entries_and_little_more(site: Site, before: Proxy) -> None:
    here = site.machine("here", 300)
    here.push()
    before.forget()
    changed = add_action(here.disk, "here 0 changed", random.Random(1).randbytes(500_000), b"header" * 2000)
    figures = here.push()
    assert (figures["entries"], figures["packs"]) == (3, 1)
    size = sum(path.stat().st_size for path in changed)
    assert before.sent <= 1.5 * size + PER_PACK, "all that went over the wire, requests and their headers too"
    assert site.machine("there").pull()["entries"] == 903


def test_an_action_whose_outputs_are_gone_is_left_out(site: Site) -> None:
    here = site.machine("here", 3)
    _, first, _ = add_action(here.disk, "incomplete", b"one" * 99, b"two" * 99)
    first.unlink()
    figures = here.push()
    assert (figures["entries"], figures["incomplete"]) == (9, 1)
    assert len(site.pulled().entries) == 9


def test_a_blob_that_is_not_what_its_name_says_is_not_pushed(site: Site) -> None:
    here = site.machine("here", 3)
    _, blob, _ = add_action(here.disk, "poisoned", b"one" * 99, b"two" * 99)
    blob.write_bytes(b"ONE" * 99)
    assert here.push()["incomplete"] == 1
    assert len(site.pulled().entries) == 9


def test_only_what_is_missing_is_pulled_and_what_is_here_stays(site: Site) -> None:
    here = site.machine("here", 4)
    here.push()
    there = site.machine("there")
    own, *_ = add_action(there.disk, "of its own", b"own" * 99)
    action, *_ = add_action(there.disk, "here 0", b"another result" * 9)
    kept = {path: path.read_bytes() for path in (own, action)}
    figures = there.pull()
    assert (figures["entries"], figures["there"]) == (11, 1)
    assert {path: path.read_bytes() for path in kept} == kept


def test_both_layouts_of_bazel_travel(site: Site) -> None:
    here = site.machine("here")
    data = b"an object" * 99
    here.disk.mkdir(parents=True)
    files = {f"ac_{sha256(b'old')}": action_result(data, b""), sha256(data): data, sha256(b""): b""}
    for name, content in files.items():
        (here.disk / name).write_bytes(content)
    here.push()
    there = site.pulled()
    assert there.entries == files


def test_toolchains_share_a_name_and_never_mix(site: Site) -> None:
    here = site.machine("here", 3)
    other = here.tfdock.cache / "disk" / OTHER
    add_action(other, "here 0", b"of another compiler" * 9)
    assert here.run("push").code == 0
    there = site.machine("there")
    outcome = there.run("pull", "--toolchain", OTHER, "--toolchain", OTHER)
    assert [one["toolchain"] for one in outcome.document["toolchains"]] == [OTHER]
    assert not there.disk.exists()
    there.run("pull")
    assert there.entries == here.entries
    assert entries(there.tfdock.cache / "disk" / OTHER) == entries(other)
    assert "has no entries for the toolchain 0000000000000000" in there.run("pull", "--toolchain", "0" * 16).stderr


def test_other_domains_than_release_travel_only_when_they_are_named(site: Site) -> None:
    here = site.machine("here", 2)
    domain = "fedcba9876543210"
    own = here.tfdock.cache / "disk" / f"{KEY}-{domain}"
    add_action(own, "mine", random.Random(site.tag).randbytes(9_000))
    assert [one["toolchain"] for one in here.run("push").document["toolchains"]] == [KEY]
    here.run("push", "--domain", "0000", problem="cache-domain-not-named")
    pushed = here.run("push", "--domain", domain[:4]).document["toolchains"]
    assert [one["toolchain"] for one in pushed] == [f"{KEY}-{domain}"]
    there = site.machine("there")
    assert [one["toolchain"] for one in there.run("pull").document["toolchains"]] == [KEY]
    assert not (there.tfdock.cache / "disk" / own.name).exists()
    there.run("pull", "--domain", "all")
    assert entries(there.tfdock.cache / "disk" / own.name) == entries(own)


@pytest.mark.parametrize(
    ("words", "code", "status"),
    [
        (("push", "https://ghcr.io/me/cache"), "reference-malformed", 2),
        (("push", f"ghcr.io/me/cache@sha256:{'0' * 64}"), "reference-malformed", 2),
        (("push", "ghcr.io/me/cache:1"), "cache-toolchain-unknown", 2),
        (("push", "ghcr.io/me/cache:1", "--toolchain", "0" * 16), "cache-toolchain-unknown", 2),
    ],
)
def test_what_cannot_be_pushed_is_said_before_anything_is_asked(
    alone: Tfdock, words: tuple[str, ...], code: str, status: int
) -> None:
    alone.run("cache", *words, "--json", code=status, problem=code)
    assert not alone.cache.exists()


def test_a_cache_that_is_still_empty_is_no_error(site: Site, before: Proxy) -> None:
    """As a build leaves it that was cut before it compiled: the job's next step pushes all the same."""
    outcome = site.machine("here").run("push", code=0)
    assert (outcome.document["toolchains"], outcome.document["digest"]) == ([], None)
    assert "nothing is pushed" in outcome.stderr
    assert before.asked == []


def test_packs_that_pile_up_become_one(site: Site, before: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(push_plan, "MOST_PACKS", 5)
    here = site.machine("here", 1)
    here.push()
    counts = []
    for number in range(6):
        add_action(here.disk, f"one more {number}", f"{site.tag} {number}".encode() * 9)
        gone = here.push()["gone"]
        counts.append(len([one for one in manifest(site, before)["layers"] if one["mediaType"] == PACK_TYPE]))
    assert gone == 6
    assert counts == [2, 3, 4, 5, 6, 1]
    there = site.machine("there")
    assert there.pull()["packs"] == 1
    assert there.entries == here.entries


def test_a_name_that_stands_for_an_image_is_left_alone(site: Site) -> None:
    repository = Repository(site.address, REPOSITORY)
    image = Manifest(config=Descriptor.of("application/vnd.oci.image.config.v1+json", b"{}"), layers=())
    StoredCache(ImageRef(REPOSITORY, site.address, site.tag), lambda: None)._upload(image.config, b"{}")
    digest = repository.put_manifest(site.tag, oci.MANIFEST, image.encoded())
    for verb in ("push", "pull"):
        site.machine(verb, 1).run(verb, code=2, problem="reference-no-cache")
    assert repository.digest(site.tag) == digest


# --- killed, and at the same time -----------------------------------------------------------------------------------


def test_a_push_that_is_killed_leaves_nothing_to_be_seen_and_the_next_one_goes_on(site: Site, before: Proxy) -> None:
    here = site.machine("here", 6)
    # Held at the first chunk, when the pack was to be closed, and when the manifest was to be put.
    for number, request in enumerate(("PATCH", "PUT .*uploads", "PUT .*manifests")):
        before.forget()
        before.faults.append(Fault("status", request, times=99, patience="30"))
        running = here.start("push")
        running.until(partial(before.count, request))
        running.process.kill()
        running.finish()
        assert site.machine(f"after {number}").run("pull").code == 7, "there is no such cache yet"
    before.forget()
    here.push()
    assert here.leftovers == [], "what the killed ones left is gone"
    assert site.pulled().entries == here.entries


def test_a_pull_that_is_killed_shows_no_action_without_its_outputs_and_the_next_one_goes_on(
    site: Site, before: Proxy
) -> None:
    here = site.machine("here", 30)
    here.push()
    add_action(here.disk, "a second pack", b"more" * 999)
    here.push()
    there = site.machine("there")
    (second,) = [one["digest"] for one in manifest(site, before)["layers"] if one["mediaType"] == PACK_TYPE][1:]
    before.forget()
    before.faults.append(Fault("status", f"GET .*{second}", times=99, patience="30"))
    running = there.start("pull")
    running.until(lambda: before.count(second) > 0)
    running.process.kill()
    running.finish()
    assert len(there.entries) == 90, "the first pack is whole"
    before.forget()
    assert there.pull()["entries"] == 2
    assert there.entries == here.entries
    assert there.leftovers == []


def test_control_c_ends_a_push_and_keeps_what_was_sent(site: Site, before: Proxy) -> None:
    here = site.machine("here", 3)
    before.faults.append(Fault("status", "PUT .*manifests", times=99, patience="60"))
    running = here.start("push")
    running.until(lambda: before.count("PUT .*manifests") > 0)
    running.end_by(signal.SIGINT, 20, code=130, problem="interrupted")
    assert here.leftovers == []


@pytest.mark.parametrize(
    ("verb", "kind", "request_"),
    [("push", "silent", "PATCH .*uploads"), ("pull", "silent", "GET .*blobs"), ("pull", "stalled", "GET .*blobs")],
)
def test_a_cache_is_stopped_while_a_registry_is_silent(
    site: Site, before: Proxy, verb: str, kind: str, request_: str
) -> None:
    here = site.machine("here", 3)
    if verb == "pull":
        here.push()
        here = site.machine("there")
    before.forget()
    before.faults.append(Fault(kind, request_))
    running = here.start(verb)
    running.until(lambda: before.count(request_))
    running.end_by(signal.SIGINT, 10, code=130, problem="interrupted")
    assert here.leftovers == []


def test_two_who_push_at_once_break_nothing_and_lose_nothing_for_long(site: Site) -> None:
    for round_ in range(3):
        site.tag = f"{site.tag[:12]}-{round_}"
        machines = [site.machine(f"{name}{round_}", 12) for name in "ab"]
        outcomes = [running.finish() for running in [machine.start("push") for machine in machines]]
        assert [outcome.code for outcome in outcomes] == [0, 0], outcomes[0].told + outcomes[1].told
        there = site.machine(f"there{round_}")
        there.pull()
        sets = [machine.entries for machine in machines]
        assert any(there.entries.items() >= one.items() for one in sets)
        for machine in machines:
            machine.push()
        there.pull()
        assert there.entries == sets[0] | sets[1]


def test_who_was_not_quick_enough_puts_both_together(site: Site, before: Proxy, registry: OwnRegistry) -> None:
    """Another push between reading and putting the manifest, by holding the first one there."""
    first, second = site.machine("first", 3), site.machine("second", 3)
    second.address = registry.address  # past the proxy
    before.faults.append(Fault("status", "HEAD .*blobs", times=1, patience="3"))
    running = first.start("push")
    running.until(lambda: before.count("HEAD .*blobs") > 0)
    second.push()
    outcome = running.finish(code=0)
    assert "at the same time" in outcome.stderr
    there = site.pulled()
    assert there.entries == first.entries | second.entries


def test_who_is_never_quick_enough_says_so(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StoredCache, "publish", lambda *_: None)
    status, found = site.machine("here", 1).told("push")
    assert (status, found.code) == (7, "cache-push-raced")


# --- faults ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["status", "reset", "lost"])
@pytest.mark.parametrize("request_", ["POST", "PATCH", "PUT .*uploads", "PUT .*manifests", "HEAD", "GET .*manifests"])
def test_a_push_survives_whatever_fails_once(site: Site, before: Proxy, kind: str, request_: str) -> None:
    here = site.machine("here", 3)
    before.faults.append(Fault(kind, request_))
    here.push()
    assert [fault.times for fault in before.faults] == [0], "it did fail"
    assert site.pulled().entries == here.entries


@pytest.mark.parametrize("kind", ["status", "reset", "lost", "truncated"])
@pytest.mark.parametrize("request_", ["GET .*manifests", "GET .*blobs"])
def test_a_pull_survives_whatever_fails_once(site: Site, before: Proxy, kind: str, request_: str) -> None:
    here = site.machine("here", 3)
    here.push()
    before.faults.append(Fault(kind, request_))
    there = site.pulled()
    assert [fault.times for fault in before.faults] == [0], "it did fail"
    assert there.entries == here.entries


def test_a_download_that_breaks_off_goes_on_where_it_was(site: Site, before: Proxy) -> None:
    here = site.machine("here")
    add_action(here.disk, "large", random.Random(1).randbytes(3_000_000))
    here.push()
    digest = pack_digest(site, before)
    before.forget()
    before.faults.append(Fault("truncated", f"GET .*{digest}"))
    there = site.machine("there")
    figures = there.pull()
    assert there.entries == here.entries
    assert before.count(f"GET .*{digest}") == 2
    assert before.received < 1.2 * figures["received"], "no byte came twice"


def pack_digest(site: Site, before: Proxy) -> str:
    (digest,) = [one["digest"] for one in manifest(site, before)["layers"] if one["mediaType"] == PACK_TYPE]
    assert isinstance(digest, str)
    return digest


# docker-registry 2.8 gives an upload up of which it has got more than it could tell: that one begins anew.
@pytest.mark.parametrize(("kind", "again"), [("reset", CHUNK), ("lost", 3 * CHUNK)])
def test_an_upload_in_chunks_goes_on_after_a_broken_one(site: Site, before: Proxy, kind: str, again: int) -> None:
    here = site.machine("here")
    add_action(here.disk, "large", random.Random(kind).randbytes(3 * CHUNK + 1000))
    before.faults.append(Fault(kind, "PATCH", after=2))
    figures = here.push()
    assert [fault.times for fault in before.faults] == [0], "it did fail"
    assert before.sent < figures["sent"] + again + PER_PACK
    assert site.pulled().entries == here.entries


@pytest.mark.parametrize(
    ("fault", "verb", "code", "asked", "attempts"),
    [
        (Fault("status", "POST", times=99, status=503), "push", "registry-unreachable", "POST", TRIES),
        (Fault("status", "PATCH", times=99, status=503), "push", "registry-unreachable", "PATCH", TRIES),
        (Fault("reset", "PUT .*uploads", times=99), "push", "registry-unreachable", "PUT .*uploads", TRIES),
        (Fault("status", "PUT .*manifests", times=99, status=500), "push", "registry-unreachable", "PUT .*man", 3),
        (Fault("status", "PATCH", times=99, status=429), "push", "registry-rate-limited", "PATCH", TRIES),
        (Fault("status", "POST", times=99, status=403), "push", "registry-denied", "POST", 1),
        (Fault("status", "GET .*manifests", times=99, status=429), "pull", "registry-rate-limited", "GET .*man", 3),
        (Fault("status", "GET .*manifests", times=99, status=403), "pull", "registry-denied", "GET .*man", 1),
        (Fault("status", "GET .*manifests", times=9, status=429, patience="3600"), "pull", "registry-rate-limited",
         "GET .*man", 1),
        (Fault("status", "GET .*blobs", times=99, status=503), "pull", "registry-unreachable", "GET .*blobs", TRIES),
        (Fault("reset", "GET .*blobs", times=99), "pull", "registry-unreachable", "GET .*blobs", TRIES),
        (Fault("status", "GET .*blobs", times=99, status=404), "pull", "image-not-found", "GET .*blobs", 1),
    ],
)  # fmt: skip
def test_what_always_fails_is_tried_so_often_and_told_with_the_registry(
    site: Site, before: Proxy, fault: Fault, verb: str, code: str, asked: str, attempts: int
) -> None:
    here = site.machine("here", 2)
    if verb == "pull":
        site.machine("other", 2).push()
    before.forget()
    before.faults.append(Fault(fault.kind, fault.request, fault.times, fault.status, fault.patience))
    status, found = here.told(verb)
    assert (status, found.code) == (7, code)
    assert before.address in found.message
    assert found.fix
    assert before.count(asked) == attempts
    assert len(here.entries) == 6, "nothing half pulled"


def test_a_registry_that_asks_for_patience_is_given_it(
    site: Site, before: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = site.machine("here", 2)
    before.faults.append(Fault("status", "PATCH", status=429, patience="2"))
    waits: list[float] = []
    monkeypatch.setattr("tfdock.oci.http.wait", lambda seconds, _: waits.append(seconds))
    here.push()
    assert waits == [2.0]


def test_a_byte_that_flips_on_the_way_is_refused_and_nothing_of_it_is_seen(site: Site, before: Proxy) -> None:
    site.machine("here", 3).push()
    digest = pack_digest(site, before)
    before.faults.append(Fault("corrupted", f"GET .*{digest}", times=9))
    there = site.machine("there")
    status, found = there.told("pull")
    assert (status, found.code) == (7, "registry-damaged-content")
    assert digest in found.message
    assert there.entries == {}
    assert before.count(f"GET .*{digest}") == 1, "a retry would fetch the same bytes"


@pytest.mark.parametrize("layer", [0, 1])
def test_a_byte_that_flips_in_the_registrys_store_is_refused_with_the_digest(
    site: Site, before: Proxy, registry: OwnRegistry, layer: int
) -> None:
    site.machine("here", 3).push()
    digest = manifest(site, before)["layers"][layer]["digest"]
    file = registry.blob(digest)
    file.write_bytes(flipped(file.read_bytes()))
    there = site.machine("there")
    outcome = there.run("pull", code=7, problem="registry-damaged-content")
    assert digest in outcome.problem["message"]
    assert there.entries == {}
    assert there.leftovers == []


# --- hostile packs --------------------------------------------------------------------------------------------------


def hostile(site: Site, contents: bytes, layer: bytes) -> Outcome:
    """Put such a cache there, as anybody can who may push, and pull it."""
    repository = Repository(site.address, REPOSITORY)
    stored = StoredCache(ImageRef(REPOSITORY, site.address, site.tag), lambda: None)
    table, pack = Descriptor.of(CONTENTS_TYPE, contents), Descriptor.of(PACK_TYPE, layer)
    for blob, data in ((table, contents), (pack, layer)):
        stored._upload(blob, data)
    shelf = Shelf(packs=(Pack(contents=table, layer=pack, seen=1),), pushes=1, moment=1)
    config, document = Layers(shelves={KEY: shelf}, pushes=1).encoded()
    stored._upload(Descriptor.of(CONFIG_TYPE, config), config)
    repository.put_manifest(site.tag, oci.MANIFEST, document)
    there = site.machine("there")
    outcome = there.run("pull")
    assert there.entries == {}
    assert there.leftovers == []
    assert {path.name for path in there.tfdock.cache.iterdir()} <= {"CACHEDIR.TAG", "disk", "downloads", "locks"}
    return outcome


DATA = b"an object" * 100


def good(toolchain: str = KEY) -> tuple[PackContents, bytes]:
    result = action_result(DATA)
    found = in_order(
        [
            PackEntry(f"cas/{sha256(DATA)[:2]}/{sha256(DATA)}", len(DATA), sha256(DATA)),
            PackEntry(f"ac/00/{'0' * 64}", len(result), sha256(result)),
        ]
    )
    contents = PackContents(toolchain=toolchain, entries=found)
    return contents, b"".join(packs.pack_entries(found, lambda one: [result if one.is_action else DATA]))


def test_a_pack_with_other_bytes_than_its_table_says_is_refused(site: Site) -> None:
    contents, pack = good()
    other = PackContents(toolchain=KEY, entries=contents.entries[:1])
    outcome = hostile(site, other.encoded(), pack)
    assert (outcome.code, outcome.problem["code"]) == (4, "cache-layers-malformed")


def test_a_pack_of_another_toolchain_is_refused(site: Site) -> None:
    contents, pack = good(OTHER)
    outcome = hostile(site, contents.encoded(), pack)
    assert outcome.problem["code"] == "cache-layers-malformed"
    assert OTHER in outcome.problem["message"]


def test_an_action_that_needs_what_nobody_has_is_never_seen(site: Site) -> None:
    result = action_result(b"never pushed")
    entry = PackEntry(f"ac/00/{'0' * 64}", len(result), sha256(result))
    contents = PackContents(toolchain=KEY, entries=(entry,))
    outcome = hostile(site, contents.encoded(), b"".join(packs.pack_entries([entry], lambda _: [result])))
    assert outcome.code == 0
    assert outcome.document["toolchains"][0]["incomplete"] == 1


def test_more_than_the_disk_can_hold_is_refused_before_it_is_asked_for(site: Site, before: Proxy) -> None:
    names = [f"{number:02x}{'0' * 62}" for number in range(256)]
    huge = [PackEntry(f"cas/{name[:2]}/{name}", packs.LARGEST, name) for name in names]
    _, pack = good()
    outcome = hostile(site, PackContents(toolchain=KEY, entries=in_order(huge)).encoded(), pack)
    assert (outcome.code, outcome.problem["code"]) == (8, "disk-full")
    assert before.count(f"GET .*{oci.digest(pack)}") == 0


# --- logins ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["basic", "token"])
@pytest.mark.parametrize("kept", ["config", "helper", "identity helper", "wrong", "nothing", "broken helper"])
def test_a_registry_that_wants_a_login_gets_what_docker_keeps_and_nobody_else_sees_it(
    registry: OwnRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, kept: str
) -> None:
    with guarded(registry, kind) as (address, told):
        site = Site(tmp_path, address, f"login-{kind}-{kept.replace(' ', '-')}")
        here = site.machine("here", 2)
        variables = docker_config(tmp_path / "docker", address, kept)
        here.tfdock = here.tfdock.with_variables(**variables)
        outcome = here.run("push")
        if kept in ("config", "helper") or (kept, kind) == ("identity helper", "token"):
            assert outcome.code == 0, outcome.told
            assert {"basic": basic(), "token": "Bearer t0k3n"}[kind] in {shown for _, shown in told}
            for name, value in variables.items():
                monkeypatch.setenv(name, value)
            digest = outcome.document["digest"]
            assert pins.digest(ImageRef.parse(here.reference)) == digest, "and so has a lock of a private image"
        else:
            expected = "credentials-unreadable" if kept == "broken helper" else "registry-denied"
            assert (outcome.code, outcome.problem["code"]) == (7, expected), outcome.told
        assert PASSWORD not in outcome.told
        assert basic().partition(" ")[2] not in outcome.told
        assert "t0k3n" not in outcome.told


# --- with real builds -----------------------------------------------------------------------------------------------


@pytest.mark.engine
@pytest.mark.limit(300)
def test_an_empty_machine_builds_from_the_registry_and_compiles_nothing_again(
    workshop: Workshop, own: Finished, edited: EditedTree, registry: OwnRegistry, tmp_path: Path
) -> None:
    profile = write_profile(own.profile, workshop.tree(), verify=UNTRIED)
    with proxy(registry.address) as before:
        reference = f"{before.address}/{REPOSITORY}:real"
        built = own.tfdock.run("cache", "push", reference, profile, "--json", code=0)
        (pushed,) = built.document["toolchains"]
        assert pushed["entries"] > 0
        before.forget()
        again = own.tfdock.run("cache", "push", reference, profile, "--json")
        assert again.document["toolchains"][0]["there"] == pushed["entries"]
        assert before.count("^(POST|PUT|PATCH)") == 0

        empty = Tfdock(home=workshop.tfdock().home, cache=tmp_path / "empty", engine=workshop.host)
        pulled = empty.run("cache", "pull", reference, "--json")
        assert pulled.document["toolchains"][0]["entries"] == pushed["entries"]
        second = empty.build(profile, code=0)
        assert second.build["cache"]["executed"] == 0
        assert second.build["wheels"][0]["sha256"] == own.outcome.build["wheels"][0]["sha256"]

        source = "tensorflow/core/kernels/add_op.cc"
        edits = {source: lambda text: f"{text}\n// Another line.\nint tfdock_changed = 42;\n"}
        changed = edited(edits, optimize="native", verify=UNTRIED)
        earlier = {path for path in (empty.cache / "disk").rglob("*") if path.is_file()}
        third = empty.build(changed, code=0)
        assert third.build["cache"]["executed"] > 0
        before.forget()
        delta = empty.run("cache", "push", reference, "--json").document["toolchains"][0]
        new = [path for path in (empty.cache / "disk" / delta["toolchain"]).rglob("*") if path.is_file()]
        size = sum(path.stat().st_size for path in set(new) - earlier)
        assert 0 < delta["size"] <= size
        assert before.sent <= 1.5 * delta["size"] + PER_PACK * delta["packs"]

        kept = delta["native"]
        assert kept > 0, "compiled for a CPU that no key names"
        other = Tfdock(home=workshop.tfdock().home, cache=tmp_path / "other", engine=workshop.host)
        assert other.run("cache", "pull", reference).code == 0
        again = other.build(changed)
        assert again.build["cache"]["executed"] == kept, "what they have led to is the same here, and was pushed"


@pytest.mark.engine
def test_an_old_bazel_builds_from_the_registry_as_well(
    workshop: Workshop, tfdock: Tfdock, registry: OwnRegistry, tmp_path: Path
) -> None:
    source = {"release": "99.15.0", "path": str(workshop.tree("legacy"))}
    profile = write_profile(tmp_path / "legacy.yaml", tensorflow=source)
    first = tfdock.build(profile, code=0)
    reference = f"{registry.address}/{REPOSITORY}:legacy"
    assert tfdock.run("cache", "push", reference, profile).code == 0
    empty = Tfdock(home=workshop.tfdock().home, cache=tmp_path / "empty", engine=workshop.host)
    assert empty.run("cache", "pull", reference).code == 0
    second = empty.build(profile, code=0)
    assert second.build["cache"]["executed"] == 0
    assert second.build["wheels"][0]["sha256"] == first.build["wheels"][0]["sha256"]
