"""forward.py PORT=SOCKET… -- COMMAND…: run COMMAND, with ports on the loopback interface that lead to Unix sockets.

Runs in a container without a network, and on old versions of Python 3. COMMAND replaces this process, and so gets
its signals and gives its exit status. A child process forwards, and ends when COMMAND ends.
"""

import contextlib
import os
import socket
import sys
import threading
import time

PIECE = 1 << 16


def pump(source, target):
    """Copy bytes until `source` ends, then end the writing to `target`. After an error, shut down both."""
    try:
        while True:
            data = source.recv(PIECE)
            if not data:
                break
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        for side in (source, target):
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)


def start(function, *arguments):
    thread = threading.Thread(target=function, args=arguments)
    thread.daemon = True
    thread.start()
    return thread


def connected(client, path):
    """Forward one connection until both directions have ended."""
    with client, contextlib.suppress(OSError, RuntimeError), socket.socket(socket.AF_UNIX) as server:
        server.connect(path)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        back = start(pump, server, client)
        pump(client, server)
        back.join()


def accept(listener, path):
    while True:
        try:
            client, _ = listener.accept()
            with contextlib.ExitStack() as refused:
                refused.callback(client.close)
                start(connected, client, path)
                refused.pop_all()
        except (OSError, RuntimeError):  # no descriptor or thread is free: wait for other connections to end
            time.sleep(0.1)


def main(words):
    split = words.index("--")
    listeners = []
    for pair in words[:split]:
        port, path = pair.split("=", 1)
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", int(port)))
        listener.listen(128)
        listeners.append((listener, path))
    # The command holds the writing end; a program that it starts may inherit this end.
    alive, held = os.pipe()
    if os.fork():
        os.close(alive)
        for listener, _ in listeners:
            listener.close()
        os.set_inheritable(held, True)
        os.execvp(words[split + 1], words[split + 1 :])
    os.close(held)
    os.setsid()  # a signal to the command's process group must not reach this process
    for listener, path in listeners:
        start(accept, listener, path)
    os.read(alive, 1)
    os._exit(0)


main(sys.argv[1:])
