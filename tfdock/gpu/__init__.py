"""GPUs: the target of each device, and how code runs on it: natively, by JIT, or not at all.

In: names of GPUs, knowledge, the facts of a wheel. Out: verdicts with reasons: compatibility, limits, drivers,
coverage.

Pure. Imports: `knowledge`, `wheel`.
"""
