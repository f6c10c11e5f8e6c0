"""What there is, by name: `prestep list KIND --json`."""

from __future__ import annotations

from prestep.sim.outputs._words import named, text

SCHEMA = named(
    {"anyOf": [text("what it is"), named(text("grade"), "of a GPU: kernels -> grade")]}
)
