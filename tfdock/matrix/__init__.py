"""Matrices: the wheels that should exist, those that do exist, and the jobs that build the rest.

In: a matrix file. Out: the planned cells, and for an impossible cell the reason.

`matrix_file`, `cells` and `shards` are pure. Imports: `offline` and what is above it.
"""
