"""One module for a group of commands; each registers itself with the application.

In: arguments. Out: the command's output and exit code. Imports: the same as `cli`.
"""
