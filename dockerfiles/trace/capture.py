"""capture.py REQUEST SCRIPT|-m MODULE [ARGUMENT...]: run a script with TensorFlow's profiler around its steps.

REQUEST is JSON: {"folder": where the profile goes, "skip": steps to leave out, 1 or more, "steps": how many to keep,
"seconds": how long to wait for the first one}. A step is a call of a `tf.function` or of `Session.run` from the main
thread, and what Python does before it. A script without any is kept whole, for that many seconds at most.

Leaves `capture.json` in the folder, whichever way the script ends: {"tensorflow": version, "steps": kept, "left_out":
steps before and after them, "calls": {name of a function: calls that were kept}, "own_steps": the script marks steps
itself, "own_profile": the folder of a profiler that the script starts, or null}. The exit status is the script's.

Runs with TensorFlow 2.3 and newer, and on the Pythons of these.
"""

import json
import os
import runpy
import signal
import sys
import threading
from pathlib import Path

import tensorflow as tf
from tensorflow.python.profiler import profiler_v2, trace

MARK = "tfdock_step"
# 3: graph operations have the shapes of their inputs.
LEVELS = {"host_tracer_level": 3, "python_tracer_level": 0, "device_tracer_level": 1, "delay_ms": 0}


class Level(int):
    """A level that TensorFlow 2.21 takes as it is: of a plain int it asks whether it is true, and then drops it."""

    def __bool__(self):
        raise TypeError


class Capture:
    def __init__(self, request):
        self.folder, self.skip, self.most = request["folder"], request["skip"], request["steps"]
        self.process, self.thread = os.getpid(), threading.get_ident()
        self.lock = threading.RLock()
        self.running, self.depth, self.seen, self.kept, self.calls = False, 0, 0, 0, {}
        self.done, self.own_steps, self.own_profile = False, False, None
        self.mark = None
        self.timer = threading.Timer(request["seconds"], self.without_steps)
        self.timer.daemon = True

    # --- the profiler's session ---

    def start(self):
        options = tf.profiler.experimental.ProfilerOptions
        levels = {name: Level(level) for name, level in LEVELS.items() if name in options._fields}
        start_profiler(self.folder, options=options(**levels))
        self.running = True

    def stop(self, save):
        if self.running:
            self.running = False
            stop_profiler(save)

    def without_steps(self):
        with self.lock:
            if not self.seen:
                self.stop(save=True)

    def end(self):
        """Keep what there is. Children of a fork leave that to their parent."""
        if os.getpid() != self.process:
            return
        with self.lock:
            if self.done:
                return
            self.done = True
            self.timer.cancel()
            self.close_mark()
            self.stop(save=True)
            found = {
                "tensorflow": tf.__version__,
                "steps": self.kept,
                "left_out": self.seen - self.kept,
                "calls": self.calls,
                "own_steps": self.own_steps,
                "own_profile": self.own_profile,
            }
            Path(self.folder, "capture.json").write_text(json.dumps(found))

    # --- steps ---

    def around(self, call):
        """Return a method that counts as a step where it is the outermost one on the main thread."""

        def wrapper(owner, *args, **kwargs):
            if self.depth or self.done or threading.get_ident() != self.thread or tf.inside_function():
                return call(owner, *args, **kwargs)
            self.depth += 1
            try:
                return call(owner, *args, **kwargs)
            finally:
                self.depth -= 1
                self.stepped(getattr(getattr(owner, "python_function", None), "__name__", "Session.run"))

        return wrapper

    def stepped(self, name):
        with self.lock:
            if self.done or self.own_profile:
                return
            self.seen += 1
            if self.seen < self.skip:
                return
            if self.seen == self.skip:
                # What was kept until here is the start of the program.
                self.stop(save=False)
                self.start()
            elif self.running:
                self.kept += 1
                self.calls[name] = self.calls.get(name, 0) + 1
            self.close_mark()
            if self.kept >= self.most:
                self.stop(save=True)
            elif self.running and not self.own_steps:
                self.mark = trace.Trace(MARK, step_num=self.kept, _r=1)
                self.mark.__enter__()

    def close_mark(self):
        if self.mark:
            self.mark.__exit__(None, None, None)
            self.mark = None

    # --- what the script does itself ---

    def install(self):
        session = tf.compat.v1.Session
        session.run = self.around(session.run)
        # The class of what `tf.function` returns; its place is no promised one.
        function = type(tf.function(lambda: None))
        function.__call__ = self.around(function.__call__)
        marks, exit_at_once = trace.Trace.__init__, os._exit

        def marked(owner, name, **kwargs):
            if kwargs.get("_r") and name != MARK:
                self.own_steps = True
                self.close_mark()
            marks(owner, name, **kwargs)

        def left(status):
            self.end()
            exit_at_once(status)

        def terminated(number, _frame):
            self.end()
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

        def profiled(logdir, *args, **kwargs):
            with self.lock:
                self.own_profile = str(Path(logdir).absolute())
                self.close_mark()
                self.stop(save=False)
            return start_profiler(logdir, *args, **kwargs)

        trace.Trace.__init__, os._exit = marked, left
        profiler_v2.start = tf.profiler.experimental.start = profiled
        signal.signal(signal.SIGTERM, terminated)
        self.start()
        self.timer.start()


start_profiler, stop_profiler = profiler_v2.start, profiler_v2.stop


def main(request, script, *arguments):
    capture = Capture(json.loads(request))
    capture.install()
    try:
        # As Python sets them for a script, and for a module.
        if script == "-m":
            sys.path[0] = str(Path.cwd())
            sys.argv[:] = arguments
            runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = str(Path(script).absolute().parent)
            sys.argv[:] = [script, *arguments]
            runpy.run_path(script, run_name="__main__")
    finally:
        capture.end()


if __name__ == "__main__":
    main(*sys.argv[1:])
