"""Why a TensorFlow program is slow.

`recording` runs a script under TensorFlow's profiler, `xprof_tables` lets xprof read the profile, `trace_facts` draws
figures from what xprof says, `slow_causes` says which causes they show, and `tracing` does all of it in turn.

Imports: `knowledge`, `host`, `installed`.
"""
