"""Resolution: profile x knowledge -> the value of every choice of a build, with its source and reason.

In: a `Profile` and a `KnowledgeBase`. Out: a `Resolution`, or problems with tested suggestions. `rules` has
each impossible combination once.

Pure. Imports: `profile`, `knowledge`, `gpu`.
"""
