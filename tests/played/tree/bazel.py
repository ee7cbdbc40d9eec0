"""Bazel as it is played back, in a container: the words of the real one, its downloads, its cache, its wheel.

It compiles nothing. Beside it lies what `record.py` has written down of the real Bazel: its output (fetch.txt,
compile.txt), what it executes (actions.txt), and a wheel. As the real one it takes the archive that WORKSPACE names
from the repository cache or from its address, executes what the disk cache has not, and ends after a SIGINT. A file
`hold-PHASE` in the repository cache holds it at a gate; `at-PHASE` in its output says that it has come there. A file
`pace` in the repository cache has the seconds that it rests at each gate.
"""

import contextlib
import gzip
import hashlib
import json
import re
import shutil
import signal
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from pathlib import Path

HERE = Path(__file__).parent
TREE = HERE.parent
OUTPUT = Path("/tf/output")
REPOSITORY = Path("/tf/cache/repository")
BUILT = OUTPUT / "base/execroot/org_tensorflow/bazel-out/k8-opt/bin"
WHEELS = "tensorflow/tools/pip_package/wheel_house"
GATE = "Packing"  #: The action before which the gate of the compile phase stands: the last one.
FOUND, DONE = "INFO: Found 1 target...\n", "Target //"  #: Recorded lines between which actions are executed.
SLOW = re.compile(r"#define MINIATURE_SLOW_COMPILE (\d+)")


class Failure(Exception):
    """The build ends with these words."""


class Screen:
    """What is printed, and kept for the file of events."""

    def __init__(self):
        self.text = ""

    def say(self, text):
        self.text += text
        sys.stderr.write(text)
        sys.stderr.flush()


def main(words):
    options = dict(word[2:].partition("=")[::2] for word in words if word.startswith("--"))
    phase = "fetch" if "nobuild" in options else "compile"
    lines = (HERE / f"{phase}.txt").read_text().splitlines(keepends=True)
    screen = Screen()
    try:
        play(phase, lines, options, screen)
    except KeyboardInterrupt:
        screen.say("\nBazel caught interrupt signal; shutting down.\n\nERROR: build interrupted\n")
        return 8
    except Failure as failure:
        screen.say(f"{failure}\n")
        return 1
    except OSError as error:
        screen.say(f"ERROR: {error.filename}: I/O exception during sandboxed execution: {error.strerror}\n")
        return 1
    return 0


def play(phase, lines, options, screen):
    start = next(number for number, line in enumerate(lines) if line.startswith("Loading:"))
    screen.say("".join(lines[:start]))
    download()
    if phase == "fetch":
        wait_at(phase)
        screen.say("".join(lines[start:]))
        return
    found = lines.index(FOUND) + 1
    done = next(number for number, line in enumerate(lines) if line.startswith(DONE))
    screen.say("".join(lines[start:found]))
    began = time.time()
    executed = execute(Path(options["disk_cache"]), screen)
    end = "".join(lines[done:])
    hits = sum(not seconds for seconds in executed.values())
    if hits:
        end = re.sub(r"(\d+) local", lambda all_: counts(hits, int(all_[1])), end)
    screen.say(end)
    leave(options, screen, executed, time.time() - began)


def counts(hits, actions):
    local = actions - hits
    return f"{hits} remote cache hit" + (f", {local} local" if local else "")


def download():
    workspace = (TREE / "WORKSPACE").read_text()
    wanted = re.search(r'sha256 = "(\w+)"', workspace)[1]
    url = re.search(r'urls = \["([^"]+)"', workspace)[1]
    kept = REPOSITORY / "content_addressable/sha256" / wanted / "file"
    with contextlib.suppress(OSError):
        if hashlib.sha256(kept.read_bytes()).hexdigest() == wanted:
            return
    target = f"{OUTPUT}/base/external/minimath/temp/{url.rpartition('/')[2]}"
    try:
        with urllib.request.urlopen(url) as answer:
            content = answer.read()
    except urllib.error.HTTPError as error:
        unreachable(url, target, f"GET returned {error.code} {error.reason}")
    except urllib.error.URLError as error:
        unreachable(url, target, error.reason.strerror)
    found = hashlib.sha256(content).hexdigest()
    if found != wanted:
        unreachable(url, target, f"Checksum was {found} but wanted {wanted}")
    write(kept, content)


