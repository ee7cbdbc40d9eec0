"""Find out why a TensorFlow program is slow.

`script_places` runs a script under TensorFlow's profiler, and `recording` finds the profile. `xprof_tables` lets
xprof read it, `trace_facts` computes figures from xprof's output, and `tracing` runs all steps and names the causes.

Imports: `knowledge`, `host`, `installed`, `verify`.
"""
