"""Plans: a resolution becomes a `BuildPlan`: Dockerfile, commands, resources, estimate, lock file.

In: a profile's file, a `Resolution`, a `Machine`. Out: what `tfdock plan` prints and `tfdock build` runs. `prepare`
turns a file into a plan, and `planning` decides the plan. `preflight` compares the plan with this machine. `notes`
returns hints before a build.

Pure, except `prepare`, `notes`, `local_source` and `context_folder`. Imports: `resolve` and the packages above it.
"""
