"""Profiles: read the YAML that a user writes into immutable values.

In: text. Out: `Profile`, or problems with file, line and column. `yaml_nodes` keeps the position of every value,
`units` and `endpoint` read amounts and addresses.

Pure: no file, clock, process or network. Imports: only the basic modules (`errors`, `types`).
"""
