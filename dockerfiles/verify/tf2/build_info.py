"""What TensorFlow says about its build."""

from probe import passed


def probe(facts):
    import tensorflow as tf

    return passed("", {name: value for name, value in tf.sysconfig.get_build_info().items()})
