"""The documents that other programs read: the output of commands with `--json`, and stored files.

Some documents are values of the program, with their own types. Types of this package combine several values in one
document. `published` lists the documents, and `schemas` makes the JSON Schema of each from its type. Keys are added
within a version of a document, and never removed, renamed or given another meaning.

Imports: the packages whose values are documents; not `report` and `cli`.
"""
