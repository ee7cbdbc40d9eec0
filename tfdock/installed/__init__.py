"""TensorFlow as it is installed in an environment: whether it can start, and whether it sees the GPU.

`interpreter` asks a Python what it is, `packages` reads what lies on its path, `loader_search` finds libraries as
glibc does, `nvidia_driver` looks at the driver, `environment` puts them together, `verdicts` judges, and `tryout`
runs TensorFlow in a separate process.

Nothing here imports TensorFlow. What `verdicts` says follows from the values that it is given.

Imports: `knowledge`, `wheel`, `gpu`, `plan`, `verify`, `host`.
"""
