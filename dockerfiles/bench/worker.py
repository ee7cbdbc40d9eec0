"""worker.py REQUEST: time operations of the TensorFlow of this Python, block by block, as another process asks.

REQUEST is JSON: {"core": the one CPU to run on, "operations": [[name, program, [sizes], once], ...]}. A line of JSON
answers: {"tensorflow": version}; then, for each line that is read, such as `3`, one with the seconds of the quickest
call of that operation's block: {"seconds": s}. An operation that is timed `once` is made and called when it is
asked for, without a call to warm up. Answers begin with `tfdock:`. What TensorFlow prints goes to standard error.

Without Keras, whose layers differ between releases. Runs on Python 3.7 and newer, with TensorFlow 2.3 and newer.
"""

import gc
import json
import os
import sys
import time

WARM, BLOCK = 0.08, 0.005  # seconds
CALLS = 4  # at least, of a block: the first one after a change of processes is cold


def main(text):
    request = json.loads(text)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    os.sched_setaffinity(0, {request["core"]})

    started = time.process_time()
    import tensorflow as tf

    imported = time.process_time() - started
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.random.set_seed(1)
    operations = request["operations"]
    calls = {
        index: PROGRAMS[program](tf, *sizes) for index, (_, program, sizes, once) in enumerate(operations) if not once
    }
    for call in calls.values():
        block(call, WARM)
    # Garbage that is collected in the middle of a block would be counted.
    gc.collect()
    gc.freeze()
    gc.disable()

    def answer(found):
        answers.write("\ntfdock:" + json.dumps(found) + "\n")
        answers.flush()

    def timed(index):
        _, program, sizes, _ = operations[index]
        if index in calls:
            return block(calls[index], BLOCK)
        return imported if program == "import" else block(PROGRAMS[program](tf, *sizes), 0, 1)

    answer({"tensorflow": tf.__version__})
    for line in sys.stdin:
        answer({"seconds": timed(int(line))})


def block(call, seconds, least=CALLS):
    """Call it for that long, and at least so often; return the quickest call's CPU seconds.

    They leave out what else runs on the core.
    """
    end = time.perf_counter() + seconds
    best, count = float("inf"), 0
    while count < least or time.perf_counter() < end:
        started = time.process_time()
        call().numpy()
        best, count = min(best, time.process_time() - started), count + 1
    return best


# --- programs: each returns a function that runs one step, and returns a tensor of it -------------------------------


def matmul(tf, size):
    a, b = tf.random.normal([size, size]), tf.random.normal([size, size])
    return tf.function(lambda: tf.matmul(a, b))


def convolution(tf, batch, size, channels, filters):
    """A convolution with both of its gradients."""
    image, kernel = tf.random.normal([batch, size, size, channels]), tf.random.normal([3, 3, channels, filters])

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            tape.watch([image, kernel])
            result = tf.nn.conv2d(image, kernel, 1, "SAME")
        first, second = tape.gradient(result, [image, kernel])
        return first[0, 0, 0] + second[0, 0, :, 0]

    return step


def depthwise_gradient(tf, batch, size, channels):
    """The gradient of a depthwise convolution by its filter."""
    image = tf.random.normal([batch, size, size, channels])
    change = tf.random.normal([batch, size, size, channels])
    return tf.function(
        lambda: tf.raw_ops.DepthwiseConv2dNativeBackpropFilter(
            input=image, filter_sizes=[3, 3, channels, 1], out_backprop=change, strides=[1, 1, 1, 1], padding="SAME"
        )
    )


def elementwise(tf, count):
    values = tf.random.normal([count])
    return tf.function(lambda: tf.exp(tf.tanh(values)))


def embedding(tf, rows, width, count):
    table = tf.random.normal([rows, width])
    wanted = tf.random.uniform([count], maxval=rows, dtype=tf.int32)
    return tf.function(lambda: tf.gather(table, wanted))


def softmax(tf, rows, columns):
    values = tf.random.normal([rows, columns])
    return tf.function(lambda: tf.nn.softmax(values))


def convolutional(tf, batch, size, channels):
    """A convolution, a depthwise one, a mean, and a layer for ten classes."""
    images = tf.random.normal([batch, size, size, 3])

    def scores(first, second, last):
        found = tf.nn.relu(tf.nn.conv2d(images, first, 2, "SAME"))
        found = tf.nn.relu(tf.nn.depthwise_conv2d(found, second, [1, 1, 1, 1], "SAME"))
        return tf.matmul(tf.reduce_mean(found, [1, 2]), last)

    return batch, ([3, 3, 3, channels], [3, 3, channels, 1], [channels, 10]), scores


