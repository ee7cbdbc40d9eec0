"""The report of a failed run, for people who help: a bundle without the caller's known secrets and names.

In: a run's document, record and log, a wheel, or a stranger's log. Out: a zip file.

`log_excerpt` and `redaction` are pure. Imports: all but `cli`.
"""
