"""One build: image, fetch, compile, seal, verify; several at once; and cleanup after builds that were killed.

In: a `BuildRequest` and a `BuildSession`. Out: a wheel in the wheelhouse with its record, or one error. `doctor`
finds what this machine lacks, `locking` pins the downloads of a build.

Imports: `images` and what is above it.
"""
