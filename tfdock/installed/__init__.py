"""TensorFlow in an environment: whether it can start, and whether it sees the GPU.

`interpreter` asks a Python for its facts, `packages` reads the packages on its path, `loader_search` finds libraries
as glibc does, `nvidia_driver` looks at the driver. `environment` collects these facts, and `verdicts` judges them.
`tryout` runs TensorFlow in a separate process.

No module here imports TensorFlow. `verdicts` depends only on the values that it is given.

Imports: `knowledge`, `wheel`, `gpu`, `plan`, `verify`, `host`.
"""
