"""Why a TensorFlow program is slow.

`script_places` runs a script under TensorFlow's profiler, and `recording` finds the profile. `xprof_tables` lets
xprof read it, `trace_facts` draws figures from what xprof says, and `tracing` runs all steps and names the causes.

Imports: `knowledge`, `host`, `installed`, `verify`.
"""
