"""Images of finished wheels: chosen in a wheelhouse, packed into a file, pushed to a registry and pulled from one."""
