"""Plans: turn a resolution into a `BuildPlan`, with Dockerfile, commands, resources, estimate and lock file.

In: a profile's file, a `Resolution`, a `Machine`. Out: what `tfdock plan` prints and `tfdock build` runs. `prepare`
reads a profile's file and returns its plan; `planning` makes the decisions. `preflight` compares the plan with this
machine. `notes` returns hints before a build.

Pure, except `prepare`, `notes`, `local_source` and `context_folder`. Imports: `resolve` and the packages above it.
"""
