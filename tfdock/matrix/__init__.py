"""Matrices: which wheels should exist, which of them there are, and in which jobs to build the rest.

In: a matrix file. Out: cells, each planned, with the reason where it cannot be.

`matrix_file`, `cells` and `shards` are pure. Imports: `offline` and what is above it.
"""
