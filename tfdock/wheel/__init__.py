"""Wheels: bytes become facts. Zip archives, ELF files, fat binaries, offload bundles, metadata.

In: the bytes of a wheel. Out: an `Inspection`: names, requirements, and the GPU code in each library. A wheel is also
normalised here, so that equal contents give equal bytes.

Pure but for `wheel_file`, which opens wheels on disk. Imports: `host`.
"""
