"""What strangers write, changed at random and made huge: each edge answers with its own error, and with no other.

Every case follows from its number: what fails once fails again. What never ends is ended by the test's own limit.
"""

from __future__ import annotations

import gzip
import io
import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from unittest import mock

import pytest

from tfdock.bazel import build_events
from tfdock.builder.build_summary import load_profile
from tfdock.diagnose.diagnose_logs import diagnose_log
from tfdock.errors import TfdockError
from tfdock.host.foreign_json import Malformed
from tfdock.images import wheel_image_read
from tfdock.knowledge import loader
from tfdock.matrix import matrix_file
from tfdock.oci.manifest import MANIFEST, Manifest
from tfdock.offline import bundle_format
from tfdock.plan import lock_file
from tfdock.profile import profile
from tfdock.wheel.facts import WheelError
from tfdock.wheel.inspection import inspect_wheel, toolkit_extra
from tfdock.wheel.requirements import wanted
from tfdock.wheelhouse import catalogue
from tfdock.wheelhouse.build_record import read_record
from tfdock.wheelhouse.store import Wheelhouse

from . import small_wheels
from .images.test_wheel_image_read import record
from .offline.test_bundle import index_of
from .small_wheels import DOCUMENTS, INFO, NAME

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FEW, MANY = 40, 600  #: Changed texts for each edge: in the suite, and in the soak.


@dataclass(frozen=True)
class Edge:
    """What a stranger writes, what reads it, and the errors that are its answer."""

    texts: tuple[bytes, ...]
    read: Callable[[bytes], object]
    answers: type[Exception] | tuple[type[Exception], ...] = ()


# --- what is read ---------------------------------------------------------------------------------------------------

