"""This machine: hardware, settings, files, locks, and work that is supervised.

In: the environment, the file system, the clock. Out: values such as `Machine` and `Settings`, and files that are
written whole or not at all. `beneath` opens folders that a container could write to.

Imports: `profile`.
"""
