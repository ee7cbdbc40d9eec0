"""Pages: one HTML file each that loads nothing and runs nothing.

In: the JSON document of a command. Out: HTML. Python computes where a mark stands, the template what it looks like.

Imports: the same as `cli`.
"""
