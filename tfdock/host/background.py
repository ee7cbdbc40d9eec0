"""Continue a command in the background, and run another command when it ends."""

from __future__ import annotations

import fcntl
import os
import shlex
import subprocess
import sys
from pathlib import Path

from tfdock.errors import Problem

_OUTPUTS = 20  #: How many output files of background processes are kept.
_PATIENCE = 60  #: How many seconds the command at the end may take.


def go_on_in_background(output: Path) -> int:
    """Fork. Return the child's process id; in the child, return 0. The child has no terminal. Raises OSError.

    The child has no input, and keeps running when the terminal closes. Its output goes to the new file `output`,
    which it locks. Only the newest output files are kept.
    """
    for old in sorted(output.parent.glob("*.txt"))[: 1 - _OUTPUTS]:
        for file in (old, old.with_suffix(".json")):
            file.unlink(missing_ok=True)
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # otherwise the child would print the buffered text once more
    if child := os.fork():
        os.close(descriptor)
        return child
    # A session of its own has no terminal: neither Ctrl-C nor a hangup reaches it.
    os.setsid()
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    # The kernel frees this lock when the process ends, even if it is killed.
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return 0


def notify(command: str, outcome: str, text: str) -> Problem | None:
    """Run a command without a shell, with two more arguments. Return a warning if the command fails."""
    try:
        # Standard output is for the result of our own command, not for output of another program.
        done = subprocess.run(
            [*shlex.split(command), outcome, text], stdin=subprocess.DEVNULL, stdout=2, timeout=_PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        why = f"did not end within {_PATIENCE} s, and was killed"
    except OSError as error:
        why = f"cannot be run: {error.strerror}"
    else:
        if done.returncode == 0:
            return None
        why = f"ended with exit status {done.returncode}"
    fix = f"try the command: `{command} built test`; its failure does not change the build's result"
    return Problem("notify-failed", f"`{command}` {why}", fix, severity="warning")
