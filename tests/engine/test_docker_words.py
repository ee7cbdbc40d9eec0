"""What the Docker implementation makes of an engine's words and bytes; no engine needed."""

from __future__ import annotations

import pytest

from tfdock.engine import docker_engine, engine_archives, streams
from tfdock.engine import engine_errors as engine_words
from tfdock.engine.address import EngineAddress
from tfdock.engine.streams import ImageProgress
from tfdock.errors import DiskFull, EngineError, NetworkError, TfdockError

from .bench import tar


@pytest.mark.parametrize(
    ("words", "error", "code"),
    [
        ("manifest for x/y:z not found: manifest unknown: manifest unknown", NetworkError, "image-not-found"),
        ("pull access denied for x/y, repository does not exist or may require 'docker login': denied: requested "
         "access to the resource is denied", NetworkError, "image-not-found"),
        ("no matching manifest for linux/arm64/v8 in the manifest list entries", NetworkError, "image-not-found"),
        ("toomanyrequests: You have reached your pull rate limit.", NetworkError, "registry-rate-limited"),
        ("unauthorized: authentication required", NetworkError, "registry-denied"),
        ("no basic auth credentials", NetworkError, "registry-denied"),
        ('Get "https://r/v2/": dial tcp: lookup r on 10.0.0.1: no such host', NetworkError, "registry-unreachable"),
        ('Get "https://r/v2/": net/http: TLS handshake timeout', NetworkError, "registry-unreachable"),
        ('Get "https://r/v2/": x509: certificate signed by unknown authority', NetworkError, "registry-unreachable"),
        ('Get "https://r/v2/": server gave HTTP response to HTTPS client', NetworkError, "registry-unreachable"),
        ("received unexpected HTTP status: 503 Service Unavailable", NetworkError, "registry-unreachable"),
        ("unexpected EOF", NetworkError, "registry-unreachable"),
        ("filesystem layer verification failed for digest sha256:0", NetworkError, "registry-damaged-content"),
        ("manifest verification failed for digest sha256:0", NetworkError, "registry-damaged-content"),
        ("write /var/lib/docker/tmp/x: no space left on device", DiskFull, "disk-full"),
        ("invalid reference format", EngineError, "engine-refused"),
    ],
)  # fmt: skip
def test_failed_pull_is_understood_from_the_words_of_the_engine(
    words: str, error: type[TfdockError], code: str
) -> None:
    found = engine_words.registry_refusal("r:5000/x/y:z", words)
    assert type(found) is error
    assert found.problems[0].code == code
    assert found.problems[0].fix
    assert words in found.problems[0].message


@pytest.mark.parametrize(
    ("words", "error", "code"),
    [
        ("An image does not exist locally with the tag: r:5000/x/y", EngineError, "image-missing"),
        ("denied: requested access to the resource is denied", NetworkError, "registry-denied"),
        ("unauthorized: authentication required", NetworkError, "registry-denied"),
        ("received unexpected HTTP status: 503 Service Unavailable", NetworkError, "registry-unreachable"),
        ("toomanyrequests: too many", NetworkError, "registry-rate-limited"),
        ("invalid reference format", EngineError, "engine-refused"),
    ],
)
def test_failed_push_is_understood_from_the_words_of_the_engine(
    words: str, error: type[TfdockError], code: str
) -> None:
    found = engine_words.push_refusal("r:5000/x/y:z", words)
    assert type(found) is error
    assert found.problems[0].code == code
    assert "read" not in found.problems[0].fix, "who pushes writes"
    assert words in found.problems[0].message


def test_words_with_braces_are_only_words() -> None:
    found = engine_words.refusal("start {x}", "bind source path does not exist: /a{b}{0}")
    assert "the folder /a{b}{0} does not exist" in found.problems[0].message


@pytest.mark.parametrize("size", [1, 3, 8, 9, 1000])
def test_frames_are_read_however_they_are_cut(size: int) -> None:
    payloads = [b"one\n", b"", b"x" * 700, b"\x01\0\0\0\0\0\0\x05", b"end"]
    stream = b"".join(b"\x01\0\0\0" + len(payload).to_bytes(4) + payload for payload in payloads)
    pieces = (stream[start : start + size] for start in range(0, len(stream), size))
    assert b"".join(streams.frames(pieces)) == b"".join(payloads)


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_messages_are_read_however_they_are_cut(size: int) -> None:
    stream = '{"stream":"a\\n☃"}\r\n\r\n{"aux":{"ID":"sha256:1"}}\n{"error":"x"}'.encode()
    pieces = (stream[start : start + size] for start in range(0, len(stream), size))
    assert list(streams.messages(pieces)) == [
        {"stream": "a\n☃"},
        {"aux": {"ID": "sha256:1"}},
        {"error": "x"},
    ]


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("x", ("x", "latest")),
        ("r:5000/x", ("r:5000/x", "latest")),
        ("r:5000/x:1", ("r:5000/x", "1")),
        ("r:5000/x@sha256:0", ("r:5000/x", "sha256:0")),
        ("r:5000/x:1@sha256:0", ("r:5000/x", "sha256:0")),
    ],
)
def test_pull_never_asks_for_all_tags(reference: str, expected: tuple[str, str]) -> None:
    assert docker_engine._pull_name(reference) == expected


def test_step_text_printed_by_a_command_is_not_the_image() -> None:
    progress = ImageProgress({"BASE": "r/x:1"})
    progress.take({"stream": "Step 2/3 : FROM ${BASE} AS tools"})
    assert progress.base == "r/x:1"
    progress.take({"stream": "Successfully built 123456789abc\n"})
    assert progress.image == ""
    progress.take({"aux": {"ID": "sha256:1"}})
    assert progress.image == "sha256:1"


def test_first_member_of_an_archive_is_read_and_never_unpacked() -> None:
    archive = tar({"wheel": b"content"})
    assert engine_archives.only_file(iter([archive[:700], archive[700:]]), "/wheel") == b"content"
    with pytest.raises(EngineError, match="not a regular file"):
        engine_archives.only_file(iter([tar({}, {"wheel": "/etc/shadow"})]), "/wheel")


def test_an_address_is_told_without_its_password() -> None:
    told = str(EngineAddress("ssh://me:c2VjcmV0@builder:22", "from DOCKER_HOST"))
    assert told == "ssh://me@builder:22 (from DOCKER_HOST)"
    assert "c2VjcmV0" not in repr(EngineAddress("ssh://me:c2VjcmV0@builder:22", "x"))
