"""CI: the pipelines that build a matrix, for GitHub and GitLab.

In: a matrix. Out: the rendered files of its pipeline, compared with the existing files.

`pipeline` and `pinned` are pure. Imports: `matrix` and what is above it.
"""
