"""Builds: the phases image, fetch, compile, seal and verify; several builds at once; cleanup after killed builds.

In: a `BuildRequest` and a `BuildSession`. Out: a wheel in the wheelhouse with its record, or one error. `doctor`
finds what this machine lacks, `locking` pins the downloads of a build.

Imports: `images` and what `images` imports.
"""
