"""Tensors and the ops on them; the work is done in C++, on the GPU where there is one."""

import contextlib
from array import array

from tensorflow.python import _pywrap_tensorflow_internal as _core
from tensorflow.python import errors

_device_wishes = [""]
listeners = []
"""Called with each op, its inputs and its output."""


class Tensor:
    """Up to two dimensions of float32, and the name of the device that computed them."""

    def __init__(self, values, shape, device="CPU"):
        self._values = values
        self.shape = shape
        self.device = f"/job:localhost/replica:0/task:0/device:{device}:0"

    def tolist(self):
        values = self._values.tolist()
        if not self.shape:
            return values[0]
        if len(self.shape) == 1:
            return values
        rows, columns = self.shape
        return [values[row * columns : (row + 1) * columns] for row in range(rows)]

    def __getitem__(self, index):
        return constant(self.tolist()[index])

    def numpy(self):
        import numpy

        return numpy.frombuffer(self._values, dtype=numpy.float32).reshape(self.shape).copy()

    def __array__(self, dtype=None, copy=None):
        return self.numpy().astype(dtype or "float32")

    def __float__(self):
        if self.shape:
            raise TypeError("only a scalar is a number")
        return float(self._values[0])

    def __repr__(self):
        return f"<tf.Tensor: shape={self.shape}, dtype=float32, values={self.tolist()}>"


def constant(value):
    """A tensor with these values: a number, a list of numbers, a list of such lists, or an array."""
    if isinstance(value, Tensor):
        return value
    if hasattr(value, "tolist"):
        value = value.tolist()
    if not isinstance(value, (list, tuple)):
        return Tensor(array("f", [value]), ())
    if not value or not isinstance(value[0], (list, tuple)):
        return Tensor(array("f", value), (len(value),))
    columns = len(value[0])
    if any(len(row) != columns for row in value):
        raise ValueError("the rows differ in length")
    return Tensor(array("f", [number for row in value for number in row]), (len(value), columns))


def _as_matrix(tensor):
    rows, columns = ((1, 1) + tensor.shape)[-2:]
    return tensor._values, rows, columns


def _run(op, *tensors, shape=None):
    try:
        content, rows, columns, device = _core.run_op(op, tuple(map(_as_matrix, tensors)), _device_wishes[-1])
    except ValueError as error:
        raise errors.InvalidArgumentError(str(error)) from None
    except RuntimeError as error:
        raise errors.InternalError(str(error)) from None
    output = Tensor(array("f", content), (rows, columns) if shape is None else shape, device)
    for listener in list(listeners):
        listener(op, tensors, output)
    return output


def filled(shape, value):
    """A tensor of that shape with the same number everywhere."""
    return Tensor(array("f", [value] * (shape[0] if shape else 1) * (shape[1] if len(shape) == 2 else 1)), shape)


def matmul(a, b):
    a, b = constant(a), constant(b)
    if len(a.shape) != 2 or len(b.shape) != 2:
        raise errors.InvalidArgumentError(f"MatMul wants two matrices, not shapes {a.shape} and {b.shape}")
    return _run("MatMul", a, b)


def add(a, b):
    a, b = constant(a), constant(b)
    if len(a.shape) != len(b.shape):
        raise errors.InvalidArgumentError(f"Add: the shapes differ: {a.shape} and {b.shape}")
    return _run("Add", a, b, shape=a.shape)


def relu(features):
    features = constant(features)
    return _run("Relu", features, shape=features.shape)


def reduce_sum(input_tensor):
    return _run("ReduceSum", constant(input_tensor), shape=())


@contextlib.contextmanager
def device(name):
    """Everything in the block runs on this kind of device: "/CPU:0", "/GPU:0"."""
    _device_wishes.append("GPU" if "GPU" in name.upper() else "CPU")
    try:
        yield
    finally:
        _device_wishes.pop()


def function(func=None, jit_compile=None):
    """Returns the function as it is; asking for just-in-time compilation needs a build with XLA."""
    if func is None:
        return lambda decorated: function(decorated, jit_compile=jit_compile)
    if jit_compile and not _core.has_feature("xla"):
        raise errors.UnimplementedError("jit_compile=True, but this package was built without XLA")
    return func
