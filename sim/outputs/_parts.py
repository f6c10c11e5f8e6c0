"""What several outputs have in common: shares, links, memory, intervals, what a result rests on, optional sections."""

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

# Sections that are there when a scenario or an option asks for them.
WATTS, JOULES = number("W"), number("J")

ENERGY = or_null(
    table(
        "what a step draws; null where nobody says what such a GPU draws",
        gpu_power=WATTS,
        gpu_limit=WATTS,
        limited=flag("whether the limit slows the step"),
        gpu_clock=number("mean clock while kernels run, a share of the highest"),
        gpu_clock_hz=or_null(number("Hz; null where nobody says the highest")),
        communication_power=number("W of a GPU for what communication moves (a guess)"),
        host_power=WATTS,
        network_power=WATTS,
        total_power=WATTS,
        step_energy=JOULES,
        gpu_step_energy=JOULES,
        energy_per_token=or_null(JOULES),
        evidence=GRADE,
    )
)

EXPECTED = table(
    "the nearest measured steps on such a GPU that no constant was fitted to; absent: too few were compared",
    gpu=text(),
    framework=or_null(text("of all of them; null: of several")),
    model=or_null(text("transformer, experts, ...; null: of several")),
    layout=or_null(text("of all of them; null: of several")),
    gpus=items(whole(), "the fewest and the most that they ran on"),
    shared=items(text(), "what they share with the step: framework, model, gpus (within four times), layout"),
    n=whole("measured steps"),
    error=number("mean of |predicted / measured - 1|"),
    bias=number("mean of predicted / measured - 1"),
    worst=number("the largest of them, with its sign"),
)  # fmt: skip

COST = table(
    "with --energy or prices",
    gpus=or_null(number("price of the GPUs for a step")),
    energy=or_null(number("price of its energy")),
    step=or_null(number("both")),
    million_tokens=or_null(number("price of a million tokens; null: not known")),
    kilowatt_hours=or_null(number("of 1,000 steps")),
)

HOST = table(
    "where the host's speed makes a difference of 1 % or more",
    factor=number("times of the host over those of the reference"),
    evidence=text("scenario, cluster, or guess: nobody says it"),
    low=number("factor"),
    high=number("factor: nine in ten such hosts lie between"),
    step_low=SECONDS,
    step_high=SECONDS,
    without=number("s with a host that takes no time"),
    share=number("of the step, what is gone then"),
    cuda_graph=or_null(number("s as one CUDA graph; null: not simulated")),
    compiled=or_null(number("s with compiled blocks; null: not simulated")),
)

REPLICAS = table(
    "runs with noise (--replicas)",
    replicas=whole(),
    seed=whole(),
    confidence=number("of `low` and `high`, 0 to 1"),
    mean=SECONDS,
    half_width=or_null(SECONDS),
    low=or_null(SECONDS),
    high=or_null(SECONDS),
    std=or_null(SECONDS),
    min=SECONDS,
    max=SECONDS,
    percentiles=named(SECONDS),
    slower=number("mean over the step without noise, less 1"),
    jitter=named(table("", value=number(), evidence=text())),
    step_times=items(SECONDS),
)

CHECKPOINT = table(
    "of [checkpoint]",
    mode=text(),
    storage=text(),
    bytes=number(),
    writers=whole(),
    save_stall=number("s that training stands still"),
    background=maybe(SECONDS),
    steps_beside=maybe(number("steps beside an asynchronous save")),
    step_time_beside=maybe(SECONDS),
    background_slowdown=maybe(or_null(number())),
    time_until_durable=SECONDS,
    load_time=SECONDS,
    legs=named(SECONDS),
    rests_on=items(
        table(
            "",
            leg=text(),
            seconds=SECONDS,
            what=text(),
            evidence=GRADE,
            source=text(),
        )
    ),
    evidence=EVIDENCE,
    later=table(
        "saves after the first, which find what that one made",
        save_stall=SECONDS,
        background=SECONDS,
        steps_beside=whole(),
        step_time_beside=SECONDS,
        time_until_durable=SECONDS,
    ),
    saving_step=table(
        "the step that saves first",
        step_time=number("s, with the part of the save that training waits for"),
        step_time_without=SECONDS,
        foreground=number("s that training waits"),
        background=number("s of writing beside the steps that follow"),
        breakdown=named(SECONDS, "io has the foreground; sums to `step_time`"),
    ),
    every=maybe(or_null(whole("steps between saves"))),
    interval=maybe(or_null(SECONDS)),
    io_per_step=maybe(or_null(number("s that training waits for saves, a step"))),
    step_time_with=maybe(or_null(number("s, saves included"))),
)

DATALOAD = table(
    "of [dataload]",
    batch_time=number("s that a worker takes for a microbatch"),
    batches=whole("a step"),
    prefetched=whole("batches that lie ready"),
    first_batch=SECONDS,
    read_time=number("s between batches of the storage and the workers"),
    copy_time=number("s of the copies to the GPU"),
    gpu_time=SECONDS,
    readers_time=number("s a step, if nothing but the readers counted"),
    exposed=number("s of a step that wait for data"),
    share=number("of the step, 0 to 1"),
    input_bound=flag("whether the readers decide the step"),
    bound_by=text("workers or storage"),
    step_time_without=SECONDS,
    step_time_with=SECONDS,
)
