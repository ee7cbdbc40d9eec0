"""Compare a computation that XLA compiles with the same one without XLA, and find XLA's ops in the run's timeline.

The result is right even if XLA compiled nothing: only the timeline shows that.
"""

from probe import check, near, skipped


def probe(facts):
    import tensorflow as tf

    v1 = tf.compat.v1 if hasattr(getattr(tf, "compat", None), "v1") else tf
    graph = v1.Graph()
    with graph.as_default(), graph.device("/cpu:0"):
        x = v1.placeholder(tf.float32, [2, 2])
        plain = tf.tanh(tf.matmul(x, x) * 2.0)
        with scope(v1)():
            compiled = tf.tanh(tf.matmul(x, x) * 2.0)
        with v1.Session() as session:
            values = {x: [[0.1, 0.2], [0.3, 0.4]]}
            expected = session.run(plain, values).ravel().tolist()
            timeline = v1.RunMetadata()
            options = v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE)
            found = session.run(compiled, values, options=options, run_metadata=timeline).ravel().tolist()
    nodes = [node for device in timeline.step_stats.dev_stats for node in device.node_stats]
    # `_XlaLaunch` up to 1.12, `_XlaRun` since then. In a label, the name of the node precedes the op.
    ops = sorted(set(op for op in ("_XlaLaunch", "_XlaCompile", "_XlaRun") for n in nodes if op in n.timeline_label))
    told = ", ".join(["{0:.6f}".format(value) for value in found] + [" and ".join(ops) or "no op of XLA's ran"])
    wanted = ", ".join(["{0:.6f}".format(value) for value in expected] + ["compiled by XLA"])
    if not ops and not knows_xla() and facts["xla"] is not True:
        return skipped("built without XLA: it registers none of XLA's ops")
    return check(near(found, expected) and bool(ops), wanted, told, "wrong, or not compiled by XLA")


def scope(v1):
    """Return the scope whose ops XLA compiles together. Before 1.15, its module is slow to import."""
    experimental = getattr(getattr(v1, "xla", None), "experimental", None)
    if hasattr(experimental, "jit_scope"):
        return experimental.jit_scope
    from tensorflow.contrib.compiler import jit

    return jit.experimental_jit_scope


def knows_xla():
    """Return whether an op of XLA is registered; True if this TensorFlow cannot list its ops."""
    from tensorflow.python import pywrap_tensorflow as core

    if not hasattr(core, "TF_GetAllOpList"):
        return True
    return b"XlaLaunch" in core.TF_GetBuffer(core.TF_GetAllOpList())
