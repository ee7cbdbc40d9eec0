"""A registry of the tests' own, whose files can be reached; a proxy that counts and fails; made-up caches."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import re
import shutil
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from email.message import Message
from pathlib import Path

from bed import missing
from servers import Handler, serving
from waits import wait_until

from .harness import closed_port, connects

REPOSITORY = "ci/cache"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRegistry:
    """A docker-registry and the folder of its files."""

    address: str
    folder: Path

    def blob(self, digest: str) -> Path:
        """The file of a blob."""
        sha256 = digest.removeprefix("sha256:")
        return self.folder / "docker/registry/v2/blobs/sha256" / sha256[:2] / sha256 / "data"

    def asked(self, path: str, accept: str = "application/vnd.oci.image.manifest.v1+json") -> tuple[int, bytes]:
        """What it answers, for instance to `/v2/ci/cache/manifests/main`: status and body."""
        connection = http.client.HTTPConnection(self.address, timeout=60)
        connection.request("GET", path, headers={"Accept": accept})
        response = connection.getresponse()
        data = response.read()
        connection.close()
        return response.status, data

    def get(self, path: str) -> bytes:
        status, data = self.asked(path)
        assert status == 200, data
        return data


@contextlib.contextmanager
def own_registry(folder: Path) -> Iterator[OwnRegistry]:
    """Debian's docker-registry, on a port and with a folder of its own."""
    program = shutil.which("docker-registry")
    if program is None:
        missing("no docker-registry on this machine (Debian's package of that name; the bed installs it)")
    address = closed_port()
    folder.mkdir(parents=True)
    file = folder / "registry.yml"
    file.write_text(
        f"version: 0.1\nlog: {{level: error}}\nhttp: {{addr: '{address}'}}\n"
        f"storage: {{filesystem: {{rootdirectory: '{folder}'}}, delete: {{enabled: true}}}}\n"
    )
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([program, "serve", str(file)], stdout=log, stderr=log)
    try:
        wait_until(lambda: connects(address), process=process)
        yield OwnRegistry(address=address, folder=folder)
    finally:
        process.terminate()
        process.wait(30)


# --- a proxy that counts and fails ----------------------------------------------------------------------------------


@dataclass
class Fault:
    """What happens to requests like this one: so many times, then no more.

    `kind`: `status` (an answer of that status), `silent` (the body is not read and no answer comes), `reset` (the
    connection dies before the request is passed on), `lost` (after it), `torn` (in the middle of the answer),
    `truncated` (half an answer), `stalled` (the other half never comes), `corrupted` (one bit of it is another),
    `spoiled` (one bit of the request is).
    """

    kind: str
    request: str  #: A regular expression of method and path: `PATCH .*uploads`.
    times: int = 1
    status: int = 503
    patience: str = "0"
    after: int = 0  #: So many requests pass first.


@dataclass
class Proxy:
    """What was asked, what passed, and what is to go wrong."""

    address: str = ""
    faults: list[Fault] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    sent: int = 0  #: Bytes of requests: lines, headers and bodies.
    received: int = 0  #: Bytes of bodies of answers.
    lock: threading.Lock = field(default_factory=threading.Lock)
    #: Set at the end of the test. A silent answer waits for it.
    over: threading.Event = field(default_factory=threading.Event)

    def count(self, pattern: str) -> int:
        """How many requests were like this."""
        return sum(1 for one in self.asked if re.search(pattern, one))

    def forget(self) -> None:
        """Begin anew."""
        self.asked.clear()
        self.faults.clear()
        self.sent = self.received = 0

    def fault(self, request: str) -> Fault | None:
        """What happens to this one."""
        for fault in self.faults:
            if fault.times and re.search(fault.request, request):
                fault.after -= 1
                if fault.after < 0:
                    fault.times -= 1
                    return fault
        return None


@contextlib.contextmanager
def proxy(upstream: str, host: str = "127.0.0.1") -> Iterator[Proxy]:
    """A proxy before a registry, at an address of this machine."""
    state = Proxy()
    handler = type("Handler", (_Forwarder,), {"state": state, "upstream": upstream})
    with serving(handler, host) as state.address:
        try:
            yield state
        finally:
            state.over.set()


