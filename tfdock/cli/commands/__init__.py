"""One module for a group of commands; each registers itself with the application."""
