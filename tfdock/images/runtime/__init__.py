"""Runtime images: Python, a finished wheel and its requirements. An image is tested before it gets its name.

In: a wheel of the wheelhouse, the `runtime` section of a profile. Out: an image on the engine or in a registry.

`runtime_contents` is pure. Imports: the same as `images`.
"""
