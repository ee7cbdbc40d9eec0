"""The command line: the only package that prints and exits.

In: arguments, and values of all other packages. Out: messages on standard error, results on standard output, pages,
exit codes. `commands` has one module for each group of commands.

Imports: everything. Nothing imports it.
"""
