"""The programs that run where xprof is, with stand-ins for what they import of it."""

from __future__ import annotations

import gzip
import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tfdock.knowledge import loader

EVENT = '{"ph": "X", "name": "MatMul", "ts": 1, "dur": 2, "args": {"shape": "(float[8])", "uid": "9"}}'
CONVERT = """
def xspace_to_tool_data(paths, tool, options):
    return ({text!r} if tool == "trace_viewer" else None), "application/json"
"""


def run(folder: Path, program: str, *words: str, **modules: str) -> subprocess.CompletedProcess[str]:
    """Run a program of `trace` with these modules of xprof; the name of one within a package has `__` for a dot."""
    for name, text in modules.items():
        file = folder.joinpath("site/xprof", *name.split("__")).with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    command = [sys.executable, "-c", loader.templates()[f"trace/{program}.py"], *words]
    return subprocess.run(
        command, env={"PYTHONPATH": str(folder / "site")}, cwd=folder, text=True, capture_output=True, timeout=60
    )


@pytest.mark.parametrize("end", [",\n{}]}\n", "]}", "\n]\n}"])
def test_the_timeline_ends_as_perfetto_wants_it(tmp_path: Path, end: str) -> None:
    text = f'{{"displayTimeUnit": "ns",\n"traceEvents": [\n{EVENT}{end}'
    run(tmp_path, "read", "profile", ".", convert__raw_to_tool_data=CONVERT.format(text=text)).check_returncode()
    timeline = json.loads(gzip.decompress((tmp_path / "timeline.json.gz").read_bytes()))
    assert timeline["traceEvents"] == [json.loads(EVENT)]
    assert [*timeline][-1] != "traceEvents"
    (event,) = json.loads((tmp_path / "trace_viewer.json").read_text())["traceEvents"]
    assert event["args"] == {"shape": "(float[8])"}


SERVER = """
import http.server, os
TBContext = lambda folder, provider, flags: __import__("types").SimpleNamespace(folder=folder)
TBContext.Flags = bool
DataProvider = str
class ProfilePluginLoader:
    def load(self, context):
        assert context.hide_capture_profile_button
        return context
make_wsgi_app = bool
class wsgi:
    class Server:
        def __init__(self, address, app):
            self.address = address
        def prepare(self):
            self.bind_addr = self.address[0], 8791
        def serve(self):
            print(open("address").read(), os.listdir("."))
"""


def test_the_page_is_served_to_this_machine_only(tmp_path: Path) -> None:
    done = run(tmp_path, "page", ".", __init__="", server=SERVER)
    assert done.stdout.split()[0] == "http://127.0.0.1:8791/", done.stderr


TRACE = """
def trace(*words):
    print(words)
"""


def test_a_running_program_is_recorded_with_the_shapes_of_inputs(tmp_path: Path) -> None:
    done = run(tmp_path, "sample", "host:2", "logs", "3", convert___pywrap_profiler_plugin=TRACE)
    assert "('host:2', 'logs', '', True, 3000, 1, {'host_tracer_level': 3," in done.stdout, done.stderr


def test_a_port_where_nobody_listens_is_told_from_one_that_is_no_profiler(tmp_path: Path) -> None:
    program = "def trace(*words):\n    raise RuntimeError('UNAVAILABLE: no responses')\n"
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        open_ = run(tmp_path, "sample", address, "logs", "3", convert___pywrap_profiler_plugin=program)
    closed = run(tmp_path, "sample", address, "logs", "3")
    assert (open_.returncode, open_.stderr) == (1, "UNAVAILABLE: no responses\n")
    assert (closed.returncode, closed.stderr) == (1, "[Errno 111] Connection refused\n")


def test_a_tensorflow_that_is_too_old_is_told(tmp_path: Path) -> None:
    for name, text in {"__init__.py": "__version__ = '2.3.0'", "python/profiler/__init__.py": ""}.items():
        file = tmp_path / "site/tensorflow" / name
        file.parent.mkdir(parents=True)
        file.write_text(text)
    (tmp_path / "train.py").write_text("try:\n import tensorflow\nexcept ImportError:\n print('goes on')")
    request = {"folder": str(tmp_path), "skip": 1, "steps": 1, "seconds": 1}
    done = run(tmp_path, "capture", json.dumps(request), "train.py")
    says = "tfdock trace: TensorFlow 2.3.0 cannot be recorded, only 2.4 and newer\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", says)
    assert not (tmp_path / "capture.json").exists()
