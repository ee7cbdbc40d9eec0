"""A hostile source's program, run by its ./configure, its repository rules and its actions: poison.py PHASE."""

import json
import os
import pathlib
import resource
import shutil
import socket
import subprocess
import sys

CACHES = [pathlib.Path("/tf/cache/disk"), pathlib.Path("/tf/cache/repository")]
OURS = ("toolchain", "pins", "source", "phase.sh", "configure.sh", "unprivileged.py", "environment")


def main():
    phase = sys.argv[1]
    found = {"phase": phase, **rights(), "written": written(), "visible": visible()}
    if phase == "image":
        found["network"] = network()
        stay_behind()
    else:
        found["spoilt"] = sum(map(spoil, CACHES))
    print("POISON " + json.dumps(found), flush=True)


def rights():
    status = dict(line.split(":", 1) for line in pathlib.Path("/proc/self/status").read_text().splitlines())
    mounts = [line.split()[4] for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines()]
    return {
        "uid": os.getuid(),
        "capabilities": max(int(status[name], 16) for name in ("CapEff", "CapPrm", "CapBnd", "CapAmb")),
        "no new rights": status["NoNewPrivs"].strip(),
        "processes": resource.getrlimit(resource.RLIMIT_NPROC),
        "sockets": [path for path in mounts if path.endswith(".sock")],
    }


def network():
    """Whether anything but this container answers."""
    try:
        socket.create_connection(("127.0.0.1", 5552), 2).close()
    except OSError:
        return False
    return True


def written():
    """What of the image a source could change that is not its own."""
    found = []
    for path in [
        *(f"/opt/tfdock/{name}" for name in OURS),
        "/usr/bin/bazel",
        "/usr/bin/python3",
        "/bin/bash",
        "/etc/bazel.bazelrc",
    ]:
        if not os.path.exists(path):
            continue
        if os.access(path, os.W_OK):
            found.append(path)
        try:
            os.rename(path, path + ".was")
            shutil.copy(path + ".was", path)
            found.append(path)
        except OSError:
            pass
    try:
        with open("/opt/tfdock/toolchain", "w") as file:
            file.write("chosen by the source")
        found.append("toolchain")
    except OSError:
        pass
    try:
        shutil.copy("/bin/bash", "/tf/tensorflow/rootshell")
        os.chown("/tf/tensorflow/rootshell", 0, 0)
        os.chmod("/tf/tensorflow/rootshell", 0o4755)
        found.append("a program of root's")
    except OSError:
        pass
    return sorted(set(found))


def visible():
    """What of others can be read."""
    return [str(path) for path in pathlib.Path("/tf").rglob("*neighbour*")]


def stay_behind():
    """Leave a process that writes when the step is over."""
    script = "while sleep 0.2; do echo chosen > /opt/tfdock/toolchain; touch /tf/tensorflow/stayed; done"
    subprocess.Popen(["sh", "-c", script], start_new_session=True, stdout=-3, stderr=-3, stdin=-3)


def spoil(folder):
    """Put something else into each file that can be changed, in place, by another name, or by another file."""
    count = 0
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.is_symlink():
            continue
        data = path.read_bytes().replace(b"miniature", b"poisoned!").replace(b"version", b"p0ison!") + b"\n# poisoned"
        for attempt in (in_place, replaced):
            try:
                attempt(path, data)
                count += 1
                break
            except OSError:
                pass
    for kind in ("ac", "cas"):
        try:
            (folder / kind / "00").mkdir(parents=True, exist_ok=True)
            (folder / kind / "00" / ("00" * 32)).write_bytes(b"poisoned")
        except OSError:
            pass
    return count


def in_place(path, data):
    os.chmod(path, 0o644)
    path.write_bytes(data)


def replaced(path, data):
    other = path.with_name("other")
    other.write_bytes(data)
    os.replace(other, path)


main()
