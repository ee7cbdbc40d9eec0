"""Diagnosis: turn a log into findings in order; each finding has a cause and a fix.

In: logs, a profile. Out: findings, and tested changes of the profile.

Pure, except `diagnose_logs`. Imports: `ci` and the packages above it.
"""
