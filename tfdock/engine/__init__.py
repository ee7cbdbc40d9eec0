"""The container engine: a narrow protocol, and its implementation with the Docker SDK.

In: `ContainerSpec`, contexts, archives. Out: states, output, images, in records of our own (`protocol`). The words
of each engine become our errors in `engine_errors`.

The only package that imports `docker`, but for the logins of `oci`. Imports: `host`, `knowledge`, `oci`.
"""
