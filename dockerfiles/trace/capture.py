"""capture.py REQUEST SCRIPT|-m MODULE [ARGUMENT...]: run a script with TensorFlow's profiler around its steps.

REQUEST is JSON: {"folder": where the profile goes, "skip": steps to leave out, 1 or more, "steps": how many to keep,
"seconds": how long to wait for the first one}; of long steps fewer are kept. A step is a call of a `tf.function` or
of `Session.run` from the main thread, and what Python does before it. A script without any is kept whole, for that
many seconds at most.

Leaves `capture.json` in the folder, whichever way the script ends: {"tensorflow": version, "steps": kept, "left_out":
steps before and after them, "calls": {name of a function: calls that were kept}, "own_steps": the script marks steps
itself, "own_profile": the folder of a profiler that the script starts, or null}. The exit status is the script's.

With {"folder", "node", "type", "fused"} the script is not profiled: where it makes that node of a graph, or calls an
operation of that type where `node` is empty, `operation.json` is left and the script ends. It is {"steps": [{"type",
"arguments": {name: [leaf or step, ...] or one}, "attributes"}], "leaves": [{"dtype", "shape", "value"}]}: what is
computed last is the operation, what a fused one has in it comes before. `value` is that of small constants.

Runs with TensorFlow 2.3 and newer, and on the Pythons of these.
"""

import inspect
import json
import os
import runpy
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import op_callbacks, op_def_registry, tensor_util
from tensorflow.python.profiler import profiler_v2, trace

MARK = "tfdock_step"
# Long steps are few: a loop of an LSTM leaves 50,000 events each, and a reader takes a minute for a million.
LEAST, ENOUGH = 3, 5.0  # steps; seconds
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
        self.mark, self.began = None, 0.0
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
                self.began = time.monotonic()
            elif self.running:
                self.kept += 1
                self.calls[name] = self.calls.get(name, 0) + 1
            self.close_mark()
            late = self.kept >= LEAST and time.monotonic() > self.began + ENOUGH
            if self.kept >= self.most or late:
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


# What a fused operation begins with; biases, sums and activations come after it.
FIRST = ("Conv2D", "Conv3D", "DepthwiseConv2dNative", "MatMul", "BatchMatMulV2")


class Collector:
    def __init__(self, request):
        self.folder, self.node, self.type, self.fused = (
            request[name] for name in ("folder", "node", "type", "fused")
        )
        self.leaves, self.steps = [], []

    def install(self):
        op_callbacks.add_op_callback(self.seen)

    def end(self):
        pass

    def seen(self, op_type, inputs, attrs, outputs, op_name=None, graph=None):  # noqa: ARG002 - TensorFlow's
        """Called for each operation as it is made in a graph, and for each eager one as it ran."""
        if graph is None:
            if self.node or op_type != self.type:
                return
            values = dict(zip(attrs[::2], attrs[1::2]))
            self.add(op_type, inputs, values.get)
        else:
            if not self.node or not outputs or outputs[0].op.name != self.node:
                return
            self.follow(outputs[0].op)
        Path(self.folder, "operation.json").write_text(json.dumps({"steps": self.steps, "leaves": self.leaves}))
        os._exit(0)

    def follow(self, op):
        """Add an operation, after those that were fused into it; return its place."""
        before = {}
        if self.fused and op.type not in FIRST and len(op.inputs):
            before[0] = self.follow(op.inputs[0].op)
        return self.add(op.type, op.inputs, lambda name: attribute(op, name), before)

    def add(self, op_type, inputs, value_of, before=()):
        """Add an operation with its inputs, of which those in `before` are steps; return its place."""
        found = [{"step": before[place]} if place in before else self.leaf(one) for place, one in enumerate(inputs)]
        # By their places: `raw_ops` has other names for some of the inputs than the definition.
        names = [name for name in inspect.signature(getattr(tf.raw_ops, op_type)).parameters if name != "name"]
        definition = op_def_registry.get(op_type)
        arguments, attributes = {}, {}
        for argument in definition.input_arg:
            name = names.pop(0)
            if argument.number_attr or argument.type_list_attr:
                many = value_of(argument.number_attr or argument.type_list_attr)
                count = many if isinstance(many, int) else len(many)
                arguments[name], found = found[:count], found[count:]
            else:
                arguments[name] = found.pop(0)
        kinds = {one.name: one.type for one in definition.attr}
        for name in names:
            value = value_of(name)
            if value is not None:
                attributes[name] = plain(value, kinds.get(name, ""))
        self.steps.append({"type": op_type, "arguments": arguments, "attributes": attributes})
        return len(self.steps) - 1

    def leaf(self, tensor):
        shape = tensor.shape.as_list() if tensor.shape.rank is not None else None
        leaf = {"dtype": tensor.dtype.base_dtype.name, "shape": shape, "value": None}
        if tensor.dtype.is_integer or tensor.dtype.is_bool:
            value = known_value(tensor)
            leaf["value"] = value.tolist() if value is not None and value.size <= 64 else None
        self.leaves.append(leaf)
        return {"leaf": len(self.leaves) - 1}


def known_value(tensor):
    """Return the value of a constant, or of an eager tensor, as an array; None where it is not known."""
    if not hasattr(tensor, "numpy") and tensor.op.type == "ShapeN":  # which the function below leaves out
        shape = tensor.op.inputs[tensor.value_index].shape
        return np.array(shape.as_list()) if shape.is_fully_defined() else None
    return tensor_util.constant_value(tensor)


def attribute(op, name):
    try:
        return op.get_attr(name)
    except ValueError:
        return None


def plain(value, kind):
    """Return an attribute as JSON has it; types by their names, in a place of their own."""
    if isinstance(value, (list, tuple)):
        return [plain(one, kind.replace("list(", "").rstrip(")")) for one in value]
    if kind == "type":
        return {"dtype": tf.as_dtype(value).name}
    if isinstance(value, bytes):
        return value.decode()
    return value.as_list() if isinstance(value, tf.TensorShape) else value


def main(request, script, *arguments):
    request = json.loads(request)
    capture = (Collector if "node" in request else Capture)(request)
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
