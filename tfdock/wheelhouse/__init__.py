"""The wheelhouse: finished wheels with their records, an index, a server, retention.

In: sealed wheels and records. Out: a folder from which pip and uv install, and whose files are never half written.

`build_record` and `simple_index` are pure. Imports: `run` and what is above it.
"""
