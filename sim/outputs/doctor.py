"""This environment: `prestep doctor --json`."""

from __future__ import annotations

from prestep.sim.outputs._words import flag, items, table, text

SCHEMA = table(
    "",
    good=flag("whether nothing is wrong"),
    findings=items(
        table("", what=text(), state=text(), found=text(), advice=text()),
        "versions, packages in the way, what is missing",
    ),
)
