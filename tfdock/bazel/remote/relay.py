"""Relay a Unix socket to one endpoint: the only connection from a compile container to the outside.

The relay runs in this process, so the credentials and this machine's certificates never enter the container. When the
endpoint is lost, the relay answers every request with "not cached". So every version of Bazel continues at once,
instead of repeating 25,000 requests.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tfdock.bazel.remote import relay_grpc, relay_http
from tfdock.bazel.remote.relay_line import BUFFER, CONNECTION_ERRORS, Reader, RelayLine, Writer, close_writer

#: The most connections at once for each endpoint. Bazel makes 100. More could use up the open files of this process.
CONNECTIONS = 128

Serve = Callable[[RelayLine, Reader, Writer], Awaitable[None]]


@contextmanager
def running(lines: dict[str, RelayLine], folder: Path) -> Iterator[None]:
    """Relay until the context ends. Each line has the socket `<folder>/<name>`."""
    # A thread of its own: the main thread waits for the engine meanwhile.
    loop = asyncio.new_event_loop()
    # A daemon, so that a hanging connection does not keep the program from ending.
    thread = threading.Thread(target=loop.run_forever, name="tfdock-relay", daemon=True)
    thread.start()
    servers: list[asyncio.Server] = []
    try:
        for name, line in lines.items():
            serve: Serve = relay_http.serve if line.endpoint.http else relay_grpc.serve
            servers.append(asyncio.run_coroutine_threadsafe(_listen(line, serve, folder, name), loop).result())
        yield
    finally:
        asyncio.run_coroutine_threadsafe(_stop(servers), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
        for name in lines:
            # Closing a server leaves the file of its socket in Python before 3.13.
            (folder / name).unlink(missing_ok=True)


async def _listen(line: RelayLine, serve: Serve, folder: Path, name: str) -> asyncio.Server:
    free = CONNECTIONS

    async def connected(reader: Reader, writer: Writer) -> None:
        nonlocal free
        free -= 1
        try:
            # A connection over the limit is closed at once: while it waits, it takes an open file too.
            if free >= 0:
                await serve(line, reader, writer)
        except (*CONNECTION_ERRORS, asyncio.CancelledError):
            # The client sees its connection close, and retries or continues without the cache. asyncio before
            # 3.12 would print a traceback for a cancelled task.
            pass
        finally:
            free += 1
            await close_writer(writer)

    listener = socket.socket(socket.AF_UNIX)
    # A socket's path is limited to 107 characters, and a cache folder may be deeper. A path relative to the folder is
    # short.
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        path = f"/proc/self/fd/{descriptor}/{name}"
        listener.bind(path)
        Path(path).chmod(0o600)  # everybody who can connect can use the credentials
    finally:
        os.close(descriptor)
    return await asyncio.start_unix_server(connected, sock=listener, limit=BUFFER)


async def _stop(servers: list[asyncio.Server]) -> None:
    """Stop listening, and cancel every connection of the loop."""
    for server in servers:
        server.close()
    await _run_pending()  # a task that is cancelled before it starts closes no connection
    # Leave out this task, which would cancel itself.
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await _run_pending()


async def _run_pending() -> None:
    """Let the loop run its waiting tasks: accepted connections become tasks, closing ones close their sockets."""
    for _ in range(5):
        await asyncio.sleep(0)
