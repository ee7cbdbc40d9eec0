"""Pages: each is one HTML file that loads nothing and runs nothing.

In: the JSON document of a command. Out: HTML. Python computes positions; the template sets the look.

Imports: the same as `cli`.
"""
