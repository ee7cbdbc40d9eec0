"""run.py REQUEST: try a wheel in this container, check by check.

REQUEST is a JSON file with

    mark          the beginning of each result line, so that no other line in the log is taken for a result
    wheel         the wheel's path
    dependencies  a folder with the wheels that this wheel requires
    work          a writable folder, with room for the unpacked wheel
    facts         the argument of each script
    checks        a list of {check, needs, script, seconds, environment}, in order; without a script, pip is the check

Each script runs in its own process. A crash or a timeout of this process is a result too. For each check, a line

    MARK {"check", "outcome": "passed" | "failed" | "skipped", "expected", "found", "reason", "seconds"}

is printed, between the output of pip and the scripts.

Runs on any Python that the image has, 2.7 and 3.4 among them, with the standard library only.
"""

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TAIL = 8000
# The most bytes of a program's output in the log: a program that never stops printing must not fill the disk.
MOST = 4 << 20
# The usual meaning of a signal here.
SIGNALS = {
    "SIGILL": "it uses instructions that this CPU does not have",
    "SIGABRT": "it gave up",
    "SIGKILL": "it was killed from outside, as for memory",
    "SIGSEGV": "it touched memory that is not its own",
}


class Ended(object):
    """How a process ended: its exit status (negative for a signal), whether it timed out, the end of its output."""

    def __init__(self, status, late, tail):
        self.status, self.late, self.tail = status, late, tail

    def trouble(self, seconds):
        """Return what went wrong, in words; empty if nothing did."""
        if self.late:
            return "no end within {0} s".format(seconds)
        if self.status < 0:
            name = signal_name(-self.status)
            return ": ".join(["killed by " + name] + [SIGNALS[one] for one in (name,) if one in SIGNALS])
        return "exit status {0}".format(self.status) if self.status else ""

    def last_words(self):
        """Return the last line that is not blank, cut to 500 characters; empty without one."""
        lines = [line.strip() for line in self.tail.splitlines() if line.strip()]
        return lines[-1][:500] if lines else ""


def signal_name(number):
    names = [name for name in dir(signal) if re.match("SIG[A-Z0-9]+$", name) and getattr(signal, name) == number]
    return sorted(names)[0] if names else "signal {0}".format(number)


class Output(object):
    """Our standard output. A result starts on a new line, even if a program left its last line open."""

    def __init__(self):
        self._stream = getattr(sys.stdout, "buffer", sys.stdout)
        self._in_line = False

    def write(self, data):
        if data:
            self._in_line = not data.endswith(b"\n")
            self._stream.write(data)
            self._stream.flush()

    def line(self, text):
        self.write((b"\n" if self._in_line else b"") + text.encode("ascii") + b"\n")


