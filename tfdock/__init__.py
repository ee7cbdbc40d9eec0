"""tfdock turns a short YAML profile into a TensorFlow wheel that fits the GPU it was built for."""

__version__ = "0.2.0"
