"""The container engine: a narrow protocol, and its implementation with the Docker SDK.

In: `ContainerSpec`, contexts, archives. Out: states, output, images, in tfdock's own records (`protocol`).
`engine_errors` translates the engines' messages into our errors.

No other package imports `docker`, except `oci` for logins. Imports: `host`, `knowledge`, `oci`.
"""
