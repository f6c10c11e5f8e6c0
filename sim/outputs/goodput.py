"""Training time that counts, over weeks: `prestep goodput --json`."""

from __future__ import annotations

from prestep.sim.outputs._parts import SECONDS
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

_SHARE = number("0 to 1")

SCHEMA = table(
    "",
    goodput=number("useful time over all of it, 0 to 1: the mean of the replicas"),
    confidence=number("of `low` and `high`, 0 to 1"),
    half_width=or_null(_SHARE),
    low=or_null(_SHARE),
    high=or_null(_SHARE),
    worst=_SHARE,
    best=_SHARE,
    replicas=whole(),
    gpus=whole(),
    days=number(),
    mtbf=or_null(number("s between failures")),
    interruptions=number("a run"),
    interruptions_by_component=named(number("a run")),
    shares=named(_SHARE, "what the time goes to"),
    interval=number("s of work between saves"),
    young_daly=or_null(number("s: the interval of that formula")),
    save_stall=SECONDS,
    restart=SECONDS,
    load_time=SECONDS,
    step_time=SECONDS,
    effective_step_time=or_null(number("s: all of the time over the steps that count")),
    evidence=named(text()),
    takes=named(whole(), "component -> hosts that its failure takes out"),
    progress_with_hosts_missing=items(number()),
    slow_hosts=named(number(), "how many there were, were found, were noticed"),
    optimal_interval=maybe(SECONDS),
    optimal_low=maybe(or_null(SECONDS)),
    optimal_high=maybe(or_null(SECONDS)),
    young_daly_behind=maybe(or_null(_SHARE)),
    young_daly_behind_half_width=maybe(or_null(_SHARE)),
    tried=maybe(
        items(
            table(
                "",
                interval=SECONDS,
                goodput=_SHARE,
                half_width=or_null(_SHARE),
                behind=or_null(_SHARE),
                behind_half_width=or_null(_SHARE),
            ),
            "intervals that --optimal tried",
        )
    ),
)
