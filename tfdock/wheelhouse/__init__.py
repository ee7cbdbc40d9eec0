"""The wheelhouse: finished wheels with their records, an index, a server, retention.

In: sealed wheels and records. Out: a folder that pip and uv install from, in which nothing is ever half visible.

`build_record` and `simple_index` are pure. Imports: `run` and what is above it.
"""
