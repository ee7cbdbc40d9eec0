"""Engines that are not this machine's: one with nothing in it and no network, and one behind an address."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import ssl
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from bed import missing, needs_root
from waits import wait_until

from tfdock.engine.docker_engine import DockerEngine

from .harness import closed_port


@contextlib.contextmanager
def empty_engine() -> Iterator[str]:
    """The address of a dockerd with an empty data root, in a network namespace that has no route anywhere."""
    needs_root("an engine without a network")
    if not (shutil.which("dockerd") and shutil.which("unshare")):
        missing("an engine without a network needs unshare and Debian's docker.io")
    # Not tmp_path: a unix socket's path ends at 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="tfdock-empty-"))
    host = f"unix://{folder}/docker.sock"
    places = [f"--data-root={folder}/data", f"--exec-root={folder}/exec", f"--pidfile={folder}/pid"]
    command = ["unshare", "--net", "dockerd", "--host", host, *places, "--bridge=none", "--iptables=false"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--ip6tables=false", "--ip-masq=false"], stdout=log, stderr=log, start_new_session=True
        )
    try:
        # Not asked before it listens: the SDK leaves the socket open of a connection that is refused.
        wait_until(lambda: (folder / "docker.sock").exists() or process.poll() is not None, 60)
        engine = DockerEngine(host)
        wait_until(lambda: engine.ping(30) or process.poll() is not None, 60)
        if process.poll() is not None:
            missing(f"no private dockerd: {(folder / 'log').read_text()[-500:]}")
        yield host
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(30)
        # dockerd mounts its data on itself, and one that is killed leaves that behind.
        while subprocess.run(["umount", "--lazy", folder / "data"], capture_output=True).returncode == 0:
            pass
        shutil.rmtree(folder)


class Gate:
    """A port of the loopback that leads to an engine's socket, until it is shut. It may speak TLS."""

    def __init__(self, socket: str, certificates: Path | None = None) -> None:
        self._socket = socket.removeprefix("unix://")
        self._tls = _server_side(certificates) if certificates else None
        self.address = closed_port()
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        self._is_shut = True
        self._writers: set[asyncio.StreamWriter] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    @property
    def host(self) -> str:
        """As DOCKER_HOST has it."""
        return f"tcp://{self.address}"

    def open(self) -> None:
        self._do(self._listen())

    def shut(self) -> None:
        """Take no connection any more, and break off those that there are."""
        self._do(self._close())

    def close(self) -> None:
        self.shut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()

    def _do(self, work: object) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(30)  # type: ignore[arg-type]

    async def _listen(self) -> None:
        host, _, port = self.address.partition(":")
        self._is_shut = False
        self._server = await asyncio.start_server(self._connected, host, int(port), ssl=self._tls)

    async def _close(self) -> None:
        self._is_shut = True
        for writer in list(self._writers):
            writer.transport.abort()
        # What a closing server has accepted, and no more, asyncio leaves open: who connected waits in vain.
        await asyncio.sleep(0.2)
        if self._server:
            self._server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner, outer = await asyncio.open_unix_connection(self._socket)
        self._writers |= {writer, outer}
        if not self._is_shut:
            await asyncio.gather(_pump(reader, outer), _pump(inner, writer), return_exceptions=True)
        for one in (writer, outer):
            self._writers.discard(one)
            one.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while piece := await reader.read(1 << 16):
            writer.write(piece)
            await writer.drain()
    finally:
        with contextlib.suppress(OSError, RuntimeError):
            writer.close()


def _server_side(folder: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem", folder / "server-key.pem")
    context.load_verify_locations(folder / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def make_certificates(folder: Path) -> Path:
    """A folder as DOCKER_CERT_PATH names one (ca.pem, cert.pem, key.pem), with the server's own pair."""
    if not shutil.which("openssl"):
        missing("certificates are made by openssl")
    folder.mkdir()

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *key, "-keyout", "ca-key.pem", "-out", "ca.pem", "-days", "2", "-subj", "/CN=tests")
    for name, file in (("server", "server"), ("client", "cert")):
        (folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
        own_key = "key.pem" if name == "client" else "server-key.pem"
        openssl("req", *key, "-keyout", own_key, "-out", "request", "-subj", f"/CN={name}")
        signed = ("-CA", "ca.pem", "-CAkey", "ca-key.pem", "-CAcreateserial", "-days", "2", "-extfile", "names")
        openssl("x509", "-req", "-in", "request", *signed, "-out", f"{file}.pem")
    return folder
