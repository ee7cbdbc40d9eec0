"""The miniature TensorFlow: a stand-in for trying out builds. It is not TensorFlow.

    >>> import tensorflow as tf
    >>> tf.matmul([[1, 2]], [[3], [4]]).tolist()
    [[11.0]]
"""

from tensorflow.python import config, errors, nn, random, sysconfig, test, version
from tensorflow.python.gradients import GradientTape
from tensorflow.python.ops import Tensor, add, constant, device, function, matmul, reduce_sum

__version__ = version.VERSION

__all__ = [
    "GradientTape",
    "Tensor",
    "add",
    "config",
    "constant",
    "device",
    "errors",
    "function",
    "matmul",
    "nn",
    "random",
    "reduce_sum",
    "sysconfig",
    "test",
    "version",
]
