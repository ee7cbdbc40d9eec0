"""The documents that other programs read, as types: what commands print with `--json`, and what is kept in files.

`published` lists them, and `schemas` makes the JSON Schema of each from its type: printing a document needs neither.
Keys are added within a version of a document, and never removed, renamed or given another meaning.

Pure. Imports: nothing of ours.
"""
