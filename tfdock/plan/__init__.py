"""Plans: a resolution becomes a `BuildPlan`: Dockerfile, commands, resources, estimate, lock file.

In: a profile's file, a `Resolution`, a `Machine`. Out: what `tfdock plan` prints and `tfdock build` runs. `prepare`
is the way from a file to a plan, which `planning` decides; `preflight` holds it against this machine; `notes` says
what to know before.

Pure but for `prepare`, `notes`, `local_source` and `context_folder`. Imports: `resolve` and what is above it.
"""
