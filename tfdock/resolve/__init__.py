"""Resolution: profile x knowledge -> the value of every choice of a build, with who chose it and why.

In: a `Profile` and a `KnowledgeBase`. Out: a `Resolution`, or problems with suggestions that were tried. `rules`
has each impossible combination once.

Pure. Imports: `profile`, `knowledge`, `gpu`.
"""
