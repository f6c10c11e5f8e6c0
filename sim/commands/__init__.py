"""The commands of `prestep`: one file each, found by its name; it parses its options, calls the simulator and prints.

A module defines `command`, a click command or group. It imports the simulator with `prestep.sim.extras.lazily`, so that
help, completion and mistakes on the command line come at once.
"""
