"""Remote caches and executors: checked before a build, and reached through a relay that has the credentials.

In: `Remote` of a plan. Out: a local address for Bazel, and the traffic for the record.

Imports: the same as `bazel`.
"""
