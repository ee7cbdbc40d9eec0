"""Diagnosis: a log becomes findings in order, each with its cause and a fix.

In: logs, a profile. Out: findings, changes of the profile that were tried.

Pure but for `diagnose_logs`. Imports: `ci` and what is above it.
"""
