"""Find out whether one installed TensorFlow is faster than another.

`pairs` times both in pairs of processes, and `comparison` decides what the pairs show. `published_scores` has the
scores of the package ai-benchmark.

Imports: `knowledge`, `host`, `installed`, `verify`.
"""
