"""Predictions beside measurements: `prestep validate --json`."""

from __future__ import annotations

from prestep.sim.outputs._words import (
    flag,
    items,
    maybe,
    named,
    number,
    open_table,
    or_null,
    table,
    text,
    whole,
)

_ERRORS = open_table(
    "errors of several cases, as shares",
    n=whole("cases"),
    mape=maybe(or_null(number("mean of the absolute errors"))),
    worst=maybe(or_null(number())),
    bias=maybe(or_null(number("mean of the signed errors"))),
    worst_id=maybe(or_null(text())),
    rank_correlation=maybe(or_null(number("Spearman's"))),
)

REPORT = open_table(
    "a set; keys beside these depend on its kind",
    set=text(),
    title=text(),
    passed=flag("whether all checks did"),
    groups=maybe(named(_ERRORS)),
    checks=items(
        table(
            "a figure against its limit",
            name=text(),
            value=or_null(number()),
            limit=or_null(number()),
            passed=flag(),
            detail=text(),
        )
    ),
    cases=items(open_table("a measured case", id=maybe(text()))),
    compared=maybe(open_table("what moved since a base (--compare)")),
    skipped=maybe(items(open_table("a row that was not compared"))),
    by_slice=named(_ERRORS),
)

SCHEMA = {
    "description": "of one set an object, of several a list",
    "anyOf": [REPORT, items(REPORT)],
}
