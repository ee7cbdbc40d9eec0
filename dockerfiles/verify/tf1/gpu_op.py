"""Run and time the first ops on the GPU, in a session that may not place them elsewhere.

The inputs are fed: TensorFlow would compute with constants in advance, on the CPU.
"""

import time

from probe import check


def probe(facts):
    import tensorflow as tf

    with tf.device("/gpu:0"):
        ones = tf.placeholder(tf.float32, [64, 64])
        product = tf.matmul(ones, ones)
        total = tf.reduce_sum(tf.tanh(product * 0.0) + product)
    started = time.time()
    with tf.Session(config=tf.ConfigProto(allow_soft_placement=False)) as session:
        value = float(session.run(total, {ones: [[1.0] * 64] * 64}))
    found = {"seconds": round(time.time() - started, 3), "value": value, "device": "/gpu:0"}
    return check(value == 64.0**3, "{0} on gpu:0".format(64.0**3), found, "wrong")
