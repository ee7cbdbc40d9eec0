"""Verification: does a wheel match its profile, and does it work in a clean container?

In: a wheel, a plan. Out: checks that are passed, failed or skipped, with the reason.

`checks` and `trial_plan` are pure. Imports: `wheelhouse` and what is above it.
"""
