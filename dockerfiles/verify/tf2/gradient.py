"""Compare the gradient of sum(x x) with the one computed by hand, from row sums and column sums of x."""

from probe import check


def probe(facts):
    import tensorflow as tf

    with tf.device("/CPU:0"):
        x = tf.constant([[1.0, 2.0], [3.0, 4.0]])
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(tf.matmul(x, x))
        gradient = tape.gradient(y, x)
    found = [[float(gradient[row][column]) for column in range(2)] for row in range(2)]
    expected = [[7.0, 11.0], [9.0, 13.0]]
    return check(found == expected, str(expected), str(found), "the gradient is not the one worked out by hand")
