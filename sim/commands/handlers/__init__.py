"""What the commands do, a module each: a command's file has its options only, so that `--help` imports no simulator."""
