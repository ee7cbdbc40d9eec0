"""Bazel: read its output, build events and trace profile; keep its caches; relay its remote endpoints.

In: Bazel's text and files. Out: progress, figures, causes of cache misses. `cache` has the caches on this
machine and in a registry, `remote` the endpoints past this machine.

Pure. Imports: `host`, `plan`, `oci`, `engine`.
"""