def unreachable(url, target, why):
    raise Failure(
        "ERROR: An error occurred during the fetch of repository 'minimath':\n   Traceback (most recent call last):\n"
        f"Error in download_and_extract: java.io.IOException: Error downloading [{url}] to {target}: {why}"
    ) from None


def execute(disk, screen):
    """Each action with the seconds that it took; 0 for one that the disk cache has."""
    executed = {}
    actions = (HERE / "actions.txt").read_text().splitlines()
    for number, action in enumerate(actions):
        if action.startswith(GATE):
            wait_at("compile")
        known = disk / "ac" / (key := key_of(action))[:2] / key
        began = time.time()
        if known.exists():
            known.read_bytes()  # the cache's own clock is the time of access
            executed[action] = 0
            continue
        screen.say(f"[{number} / {len(actions)}] {action}; 0s local\n")
        run(action, disk, key)
        executed[action] = time.time() - began
    return executed


def key_of(action):
    """What the action's result depends on: its source file; the last ones, all of the tree."""
    source = TREE / action.rpartition(" ")[2]
    files = [source] if source.is_file() else sorted((TREE / "tensorflow").rglob("*.*"))
    files.append(TREE / ".tf_configure.bazelrc")
    parts = [action.encode(), *(file.read_bytes() for file in files if file.is_file())]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def run(action, disk, key):
    source = TREE / action.rpartition(" ")[2]
    if source.is_file() and (slow := SLOW.search(source.read_text())):
        time.sleep(int(slow[1]))
    result = (action.encode() + b"\n") * 3000
    # As a compiler, it needs room for files of its own; and then the output base and the cache have the result.
    with tempfile.NamedTemporaryFile() as scratch:
        scratch.write(result)
    digest = hashlib.sha256(result).hexdigest()
    write(BUILT / "objects" / key, result)
    write(disk / "cas" / digest[:2] / digest, result)
    write(disk / "ac" / key[:2] / key, action_result(digest, len(result)))


def action_result(digest, size):
    """The entry of an action whose output is one text: an ActionResult with its stdout_digest, as protobuf has it."""
    number = bytes([size & 127 | 128, size >> 7 & 127 | 128, size >> 14])
    message = b"\x0a\x40" + digest.encode() + b"\x10" + number
    return b"\x32" + bytes([len(message)]) + message


def leave(options, screen, executed, seconds):
    (wheel,) = HERE.glob("*.whl")
    folder = BUILT / WHEELS
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(wheel, folder)
    link = TREE / "bazel-bin"
    link.unlink(missing_ok=True)
    link.symlink_to(BUILT)
    milliseconds = str(int(seconds * 1000))
    events = [
        {"started": {"buildToolVersion": "4.2.3"}},
        {"optionsParsed": {"cmdLine": [f"--{name}={value}" for name, value in options.items()]}},
        {"progress": {"stderr": screen.text}},
        {
            "buildMetrics": {
                "actionSummary": {"actionsExecuted": re.search(r"(\d+) total actions", screen.text)[1]},
                "timingMetrics": {"cpuTimeInMs": milliseconds, "wallTimeInMs": milliseconds},
            }
        },
    ]
    write(Path(options["build_event_json_file"]), "".join(f"{json.dumps(event)}\n" for event in events).encode())
    write(Path(options["profile"]), gzip.compress(trace(executed).encode()))


def trace(executed):
    """A trace profile: each action, and in it that it was executed or looked up."""
    rows, now = [], 0
    for action, took in executed.items():
        length = max(int(took * 1e6), 1)
        inner = "local action execution" if took else "remote action cache check"
        for kind, name in (("action processing", action), (inner, action.partition(" ")[0])):
            rows.append(json.dumps({"cat": kind, "name": name, "ph": "X", "ts": now, "dur": length, "tid": 1}))
        now += length
    return '{"traceEvents":[\n' + ",\n".join(rows) + "\n]}\n"


def wait_at(phase):
    (OUTPUT / f"at-{phase}").touch()
    while (REPOSITORY / f"hold-{phase}").exists():
        time.sleep(0.05)
    with contextlib.suppress(FileNotFoundError):
        time.sleep(float((REPOSITORY / "pace").read_text()))


def write(path, content):
    """Whole or not at all, as the real one writes into its caches; several containers may write the same."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{uuid.uuid4()}")
    part.write_bytes(content)
    part.rename(path)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main(sys.argv[1:]))
