"""Bundles: everything that builds need, in one file, for a machine without a network.

In: plans and a network, or a bundle. Out: a bundle, or a build's inputs in the places where the build looks for them.

`bundle_format` is pure. Imports: `builder` and what is above it.
"""
