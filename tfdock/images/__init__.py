"""Images of finished wheels: packed into a file, pushed to a registry, pulled from one; and images to run them in.

In: builds of a wheelhouse, or a repository of a registry. Out: OCI images that are the same bytes for the same
wheels and records.

`wheel_*` and `image_tags` are pure. Imports: `verify` and what is above it.
"""
