"""TensorFlow can be imported, and reports its version."""

from probe import passed


def probe(facts):
    import tensorflow as tf

    version = getattr(tf, "version", None)
    found = {
        "version": getattr(version, "VERSION", None) or tf.VERSION,
        "git": getattr(version, "GIT_VERSION", None) or tf.GIT_VERSION,
    }
    return passed("", found)
