"""Whether one installed TensorFlow is faster than another.

`pairs` times both in pairs of processes, and `comparison` decides what the pairs show.

Imports: `knowledge`, `host`, `installed`, `verify`.
"""
