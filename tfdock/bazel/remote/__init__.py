"""Remote caches and executors: asked for before a build, and reached through a relay that holds the credentials.

In: `Remote` of a plan. Out: a local address for Bazel, and what the record says of it.

Imports: the same as `bazel`.
"""
