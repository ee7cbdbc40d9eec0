"""The documents that other programs read: what commands print with `--json`, and what is kept in files.

A value of the program that is a document is its own type. Types of this package hold what is put together for a
document. `published` lists the documents, and `schemas` makes the JSON Schema of each from its type. Keys are added
within a version of a document, and never removed, renamed or given another meaning.

Imports: the packages whose values are documents; not `report` and `cli`.
"""
