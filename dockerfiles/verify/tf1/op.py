"""A product of two matrices, in a session, on the CPU."""

from probe import check


def probe(facts):
    import tensorflow as tf

    with tf.device("/cpu:0"):
        product = tf.matmul(tf.constant([[1.0, 2.0], [3.0, 4.0]]), tf.constant([[5.0, 6.0], [7.0, 8.0]]))
    with tf.Session() as session:
        found = session.run(product).tolist()
    expected = [[19.0, 22.0], [43.0, 50.0]]
    return check(found == expected, str(expected), str(found), "a product of two matrices is wrong")
