"""Decide: values become a plan that can be printed. Pure, like reading."""
