"""Images of finished wheels: pack them into a file, push and pull them. Also: images to run finished wheels in.

In: builds of a wheelhouse, or a repository of a registry. Out: OCI images; the same wheels and records give the same
bytes.

`wheel_*` and `image_tags` are pure. Imports: `verify` and what `verify` imports.
"""
