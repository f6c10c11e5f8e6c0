"""The commands of `prestep`: one file each, found by its name; each parses its options, calls one function, and prints.

A module defines `command`, a click command or group. Everything but click is imported inside the commands, so that
`prestep --help` is instant.
"""
