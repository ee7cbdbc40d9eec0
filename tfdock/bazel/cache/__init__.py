"""Bazel's caches: the folder that outlives every run, its maintenance, and its exchange with a registry.

In: the cache folder, a repository of a registry. Out: checked entries, and their packs and manifests.

Imports: the same as `bazel`.
"""
