"""Why a TensorFlow program is slow.

`recording` runs a script under TensorFlow's profiler, or `container_place` with a wheel; `xprof_tables` lets xprof
read the profile, `trace_facts` draws figures from what xprof says, and `tracing` runs all steps and names the causes.

Imports: `knowledge`, `host`, `installed`, `verify`.
"""
