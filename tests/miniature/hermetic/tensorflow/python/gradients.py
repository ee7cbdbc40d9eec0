"""Gradients: what is computed is written down, and then gone through backwards."""

from tensorflow.python import ops


def _transposed(matrix):
    return ops.constant([list(row) for row in zip(*matrix.tolist())])


def _positive(features):
    values = features.tolist()
    rows = values if len(features.shape) == 2 else [values]
    signs = [[1.0 if value > 0 else 0.0 for value in row] for row in rows]
    return signs if len(features.shape) == 2 else signs[0]


def _times(one, other):
    if isinstance(one, list):
        return [_times(a, b) for a, b in zip(one, other)]
    return one * other


# Op -> the gradients of its inputs, from that of its output.
_BACKWARDS = {
    "MatMul": lambda gradient, a, b: (ops.matmul(gradient, _transposed(b)), ops.matmul(_transposed(a), gradient)),
    "Add": lambda gradient, a, b: (gradient, gradient),
    "Relu": lambda gradient, a: (ops.constant(_times(gradient.tolist(), _positive(a))),),
    "ReduceSum": lambda gradient, a: (ops.filled(a.shape, float(gradient)),),
}


class GradientTape:
    """Writes down the ops in its block that follow from what it watches."""

    def __init__(self):
        self._known = {}
        self._records = []

    def __enter__(self):
        ops.listeners.append(self._record)
        return self

    def __exit__(self, *_):
        ops.listeners.remove(self._record)

    def watch(self, tensor):
        self._known[id(tensor)] = tensor

    def _record(self, op, inputs, output):
        if any(id(one) in self._known for one in inputs):
            self._known[id(output)] = output
            self._records.append((op, inputs, output))

    def gradient(self, target, sources):
        """The gradient of the sum of `target`; None where it does not depend on the source."""
        gradients = {id(target): ops.filled(target.shape, 1.0)}
        for op, inputs, output in reversed(self._records):
            if id(output) in gradients:
                for one, part in zip(inputs, _BACKWARDS[op](gradients[id(output)], *inputs)):
                    before = gradients.get(id(one))
                    gradients[id(one)] = part if before is None else ops.add(before, part)
        return gradients.get(id(sources))