class Trial(object):
    def __init__(self, request):
        self.request = request
        self.output = Output()
        self.outcomes = {}
        self.work = request["work"]
        self.python = sys.executable
        self.environment = self._environment()

    def _environment(self):
        """Return the variables of every process: those of the image, except for pip's and Python's.

        PYTHONPATH could select another TensorFlow of the image instead of the wheel under trial.
        """
        kept = dict((name, value) for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON")))
        kept.update(
            HOME=self._folder("home"),
            TMPDIR=self._folder("tmp"),
            PIP_CONFIG_FILE=os.devnull,
            PIP_DISABLE_PIP_VERSION_CHECK="1",
            PYTHONFAULTHANDLER="1",
            PYTHONUNBUFFERED="1",
        )
        return kept

    def _folder(self, *names):
        path = os.path.join(self.work, *names)
        if not os.path.isdir(path):
            os.makedirs(path)
        return path

    # --- all of it ---

    def checks(self):
        for check in self.request["checks"]:
            started = time.time()
            result = self._result(check)
            result.update(check=check["check"], seconds=round(time.time() - started, 3))
            self.outcomes[check["check"]] = result["outcome"]
            self.output.line(self.request["mark"] + " " + json.dumps(result, sort_keys=True))

    def _result(self, check):
        missing = [need for need in check["needs"] if self.outcomes.get(need) != "passed"]
        if missing:
            return skipped("`{0}` has not passed".format(missing[0]))
        self.output.line("--- {0} ---".format(check["check"]))
        try:
            if check["script"]:
                return self._script(check)
            return {"install": self._install, "dependencies": self._dependencies}[check["check"]](check["seconds"])
        except EnvironmentError as error:  # a full disk, a missing program
            return failed(str(error))

    def run(self, words, seconds, environment=None):
        """Run a program until it ends or its time is up. Its output goes to the log."""
        variables = dict(self.environment, **(environment or {}))
        process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self._folder("home"),
            env=variables,
            preexec_fn=os.setsid,
        )
        process.stdin.close()
        late = []

        def give_up():
            late.append(True)
            kill_group(process.pid)

        timer = threading.Timer(seconds, give_up)
        timer.daemon = True
        timer.start()
        tail, room = b"", MOST
        for data in said_by(process):
            self.output.write(data[:room])
            room = max(0, room - len(data))
            tail = (tail + data)[-TAIL:]
        status = process.wait()
        if not room:
            self.output.line("--- more was said than is shown ---")
        timer.cancel()
        kill_group(process.pid)  # processes that it left running would disturb the next program
        process.stdout.close()
        return Ended(status, bool(late), tail.decode("utf-8", "replace"))

    # --- pip ---

    def _install(self, seconds):
        """Install the wheel and its requirements, from the folder only, into a new environment."""
        expected = "it and all it requires, from the prepared folder"
        try:
            import pip
        except ImportError:
            return skipped("the image's Python has no pip")
        # Use the image's pip without its other packages: the pip of an old `venv` knows too few platforms.
        beside = self._folder("pip")
        os.symlink(os.path.dirname(os.path.abspath(pip.__file__)), os.path.join(beside, "pip"))
        self.pip = {"PYTHONPATH": beside}
        target = []
        if sys.version_info >= (3, 4):
            place = os.path.join(self.work, "environment")
            ended = self.run([sys.executable, "-m", "venv", "--without-pip", place], seconds)
            if ended.trouble(seconds):
                return skipped("the image's Python makes no environment: " + ended.last_words())
            self.python = os.path.join(place, "bin", "python")
        else:
            self.environment["PYTHONUSERBASE"] = self._folder("environment")
            target = ["--user", "--ignore-installed"]  # the image may have the same version
        words = ["-m", "pip", "install", "--no-index", "--find-links", self.request["dependencies"], "--no-cache-dir"]
        words += ["--no-compile"] + target + [self.request["wheel"]]
        ended = self.run([self.python] + words, seconds, self.pip)
        if ended.trouble(seconds):
            return failed(complaint(ended, seconds), expected)
        done = re.findall(r"^Successfully installed (.*)$", ended.tail, re.MULTILINE)
        count = len(done[-1].split()) if done else 0
        things = "1 distribution" if count == 1 else "{0} distributions".format(count)
        return passed("{0}, with pip {1}".format(things, pip.__version__), expected)

    def _dependencies(self, seconds):
        """Check with pip that the installed packages have everything that they require."""
        ended = self.run([self.python, "-m", "pip", "check"], seconds, self.pip)
        expected = "pip check finds nothing"
        if ended.trouble(seconds):
            return failed("; ".join(ended.tail.strip().splitlines()[-10:])[:1000], expected)
        return passed(ended.last_words(), expected)

    # --- scripts ---

    def _script(self, check):
        name = check["check"]
        scratch = self._folder("scratch", name)
        result = os.path.join(self._folder("results"), name + ".json")
        given = {"PYTHONUSERBASE": self.environment["PYTHONUSERBASE"]} if "PYTHONUSERBASE" in self.environment else {}
        given.update((key, value.replace("{scratch}", scratch)) for key, value in check["environment"].items())
        words = [
            self.python,
            os.path.join(HERE, "probe.py"),
            os.path.join(HERE, check["script"]),
            sys.argv[1],
            result,
        ]
        ended = self.run(words, check["seconds"], given)
        shutil.rmtree(scratch, ignore_errors=True)
        found = read_result(result)
        trouble = ended.trouble(check["seconds"])
        if found is None:
            said = ended.last_words()
            return failed(": ".join([one for one in (trouble or "no result", said) if one]))
        if trouble and found["outcome"] == "passed":
            return failed("the result was right, but then: " + trouble, found["expected"], found["found"])
        return found


def read_result(path):
    try:
        with open(path) as file:
            found = json.load(file)
    except (EnvironmentError, ValueError):
        return None
    return found if isinstance(found, dict) and "outcome" in found else None


def complaint(ended, seconds):
    """Return why pip failed: its lines that begin with `ERROR:` or `error:`, or else its last line."""
    errors = [line.strip() for line in ended.tail.splitlines() if re.match(r"\s*(ERROR|error):", line)]
    said = "; ".join(errors)[:1000] or ended.last_words()
    return said if ended.status > 0 and not ended.late else ": ".join([ended.trouble(seconds), said])


def said_by(process):
    """Yield a program's output until the program ends. A daemon that it started may keep the pipe open for longer."""
    stream, ended = process.stdout.fileno(), False
    while not ended:
        ended = process.poll() is not None
        if select.select([stream], [], [], 0.0 if ended else 0.1)[0]:
            data = os.read(stream, 65536)  # all that a pipe holds, so a read after the end gets the rest
            if not data:
                return
            yield data


def kill_group(pid):
    try:
        os.killpg(pid, signal.SIGKILL)
    except OSError:
        pass


def passed(found, expected=""):
    return {"outcome": "passed", "expected": expected, "found": found, "reason": ""}


def failed(reason, expected="", found=""):
    return {"outcome": "failed", "expected": expected, "found": found, "reason": reason}


def skipped(reason):
    return {"outcome": "skipped", "expected": "", "found": "", "reason": reason}


if __name__ == "__main__":
    with open(sys.argv[1]) as request:
        Trial(json.load(request)).checks()
