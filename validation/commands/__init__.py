"""Commands of `prestep` about measurements: files as in `sim.commands`."""
