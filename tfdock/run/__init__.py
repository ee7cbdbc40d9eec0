"""Runs: what every use of the engine shares, be it a build, a trial or a download.

In: an engine, a `ContainerSpec`, a listener. Out: containers run to their end, output logged, results collected,
and one error for what went wrong. `journal` cleans up after runs that were killed.

Imports: `engine`, `bazel` and what is above them.
"""
