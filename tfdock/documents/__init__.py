"""The documents that other programs read, as types: what commands print with `--json`, and what is kept in files.

`published` lists them. `tfdock/schemas/NAME.json` is the JSON Schema of each, made from its type by a test
(tests/unit/test_documents.py, `make golden`), so that printing one needs none of this. Keys are added within a
version of a document, and never removed, renamed or given another meaning.

Imports: nothing of ours.
"""
