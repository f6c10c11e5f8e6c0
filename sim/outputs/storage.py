"""A storage system by size of request: `prestep storage --json`."""

from __future__ import annotations

from prestep.sim.outputs._words import items, number, table, whole

_RATE = number("bytes/s")

SCHEMA = items(
    table(
        "",
        request=number("bytes"),
        threads=whole("of one host"),
        read_sequential=_RATE,
        read_random=_RATE,
        write_sequential=_RATE,
        write_random=_RATE,
        random_iops=number("requests/s"),
    ),
    "one object a size of request",
)
