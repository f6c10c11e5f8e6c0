"""What `prestep run --json` prints of [inference]."""

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

SERVING = table(
    "prefill and decode of requests",
    time_to_first_token=named(SECONDS, "mean, min, median, p99 -> s"),
    parts=named(SECONDS, "what a first token waits for -> s"),
    time_per_output_token=SECONDS,
    prefill_time=SECONDS,
    transfer_alone=or_null(SECONDS),
    kv_bytes=number("bytes of a prompt's KV cache"),
    paths=items(text()),
    tier=text("where the cache lies"),
    requests=whole(),
    seconds=SECONDS,
    requests_per_second=number(),
    tokens_per_second=number(),
    links=items(
        table("", name=text(), kind=text(), bytes=number(), utilisation=number())
    ),
    all_reduces=named(text(), "prefill, decode -> algorithm and protocol"),
    evidence=named(GRADE),
    model=text(),
    cluster=text(),
    gpu=text(),
    transfer_bandwidth=maybe(or_null(number("bytes/s"))),
)
