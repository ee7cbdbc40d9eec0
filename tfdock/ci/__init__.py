"""CI: the pipelines that build a matrix, for GitHub and GitLab.

In: a matrix. Out: the files of its pipeline, rendered, and held against those that are there.

`pipeline` and `pinned` are pure. Imports: `matrix` and what is above it.
"""
