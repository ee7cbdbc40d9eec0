"""What a wheelhouse holds, said, indexed, served and tidied up. What a build needs of it is in `do/workspace`."""
