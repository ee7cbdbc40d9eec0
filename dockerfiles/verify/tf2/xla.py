"""Compare a function that XLA must compile with the same one uncompiled, and get the program that XLA made."""

from probe import check, near, skipped


def compute(tf, x):
    return tf.reduce_sum(tf.tanh(tf.matmul(x, x) * 2.0))


def probe(facts):
    return compare(facts, jit_compile=True)


def compare(facts, **jit):
    import tensorflow as tf

    if not tf.test.is_built_with_xla() and facts["xla"] is not True:
        return skipped("built without XLA, by its own account")
    with tf.device("/CPU:0"):
        x = tf.constant([[0.1, 0.2], [0.3, 0.4]])
        compiled = tf.function(lambda x: compute(tf, x), **jit)
        plain, fast = float(compute(tf, x)), float(compiled(x))
        proof = program(compiled, x)  # inside `with`: XLA compiles again, for the preferred device
    expected = "{0:.6f}, compiled by XLA".format(plain)
    found = "{0:.6f}, {1}".format(fast, proof or "no program of XLA's")
    return check(near([fast], [plain]) and bool(proof), expected, found, "wrong, or not compiled by XLA")


def program(compiled, x):
    """Return the length of XLA's program for the function, as text; empty if there is no program."""
    text = compiled.experimental_get_compiler_ir(x)(stage="optimized_hlo")
    text = text.decode() if isinstance(text, bytes) else str(text)
    return "{0} lines of HLO".format(text.count("\n")) if text.startswith("HloModule") else ""