BUILD_INFO = (
    b"import collections\nbuild_info = collections.OrderedDict([('cuda_version', '12.5'), ('is_cuda_build', True)])\n"
)
FILES = {"tensorflow/__init__.py": b"", "tensorflow/python/platform/build_info.py": BUILD_INFO}
LOCK = f"""schema: 1
profile: a.yaml
build_id: tf2.18
fingerprint: "{"a" * 64}"
knowledge: "2026"
choices: {{python: "3.11"}}
pins:
- {{pin: base, name: "ubuntu:22.04", value: "sha256:{"b" * 64}", from: registry}}
- {{pin: source, name: "v2.18.0", value: "{"c" * 40}", from: git}}
"""
DIGEST = "sha256:" + "a" * 64
LAYERS = [
    {"mediaType": "application/vnd.tfdock.wheel.layer", "digest": DIGEST, "size": size} for size in (2048, 4096)
]
CONFIG = {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": DIGEST, "size": 10}
IMAGE = {"schemaVersion": 2, "mediaType": MANIFEST, "config": CONFIG, "layers": LAYERS, "annotations": {"a": "b"}}
LABELS = {
    "os": "linux",
    "architecture": "amd64",
    "config": {"Labels": {"io.tfdock.wheels": "[]"}},
    "rootfs": {"diff_ids": [DIGEST]},
}


def read_wheel(data: bytes) -> None:
    found = inspect_wheel(io.BytesIO(data), NAME, traces=(b"x",))
    wanted(found.metadata.requires_dist, found.metadata.provides_extra)
    toolkit_extra(io.BytesIO(data))


def in_wheel(name: str) -> Edge:
    """A document of a wheel whose archive is sound."""

    def read(data: bytes) -> None:
        with mock.patch.dict(DOCUMENTS, {name: data}):
            read_wheel(small_wheels.wheel_of(FILES))

    return Edge((DOCUMENTS.get(name, BUILD_INFO),), read, WheelError)


def read_manifest(data: bytes) -> None:
    wheel_image_read.is_reencoded(data)
    wheel_image_read.says_wheels(data)
    for read in (wheel_image_read.platforms, Manifest.read, lambda text: wheel_image_read.read_labels(WHOLE, text)):
        with suppress(Malformed):
            read(data)


WHOLE = Manifest.read(json.dumps(IMAGE).encode())


def read_bundle(data: bytes) -> None:
    with suppress(bundle_format.BundleError):
        bundle_format.index_size(data[:512])
    bundle_format.from_text(data)


def read_log(data: bytes) -> None:
    knowledge = loader.knowledge()
    diagnose_log(io.BytesIO(data), knowledge, name="x.log")


def read_bazel(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    build_events.read_events(text.splitlines())
    build_events.read_output(text.splitlines())


def of_bazel(kind: str) -> tuple[bytes, ...]:
    return tuple(path.read_bytes()[:30_000] for path in sorted((HERE / "data/bazel").glob(f"*{kind}.json")))


def logs() -> tuple[bytes, ...]:
    lines = b"".join(path.read_bytes() for path in sorted((HERE / "data/logs").iterdir())).splitlines(keepends=True)
    some = [b"".join(lines[start : start + 60]) for start in range(0, len(lines), 60)][:200]
    return *some, gzip.compress(some[0]), some[1].decode("utf-8", "replace").encode("utf-16")


def names() -> dict[str, str]:
    return dict.fromkeys(("text", "patch", "lock", "wheel", "images", "cached"), "0" * 64)


PROFILES = tuple(path.read_bytes() for path in sorted((ROOT / "profiles").glob("*.yaml")) if path.stem != "matrix")
EDGES = {
    "a wheel": Edge((small_wheels.wheel_of(FILES),), read_wheel, WheelError),
    "METADATA": in_wheel(f"{INFO}/METADATA"),
    "WHEEL": in_wheel(f"{INFO}/WHEEL"),
    "build_info.py": in_wheel("tensorflow/python/platform/build_info.py"),
    "RECORD": Edge(
        (b"tensorflow/__init__.py,sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU,0\nx/RECORD,,\n",),
        lambda data: read_wheel(small_wheels.wheel_of(FILES, data.decode("latin-1"))),
        WheelError,
    ),
    "a requirement": Edge(
        (b"numpy<2.1,>=1.26; python_version >= '3.9' and extra == 'more'", b"a[b,c] @ https://example.org/x.whl"),
        lambda data: read_wheel(small_wheels.wheel_of(FILES, requires=data.decode("latin-1").replace("\n", " "))),
        WheelError,
    ),
    "a record": Edge((json.dumps(record()).encode(),), read_record, Malformed),
    "a manifest": Edge(tuple(json.dumps(one).encode() for one in (IMAGE, LABELS)), read_manifest),
    "the index of a bundle": Edge(
        (bundle_format.to_text(index_of(names())),), read_bundle, bundle_format.BundleError
    ),
    "a lock": Edge(
        (LOCK.encode(),), lambda data: lock_file.from_text(data.decode("utf-8", "replace"), "x"), TfdockError
    ),
    "a profile": Edge(PROFILES, lambda data: profile.read(data.decode("utf-8", "replace"), "x.yaml"), TfdockError),
    "a matrix": Edge(
        ((ROOT / "ci/examples/profiles/matrix.yaml").read_bytes(),),
        lambda data: matrix_file.read(
            data.decode("utf-8", "replace"), "m.yaml", {"base.yaml": PROFILES[0].decode()}, "base.yaml"
        ),
        TfdockError,
    ),
    "a log": Edge(logs(), read_log, TfdockError),
    "Bazel's events": Edge(of_bazel("events"), read_bazel),
}

# --- how it is changed ----------------------------------------------------------------------------------------------

NUMBERS = (0, 1, 127, 255, 4096, 65_535, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 53, (1 << 63) - 1, 1 << 64, -1)
WORDS = (
    b"\0", b"\xff", b"\n", b"\r\n", b"\x1b[31m", b"../", b"/etc/passwd", b"-1", b"1e999", b"NaN", b"null", b"true",
    b"[]", b"{}", b'"', b"'", b"\\", b": ", b"- ", b"? ", b"!!", b"&a ", b"*a", b"<<: ", b"|\n", b"#", b"0x1f",
    b"1_000", b"2001-01-01", b"\xef\xbb\xbf", "\N{GRINNING FACE}\N{LINE SEPARATOR}\N{SUPERSCRIPT TWO}".encode(),
    b"A" * 300, b"9" * 25,
    b"\xed\xa0\x80", b"%s", b"${{x}}", b".", b"=", b",", b"\t", b";", b"\x1f\x8b\x08", b"PK\x05\x06",
)  # fmt: skip
_TOKEN = re.compile(rb"[A-Za-z0-9_.]+")


def changed(random: Random, text: bytes, others: tuple[bytes, ...]) -> bytes:
    """A text with a few bytes, words, numbers and parts removed, repeated, or replaced by others."""
    data = bytearray(text)
    for _ in range(random.choice((1, 1, 1, 2, 3, 5, 9))):
        at = random.randrange(len(data) + 1)
        end = min(len(data), at + random.choice((1, 2, 8, 64, 500)))
        part = bytes(data[at:end])
        match random.randrange(7):
            case 0:
                data[at:end] = random.randbytes(len(part))
            case 1:
                del data[at:end]
            case 2:
                data[at:at] = part * random.choice((1, 2, 50))
            case 3:
                data[at : at + random.choice((0, 1, 4))] = random.choice(WORDS)
            case 4:
                other = random.choice(others)
                start = random.randrange(len(other) + 1)
                data[at:at] = other[start : start + random.choice((1, 16, 200))]
            case 5:
                width = random.choice((1, 2, 4, 8))
                number = random.choice(NUMBERS) + random.choice((-1, 0, 1))
                data[at : at + width] = (number % (1 << 8 * width)).to_bytes(width, "little")
            case _:
                tokens = list(_TOKEN.finditer(data))
                if tokens:
                    token = random.choice(tokens)
                    data[token.start() : token.end()] = random.choice(
                        (*WORDS, *(str(one).encode() for one in NUMBERS))
                    )
    return bytes(data)


def huge(text: bytes) -> Iterator[tuple[str, bytes]]:
    """What no person writes: nesting, digits, lines and repetitions without measure, at several places of a text."""
    large, middle = 300_000, len(text) // 2
    tokens = [token.span() for token in _TOKEN.finditer(text)]
    places = [(0, 0), (middle, middle), (len(text), len(text)), *tokens[:: max(1, len(tokens) // 4)]]
    fillings = {
        "brackets": b"[" * large, "braces": b'{"a":' * large, "pairs": b"[]," * large, "parentheses": b"(" * large,
        "digits": b"9" * 5_000, "many digits": b"9" * large, "dots": b"1." * large, "lines": b"\n" * large,
        "keys": b"".join(b"k%d: v\n" % number for number in range(20_000)), "a long word": b"a" * large,
        "spaces": b" " * large, "quotes": b'"' * large, "a header again": b"A: b\n" * 60_000,
        "messages in messages": b"Content-Type: message/rfc822\n\n" * 20_000, "ands": b" and a" * 60_000,
        "packed": gzip.compress(gzip.compress(bytes(30_000_000))),
    }  # fmt: skip
    for name, filling in fillings.items():
        for start, end in places:
            yield f"{name} at {start}", text[:start] + filling + text[end:]


def answered(edge: Edge, data: bytes, case: str) -> None:
    try:
        edge.read(data)
    except edge.answers:
        pass
    except Exception as error:
        error.add_note(f"{case}: {len(data)} bytes, {data[:300]!r}")
        raise


@pytest.mark.slow
@pytest.mark.limit(600)
@pytest.mark.parametrize("count", [FEW, MANY], ids=["few", "many"])
@pytest.mark.parametrize("name", EDGES)
def test_a_text_that_is_changed_at_random_is_read_or_refused_as_its_kind(name: str, count: int) -> None:
    edge = EDGES[name]
    for number in range(count):
        random = Random(f"{name} {number}")
        answered(edge, changed(random, random.choice(edge.texts), edge.texts), f"case {number}")


@pytest.mark.slow
@pytest.mark.limit(600)
@pytest.mark.parametrize("name", EDGES)
def test_a_text_without_measure_is_read_or_refused_as_its_kind(name: str) -> None:
    for case, data in huge(EDGES[name].texts[0]):
        answered(EDGES[name], data, case)


@pytest.mark.slow
@pytest.mark.limit(600)
@pytest.mark.parametrize("count", [FEW, MANY], ids=["few", "many"])
def test_files_of_a_wheelhouse_that_are_changed_at_random_keep_no_other_file_out(tmp_path: Path, count: int) -> None:
    house = Wheelhouse(tmp_path)
    sound = json.dumps(record()).encode()
    build_id = record()["build_id"]
    for name in ("111111111111", "222222222222"):
        (tmp_path / ".tfdock" / build_id / name).mkdir(parents=True)
    (tmp_path / ".tfdock" / build_id / "111111111111/record.json").write_bytes(sound)
    for number in range(count):
        random = Random(number)
        (tmp_path / ".tfdock" / build_id / "222222222222/record.json").write_bytes(changed(random, sound, (sound,)))
        (tmp_path / ".tfdock/index.json").write_bytes(changed(random, b'{"schema": "x", "wheels": {}}', (sound,)))
        (tmp_path / NAME).write_bytes(changed(random, small_wheels.wheel_of(FILES), (sound,)))
        assert [one for one in house.records() if one["fingerprint"] == record()["fingerprint"]]
        catalogue.list_wheels(house, lambda: ["cuda"])


@pytest.mark.slow
@pytest.mark.limit(600)
@pytest.mark.parametrize("count", [FEW, MANY], ids=["few", "many"])
def test_a_trace_profile_that_is_changed_at_random_or_without_measure_is_read(tmp_path: Path, count: int) -> None:
    file, texts = tmp_path / "profile", of_bazel("profile")
    for number in range(count):
        random = Random(number)
        data = changed(random, random.choice(texts), texts)
        file.write_bytes(gzip.compress(data, 1) if number % 2 else data)
        load_profile(file)
    for _, data in huge(texts[0]):
        file.write_bytes(data)
        load_profile(file)
