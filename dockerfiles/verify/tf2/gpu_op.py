"""Run and time the first ops on the GPU: a product of matrices, and kernels that TensorFlow generates.

If there is no GPU, soft device placement would run the ops on the CPU, with the same numbers; so it is switched off.
"""

import time

from probe import check


def probe(facts):
    import tensorflow as tf

    tf.config.set_soft_device_placement(False)
    started = time.time()
    with tf.device("/GPU:0"):
        ones = tf.ones([64, 64])
        product = tf.matmul(ones, ones)
        total = tf.reduce_sum(tf.tanh(product * 0.0) + product)
        value = float(total)
    seconds = round(time.time() - started, 3)
    ok = value == 64.0**3 and product.device.endswith("GPU:0")
    found = {"seconds": seconds, "value": value, "device": product.device}
    return check(ok, "{0} on GPU:0".format(64.0**3), found, "wrong, or not on the GPU")
