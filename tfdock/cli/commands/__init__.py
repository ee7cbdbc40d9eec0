"""One module for a group of commands; each registers itself with the application.

In: arguments. Out: what the command prints, and its exit code. Imports: the same as `cli`.
"""
