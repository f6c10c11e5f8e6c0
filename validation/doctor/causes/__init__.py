"""Causes of slow collectives; a file with a `CAUSE` is one."""
