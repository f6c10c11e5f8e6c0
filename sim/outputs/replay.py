"""A recorded run, replayed: `prestep replay --json`."""

from __future__ import annotations

from prestep.sim.outputs._parts import CRITICAL_PATH, SECONDS
from prestep.sim.outputs._words import (
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

_BY_STEP = named(or_null(SECONDS), "step -> s")
_TIMES = named(_BY_STEP, "rank -> step -> s")
_SHARES = named(SECONDS, "share -> s")

REPLAYED = table(
    "as it was, or with changes",
    measured_step_time=_TIMES,
    simulated_step_time=_TIMES,
    step_time=or_null(SECONDS),
    mean_error=or_null(number("share; null: something was changed")),
    worst_error=or_null(number("share")),
    clock=text("what counts the steps: host or gpu"),
    clocks=named(table("", measured=_TIMES, simulated=_TIMES)),
    comm=text("recorded or simulated"),
    cluster=or_null(text()),
    changes=items(text(), "in words"),
    breakdown=table("", measured=_SHARES, simulated=_SHARES),
    families=named(SECONDS, "kernel family -> s"),
    overlap=table("", measured=_SHARES, simulated=_SHARES),
    residual=named(SECONDS, "what the simulated step has more than the measured"),
    critical_path=CRITICAL_PATH,
    free=items(
        table("", free=text(), step_time=SECONDS, saved=SECONDS),
        "the step if that took no time (--free)",
    ),
    reports=named(whole(), "what the reader noticed -> how often"),
    dropped=items(
        table("", rank=whole(), what=text(), why=text(), count=whole()),
        "what the reader left out",
    ),
    operations=whole(),
)

_SIDE = table("", step_time=SECONDS, breakdown=_SHARES, families=named(SECONDS))

COMPARED = table(
    "the run beside the prediction of its program (--compare)",
    cluster=text(),
    signed_error=number("(predicted - measured) / measured"),
    measured=_SIDE,
    predicted=_SIDE,
)

STRAGGLERS = table(
    "a whole job: what slow ranks and stages cost",
    measured_step_time=_BY_STEP,
    simulated_step_time=_BY_STEP,
    worst_error=number("share"),
    ideal_step_time=number("s, if all operations of a kind took the same"),
    slowdown=number("the recorded step over that"),
    slowdown_by=named(named(number()), "rank, stage, kind -> name -> slowdown"),
    stages=whole(),
    ranks=whole(),
    changes=items(text(), "--set, as typed"),
    free=maybe(
        items(
            table(
                "--free: the step if a kind, or the host, took no time",
                free=text(),
                step_time=SECONDS,
                saved=SECONDS,
            )
        )
    ),
)

SCHEMA = either(
    "a replay, a comparison, or the stragglers of a job", REPLAYED, COMPARED, STRAGGLERS
)
