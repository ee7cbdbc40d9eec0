"""capture.py REQUEST SCRIPT|-m MODULE [ARGUMENT...]: run a script with TensorFlow's profiler around its steps.

REQUEST is JSON: {"folder": where to write the profile, "skip": how many steps to leave out, 1 or more, "steps": how
many steps to record, "seconds": how long to record a script without steps}. If steps are long, fewer are recorded. A
step is a call of a `tf.function`, a loaded function or a session on the main thread, with the Python code before it.

The folder gets `capture.json`, however the script ends: {"tensorflow": version, "steps": number recorded, "left_out":
number of steps before and after these, "calls": {name of a function: number of recorded calls}, "own_steps": whether
the script marks steps itself, "own_profile": the folder of a profile that the script made itself, or null}. The exit
status is the script's.

With {"folder", "node", "type", "fused"}, the script is not profiled. It ends when it creates the graph node `node`,
or, if `node` is empty, calls an operation of type `type`. The folder then gets `operation.json`: {"steps": [{"type",
"arguments": {name: leaf, step or list of these}, "attributes"}], "leaves": [{"dtype", "shape", "value"}]}. The last
step is the operation; the steps before it are the operations fused into it. Only small constants have a `value`.

The script runs as `__main__`, as under Python, and imports TensorFlow itself. So its settings before the import take
effect as usual. Runs with TensorFlow 2.4 and newer, and on the Python versions that these releases support.

TensorFlow 1.4 to 1.15 has no such profiler. There, each call of a session reports its operations in `RunMetadata`.
The steps are the calls of sessions and of Keras. Their reports become `session.trace.json`, in the format of
chrome://tracing. This part needs Python 3.6 or newer.
"""

import contextlib
import importlib.util
import inspect
import json
import os
import re
import runpy
import signal
import sys
import threading
import time
import types
from pathlib import Path

MARK = "tfdock_step"
# At level 3, graph operations have the shapes of their inputs.
LEVELS = {"host_tracer_level": 3, "python_tracer_level": 0, "device_tracer_level": 1, "delay_ms": 0}
# Record few long steps: a step with an LSTM loop has 50,000 events, and a reader takes a minute for a million.
LEAST, ENOUGH, LONGEST = 3, 5.0, 300.0  # fewest steps; seconds that suffice; most seconds of a session with steps


class Level(int):
    """A level whose number TensorFlow 2.21 keeps: that release tests a plain int for truth, and then drops it."""

    def __bool__(self):
        raise TypeError


