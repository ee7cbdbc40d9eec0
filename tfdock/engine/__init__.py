"""The container engine: a narrow protocol, and its implementation with the Docker SDK.

In: `ContainerSpec`, contexts, archives. Out: states, output, images, in tfdock's own records (`protocol`).
`engine_errors` translates the engines' messages into our errors. Only this package and `oci` (for logins) import
`docker`. Imports: `host`, `knowledge`, `oci`.
"""
