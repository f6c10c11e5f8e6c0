"""Command lines and files of arguments of other programs, as sections of a scenario."""
