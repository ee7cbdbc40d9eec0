"""Bazel: read its output, build events and trace profile; keep its caches; relay its remote endpoints.

In: Bazel's text and files. Out: progress, counts and times, causes of cache misses. `cache` has the caches on this
machine and in a registry, `remote` the endpoints on other machines.

Pure: no I/O. Imports: `host`, `plan`, `oci`, `engine`.
"""
