"""Bazel: its output, build events and trace profile, read; its caches kept; its remotes relayed.

In: text and files that Bazel wrote. Out: progress, figures, causes of cache misses. `cache` has the caches on this
machine and in a registry, `remote` the endpoints past this machine.

Pure. Imports: `host`, `plan`, `oci`, `engine`.
"""
