"""worker.py REQUEST: time operations of the TensorFlow of this Python, block by block, as another process asks.

REQUEST is JSON: {"core": the one CPU to run on, "operations": [[name, program, [sizes]], ...]}. A line of JSON
answers: {"tensorflow": version}; then, for each line that is read, such as `3`, one with the seconds of the quickest
call of that operation's block: {"seconds": s}. Answers begin with `tfdock:`. What TensorFlow prints goes to standard
error.

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

    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.random.set_seed(1)
    calls = [PROGRAMS[program](tf, *sizes) for _, program, sizes in request["operations"]]
    for call in calls:
        block(call, WARM)
    # Garbage that is collected in the middle of a block would be counted.
    gc.collect()
    gc.freeze()
    gc.disable()

    def answer(found):
        answers.write("\ntfdock:" + json.dumps(found) + "\n")
        answers.flush()

    answer({"tensorflow": tf.__version__})
    for line in sys.stdin:
        answer({"seconds": block(calls[int(line)], BLOCK)})


def block(call, seconds):
    """Call it for that long; return the quickest call's CPU seconds, which leave out what else runs on the core."""
    end = time.perf_counter() + seconds
    best, count = float("inf"), 0
    while count < CALLS or time.perf_counter() < end:
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


def training(tf, batch, size, channels):
    """A step of training a small network: a convolution, a depthwise one, a mean, and a layer for ten classes."""
    images = tf.random.normal([batch, size, size, 3])
    labels = tf.random.uniform([batch], maxval=10, dtype=tf.int32)
    shapes = ([3, 3, 3, channels], [3, 3, channels, 1], [channels, 10])
    weights = [tf.Variable(0.1 * tf.random.normal(shape)) for shape in shapes]

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            first = tf.nn.relu(tf.nn.conv2d(images, weights[0], 2, "SAME"))
            second = tf.nn.relu(tf.nn.depthwise_conv2d(first, weights[1], [1, 1, 1, 1], "SAME"))
            scores = tf.matmul(tf.reduce_mean(second, [1, 2]), weights[2])
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=scores))
        slopes = tape.gradient(loss, weights)
        for index, weight in enumerate(weights):
            weight.assign_sub(0.001 * slopes[index])
        return loss

    return step


def eager(tf, count):
    """Small operations one by one: what a call costs from Python."""
    value, one = tf.zeros([8]), tf.ones([8])

    def step():
        found = value
        for _ in range(count):
            found = found + one
        return found

    return step


PROGRAMS = {
    "convolution": convolution,
    "depthwise-gradient": depthwise_gradient,
    "eager": eager,
    "elementwise": elementwise,
    "embedding": embedding,
    "matmul": matmul,
    "softmax": softmax,
    "training": training,
}


if __name__ == "__main__":
    main(sys.argv[1])