class Capture:
    def __init__(self, request):
        self.folder, self.skip, self.most = request["folder"], request["skip"], request["steps"]
        self.seconds = request["seconds"]
        self.thread, self.lock = threading.get_ident(), threading.RLock()
        self.tensorflow, self.session, self.timer, self.mark, self.began = None, None, None, None, 0.0
        self.sessions, self.depth, self.seen, self.kept, self.calls = 0, 0, 0, 0, {}
        self.done, self.own_session, self.own_steps, self.own_profile = False, False, False, None

    # --- the profiler's session ---

    def start(self, seconds):
        """Start a session that ends after `seconds` at the latest."""
        self.session = self.new_session()
        self.session.start(self.folder, {name: Level(level) for name, level in LEVELS.items()})
        self.sessions += 1
        # Pass a number, not the session: a session must end when nothing else refers to it.
        self.timer = threading.Timer(seconds, self.late, [self.sessions])
        self.timer.daemon = True
        self.timer.start()
        self.began = time.monotonic()

    def stop(self, save):
        if self.session:
            self.timer.cancel()
            if save:
                self.session.export_to_tb()
            self.session = None

    def has_some(self):
        """Whether the session has a step, or belongs to a program that may have no steps."""
        return self.kept > 0 or self.seen < self.skip

    def late(self, number):
        with self.lock:
            if self.sessions == number:
                self.stop(save=True)

    def end(self):
        """End the recording: save the session if it has something, and write `capture.json`."""
        with self.lock:
            if self.done or not self.tensorflow:
                return
            self.done = True
            # The current step is still open when the session ends, so it does not count as a step of the profile.
            self.stop(save=self.has_some())
            found = {
                "tensorflow": self.tensorflow,
                "steps": self.kept,
                "left_out": self.seen - self.kept,
                "calls": self.calls,
                "own_steps": self.own_steps,
                "own_profile": self.own_profile,
            }
            Path(self.folder, "capture.json").write_text(json.dumps(found))

    def forked(self):
        # Keep the session object: its end would stop a recording that this child process did not begin.
        self.done, self.lock = True, threading.RLock()

    # --- steps ---

    def around(self, owner, name):
        """Wrap a method so that its outermost call on the main thread counts as a step."""
        call = getattr(owner, name)

        def wrapper(*args, **kwargs):
            if self.depth or self.done or threading.get_ident() != self.thread or self.in_function():
                return call(*args, **kwargs)
            self.depth += 1
            try:
                return call(*args, **kwargs)
            finally:
                self.depth -= 1
                self.stepped(args[0])

        setattr(owner, name, wrapper)

    def stepped(self, called):
        with self.lock:
            if self.done or self.own_session:
                return
            self.seen += 1
            if self.seen < self.skip or self.kept >= self.most:
                return
            if not self.session or self.seen == self.skip:
                # The recording so far is the start of the program, or the script's own profiler has cut it off.
                if self.kept:
                    return
                self.stop(save=False)
                self.start(LONGEST)
            else:
                self.kept += 1
                name = getattr(getattr(called, "python_function", called), "__name__", type(called).__name__)
                self.calls[name] = self.calls.get(name, 0) + 1
            self.close_mark()
            late = self.kept >= LEAST and time.monotonic() > self.began + ENOUGH
            if self.kept >= self.most or late:
                self.most = self.kept
                self.stop(save=True)
            elif not self.own_steps:
                self.mark = self.trace(MARK, step_num=self.kept, _r=1)
                self.mark.__enter__()

    def close_mark(self):
        if self.mark:
            self.mark.__exit__(None, None, None)
            self.mark = None

    # --- what the script does itself ---

    def install(self):
        import tensorflow as tf

        trace, _pywrap_profiler = profiler(tf.__version__)
        self.tensorflow, self.trace, self.new_session = tf.__version__, trace.Trace, _pywrap_profiler.ProfilerSession
        # Not `executing_eagerly`: it is never true in a program that uses sessions.
        self.in_function = lambda: tf.compat.v1.get_default_graph().building_function
        # The classes of a `tf.function` and of a loaded function. Making the latter would start TensorFlow's threads.
        for owner in (type(tf.function(lambda: None)), *concrete_function().__mro__):
            if "__call__" in vars(owner):
                self.around(owner, "__call__")
        for owner in tf.compat.v1.Session.__mro__:
            if "run" in vars(owner):
                self.around(owner, "run")
        marks, capture = trace.Trace.__init__, self

        def marked(owner, name, **kwargs):
            if kwargs.get("_r") and name != MARK:
                self.own_steps = True
                self.close_mark()
            marks(owner, name, **kwargs)

        class Session(self.new_session):
            """A session that the script starts. Only one may run, so ours ends and may start again later."""

            def start(self, logdir, *args):
                with capture.lock:
                    capture.stop(save=capture.has_some())
                    capture.close_mark()
                    capture.own_session, self.logdir = True, logdir
                super().start(logdir, *args)

            def export_to_tb(self):
                super().export_to_tb()
                capture.own_profile = str(Path(self.logdir).absolute())

            def __del__(self):
                capture.own_session = False

        trace.Trace.__init__, _pywrap_profiler.ProfilerSession = marked, Session
        self.begin()

    def begin(self):
        if hasattr(os, "register_at_fork"):  # Python 3.7
            os.register_at_fork(after_in_child=self.forked)
        before_exit(self.end)
        self.start(self.seconds)


