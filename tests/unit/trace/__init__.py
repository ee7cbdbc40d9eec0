"""Tests of `tfdock.trace`."""
