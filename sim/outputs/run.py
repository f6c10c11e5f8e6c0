"""Of `run`: a step of one job or several, or the largest micro batch, and what extensions bring."""

from __future__ import annotations

from prestep.sim import plugins
from prestep.sim.analysis.cost import Cost
from prestep.sim.analysis.energy import Energy
from prestep.sim.analysis.link_use import Link, LinkKind
from prestep.sim.analysis.memory import MemoryVerdict, Recomputed
from prestep.sim.analysis.prediction import Fallback
from prestep.sim.analysis.uncertainty import Part, Uncertainty
from prestep.sim.entry_points import PREFIX
from prestep.sim.outputs.words import (
    BREAKDOWN,
    EVIDENCE,
    GRADE,
    SECONDS,
    Schema,
    each,
    either,
    flag,
    items,
    maybe,
    more,
    named,
    number,
    of_class,
    or_null,
    table,
    text,
    titled,
    whole,
)
from prestep.sim.studies import largest
from prestep.sim.studies.host_effect import HostEffect

INTERVAL = or_null(
    of_class(
        Uncertainty,
        "the interval of the step time",
        parts=items(of_class(Part, "what adds to it, the largest first", grade=GRADE)),
        method=text("how it was found"),
    )
)

VERDICT = or_null(
    of_class(
        MemoryVerdict,
        "the fullest rank, or a host that is too small for what its ranks keep there",
        recomputed=or_null(
            of_class(
                Recomputed,
                "of a step that does not fit and recomputes nothing: what it would need",
                ways=named(number("bytes"), "way of training.recompute -> bytes"),
            )
        ),
    )
)

CRITICAL_PATH = or_null(
    table(
        "what the step's end waited for, back through all ranks",
        **each(SECONDS, "begin", "end", "length"),
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
    of_class(
        Link,
        "a link in one direction",
        profile=items(number("0 to 1"), "utilisation in parts of the last step"),
    ),
    "the busiest",
)

LINK_KINDS = items(of_class(LinkKind, "all links of a kind"))

FALLBACKS = items(of_class(Fallback, "what no measurement or fit covers", grade=GRADE))

JOB = table(
    "what was run",
    **each(
        text(),
        "name",
        "cluster",
        "gpu",
        "model",
        "layout",
        "data_parallel",
        "framework",
        "precision",
    ),
    gpus=whole(),
    parameters=whole(),
    peak=text("formats of the products, with their shares of the flops"),
    sample=text("what is counted a second: tokens, images, samples"),
    hosts=whole("with GPUs of the run"),
    nccl=text("version"),
    seq_len=maybe(or_null(whole("tokens of a sample; null: the model has none"))),
    global_batch=maybe(whole("samples of a step")),
    micro_batch=maybe(whole("samples of a microbatch")),
    microbatches=maybe(whole("of a rank and step")),
)


# Tables that are there when an option asks for them.
ENERGY = or_null(
    of_class(
        Energy,
        "what a step draws; null where nobody says what such a GPU draws",
        gpu_clock_hz=or_null(number("Hz; null where nobody says the highest")),
        energy_per_token=or_null(number("J of a token, or sample")),
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
)  # fmt: skip  # fmt: skip

COST = of_class(
    Cost,
    "with --energy or prices",
    step=or_null(number("of a step, all together")),
    million_tokens=or_null(number("price of a million tokens; null: not known")),
)

HOST = of_class(HostEffect, "where the host's speed makes a difference of 1 % or more")

REPLICAS = table(
    "runs with noise (--replicas)",
    replicas=whole(),
    seed=whole(),
    confidence=number("of `low` and `high`, 0 to 1"),
    **each(SECONDS, "mean", "min", "max"),
    **each(or_null(SECONDS), "half_width", "low", "high", "std"),
    percentiles=named(SECONDS),
    slower=number("mean over the step without noise, less 1"),
    jitter=named(table("", value=number(), evidence=text())),
    step_times=items(SECONDS),
)

# A predicted step, without what sections of extensions add.
STEP = table(
    "a step",
    step_time=number("s: the longest of the ranks' steps"),
    step_time_by_rank=named(SECONDS, "rank -> s"),
    measured_step_time=or_null(number("s, as the scenario says; null: it does not")),
    signed_error=or_null(number("(predicted - measured) / measured")),
    measured_fitted=flag("a constant was fitted to the measured run"),
    tokens_per_second_per_gpu=or_null(
        number(
            "what `scenario.sample` says, a second and GPU; null: nothing says what is read"
        )
    ),
    mfu=or_null(number("model flops over the peak of the datasheet, 0 to 1")),
    tflops_per_gpu=or_null(number("model flops per second and GPU, in 1e12")),
    uncertainty=INTERVAL,
    breakdown=BREAKDOWN,
    peak_memory=named(named(number("bytes")), "rank -> owner -> bytes at the peak"),
    reserved_memory=named(
        number("bytes"),
        "rank -> bytes that PyTorch's allocator holds, where its blocks are simulated",
    ),
    memory_by_module=named(
        named(number("bytes")),
        "rank, the first of those that do the same -> module -> bytes at the peak",
    ),
    out_of_memory=VERDICT,
    host_memory=named(
        named(number("bytes")), "rank -> owner -> bytes kept in its host's memory"
    ),
    energy=ENERGY,
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
    replicas=maybe(REPLICAS),
    host=maybe(HOST),
    cost=maybe(COST),
    expected_error=maybe(EXPECTED),
)


def schema() -> Schema:
    """Returns the schema of `prestep run --json`, with what installed extensions add to a step or predict instead."""
    step = more(STEP, **{k: maybe(v) for k, v in _of_extensions("effects").items()})
    others = _of_extensions("runs").values()
    jobs = table(
        "several jobs on one cluster",
        jobs=items(
            more(
                step,
                name=text(),
                alone_step_time=number("s, with the cluster to itself"),
                slowdown=number("step time over that"),
            )
        ),
        links=LINKS,
        notes=items(text()),
    )
    return titled(
        "A predicted step: `prestep run --json`.",
        either(
            "one step; or several jobs, serving, an RL step, or the largest micro batch, as was asked",
            *(step, jobs, *others, largest.SCHEMA),
        ),
    )


def _of_extensions(group: str) -> dict[str, Schema]:
    """`SCHEMA` of each module of a group, by the name of its section; a table of any keys where it says none."""
    modules = plugins.plugins_in(f"{PREFIX}{group}").items()
    return {
        name: Schema(getattr(plugins.imported_plugin(plugin), "SCHEMA", table()))
        for name, plugin in modules
    }
