"""Of the core's other commands: `collective`, `kernel`, `list`, `whatif`, `search`."""

from __future__ import annotations

from prestep.sim.analysis.choices import Choice
from prestep.sim.collectives.nccl.tuner import Candidate
from prestep.sim.outputs.run import COST, ENERGY, LINK_KINDS, LINKS, VERDICT
from prestep.sim.outputs.words import (
    BREAKDOWN,
    EVIDENCE,
    GRADE,
    SECONDS,
    anything,
    each,
    either,
    flag,
    interval,
    items,
    maybe,
    named,
    number,
    of_class,
    or_null,
    table,
    text,
    titled,
    whole,
)

SIZE = table(
    "a size",
    **each(text(), "op", "algo", "proto"),
    bytes=number(),
    time=number("s of one of many calls in one stream, as nccl-tests times them"),
    nccl_tests_time=number("s, the same as time"),
    time_in_step=number("s of a program's own call, which waits for two streams"),
    algbw=number("bytes/s"),
    busbw=number("bytes/s"),
    channels=whole(),
    latency=SECONDS,
    evidence=GRADE,
    bottleneck=text(
        "a link whose kind, made faster, shortens it most, or what else decides: latency, channels, ..."
    ),
    notes=items(text()),
    faster=or_null(
        table(
            "what NCCL compared and did not choose, and what takes less time as predicted",
            algo=text(),
            proto=text(),
            channels=whole(),
        )
    ),
    interval=or_null(
        interval(
            "in which nine in ten measured times lie",
            place=text("what it was found from"),
            nominal=maybe(number("probability: 0.9")),
        )
    ),
    rate=maybe(or_null(number("bytes/s that the bottleneck allows"))),
    candidates=maybe(
        items(
            of_class(Candidate, "seconds and bytes/s as NCCL believes them"),
            "what NCCL chooses from (--explain)",
        )
    ),
)

CREATION = table(
    "making a communicator (--op init)",
    op=text(),
    ranks=whole(),
    time=SECONDS,
    time_again=number("s of a second one"),
    interval_again=table(
        "of a second one, on the fastest and the slowest machine that are known",
        low=SECONDS,
        high=SECONDS,
    ),
    parts=named(SECONDS),
    evidence=GRADE,
)

EXCHANGE = table(
    "an exchange of experts' tokens (--op dispatch, combine)",
    **each(text(), "op", "library", "dtype", "bottleneck"),
    **each(whole(), "tokens", "hidden", "topk", "experts", "sms", "ranks"),
    bytes=number("that a rank sends, to itself and its own host too"),
    time=SECONDS,
    rate=number("bytes/s"),
    latency=SECONDS,
    evidence=GRADE,
)

COLLECTIVE = titled(
    "A collective by size: `prestep collective --json`.",
    items(either("", SIZE, CREATION, EXCHANGE), "one object a size"),
)

KERNEL = titled(
    "One kernel on one GPU: `prestep kernel --json`.",
    table(
        "",
        gpu=text(),
        time=SECONDS,
        time_alone=SECONDS,
        flops=or_null(number("floating-point operations; null: not counted")),
        bytes=number(),
        flop_rate=or_null(number("flops/s of `time`")),
        flop_rate_alone=or_null(number("flops/s of `time_alone`")),
        bandwidth=number("bytes/s of `time`"),
        intensity=or_null(number("flops for a byte")),
        ridge=number(
            "flops for a byte at which arithmetic at peak takes as long as HBM"
        ),
        bound=text("arithmetic, memory or launch"),
        evidence=GRADE,
    ),
)

LIST = titled(
    "What there is, by name: `prestep list KIND --json`.",
    named(
        either(
            "",
            text("what it is"),
            named(text("grade"), "of a GPU: kernels -> grade"),
        )
    ),
)

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
        interval(
            "what both rest on cancels",
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
    because=text(
        "why a GPU's clock, power limit, HBM or arithmetic does what it does; empty: nothing odd"
    ),
    same_places=flag("whether another placement puts every rank where it was"),
    choices=items(
        of_class(
            Choice, "a kind of communication that NCCL runs otherwise after the changes"
        ),
        "the largest first",
    ),
)

_FIGURES = {
    "name": text("as --against has it"),
    "changes": items(text(), "of --set"),
    "step_time": SECONDS,
    "gpus": whole(),
    "tokens_per_second": or_null(
        number("of all GPUs; samples where there are no tokens")
    ),
    "gpu_hours_per_billion": or_null(number("GPU-hours for a billion tokens")),
    "cost_per_million": or_null(number("of a million tokens, where prices are given")),
    "energy": or_null(number("J of a step")),
    "memory": or_null(number("bytes of the fullest rank")),
    "fits": or_null(flag("whether that fits")),
    **each(or_null(SECONDS), "low", "high"),
    "expected_error": or_null(
        number("as of `run`: mean of |predicted / measured - 1|")
    ),
}

VARIANTS = table(
    "as it is, and with each --against",
    base=table("", **_FIGURES),
    variants=items(
        table("", **_FIGURES, comparison=COMPARED), "in the order of the command line"
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

WHATIF = titled(
    "A step with and without changes: `prestep whatif --json`.",
    either(
        "two steps side by side, several variants, or one element after the other",
        COMPARED,
        VARIANTS,
        EACH,
    ),
)

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
    stopped=flag("whether somebody stopped it: better layouts may be left"),
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

SEARCH = titled(
    "The fastest layouts that fit: `prestep search --json`.",
    either("layouts of a model, or places for a captured program", LAYOUTS, PLACES),
)

TOPOLOGY = titled(
    "A cluster by kinds of nodes and links: `prestep topology show --json`.",
    table(
        "",
        name=text(),
        gpu=text(),
        hosts=whole(),
        gpus=whole(),
        nodes=named(whole(), "kind -> how many"),
        links=items(
            table(
                "links of a kind with the same numbers",
                kind=text(),
                count=whole("physical links"),
                bandwidth=number("bytes/s of payload of one, away from the CPU"),
                bandwidth_back=number("bytes/s towards it"),
                raw=number("bytes/s on the wire"),
                latency=SECONDS,
                evidence=GRADE,
                between=items(text(), "kinds of nodes"),
            )
        ),
        oversubscription=items(
            table(
                "a tier: bytes/s from below over those up, least and most",
                kind=text(),
                switches=whole(),
                least=number(),
                most=number(),
            )
        ),
        facts=named(
            table("", value=number(), evidence=GRADE, source=text()),
            "numbers, and where they come from",
        ),
    ),
)
