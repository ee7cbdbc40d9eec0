"""Knowledge: tables of facts about releases, toolkits, compilers, GPUs, images and failures, each with its source.

In: the YAML tables beside this file, and a user's tables. Out: a `KnowledgeBase` of typed rows. `contract` and `fits`
answer questions about one or two rows. `loader` reads the files and finds templates and profiles.

Imports: `profile`, `host`. A new fact is a new row, never a branch in code.
"""
