"""Runs: the common part of all uses of the engine (builds, trials and downloads).

In: an engine, a `ContainerSpec`, a listener. Out: containers run to their end, output logged, results collected,
and one error for what went wrong. `journal` cleans up after runs that were killed.

Imports: `engine`, `bazel` and what is above them.
"""
