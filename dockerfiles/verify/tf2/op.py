"""A product of two matrices, eagerly, on the CPU."""

from probe import check


def probe(facts):
    import tensorflow as tf

    with tf.device("/CPU:0"):
        product = tf.matmul(tf.constant([[1.0, 2.0], [3.0, 4.0]]), tf.constant([[5.0, 6.0], [7.0, 8.0]]))
    found = [[float(product[row][column]) for column in range(2)] for row in range(2)]
    expected = [[19.0, 22.0], [43.0, 50.0]]
    return check(found == expected, str(expected), str(found), "a product of two matrices is wrong")
