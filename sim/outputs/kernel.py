"""One kernel on one GPU: `prestep kernel --json`."""

from __future__ import annotations

from prestep.sim.outputs._parts import GRADE, SECONDS
from prestep.sim.outputs._words import number, or_null, table, text

SCHEMA = table(
    "",
    gpu=text(),
    time=SECONDS,
    time_alone=SECONDS,
    flops=or_null(number("floating-point operations; null: not counted")),
    bytes=number(),
    flop_rate=or_null(number("flops/s of `time`")),
    flop_rate_alone=or_null(number("flops/s of `time_alone`")),
    bandwidth=number("bytes/s of `time`"),
    intensity=or_null(number("flops for a byte")),
    ridge=number("flops for a byte at which arithmetic at peak takes as long as HBM"),
    bound=text("arithmetic, memory or launch"),
    evidence=GRADE,
)
