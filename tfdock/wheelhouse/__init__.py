"""The wheelhouse: finished wheels with their records, an index, a server, retention.

In: sealed wheels and records. Out: a folder from which pip and uv install. Its files are always complete.

`build_record` and `simple_index` are pure. Imports: `run` and what is above it.
"""
