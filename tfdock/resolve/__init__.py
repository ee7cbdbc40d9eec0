"""Resolution: decide every value of a build from a profile and the knowledge, each with its source and reason.

In: a `Profile` and a `KnowledgeBase`. Out: a `Resolution`, or problems with tested suggestions. `rules` describes
each impossible combination once.

Pure. Imports: `profile`, `knowledge`, `gpu`.
"""
