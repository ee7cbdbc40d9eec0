"""Handle streams to and from an engine: output, input and the progress of an image build.

An engine that is only silent is distinguished from an engine that hangs.
"""

from __future__ import annotations

import contextlib
import json
import re
import string
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import requests

from tfdock.engine.engine_errors import registry_refusal, speaks_of_full_disk, step_refusal
from tfdock.engine.protocol import Cancel
from tfdock.errors import BuildFailed, Interrupted, OutOfMemory, Problem, TfdockError


def break_off(response: requests.Response) -> None:
    """Wake a thread that waits for data of the response. Closing the response would not wake the thread."""
    with contextlib.suppress(OSError, RuntimeError, ValueError):  # the response has ended, or was closed
        response.raw.shutdown()


class StreamWatch:
    """Ends a silent stream if the engine does not answer a ping.

    A frozen engine keeps its connections open, so a build on it is silent forever, without an error. A read timeout
    does not help, because a compiler may be silent for an hour.
    """

    def __init__(self, response: requests.Response, alive: Callable[[], bool], silence: float) -> None:
        self.hung = False
        self._response, self._alive, self._silence = response, alive, silence
        self._heard = time.monotonic()
        self._done = threading.Event()
        # A daemon, because a ping that hangs must not keep the program from ending.
        self._thread = threading.Thread(target=self._run, name="engine-watch", daemon=True)
        self._thread.start()

    def heard(self) -> None:
        self._heard = time.monotonic()

    def stop(self) -> None:
        self._done.set()

    def _run(self) -> None:
        while not self._done.wait(self._silence / 2):
            if time.monotonic() - self._heard >= self._silence and not self._answers():
                self.hung = True
                break_off(self._response)
                return

    def _answers(self) -> bool:
        # Three times, because a machine that swaps may miss one ping.
        return any(self._alive() or self._done.wait(1) for _ in range(3))


def body_chunks(response: requests.Response) -> Iterator[bytes]:
    """Yield the body as it arrives.

    A read of a fixed size waits for all bytes, so fixed sizes are only for unchunked bodies.
    """
    chunked = getattr(response.raw, "chunked", False)
    return iter(response.iter_content(None if chunked else 1 << 16))


def messages(chunks: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the JSON messages of a stream.

    The messages' text is not reliable: at the borders of 32 KiB pieces, the engine replaces characters by U+FFFD.
    """
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (json.loads(line) for line in lines if line.strip())
    # The last message may lack its line break.
    if rest.strip():
        yield json.loads(rest)


def frames(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the data of a multiplexed stream. A frame: stream number (1 byte), padding (3), length (4), data."""
    buffer, left = bytearray(), 0
    for chunk in chunks:
        buffer += chunk
        while buffer:
            if left == 0:
                if len(buffer) < 8:
                    break
                left = int.from_bytes(buffer[4:8])
                del buffer[:8]
                continue
            piece = bytes(buffer[:left])
            del buffer[:left]
            left -= len(piece)
            yield piece


def skip_bytes(skip: int, pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Leave out the first `skip` bytes, and yield the rest of the pieces."""
    for piece in pieces:
        if skip < len(piece):
            yield piece[skip:]
        skip = max(0, skip - len(piece))


class EngineUpload:
    """An upload to the engine: a build context, images or files. `error` keeps an error of the source.

    urllib3 replaces an OSError of the source by its own "Connection aborted", as if the engine had failed.
    """

    def __init__(self, chunks: Iterator[bytes], cancel: Cancel) -> None:
        self.error: BaseException | None = None
        self._chunks, self._cancel = chunks, cancel

    def __iter__(self) -> Iterator[bytes]:
        try:
            for chunk in self._chunks:
                if self._cancel:
                    raise stopped_error()
                # An empty piece would end the chunked body (RFC 9112, 7.1).
                if chunk:
                    yield chunk
        # GeneratorExit is not caught: it only means that the reader has stopped.
        except Exception as error:
            self.error = error
            raise


def stopped_error() -> Interrupted:
    return Interrupted.of(code="interrupted", message="the engine's work was stopped on request")


def wait_forever(response: requests.Response) -> None:
    """Remove the read timeout that was set for the headers. From now on, a StreamWatch checks the engine."""
    sock = getattr(getattr(response.raw, "connection", None), "sock", None)
    if sock is not None:
        sock.settimeout(None)


# The classic builder prints these lines, podman `STEP 1/2: …`. Their messages have no field for step and container.
_STEP = re.compile(r"(?:Step \d+/\d+ |STEP \d+/\d+): (.*)", re.DOTALL)
#: podman's text for a failed command of a step: podman's messages have no field for the exit code.
_ENDED = re.compile(r'building at STEP ".*": while running runtime: exit status (\d+)', re.DOTALL)
_RUNNING = re.compile(r" ---> Running in ([0-9a-f]{12})\s*\Z")


@dataclass(slots=True)
class ImageProgress:
    """The progress of a build, from the engine's own messages."""

    build_args: Mapping[str, str]
    step: str = ""
    container: str = ""
    image: str = ""
    full: bool = False

    def take(self, message: Mapping[str, Any]) -> None:
        # The id comes from `aux`; the SDK's high level takes it from the log text, which any RUN can print.
        self.image = (message.get("aux") or {}).get("ID", self.image)
        text = message.get("stream", "")
        self.full = self.full or speaks_of_full_disk(text)
        if step := _STEP.match(text):
            # A full disk is an error of the failed step only: earlier steps continued despite it.
            self.step, self.full = step[1].strip(), False
        elif running := _RUNNING.match(text):
            self.container = running[1]

    @property
    def base(self) -> str | None:
        """The image of a FROM step, with the build arguments filled in."""
        words = string.Template(self.step).safe_substitute(self.build_args).split()
        return words[1] if len(words) > 1 and words[0].upper() == "FROM" else None


def exit_code(message: Mapping[str, Any]) -> int | None:
    """Return the exit code of the failed command in an image step; None if the engine refused the step."""
    detail = message.get("errorDetail") or {}
    ended = _ENDED.search(detail.get("message") or "")
    code: int | None = detail.get("code")
    return int(ended[1]) if code is None and ended else code


def step_failed(step: str, words: str, code: int | None) -> BuildFailed:
    ending = f"with exit code {code}" if code is not None else f"({words})"
    return BuildFailed(
        Problem("image-step-failed", f"the image step `{step}` failed {ending}", "its output above shows the cause"),
        status=code,
    )


def step_killed(step: str) -> OutOfMemory:
    return OutOfMemory.of(
        "image-step-out-of-memory",
        f"the kernel killed the image step `{step}` because memory ran out",
        "increase `resources.memory` in the profile, or give the machine more memory",
    )


def build_refusal(progress: ImageProgress, words: str, program: str) -> TfdockError | None:
    """Return the error of a build without a failed command: of FROM's registry, the disk or the Dockerfile."""
    if progress.base:
        return registry_refusal(progress.base, words, program)
    return step_refusal(progress.step, words, program)
