"""Knowledge: tables of facts about releases, toolkits, compilers, GPUs, images and failures, each with its source.

In: the YAML tables beside this file, and those of a user. Out: a `KnowledgeBase` of typed rows. `contract` and
`fits` answer questions about one row or two; `loader` reads the files and knows where templates and profiles are.

Imports: `profile`, `host`. A new fact is a new row, never a branch in code.
"""
