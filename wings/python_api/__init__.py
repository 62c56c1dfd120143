"""`import gauntlet`: the commands as functions, with objects of Python for files."""