class _Forwarder(Handler):
    state: Proxy
    upstream: str

    def respond(self) -> None:
        request = f"{self.command} {self.path}"
        with self.state.lock:
            self.state.asked.append(request)
            fault = self.state.fault(request)
        if fault and fault.kind == "silent":
            # A request that is not read hides that who asked has gone.
            self.state.over.wait()
            self.close_connection = True
            return
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with self.state.lock:
            self.state.sent += len(self.requestline) + len(bytes(self.headers)) + len(body)
        if fault and fault.kind == "reset":
            self._reset()
            return
        if fault and fault.kind == "status":
            self._answer(fault.status, [("Retry-After", fault.patience)], b"", 0)
            return
        if fault and fault.kind == "spoiled":
            body = flipped(body)
        status, headers, data, length = forwarded(self, self.upstream, body)
        if fault and fault.kind == "lost":
            self._reset()
        elif fault and fault.kind in ("truncated", "torn", "stalled"):
            self._answer(status, headers, data[: len(data) // 2], length)
            if fault.kind == "torn":
                self._reset()
            elif fault.kind == "stalled":
                self.connection.recv(1)  # until who asked has gone
        elif fault and fault.kind == "corrupted":
            self._answer(status, headers, flipped(data), length)
        else:
            self._answer(status, headers, data, length)

    def _answer(self, status: int, headers: list[tuple[str, str]], data: bytes, length: int) -> None:
        with self.state.lock:
            self.state.received += len(data)
        with contextlib.suppress(OSError):
            self.answer(status, data, headers, length)
        self.close_connection = True

    def _reset(self) -> None:
        # No linger: the kernel says RST, as a machine does that has gone down.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True

    def finish(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            super().finish()


Answer = tuple[int, list[tuple[str, str]], bytes, int]  #: Status, headers, body, and the length that was said of it.


def forwarded(request: Handler, upstream: str, body: bytes) -> Answer:
    """What the server behind us answers to a request."""
    connection = http.client.HTTPConnection(upstream, timeout=60)
    # With the proxy's own Host, so that the registry sends us back here.
    connection.request(request.command, request.path, body, all_headers(request.headers))
    response = connection.getresponse()
    data = response.read()
    connection.close()
    headers = [one for one in response.getheaders() if one[0].lower() not in ("content-length", "connection")]
    return response.status, headers, data, int(response.getheader("Content-Length") or 0)


def all_headers(message: Message) -> dict[str, str]:
    """Those that come several times in one: a registry that lost all but the last Accept would answer otherwise."""
    return {name: ", ".join(message.get_all(name, ())) for name in message.keys()}  # noqa: SIM118 (no mapping)


def flipped(data: bytes) -> bytes:
    """The same but for one bit."""
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


# --- made-up caches -------------------------------------------------------------------------------------------------


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def action_result(*outputs: bytes) -> bytes:
    """An entry of the action cache that names these outputs, as Bazel writes it."""
    files = (_field(2, _field(1, b"out") + _field(2, _digest(data))) for data in outputs)
    return b"".join(files)


def _digest(data: bytes) -> bytes:
    return _field(1, sha256(data).encode()) + _varint(2 << 3) + _varint(len(data))


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    more = value >> 7
    return bytes([value & 0x7F | (0x80 if more else 0)]) + (_varint(more) if more else b"")


def add_action(disk: Path, name: str, *outputs: bytes) -> list[Path]:
    """Put an action and what it left into a disk cache, as Bazel 4 does; the files, the action's first."""
    found = {f"ac/{sha256(name.encode())}": action_result(*outputs)}
    found |= {f"cas/{sha256(data)}": data for data in outputs}
    files = []
    for key, data in found.items():
        kind, _, digest = key.partition("/")
        path = disk / kind / digest[:2] / digest
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        files.append(path)
    return files


def entries(disk: Path) -> dict[str, bytes]:
    """All that Bazel would see in a disk cache."""
    return {path.relative_to(disk).as_posix(): path.read_bytes() for path in disk.rglob("*") if path.is_file()}