def recurrent(tf, batch, steps, width):
    """An LSTM, step by step in a loop of the graph, and a layer for ten classes."""
    texts = tf.random.normal([steps, batch, width])

    def scores(gates, last):
        def step(index, state, cell):
            entry, forget, out, new = tf.split(tf.matmul(tf.concat([texts[index], state], 1), gates), 4, 1)
            cell = tf.sigmoid(forget) * cell + tf.sigmoid(entry) * tf.tanh(new)
            return index + 1, tf.sigmoid(out) * tf.tanh(cell), cell

        zero = tf.zeros([batch, width])
        found = tf.while_loop(lambda index, *_: index < steps, step, (0, zero, zero), maximum_iterations=steps)
        return tf.matmul(found[1], last)

    return batch, ([2 * width, 4 * width], [width, 10]), scores


def attention(tf, batch, steps, width):
    """A block of a transformer with one head, a mean, and a layer for ten classes."""
    texts = tf.random.normal([batch, steps, width])

    def scores(inward, wide, narrow, last):
        query, key, value = tf.split(tf.einsum("bsw,wv->bsv", texts, inward), 3, 2)
        shares = tf.nn.softmax(tf.matmul(query, key, transpose_b=True) / width**0.5)
        found = texts + tf.matmul(shares, value)
        mean, variance = tf.nn.moments(found, [2], keepdims=True)
        found = (found - mean) * tf.math.rsqrt(variance + 1e-6)
        found += tf.einsum("bsv,vw->bsw", tf.nn.relu(tf.einsum("bsw,wv->bsv", found, wide)), narrow)
        return tf.matmul(tf.reduce_mean(found, 1), last)

    return batch, ([width, 3 * width], [width, 4 * width], [4 * width, width], [width, 10]), scores


def inference(model):
    """Return the program that asks a model for its scores."""

    def program(tf, *sizes):
        _, shapes, scores = model(tf, *sizes)
        weights = [tf.Variable(0.1 * tf.random.normal(shape)) for shape in shapes]
        return tf.function(lambda: scores(*weights))

    return program


def training(model):
    """Return the program that trains a model by a step."""

    def program(tf, *sizes):
        batch, shapes, scores = model(tf, *sizes)
        labels = tf.random.uniform([batch], maxval=10, dtype=tf.int32)
        weights = [tf.Variable(0.1 * tf.random.normal(shape)) for shape in shapes]

        @tf.function
        def step():
            with tf.GradientTape() as tape:
                found = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=scores(*weights))
                loss = tf.reduce_mean(found)
            slopes = tape.gradient(loss, weights)
            for index, weight in enumerate(weights):
                weight.assign_sub(0.001 * slopes[index])
            return loss

        return step

    return program


def eager(tf, count):
    """Small operations one by one: what a call costs from Python."""
    value, one = tf.zeros([8]), tf.ones([8])

    def step():
        found = value
        for _ in range(count):
            found = found + one
        return found

    return step


def graph(tf, count):
    """As many small operations in one function: what a call costs the runtime."""
    return tf.function(eager(tf, count))


def calls(tf, count):
    """A function of one small operation, called again and again: what its call costs from Python."""
    value, add = tf.zeros([8]), tf.function(lambda found: found + 1)

    def step():
        found = value
        for _ in range(count):
            found = add(found)
        return found

    return step


def first_operation(tf, size):
    """With the set-up of devices, which the first operation of a process waits for."""
    return lambda: tf.matmul(tf.ones([size, size]), tf.ones([size, size]))


def first_compiled(tf, size):
    """A function that XLA compiles for its first call."""
    matrix = tf.ones([size, size])
    option = "jit_compile" if tuple(map(int, tf.__version__.split(".")[:2])) >= (2, 5) else "experimental_compile"
    return tf.function(lambda: tf.tanh(tf.matmul(matrix, matrix)), **{option: True})


PROGRAMS = {
    "attention-inference": inference(attention),
    "attention-training": training(attention),
    "calls": calls,
    "convolution": convolution,
    "convolutional-inference": inference(convolutional),
    "convolutional-training": training(convolutional),
    "depthwise-gradient": depthwise_gradient,
    "eager": eager,
    "elementwise": elementwise,
    "embedding": embedding,
    "first-compiled": first_compiled,
    "first-operation": first_operation,
    "graph": graph,
    "import": None,  # of TensorFlow, which main() times
    "matmul": matmul,
    "recurrent-inference": inference(recurrent),
    "recurrent-training": training(recurrent),
    "softmax": softmax,
}


if __name__ == "__main__":
    main(sys.argv[1])
