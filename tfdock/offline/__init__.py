"""Bundles: one file with everything that builds need on a machine without a network.

In: plans and a network, or a bundle. Out: a bundle, or a build's inputs in the folders where the build expects them.

`bundle_format` is pure. Imports: `builder` and what `builder` imports.
"""
