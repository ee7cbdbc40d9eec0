"""The container engine: a narrow protocol, and its implementation with the Docker SDK.

In: `ContainerSpec`, contexts, archives. Out: states, output, images, in tfdock's own records (`protocol`).
`engine_errors` translates the engines' messages into our errors.

The only package that imports `docker`, but for the logins of `oci`. Imports: `host`, `knowledge`, `oci`.
"""
