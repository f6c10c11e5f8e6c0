"""A collective by size: `prestep collective --json`."""

from __future__ import annotations

from prestep.sim.outputs._parts import GRADE, SECONDS
from prestep.sim.outputs._words import (
    items,
    maybe,
    named,
    number,
    or_null,
    table,
    text,
    whole,
)

_INTERVAL = or_null(
    table(
        "in which nine in ten measured times lie",
        low=SECONDS,
        high=SECONDS,
        spread=number("standard deviation of the logarithm"),
        place=text("what it was found from"),
        nominal=maybe(number("probability: 0.9")),
    )
)

SIZE = table(
    "a size",
    op=text(),
    bytes=number(),
    time=number("s of one of many calls in one stream, as nccl-tests times them"),
    nccl_tests_time=number("s, the same as time"),
    time_in_step=number("s of a program's own call, which waits for two streams"),
    algbw=number("bytes/s"),
    busbw=number("bytes/s"),
    algo=text(),
    proto=text(),
    channels=whole(),
    latency=SECONDS,
    evidence=GRADE,
    bottleneck=text(
        "a link whose kind, made faster, shortens it most, or what else decides: latency, channels, ..."
    ),
    notes=items(text()),
    faster=or_null(
        table(
            "what NCCL compared and did not choose, and what takes less time as predicted",
            algo=text(),
            proto=text(),
            channels=whole(),
        )
    ),
    interval=_INTERVAL,
    rate=maybe(or_null(number("bytes/s that the bottleneck allows"))),
    candidates=maybe(
        items(
            table(
                "",
                algo=text(),
                proto=text(),
                latency=SECONDS,
                bandwidth=number("bytes/s"),
                time=SECONDS,
            ),
            "what NCCL chooses from (--explain)",
        )
    ),
)

CREATION = table(
    "making a communicator (--op init)",
    op=text(),
    ranks=whole(),
    time=SECONDS,
    time_again=number("s of a second one"),
    interval_again=table(
        "of a second one, on the fastest and the slowest machine that are known",
        low=SECONDS,
        high=SECONDS,
    ),
    parts=named(SECONDS),
    evidence=GRADE,
)

SCHEMA = items({"anyOf": [SIZE, CREATION]}, "one object a size")
