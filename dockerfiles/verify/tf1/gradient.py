"""Compare the gradient of sum(x x) with the one computed by hand, from row sums and column sums of x."""

from probe import check


def probe(facts):
    import tensorflow as tf

    with tf.device("/cpu:0"):
        x = tf.constant([[1.0, 2.0], [3.0, 4.0]])
        (gradient,) = tf.gradients(tf.reduce_sum(tf.matmul(x, x)), [x])
    with tf.Session() as session:
        found = session.run(gradient).tolist()
    expected = [[7.0, 11.0], [9.0, 13.0]]
    return check(found == expected, str(expected), str(found), "the gradient is not the one worked out by hand")
