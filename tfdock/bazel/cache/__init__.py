"""Bazel's caches: the cache folder, its maintenance, and the push and pull between this folder and a registry.

In: the cache folder, a repository of a registry. Out: checked entries, and their packs and manifests.

Imports: the same as `bazel`.
"""
