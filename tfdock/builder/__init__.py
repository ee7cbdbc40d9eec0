"""One build: image, fetch, compile, seal, verify; several at once; and cleanup after builds that were killed.

In: a `BuildRequest` and a `BuildSession`. Out: a wheel in the wheelhouse with its record, or one error. `doctor` says
what this machine lacks, `locking` pins what a build takes from elsewhere.

Imports: `images` and what is above it.
"""
