"""Bazel's caches: the folder that outlives every run, its maintenance, and its exchange with a registry.

In: the cache folder, a repository of a registry. Out: entries that were checked, packs and manifests of them.

Imports: the same as `bazel`.
"""
