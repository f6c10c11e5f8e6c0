"""Commands of `prestep` about measurements: files as in `prestep.sim.commands`."""
