"""Measurements that others send: `prestep submit --json`."""

from __future__ import annotations

from prestep.sim.outputs._parts import SECONDS
from prestep.sim.outputs._words import flag, items, number, or_null, table, text

SCHEMA = table(
    "",
    good=flag("whether no row has doubts"),
    rows=items(
        table(
            "",
            id=text("the same for the same measurement"),
            where=text("file and line"),
            measured=number("s: the median of the steps"),
            predicted=SECONDS,
            signed_error=number("(predicted - measured) / measured"),
            low=or_null(SECONDS),
            high=or_null(number("s: nine in ten steps lie between")),
            doubts=items(text(), "why it can hardly be true"),
        )
    ),
)
