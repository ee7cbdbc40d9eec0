"""The report of a run that failed, for somebody who helps: a bundle without the caller's known secrets and names.

In: a run's document, record and log, a wheel, or a stranger's log. Out: a zip file.

`log_excerpt` and `redaction` are pure. Imports: all but `cli`.
"""
