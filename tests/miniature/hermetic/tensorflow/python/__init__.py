"""What stands behind the names of the package tensorflow."""
