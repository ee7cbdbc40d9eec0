"""Bazel's caches: the folder that outlives every run, its maintenance, and its exchange with a registry.

In: the cache folder, a repository of a registry. Out: entries that were checked, packs and manifests of them.

`action_cache`, `packs`, `cache_layers`, `cache_pruning` and `push_plan` are pure.
"""
