"""Let xprof read, show or record a profile, in a separate process and possibly with another Python."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib.machinery import PathFinder
from pathlib import Path

from tfdock.errors import ProfileError, VerificationFailed
from tfdock.host.hardware import ask, last_line, wait_ticking
from tfdock.host.supervise import Stop, Stopper
from tfdock.host.untrusted_folders import TooLarge, UntrustedPath
from tfdock.installed.interpreter import started_python
from tfdock.knowledge import loader

_SECONDS = 600.0
_ANSWER_SECONDS = 60.0  #: Extra seconds to wait after the end of a recording.
_MOST_PROFILE, _MOST_TABLE = 1 << 30, 1 << 28
_NAME = "host.xplane.pb"


def xprof_python(named: str) -> Path:
    """Return the Python that `interpreter_at` finds. Raises ProfileError if this Python has no xprof."""
    found = started_python(named)
    if PathFinder.find_spec("xprof", list(found.path)) is None:
        raise ProfileError.of(
            "xprof-missing",
            f"{found.program} has no xprof, which reads profiles",
            "`pip install 'tfdock[trace]'` (350 MB), or name a Python that has xprof with `--xprof`; "
            "do not use the Python with TensorFlow: the packages conflict",
        )
    return found.program


def read_tables(python: Path, profile: UntrustedPath) -> dict[str, bytes]:
    """Return the answers of xprof's tools about a profile: a tool's name -> its answer. Failed tools are left out.

    `trace_viewer` has the events from which times are computed, `timeline` has all events, compressed.

    Raises VerificationFailed if xprof cannot read the profile, or its output is too large.
    """
    with tempfile.TemporaryDirectory(prefix="tfdock-trace-") as folder:
        place = Path(folder)
        try:
            # Use a copy: xprof writes files beside the profile, and would read old ones.
            (place / _NAME).write_bytes(profile.read(_MOST_PROFILE))
            program = loader.templates()["trace/read.py"]
            answer = ask(str(python), "-c", program, str(place / _NAME), folder, folder="/", seconds=_SECONDS)
            tables = {
                file.name.partition(".")[0]: file.read(_MOST_TABLE)
                for file in UntrustedPath(place).entries()
                if file.name.endswith((".json", ".json.gz"))
            }
        except TooLarge as error:
            message, fix = f"{profile}: {error.strerror}", "record fewer steps, `--steps 5`, or a shorter run"
            raise VerificationFailed.of("trace-unreadable", message, fix) from error
    if "trace_viewer" not in tables:
        said = last_line(answer.text)
        raise VerificationFailed.of(
            "trace-unreadable",
            f"xprof cannot read {profile}{f': {said[:300]}' if said else ''}",
            "record the profile again: the file may be incomplete, for example if the program was killed meanwhile",
        )
    return tables


def sample_server(python: Path, server: str, folder: Path, seconds: int) -> None:
    """Record for some seconds, into a folder, a program whose profiler listens at `host:port`.

    Raises VerificationFailed if no profiler answers, or the program runs no operation.
    """
    words = ["-c", loader.templates()["trace/sample.py"], server, str(folder.absolute()), str(seconds)]
    answer = ask(str(python), *words, folder="/", seconds=seconds + _ANSWER_SECONDS)
    if answer.status != 0:
        raise VerificationFailed.of(
            "trace-missing",
            f"nothing was recorded from {server}: {last_line(answer.text)[:300]}",
            "the program must call `tf.profiler.experimental.server.start(PORT)`, and compute during the recording",
        )


def serve_page(
    python: Path,
    profile: UntrustedPath,
    stoppable: Callable[[], AbstractContextManager[Stop]],
    ready: Callable[[str], None],
) -> None:
    """Serve xprof's page of a profile until a stop is requested; `ready` is called with the page's address.

    Raises VerificationFailed if the page does not start, or ends by itself.
    """
    with tempfile.TemporaryDirectory(prefix="tfdock-trace-") as folder, stoppable() as stop:
        # The folders of TensorBoard. The profile is copied, because xprof writes files beside it.
        place = Path(folder, "plugins/profile", profile.path.parent.name or "profile")
        place.mkdir(parents=True)
        (place / _NAME).write_bytes(profile.read(_MOST_PROFILE))
        address, log = Path(folder, "address"), Path(folder, "log")
        command = [str(python), "-c", loader.templates()["trace/page.py"], folder]
        with log.open("wb") as output:
            # In the same session, so that closing the terminal also ends the page.
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd="/")
        stopper = Stopper(stop, gently=process.terminate, by_force=process.kill)

        def tick() -> None:
            if address.exists():
                ready(address.read_text("ascii"))
                address.unlink()
            stopper.tick()

        wait_ticking(process, tick)
        if not stop.requests:
            said = last_line(log.read_text("utf-8", "replace"))[:300]
            message = f"xprof cannot show {profile}: {said}"
            raise VerificationFailed.of("trace-unreadable", message, f"`{python} -m pip install -U xprof`")
