"""Diagnosis: a log becomes findings in order, each with its cause and a fix; and a report that can be sent.

In: logs, a profile, the records of a run. Out: findings, changes of the profile that were tried, a report bundle
without the caller's known secrets.

Pure but for `diagnose_logs`, `report_bundle`, `reported_run` and `local_identity`. Imports: all but `cli`.
"""
