"""The fastest layouts that fit: `prestep search --json`."""

from __future__ import annotations

from prestep.sim.outputs._parts import BREAKDOWN, EVIDENCE, SECONDS, VERDICT
from prestep.sim.outputs._sections import COST, ENERGY
from prestep.sim.outputs._words import (
    anything,
    either,
    items,
    maybe,
    named,
    number,
    or_null,
    table,
    text,
    whole,
)

RANKED_BY = text("time, energy or cost")
_CHANGES = named(anything(), "key -> value, as --set takes them")

LAYOUTS = table(
    "layouts of a model on a cluster",
    ranked=items(
        table(
            "",
            layout=text(),
            changes=_CHANGES,
            step_time=SECONDS,
            mfu=number("0 to 1"),
            tokens_per_second_per_gpu=number(),
            tflops_per_gpu=number(),
            peak_memory=or_null(number("bytes of the fullest rank")),
            out_of_memory=VERDICT,
            breakdown=BREAKDOWN,
            why=text("what the step is made of, or why the next one is slower"),
            evidence=EVIDENCE,
            energy=ENERGY,
            cost_per_million_tokens=maybe(number("in the unit of --price")),
            cost=maybe(COST),
        ),
        "the best first",
    ),
    ranked_by=RANKED_BY,
    global_batch=whole("samples a step"),
    valid=whole("layouts that the rules allow"),
    sampled=whole("those looked at"),
    simulated=whole(),
    too_large=whole("those that do not fit"),
    too_slow=whole("those that a bound rules out"),
    largest_owner=named(whole(), "owner -> layouts that do not fit because of it most"),
    refused=named(whole(), "key -> combinations that are not possible"),
    nearest_that_does_not_fit=or_null(
        table(
            "",
            changes=_CHANGES,
            layout=text(),
            needed=number("bytes"),
            capacity=number("bytes"),
            largest_owner=text(),
        )
    ),
)

PLACES = table(
    "clusters for a captured program, whose layout is its own",
    ranked=items(
        table(
            "",
            changes=_CHANGES,
            cluster=text(),
            gpu=text(),
            gpus=whole(),
            step_time=SECONDS,
            mfu=or_null(number("0 to 1; null: not known")),
            peak_memory=or_null(number("bytes of the fullest rank")),
            breakdown=BREAKDOWN,
            evidence=EVIDENCE,
            energy=ENERGY,
            cost_per_thousand_steps=maybe(number("in the unit of --price")),
        )
    ),
    ranked_by=RANKED_BY,
    refused=items(table("", changes=_CHANGES, error=text())),
    does_not_fit=items(_CHANGES),
)

SCHEMA = either("layouts of a model, or places for a captured program", LAYOUTS, PLACES)
