"""What several outputs have in common: shares, links, memory, intervals, what a result rests on."""

from __future__ import annotations

from prestep.sim.outputs._words import (
    flag,
    items,
    maybe,
    named,
    number,
    or_null,
    table,
    text,
    whole,
)

SECONDS = number("s")
BREAKDOWN = named(number("s"), "share of the step -> s; they sum to the step time")
EVIDENCE = named(number("0 to 1"), "grade -> share of the time that rests on it")
GRADE = text("measured, fitted, datasheet or guess")

INTERVAL = or_null(
    table(
        "the interval of the step time",
        low=SECONDS,
        high=SECONDS,
        spread=number("standard deviation of the logarithm"),
        guessed=number("share of the step that rests on guesses, 0 to 1"),
        parts=items(
            table(
                "what the interval is made of, the largest first",
                constant=text("what is not known exactly"),
                grade=GRADE,
                seconds=number("s of the step that rest on it"),
                spread=number("its own, of the logarithm"),
                octaves=number("how far it was extrapolated, as powers of two"),
            )
        ),
        nominal=number("probability of the interval: 0.9"),
        method=text("how it was found"),
    )
)

VERDICT = or_null(
    table(
        "the fullest rank, or a host that is too small for what its ranks keep there",
        fits=flag(),
        rank=whole(),
        needed=number("bytes, with what is outside of PyTorch's allocator"),
        capacity=or_null(number("bytes; null: not known")),
        largest_owner=text("what takes most of it"),
        outside=number("bytes outside of PyTorch's allocator"),
        usual=number("bytes needed with the allocator's usual fragmentation"),
        host=or_null(
            text("the host whose memory is too small; null: it is a GPU's memory")
        ),
        nominal=or_null(
            number("bytes of a GPU by its datasheet; the driver leaves `capacity`")
        ),
        recomputed=or_null(
            table(
                "of a step that does not fit and recomputes nothing: what it would need",
                way=text("of training.recompute"),
                needed=number("bytes"),
                fits=flag(),
                ways=named(number("bytes"), "way of training.recompute -> bytes"),
            )
        ),
    )
)

CRITICAL_PATH = or_null(
    table(
        "what the step's end waited for, back through all ranks",
        begin=SECONDS,
        end=SECONDS,
        length=SECONDS,
        parts=items(
            table(
                "",
                kind=text("kernel, communication, host, ..."),
                family=text("of kernels; the operation of a communication"),
                axis=text("of a communication: dp, tp, ..."),
                group=text("its ranks"),
                seconds=SECONDS,
                share=number("of the path, 0 to 1"),
                count=whole(),
            )
        ),
        ranks=named(SECONDS, "rank -> s of the path that lie on it"),
        longest=items(table("", kind=text(), name=text(), seconds=SECONDS)),
        segments=whole("pieces of the path"),
    )
)

LINKS = items(
    table(
        "a link in one direction",
        name=text("from -> to"),
        utilisation=number("0 to 1, over the run"),
        bytes=number("over the run of three steps"),
        shadow_price=or_null(number("what a faster one is worth; null: not computed")),
        kind=text(),
        tied=whole("links as busy as this one"),
        peak=number("0 to 1"),
        profile=items(number("0 to 1"), "utilisation in parts of the last step"),
    ),
    "the busiest",
)

LINK_KINDS = items(
    table(
        "all links of a kind",
        kind=text(),
        links=whole("directed ones that carried anything"),
        utilisation=number("of the busiest, 0 to 1"),
        bytes=number("over the run"),
        held=number("s of the last step in which a full one holds a transfer back"),
        shadow_price=or_null(
            number(
                "what a faster kind is worth, to 0.1 % of the step; null: not computed"
            )
        ),
        cause=text("why a faster one costs time; empty where it does not"),
    )
)

FALLBACKS = items(
    table(
        "what no measurement or fit covers",
        what=text(),
        grade=GRADE,
        count=whole("in a step of the simulated ranks"),
        share=number("of the time, 0 to 1"),
    )
)

JOB = table(
    "what was run",
    name=text(),
    cluster=text(),
    gpu=text(),
    gpus=whole(),
    model=text(),
    parameters=whole(),
    layout=text(),
    data_parallel=text(),
    framework=text(),
    precision=text(),
    peak=text("formats of the products, with their shares of the flops"),
    sample=text("what is counted a second: tokens, images, samples"),
    global_batch=maybe(whole("samples of a step")),
)
