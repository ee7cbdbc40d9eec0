"""One module for each group of commands. Each module registers its commands with the application.

In: arguments. Out: the command's output and exit code. Imports: the same as `cli`.
"""
