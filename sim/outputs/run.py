"""A predicted step: `prestep run --json`."""

from __future__ import annotations

from prestep.sim.outputs import _sections
from prestep.sim.outputs._parts import (
    BREAKDOWN,
    CRITICAL_PATH,
    EVIDENCE,
    FALLBACKS,
    INTERVAL,
    JOB,
    LINK_KINDS,
    LINKS,
    SECONDS,
    VERDICT,
)
from prestep.sim.outputs._rl import RL
from prestep.sim.outputs._serving import SERVING
from prestep.sim.outputs._words import (
    either,
    flag,
    items,
    maybe,
    more,
    named,
    number,
    or_null,
    table,
    text,
    whole,
)

STEP = table(
    "a step",
    step_time=number("s: the longest of the ranks' steps"),
    step_time_by_rank=named(SECONDS, "rank -> s"),
    measured_step_time=or_null(number("s, as the scenario says; null: it does not")),
    signed_error=or_null(number("(predicted - measured) / measured")),
    measured_fitted=flag("a constant was fitted to the measured run"),
    tokens_per_second_per_gpu=or_null(
        number(
            "what `scenario.sample` says, a second and GPU; null: a recorded program's"
        )
    ),
    mfu=or_null(number("model flops over the peak of the datasheet, 0 to 1")),
    tflops_per_gpu=or_null(number("model flops per second and GPU, in 1e12")),
    uncertainty=INTERVAL,
    breakdown=BREAKDOWN,
    peak_memory=named(named(number("bytes")), "rank -> owner -> bytes at the peak"),
    reserved_memory=named(number("bytes"), "of a captured program: rank -> bytes"),
    memory_by_module=named(
        named(number("bytes")), "of a captured program: rank -> module -> bytes"
    ),
    out_of_memory=VERDICT,
    host_memory=named(
        named(number("bytes")), "rank -> owner -> bytes kept in its host's memory"
    ),
    energy=_sections.ENERGY,
    critical_path=CRITICAL_PATH,
    links=LINKS,
    link_kinds=LINK_KINDS,
    evidence=EVIDENCE,
    tables=named(
        number("0 to 1"),
        "own, library NAME, borrowed from GPU, limits -> share of the kernels' time",
    ),
    fallbacks=FALLBACKS,
    warnings=items(text()),
    scenario=JOB,
    checkpoint=maybe(_sections.CHECKPOINT),
    dataload=maybe(_sections.DATALOAD),
    replicas=maybe(_sections.REPLICAS),
    host=maybe(_sections.HOST),
    cost=maybe(_sections.COST),
    expected_error=maybe(_sections.EXPECTED),
)

JOBS = table(
    "several jobs on one cluster",
    jobs=items(
        more(
            STEP,
            name=text(),
            alone_step_time=number("s, with the cluster to itself"),
            slowdown=number("step time over that"),
        )
    ),
    links=LINKS,
    notes=items(text()),
)

_SIZE = or_null(
    table(
        "a micro batch, and what it needs",
        micro_batch=whole("samples"),
        needed=number("bytes"),
        capacity=or_null(number("bytes")),
        owners=named(number("bytes")),
        fits=flag(),
        largest_owner=text(),
        usual=number("bytes with the allocator's usual fragmentation"),
    )
)

LARGEST = table(
    "the largest micro batch that fits (--max-micro-batch)",
    max_micro_batch=whole("samples; 0: none"),
    at=_SIZE,
    next=_SIZE,
    max_micro_batch_with_usual_fragmentation=or_null(whole("samples")),
    global_batch=or_null(whole("samples a step")),
    max_micro_batch_of_global_batch=or_null(whole("samples")),
)

SCHEMA = either(
    "one step; or several jobs, serving, an RL step, or the largest micro batch, as was asked",
    STEP,
    JOBS,
    SERVING,
    RL,
    LARGEST,
)
