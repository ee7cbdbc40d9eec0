"""Wheels: read the facts in their bytes: zip archives, ELF files, fat binaries, offload bundles, metadata.

In: the bytes of a wheel. Out: an `Inspection`: names, requirements, and the GPU code in each library. This package
also normalises wheels: equal contents then have equal bytes.

Pure, except for `wheel_file`, which opens wheels on disk. Imports: `host`.
"""
