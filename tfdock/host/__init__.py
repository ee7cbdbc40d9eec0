"""This machine: hardware, settings, files, locks, and the supervision of long tasks.

In: the environment, the file system, the clock. Out: values such as `Machine` and `Settings`, and files that are
written completely or not at all. `untrusted_folders` opens folders that a container could write to.

Imports: `profile`.
"""