class SessionCapture(Capture):
    """`Capture` for TensorFlow 1.x: it records what sessions report, instead of using a profiler's session."""

    def install(self):
        import tensorflow as tf
        from tensorflow.python.client.session import BaseSession

        v1 = getattr(tf.compat, "v1", tf)  # from 1.13 on
        self.tensorflow, self.trace, self.in_function = tf.__version__, self.marked, lambda: False
        self.new_session = lambda: Report(self.folder)
        run, make_callable = BaseSession.run, getattr(BaseSession, "_make_callable_from_options", None)

        def reported(session, fetches, feed_dict=None, options=None, run_metadata=None):
            report = self.session
            if not report:
                return run(session, fetches, feed_dict, options, run_metadata)
            wanted, found = v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE), run_metadata or v1.RunMetadata()
            if options:  # options of the script, such as a time limit
                wanted.MergeFrom(options)
                wanted.trace_level = v1.RunOptions.FULL_TRACE
            try:
                return run(session, fetches, feed_dict, wanted, found)
            finally:
                report.add(found.step_stats)

        class Callable:
            """Keras calls this instead of a session. Only a callable made for tracing reports, so there are two."""

            def __init__(self, session, options):
                self.plain = make_callable(session, options)
                full = type(options)()
                full.CopyFrom(options)
                full.run_options.trace_level = v1.RunOptions.FULL_TRACE
                self.full = make_callable(session, full)

            def __call__(self, *args, **kwargs):
                report = outer.session
                if not report:
                    return self.plain(*args, **kwargs)
                found = kwargs.pop("run_metadata", None) or v1.RunMetadata()
                try:
                    return self.full(*args, run_metadata=found, **kwargs)
                finally:
                    report.add(found.step_stats)

        outer = self
        BaseSession.run = reported
        self.around(BaseSession, "run")
        if make_callable:
            BaseSession._make_callable_from_options = lambda session, options: Callable(session, options)
            self.around(Callable, "__call__")
        self.begin()

    @contextlib.contextmanager
    def marked(self, name, step_num, **_):
        report, began = self.session, time.time()
        yield
        if report:
            report.events.append(event(name, began * 1e6, time.time() * 1e6, step_num=step_num, step_name=step_num))


class Report:
    """The operations of the calls of sessions, as events of chrome://tracing."""

    def __init__(self, folder):
        self.folder, self.events, self.devices = folder, [], {}

    def start(self, *_):
        pass

    def add(self, stats):
        # 1.15 reports CPU operations a second time, as `/host:CPU`, without their times.
        for device in (one for one in stats.dev_stats if one.device != "/host:CPU"):
            # The streams of a GPU have the times on the GPU; its other rows have the times of the launches.
            number = self.devices.setdefault(device.device, len(self.devices) + 1)
            for node in device.node_stats:
                kind = re.search(r" = (\w+)\(", node.timeline_label)
                kind = kind.group(1) if kind else node.node_name.rpartition(":")[2]
                begin = node.all_start_micros + node.op_start_rel_micros
                until = node.all_start_micros + max(node.op_end_rel_micros, node.op_start_rel_micros + 1)
                name = node.node_name.partition(":")[0]
                self.events.append(event(kind, begin, until, number, node.thread_id, long_name=f"{name}:{kind}"))

    def export_to_tb(self):
        if not self.devices:
            return
        names = [
            {"name": "process_name", "ph": "M", "pid": number, "args": {"name": device}}
            for device, number in self.devices.items()
        ]
        found = json.dumps({"traceEvents": names + self.events})
        Path(self.folder, "session.trace.json").write_text(found)


def event(name, begin, until, pid=0, tid=0, **args):
    args = {key: str(value) for key, value in args.items()}
    return {"name": name, "ph": "X", "ts": begin, "dur": until - begin, "pid": pid, "tid": tid, "args": args}


def profiler(version):
    """Return the two modules of TensorFlow's profiler; end the program if they are missing."""
    try:
        from tensorflow.python.profiler import trace
        from tensorflow.python.profiler.internal import _pywrap_profiler
    except ImportError:
        sys.exit(f"tfdock trace: TensorFlow {version} cannot be recorded, only 2.4 and newer")
    return trace, _pywrap_profiler


def concrete_function():
    """Return the class `ConcreteFunction`. TensorFlow does not promise where it is."""
    try:
        from tensorflow.python.eager.polymorphic_function.concrete_function import ConcreteFunction
    except ImportError:
        from tensorflow.python.eager.function import ConcreteFunction
    return ConcreteFunction


def before_exit(end):
    """Call `end` also if `os._exit` or SIGTERM ends the process at once."""
    exit_at_once = os._exit

    def left(status):
        end()
        exit_at_once(status)

    def terminated(number, _frame):
        end()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    os._exit = left
    if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, terminated)


