"""One operation of a TensorFlow program, alone. `python case.py` times it with the TensorFlow of that Python.

`tfdock trace --case` wrote this file. Inputs are random, except for small constants and integers (zeros). To change
an input, change CASE. `seconds` is the median time of a call, minus the time of a call that computes nothing.
"""

import json
import statistics
import time

import tensorflow as tf

CASE = json.loads(r"""@CASE@""")
SECONDS, LEAST = 1.0, 10


def made(leaf):
    """Return an input: a constant with its value; else random numbers, or zeros for types such as integers."""
    dtype = tf.as_dtype(leaf["dtype"])
    if leaf["value"] is not None:
        return tf.constant(leaf["value"], dtype)
    if dtype.is_floating or dtype.is_complex:
        return tf.cast(tf.random.normal(leaf["shape"]), dtype)
    return tf.zeros(leaf["shape"], dtype)  # zero is always a valid index


def value(part):
    return tf.as_dtype(part["dtype"]) if isinstance(part, dict) else part


INPUTS = [made(leaf) for leaf in CASE["leaves"]]
# The inputs except constants: some operations read constants while the graph is made.
GIVEN = [place for place, leaf in enumerate(CASE["leaves"]) if leaf["value"] is None]


@tf.function
def run(given):
    inputs = dict(zip(GIVEN, given))
    results = []

    def input_of(part):
        if isinstance(part, list):
            return [input_of(one) for one in part]
        if "step" in part:
            found = results[part["step"]]
            return found[0] if isinstance(found, (tuple, list)) else found
        return inputs.get(part["leaf"], INPUTS[part["leaf"]])

    for step in CASE["steps"]:
        arguments = {name: input_of(part) for name, part in step["arguments"].items()}
        attributes = {name: value(part) for name, part in step["attributes"].items()}
        results.append(getattr(tf.raw_ops, step["type"])(**arguments, **attributes))
    return results[-1]


def wait(result):
    for one in result if isinstance(result, (tuple, list)) else [result]:
        one.numpy()


@tf.function
def nothing(_given):
    return tf.constant(0.0)


def timed(function):
    """Call a function for about a second, and return the seconds of each call."""
    given = [INPUTS[place] for place in GIVEN]
    for _ in range(3):
        wait(function(given))
    times, end = [], time.perf_counter() + SECONDS
    while len(times) < LEAST or time.perf_counter() < end:
        began = time.perf_counter()
        wait(function(given))
        times.append(time.perf_counter() - began)
    return times


def main():
    times, around = timed(run), timed(nothing)
    seconds = max(0.0, statistics.median(times) - statistics.median(around))
    print(json.dumps({"seconds": seconds, "calls": len(times), "tensorflow": tf.__version__}))


if __name__ == "__main__":
    main()
