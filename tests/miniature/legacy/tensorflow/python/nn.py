"""Building blocks of neural networks."""

from tensorflow.python.ops import relu

__all__ = ["relu"]
