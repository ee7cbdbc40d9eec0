"""turns.py REQUEST: time two TensorFlows in pairs of processes, which take turns on one core operation by operation.

REQUEST is JSON:

    mark        what a line with an answer begins with
    worker      the program of each process, `worker.py`
    sides       [[python, {variable: value}], …] of both sides
    operations  [[name, program, [sizes], once], …]
    pairs       how many pairs to time
    at_once     how many of them at once, each on a core of its own
    rounds      how often both sides run each operation
    seconds     how long to wait for {"start", "block"}

A line answers for each pair: {"versions": [first, second], "blocks": [[[seconds, seconds], …] of each operation]}.
If a process fails, a last line says so: {"side": 0 or 1, "why", "status": null or its return code, "said"}.

It runs beside the processes, on this machine or in a container, on Python 3.7 and newer.
"""

import contextlib
import json
import os
import random
import selectors
import subprocess
import sys
import tempfile
import threading
import time

LONGEST = 1 << 16  # bytes of an answer, with what is printed before it
END_SECONDS = 20.0
MARK = b"tfdock:"
HELD = os.dup(1)  # the processes hold our output open: who reads it sees when all have ended


class Failure(Exception):
    pass


class Worker:
    """A process that times operations when it is asked to."""

    def __init__(self, request, side, core):
        python, variables = request["sides"][side]
        self.side, self.seconds, self.unread = side, request["seconds"], b""
        self.said = tempfile.TemporaryFile()  # noqa: SIM115
        asked = json.dumps({"core": core, "operations": request["operations"]})
        self.process = subprocess.Popen(
            [python, "-c", request["worker"], asked],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.said,
            env=dict(os.environ, **variables),
            pass_fds=(HELD,),
        )

    def end(self):
        self.process.kill()
        self.process.communicate()
        self.said.close()

    def ask(self, index):
        """Return the seconds of the quickest call in a block of an operation."""
        with contextlib.suppress(BrokenPipeError):  # the answer, which does not come, says why
            self.process.stdin.write(b"%d\n" % index)
            self.process.stdin.flush()
        seconds = self.answer("seconds", self.seconds["block"])
        if not isinstance(seconds, float) or not 0 <= seconds < 3600:
            raise self.failure("gives an invalid answer")
        return seconds

    def answer(self, key, seconds):
        deadline = time.monotonic() + seconds
        while b"\n" not in self.from_mark():
            if not self.readable(deadline - time.monotonic()):
                raise self.failure("does not answer")
            piece = os.read(self.process.stdout.fileno(), LONGEST)
            self.unread += piece
            if not piece:  # it ends, which takes TensorFlow a while
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(END_SECONDS)
                raise self.failure("ends")
            if len(self.unread) > LONGEST:
                raise self.failure("gives an invalid answer")
        line, _, self.unread = self.unread.partition(b"\n")
        try:
            return json.loads(line[len(MARK) :].decode())[key]
        except (ValueError, TypeError, LookupError):
            raise self.failure("gives an invalid answer") from None

    def from_mark(self):
        """Drop lines before the answer: start-up files of an environment may print some."""
        while b"\n" in self.unread and not self.unread.startswith(MARK):
            self.unread = self.unread.partition(b"\n")[2]
        return self.unread

    def readable(self, seconds):
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            return bool(selector.select(max(seconds, 0)))

    def failure(self, why):
        status = self.process.poll()
        self.said.seek(-min(self.said.seek(0, os.SEEK_END), 4000), os.SEEK_END)
        said = self.said.read().decode("utf-8", "replace")
        return Failure({"side": self.side, "why": why, "status": status, "said": said})


def timed(request, number, core):
    """Time one pair of processes on a core."""
    draw = random.Random(number)
    # A side that always starts first may get the better memory.
    order, workers, versions = [0, 1] if number % 2 else [1, 0], {}, {}
    try:
        # One after the other: a start may be what is timed.
        for side in order:
            workers[side] = Worker(request, side, core)
            versions[side] = workers[side].answer("tensorflow", request["seconds"]["start"])
        blocks = [[] for _ in request["operations"]]
        indexes = list(range(len(blocks)))
        once = any(operation[3] for operation in request["operations"])
        for turn in range(1 if once else request["rounds"]):
            if not once:  # first calls stay in the order of rows: each relies on what is set up before
                # Drawn, and the other way round in the next: no side is first more often than the other.
                order = draw.sample(order, 2) if turn % 2 == 0 else order[::-1]
                draw.shuffle(indexes)
            for index in indexes:
                seconds = {side: workers[side].ask(index) for side in order}
                blocks[index].append([seconds[0], seconds[1]])
        return {"versions": [versions[0], versions[1]], "blocks": blocks}
    finally:
        for worker in workers.values():
            worker.end()


def main(text):
    request = json.loads(text)
    cores = sorted(os.sched_getaffinity(0))[: request["at_once"]]
    numbers, lock = iter(range(request["pairs"])), threading.Lock()

    def answer(found):
        with lock:
            sys.stdout.write("\n" + request["mark"] + " " + json.dumps(found) + "\n")
            sys.stdout.flush()

    def on_core(core):
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            try:
                answer(timed(request, number, core))
            except Failure as failure:
                answer(failure.args[0])
                ended.set()
                return

    ended = threading.Event()
    threads = [threading.Thread(target=on_core, args=(core,), daemon=True) for core in cores]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) and not ended.wait(0.1):
        pass


if __name__ == "__main__":
    main(sys.argv[1])
