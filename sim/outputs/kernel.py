"""One kernel on one GPU: `prestep kernel --json`."""

from __future__ import annotations

from sim.outputs._parts import GRADE, SECONDS
from sim.outputs._words import number, table, text

SCHEMA = table(
    "",
    gpu=text(),
    time=SECONDS,
    flops=number(),
    bytes=number(),
    flop_rate=number("flops/s"),
    bandwidth=number("bytes/s"),
    evidence=GRADE,
)