# The first operation of a fused one. Biases, sums and activations follow it.
FIRST = ("Conv2D", "Conv3D", "DepthwiseConv2dNative", "MatMul", "BatchMatMulV2")


class Collector:
    def __init__(self, request):
        self.folder, self.node, self.type, self.fused = (
            request[name] for name in ("folder", "node", "type", "fused")
        )
        self.leaves, self.steps = [], []

    def install(self):
        from tensorflow.python.framework import op_callbacks

        op_callbacks.add_op_callback(self.seen)

    def end(self):
        pass

    def seen(self, op_type, inputs, attrs, outputs, op_name=None, graph=None):  # noqa: ARG002 - TensorFlow's
        """TensorFlow calls this for each operation added to a graph, and for each eager operation that ran."""
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
        """Add the operations fused into an operation, then the operation; return its index."""
        before = {}
        if self.fused and op.type not in FIRST and len(op.inputs):
            before[0] = self.follow(op.inputs[0].op)
        return self.add(op.type, op.inputs, lambda name: attribute(op, name), before)

    def add(self, op_type, inputs, value_of, before=()):
        """Add an operation; return its index. `before` maps an input to the step that computes it."""
        found = [{"step": before[place]} if place in before else self.leaf(one) for place, one in enumerate(inputs)]
        # Match inputs by position: `raw_ops` and the definition name some of them differently.
        import tensorflow as tf
        from tensorflow.python.framework import op_def_registry

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
    """Return the value of a constant, or of an eager tensor, as an array; None if it is unknown."""
    import numpy as np
    from tensorflow.python.framework import tensor_util

    if not hasattr(tensor, "numpy") and tensor.op.type == "ShapeN":  # `constant_value` has no case for it
        shape = tensor.op.inputs[tensor.value_index].shape
        return np.array(shape.as_list()) if shape.is_fully_defined() else None
    return tensor_util.constant_value(tensor)


def attribute(op, name):
    try:
        return op.get_attr(name)
    except ValueError:
        return None


def plain(value, kind):
    """Return an attribute as a JSON value. A type becomes `{"dtype": its name}`."""
    import tensorflow as tf

    if isinstance(value, (list, tuple)):
        return [plain(one, kind.replace("list(", "").rstrip(")")) for one in value]
    if kind == "type":
        return {"dtype": tf.as_dtype(value).name}
    if isinstance(value, bytes):
        return value.decode()
    return value.as_list() if isinstance(value, tf.TensorShape) else value


class Import:
    """Finds `tensorflow` as usual, and calls `then` once the script has imported it."""

    def __init__(self, then):
        self.then = then

    def find_spec(self, name, path=None, target=None):  # noqa: ARG002 - Python's
        if name != "tensorflow":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec and spec.loader:
            run = spec.loader.exec_module

            def exec_module(module):
                run(module)
                self.then()

            spec.loader.exec_module = exec_module
        return spec


def run_script(script, arguments):
    """Run a script or a module as Python does: as `__main__`, which exists until the end."""
    if script == "-m":
        sys.path[0] = str(Path.cwd())
        sys.argv[:] = arguments
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
        return
    file = str(Path(script).absolute())
    sys.path[0] = str(Path(file).parent)
    sys.argv[:] = [script, *arguments]
    module = types.ModuleType("__main__")
    module.__file__, module.__builtins__ = file, __builtins__
    # Keep a reference to this module: its functions still need its names.
    sys.modules["tfdock_capture"], sys.modules["__main__"] = sys.modules["__main__"], module
    exec(compile(Path(file).read_bytes(), file, "exec"), module.__dict__)


def main(request, script, *arguments):
    request = json.loads(request)
    collector = Collector(request) if "node" in request else None
    capture = collector or Capture(request)

    def imported():
        nonlocal capture
        if sys.modules["tensorflow"].__version__.startswith("1."):
            if collector:
                sys.exit("tfdock trace: an operation of TensorFlow 1.x cannot be written as a program")
            capture = SessionCapture(request)
        capture.install()

    sys.meta_path.insert(0, Import(imported))
    try:
        run_script(script, arguments)
        # Wait for threads, as Python does when it exits: a program may do its work in them.
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
    finally:
        capture.end()


if __name__ == "__main__":
    main(*sys.argv[1:])
