"""Talk: the only ring that prints and exits."""
