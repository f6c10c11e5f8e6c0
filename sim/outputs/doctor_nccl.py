"""Whether a log of NCCL is normal: `prestep doctor nccl --json`."""

from __future__ import annotations

from prestep.sim.outputs._parts import SECONDS
from prestep.sim.outputs._words import (
    flag,
    items,
    named,
    number,
    or_null,
    table,
    text,
    whole,
)

_SIGNS = items(named(text()), "lines of the log, and what they say")

SCHEMA = table(
    "",
    normal=flag("no part is slower than good machines are"),
    verdict=text("normal, cannot tell (good machines differ too much) or abnormal"),
    cluster=text("what the log was held against"),
    ranks=whole(),
    hosts=whole(),
    sweeps=items(
        table(
            "an operation",
            op=text(),
            ranks=whole(),
            sizes=items(
                table(
                    "",
                    bytes=number(),
                    measured=SECONDS,
                    busbw=number("bytes/s"),
                    expected=SECONDS,
                    low=SECONDS,
                    high=number("s: good machines lie between"),
                    slow=flag(),
                    algo=text(),
                    proto=text(),
                    channels=whole(),
                )
            ),
        )
    ),
    parts=items(
        table(
            "sizes that one thing bounds",
            place=text(),
            bound_by=text(),
            sizes=items(number("bytes")),
            excess=number("measured over expected"),
            limit=number("from where on it is abnormal"),
            abnormal=flag(),
            ratio=number("measured over predicted time, middle over the sizes"),
            low=number("of the fastest good machines"),
            high=number("of the slowest good machines"),
        )
    ),
    causes=items(
        items(
            table(
                "",
                cause=text(),
                supported=flag("a line shows it, or it predicts the times of the log"),
                title=text(),
                change=text("what is changed to simulate it, as --set takes it"),
                explained=or_null(number("share of the excess that it explains")),
                distance=or_null(number("of its times to the measured ones")),
                check=text("what to look at"),
                signs=_SIGNS,
                times=items(SECONDS),
            )
        ),
        "that predict the log, the likeliest first; those of a group predict the same",
    ),
    ruled_out=named(_SIGNS),
    signs=named(_SIGNS),
    skipped=items(text(), "lines that could not be read"),
)
