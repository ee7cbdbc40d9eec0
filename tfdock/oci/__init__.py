"""OCI: manifests, descriptors and tars as values, and a client for registries.

In: bytes from a registry or an archive. Out: manifests and blobs whose digests were checked. `http` has limits, and
retries if that is safe; `registry_session` reads logins from Docker's own configuration.

`manifest` and `plain_tar` are pure. Imports: `host`, `plan`.
"""
