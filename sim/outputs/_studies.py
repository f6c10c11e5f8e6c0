"""Of commands that ask about steps: `whatif`, `search`, `replay`, `goodput`, `validate`."""

from __future__ import annotations

from prestep.sim.outputs._parts import (
    BREAKDOWN,
    COST,
    CRITICAL_PATH,
    ENERGY,
    EVIDENCE,
    LINK_KINDS,
    LINKS,
    SECONDS,
    VERDICT,
)
from prestep.sim.outputs._words import (
    anything,
    either,
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

# A step with and without changes: `prestep whatif --json`.
_WHATIF_SIDE = table(
    "",
    step_time=SECONDS,
    breakdown=BREAKDOWN,
    links=LINKS,
    link_kinds=LINK_KINDS,
    out_of_memory=VERDICT,
    warnings=items(text()),
)

COMPARED = table(
    "as it is, and with the changes of --set",
    base=_WHATIF_SIDE,
    changed=_WHATIF_SIDE,
    unchanged=flag("whether every figure of the prediction is the same"),
    speedup=number("step time of the base over that of the changed: above 1 is faster"),
    difference=number("s, changed less base"),
    difference_interval=or_null(
        table(
            "what both rest on cancels",
            nominal=number("probability: 0.9"),
            low=SECONDS,
            high=SECONDS,
            spread=SECONDS,
            method=text("how: simulated, or linearised over both critical paths"),
        )
    ),
    breakdown_difference=named(SECONDS),
    changed_kinds=items(text(), "kinds of links that the changes are about"),
    same_operations=flag(
        "whether both steps run the same operations, on links, GPUs or hosts that are faster or slower"
    ),
    communication_alone=table(
        "s, one communication of every kind on an idle network, added up",
        base=SECONDS,
        changed=SECONDS,
    ),
    choices=items(
        table(
            "a kind of communication that NCCL runs otherwise after the changes",
            axis=text(),
            operation=text(),
            size=number("bytes, as nccl-tests counts them"),
            before=text("algorithm and protocol"),
            after=text("algorithm and protocol"),
        ),
        "the largest first",
    ),
)

EACH = table(
    "every element faster and slower (--each)",
    step_time=SECONDS,
    factors=items(number()),
    elements=items(
        table(
            "",
            element=text(),
            set=text("the key that --set takes"),
            changes=items(
                table("", factor=number(), step_time=SECONDS, difference=SECONDS)
            ),
            effect=number("s: the largest difference"),
            label=text("the element, its stage, and how many it stands for"),
            stands_for=whole("elements that are alike, itself among them"),
            alike=items(text(), "names of some of them"),
            stages=items(whole(), "pipeline stages that it is in"),
        ),
        "those that matter most first",
    ),
    each=maybe(items(text(), "what was tried: link-kind, rank, ...")),
    coverage=items(
        table(
            "of each of these",
            each=text(),
            elements=whole("that there are"),
            classes=whole("of elements that are alike"),
            tried=whole("classes"),
            covered=whole("elements that those tried stand for"),
            chosen=text("all, or how they were chosen"),
        )
    ),
)

WHATIF = either(
    "two steps side by side, or one element after the other", COMPARED, EACH
)

# The fastest layouts that fit: `prestep search --json`.
RANKED_BY = text("time, energy or cost")
_SEARCH_CHANGES = named(anything(), "key -> value, as --set takes them")

LAYOUTS = table(
    "layouts of a model on a cluster",
    ranked=items(
        table(
            "",
            layout=text(),
            changes=_SEARCH_CHANGES,
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
            changes=_SEARCH_CHANGES,
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
            changes=_SEARCH_CHANGES,
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
    refused=items(table("", changes=_SEARCH_CHANGES, error=text())),
    does_not_fit=items(_SEARCH_CHANGES),
)

SEARCH = either("layouts of a model, or places for a captured program", LAYOUTS, PLACES)

# A recorded run, replayed: `prestep replay --json`.
_REPLAY_BY_STEP = named(or_null(SECONDS), "step -> s")
_REPLAY_TIMES = named(_REPLAY_BY_STEP, "rank -> step -> s")
_REPLAY_SHARES = named(SECONDS, "share -> s")

REPLAYED = table(
    "as it was, or with changes",
    measured_step_time=_REPLAY_TIMES,
    simulated_step_time=_REPLAY_TIMES,
    step_time=or_null(SECONDS),
    mean_error=or_null(number("share; null: something was changed")),
    worst_error=or_null(number("share")),
    clock=text("what counts the steps: host or gpu"),
    clocks=named(table("", measured=_REPLAY_TIMES, simulated=_REPLAY_TIMES)),
    comm=text("recorded or simulated"),
    cluster=or_null(text()),
    changes=items(text(), "in words"),
    breakdown=table("", measured=_REPLAY_SHARES, simulated=_REPLAY_SHARES),
    families=named(SECONDS, "kernel family -> s"),
    overlap=table("", measured=_REPLAY_SHARES, simulated=_REPLAY_SHARES),
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

_REPLAY_SIDE = table(
    "", step_time=SECONDS, breakdown=_REPLAY_SHARES, families=named(SECONDS)
)

COMPARED = table(
    "the run beside the prediction of its program (--compare)",
    cluster=text(),
    signed_error=number("(predicted - measured) / measured"),
    measured=_REPLAY_SIDE,
    predicted=_REPLAY_SIDE,
)

STRAGGLERS = table(
    "a whole job: what slow ranks and stages cost",
    measured_step_time=_REPLAY_BY_STEP,
    simulated_step_time=_REPLAY_BY_STEP,
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

REPLAY = either(
    "a replay, a comparison, or the stragglers of a job", REPLAYED, COMPARED, STRAGGLERS
)

# Training time that counts, over weeks: `prestep goodput --json`.
_GOODPUT_SHARE = number("0 to 1")

GOODPUT = table(
    "",
    goodput=number("useful time over all of it, 0 to 1: the mean of the replicas"),
    confidence=number("of `low` and `high`, 0 to 1"),
    half_width=or_null(_GOODPUT_SHARE),
    low=or_null(_GOODPUT_SHARE),
    high=or_null(_GOODPUT_SHARE),
    worst=_GOODPUT_SHARE,
    best=_GOODPUT_SHARE,
    replicas=whole(),
    gpus=whole(),
    days=number(),
    mtbf=or_null(number("s between failures")),
    interruptions=number("a run"),
    interruptions_by_component=named(number("a run")),
    shares=named(_GOODPUT_SHARE, "what the time goes to"),
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
    young_daly_behind=maybe(or_null(_GOODPUT_SHARE)),
    young_daly_behind_half_width=maybe(or_null(_GOODPUT_SHARE)),
    tried=maybe(
        items(
            table(
                "",
                interval=SECONDS,
                goodput=_GOODPUT_SHARE,
                half_width=or_null(_GOODPUT_SHARE),
                behind=or_null(_GOODPUT_SHARE),
                behind_half_width=or_null(_GOODPUT_SHARE),
            ),
            "intervals that --optimal tried",
        )
    ),
)

# Predictions beside measurements: `prestep validate --json`.
_VALIDATE_ERRORS = open_table(
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
    groups=maybe(named(_VALIDATE_ERRORS)),
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
    by_slice=named(_VALIDATE_ERRORS),
)

VALIDATE = {
    "description": "of one set an object, of several a list",
    "anyOf": [REPORT, items(REPORT)],
}
