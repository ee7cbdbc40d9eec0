"""sample.py SERVER FOLDER SECONDS: record what a program with a profiler server does, into a folder.

SERVER is the `host:port` of a program that called `tf.profiler.experimental.server.start(port)`.
"""

import socket
import sys

from xprof.convert import _pywrap_profiler_plugin

# At level 3, graph operations have the shapes of their inputs.
LEVELS = {"host_tracer_level": 3, "python_tracer_level": 0, "device_tracer_level": 1, "delay_ms": 0}


def main(server, folder, seconds):
    try:
        _pywrap_profiler_plugin.trace(server, folder, "", True, int(seconds) * 1000, 1, LEVELS)
    except RuntimeError as error:
        sys.exit(refusal(server) or str(error))


def refusal(server):
    """Return why the server cannot be reached, which xprof does not say; empty if the server answers."""
    host, _, port = server.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), 5).close()
    except OSError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    main(*sys.argv[1:])
