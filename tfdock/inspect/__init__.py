"""Inspect: bytes become facts, facts become verdicts. Pure, like reading."""
