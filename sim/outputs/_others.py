"""Of commands that ask about one thing: a collective, a kernel, a storage system, a log, a recording, a machine."""

from __future__ import annotations

from prestep.sim.outputs._parts import GRADE, SECONDS
from prestep.sim.outputs._words import (
    anything,
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

# A collective by size: `prestep collective --json`.
_COLLECTIVE_INTERVAL = or_null(
    table(
        "in which nine in ten measured times lie",
        low=SECONDS,
        high=SECONDS,
        spread=number("standard deviation of the logarithm"),
        place=text("what it was found from"),
        nominal=maybe(number("probability: 0.9")),
    )
)

SIZE = table(
    "a size",
    op=text(),
    bytes=number(),
    time=number("s of one of many calls in one stream, as nccl-tests times them"),
    nccl_tests_time=number("s, the same as time"),
    time_in_step=number("s of a program's own call, which waits for two streams"),
    algbw=number("bytes/s"),
    busbw=number("bytes/s"),
    algo=text(),
    proto=text(),
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
    interval=_COLLECTIVE_INTERVAL,
    rate=maybe(or_null(number("bytes/s that the bottleneck allows"))),
    candidates=maybe(
        items(
            table(
                "",
                algo=text(),
                proto=text(),
                latency=SECONDS,
                bandwidth=number("bytes/s"),
                time=SECONDS,
            ),
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

COLLECTIVE = items({"anyOf": [SIZE, CREATION]}, "one object a size")

# One kernel on one GPU: `prestep kernel --json`.
KERNEL = table(
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
    ridge=number("flops for a byte at which arithmetic at peak takes as long as HBM"),
    bound=text("arithmetic, memory or launch"),
    evidence=GRADE,
)

# A storage system by size of request: `prestep storage --json`.
_STORAGE_RATE = number("bytes/s")

STORAGE = items(
    table(
        "",
        request=number("bytes"),
        threads=whole("of one host"),
        read_sequential=_STORAGE_RATE,
        read_random=_STORAGE_RATE,
        write_sequential=_STORAGE_RATE,
        write_random=_STORAGE_RATE,
        random_iops=number("requests/s"),
    ),
    "one object a size of request",
)

# This environment: `prestep doctor --json`.
DOCTOR = table(
    "",
    good=flag("whether nothing is wrong"),
    findings=items(
        table("", what=text(), state=text(), found=text(), advice=text()),
        "versions, packages in the way, what is missing",
    ),
)

# Whether a log of NCCL is normal: `prestep doctor nccl --json`.
_DOCTOR_NCCL_SIGNS = items(named(text()), "lines of the log, and what they say")

DOCTOR_NCCL = table(
    "",
    normal=flag("no part is slower than good machines are"),
    verdict=text("normal, cannot tell (good machines differ too much) or abnormal"),
    cluster=text("what the log was held against"),
    ranks=whole(),
    hosts=whole(),
    sweeps=items(
        table(
            "an operation",
            op=text(),
            ranks=whole(),
            sizes=items(
                table(
                    "",
                    bytes=number(),
                    measured=SECONDS,
                    busbw=number("bytes/s"),
                    expected=SECONDS,
                    low=SECONDS,
                    high=number("s: good machines lie between"),
                    slow=flag(),
                    algo=text(),
                    proto=text(),
                    channels=whole(),
                )
            ),
        )
    ),
    parts=items(
        table(
            "sizes that one thing bounds",
            place=text(),
            bound_by=text(),
            sizes=items(number("bytes")),
            excess=number("measured over expected"),
            limit=number("from where on it is abnormal"),
            abnormal=flag(),
            ratio=number("measured over predicted time, middle over the sizes"),
            low=number("of the fastest good machines"),
            high=number("of the slowest good machines"),
        )
    ),
    causes=items(
        items(
            table(
                "",
                cause=text(),
                supported=flag("a line shows it, or it predicts the times of the log"),
                title=text(),
                change=text("what is changed to simulate it, as --set takes it"),
                explained=or_null(number("share of the excess that it explains")),
                distance=or_null(number("of its times to the measured ones")),
                check=text("what to look at"),
                signs=_DOCTOR_NCCL_SIGNS,
                times=items(SECONDS),
            )
        ),
        "that predict the log, the likeliest first; those of a group predict the same",
    ),
    ruled_out=named(_DOCTOR_NCCL_SIGNS),
    signs=named(_DOCTOR_NCCL_SIGNS),
    skipped=items(text(), "lines that could not be read"),
)

# What a recording has: `prestep capture show --json`.
CAPTURE_SHOW = table(
    "",
    world=whole("ranks of the program"),
    step=whole("which step was recorded"),
    gpu=text("what the program was told it has"),
    parameters=or_null(whole()),
    command=items(text()),
    versions=named(text()),
    compiled=items(anything(), "compiled functions"),
    assumed=named(anything(), "what nobody computed -> how often"),
    ranks=items(
        open_table(
            "a rank that was run, counted",
            rank=whole(),
            represents=items(whole(), "ranks that it stands for"),
            operations=items(anything()),
            communications=items(anything()),
            waits=named(whole(), "what the host waits for -> how often"),
            host=items(anything()),
            regions=whole(),
            events=whole(),
            alive=whole("bytes that the step found"),
        )
    ),
)

# Measurements that others send: `prestep submit --json`.
SUBMIT = table(
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

# What there is, by name: `prestep list KIND --json`.
LIST = named(
    {"anyOf": [text("what it is"), named(text("grade"), "of a GPU: kernels -> grade")]}
)
