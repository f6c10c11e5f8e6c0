"""Turns an executed graph into a timeline and a result."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple, TypeVar

import numpy as np

from sim.analysis import metrics, step_time
from sim.analysis.allocations import allocations_of
from sim.analysis.critical_path import critical_path
from sim.analysis.evidence import evidence_of, fallbacks_of
from sim.analysis.kernels import kernel_uses
from sim.analysis.links import link_report
from sim.analysis.memory import outside, peaks
from sim.analysis.prediction import Details, Prediction
from sim.analysis.shadow_prices import Prices
from sim.analysis.timeline import Timeline, Words, group_text
from sim.analysis.uncertainty import uncertainty_of, with_readers
from sim.costs.kinds import work
from sim.engine.execution import Run
from sim.graph.opgraph import COMM, KERNEL, PHASES_COMMUNICATION, SYNC, OpGraph, Program
from sim.planning.noise import NAMES as JITTERS
from sim.planning.planned import Planned
from sim.spec.load import sections_in_use
from sim.storage.checkpointing import report_of
from sim.storage.feeding import path_with, with_data
from workloads.frameworks import framework_of
from workloads.job.layout import microbatches_of
from workloads.models.counts import attention_flops, idle_parameters

Value = TypeVar("Value")


def report(
    planned: Planned,
    run: Run,
    prices: Prices | None = None,
    by_rank: Mapping[int, float] | None = None,
) -> Prediction:
    """The last executed step as a prediction, with the links' shadow prices where they are given.

    ``by_rank``: seconds of the step of every rank, where they are not those of the last one.
    """
    s, graph = planned.scenario, planned.graph
    by_rank = step_time.by_rank(graph, run) if by_rank is None else by_rank
    computed = step_time.median(by_rank.values())
    data = with_data(planned, run, computed)
    step = computed if data is None else data["step_time_with"]
    waiting = step - computed
    if waiting > 0:  # a rank of the median's time has the step's exactly
        by_rank = {rank: step + (time - computed) for rank, time in by_rank.items()}
    timeline = timeline_of(graph, run)
    windows = {
        p.rank: metrics.step_window(timeline, p.rank, run.steps - 1)
        for p in graph.programs
    }
    breakdown = _breakdown(graph, timeline, windows, computed, waiting)
    gpus = planned.lowered.layout.world
    tokens, flops = work_of_step(planned)
    peak = planned.gpu.peak.get(s.training.precision, float("nan"))
    alive, beside = peaks(planned.lowered, s, step), outside(planned)
    links = link_report(
        planned.fabric.links, run, windows[graph.programs[0].rank], prices, waiting
    )
    path = critical_path(graph, run)
    interval = with_readers(
        uncertainty_of(
            planned, path, computed, step if data is None else data["gpu_time"]
        ),
        s,
        data,
    )
    return Prediction(
        step_time=step,
        step_time_by_rank=dict(sorted(by_rank.items())),
        tokens_per_second_per_gpu=metrics.tokens_per_second(tokens, step, gpus),
        mfu=metrics.flops_utilisation(flops, step, gpus, peak),
        tflops_per_gpu=flops / step / gpus / 1e12,
        breakdown=breakdown.seconds,
        peak_memory=_of_every_rank(graph, alive),
        memory_capacity=planned.gpu.memory,
        outside=_of_every_rank(graph, beside),
        links=links.links,
        link_kinds=links.kinds,
        link_loads=links.loads,
        evidence=evidence_of(planned, run),
        fallbacks=fallbacks_of(planned, run, breakdown.host * (computed / step)),
        warnings=(*_warnings(planned), *interval.warnings),
        scenario=_summary(planned),
        measured=s.measured.step_time,
        timeline=timeline,
        checkpoint=report_of(planned, run, step)
        if "checkpoint" in sections_in_use(s)
        else None,
        dataload=data,
        critical_path=path_with(path, data, computed),
        uncertainty=interval,
        details=_details(planned, run),
    )


class Breakdown(NamedTuple):
    """Seconds of a step by share, and the share of what it computes in which GPUs wait for their host."""

    seconds: dict[str, float]
    host: float


def _breakdown(
    graph: OpGraph,
    timeline: Timeline,
    windows: Mapping[int, tuple[float, float]],
    computed: float,
    waiting: float,
) -> Breakdown:
    """Mean over the ranks; that a step waits for its data is io."""
    weights = {p.rank: float(len(graph.represents[p.rank])) for p in graph.programs}
    shares = metrics.mean_breakdown(timeline, windows, weights)
    total = sum(shares.values())
    seconds = {name: share * computed / total for name, share in shares.items()}
    if waiting > 0:
        seconds["io"] = seconds.get("io", 0.0) + waiting
    return Breakdown(seconds, shares.get("host", 0.0) / total)


def _of_every_rank(graph: OpGraph, simulated: Mapping[int, Value]) -> dict[int, Value]:
    """Values of simulated ranks for all ranks that they stand for, in the order of ranks."""
    every = {
        member: value
        for rank, value in simulated.items()
        for member in graph.represents[rank]
    }
    return dict(sorted(every.items()))


def _details(planned: Planned, run: Run) -> Details:
    graph = planned.graph
    return Details(
        scenario=planned.scenario,
        fabric=planned.fabric,
        gpu=planned.gpu,
        gpus=planned.gpus,
        represents={p.rank: graph.represents[p.rank] for p in graph.programs},
        traffic=run.traffic,
        carried=run.carried,
        kernels=kernel_uses(planned, run),
        allocations=allocations_of(planned, run),
        exchanges_in_layers=any(chain.plans for chain in planned.chains.values()),
    )


def timeline_of(graph: OpGraph, run: Run) -> Timeline:
    """All spans of all simulated ranks and steps."""
    parts = [_rank_spans(graph, run, i, p) for i, p in enumerate(graph.programs)]
    return parts[0] if len(parts) == 1 else Timeline.concatenate(parts)


def _rank_spans(graph: OpGraph, run: Run, index: int, p: Program) -> Timeline:
    steps, n = run.end[index].shape
    keep = np.flatnonzero(p.kind != SYNC)
    comm = p.kind[keep] == COMM
    first = [p.parts[int(p.payload[i])][0] if p.kind[i] == COMM else -1 for i in keep]
    single = [p.kind[i] == COMM and len(p.parts[int(p.payload[i])]) > 1 for i in keep]
    axes, groups, size, flops, channels = ([] for _ in range(5))  # type: ignore[var-annotated]
    kinds: list[str] = []
    for i, c, many in zip(keep, first, single, strict=True):
        if c < 0:
            kernel = graph.kernels[int(p.payload[i])]
            row = ("kernel", "", "", kernel.bytes, kernel.flops, 0)
        else:
            x = graph.comms[c]
            kind = (
                ("sendrecv" if many else "send" if x.groups[0][0] == p.rank else "recv")
                if x.op == "send"
                else "collective"
            )
            total = sum(graph.comms[k].size for k in p.parts[int(p.payload[i])])
            row = (
                kind,
                x.axis,
                group_text(x.groups[0]),
                total,
                0.0,
                run.plans[c].channels,
            )
        for column, value in zip(
            (kinds, axes, groups, size, flops, channels), row, strict=True
        ):
            column.append(value)
    ready = run.start[index].copy()
    for g, time in run.ready[index].items():
        ready[g // n, g % n] = time

    def tile(values: object) -> np.ndarray:
        return np.tile(np.asarray(values), steps)

    def words(values: list[str]) -> Words:
        known = {w: i for i, w in enumerate(dict.fromkeys(values))}
        return Words(tile([known[v] for v in values]), tuple(known))

    phases = [
        graph.phases[PHASES_COMMUNICATION] if c else graph.phases[p.phase[i]]
        for i, c in zip(keep, comm, strict=True)
    ]
    return Timeline.build(
        rank=np.full(len(keep) * steps, p.rank),
        stream=words([graph.streams[s] for s in p.stream[keep]]),
        kind=words(kinds),
        name=words([p.names[i] for i in keep]),
        phase=words(phases),
        axis=words(axes),
        group=words(groups),
        step=np.repeat(np.arange(steps), len(keep)),
        microbatch=tile(p.microbatch[keep]),
        layer=tile(p.layer[keep]),
        start=run.start[index][:, keep].ravel(),
        end=run.end[index][:, keep].ravel(),
        launch=run.launch[index][:, keep].ravel(),
        ready=ready[:, keep].ravel(),
        op=tile(keep),
        bytes=tile(size),
        flops=tile(flops),
        channels=tile(channels),
    )


def work_of_step(planned: Planned) -> tuple[float, float]:
    """(tokens, model flops) of a whole step over all GPUs; recomputation does not count.

    Model flops of a transformer: 6 per parameter (without lookups of tokens and positions) and token, and for causal
    attention 6 * layers * heads * head_dim * sequence per token, less in a window (PaLM, appendix B, halved for
    the mask).
    Other models: the flops of their kernels.
    """
    s, m = planned.scenario, planned.model
    samples = s.training.micro_batch * microbatches_of(s) * s.parallel.dp
    if m.kind != "transformer":
        graph = planned.graph
        flops = sum(
            math.fsum(work(graph.kernels[k])[0] for k in p.payload[p.kind == KERNEL])
            * len(graph.represents[p.rank])
            for p in graph.programs
        )
        return float(samples), flops
    tokens = float(samples * s.training.seq_len)
    looked_up = (0 if m.tied_embeddings else m.vocab) + m.max_positions
    dense = planned.lowered.parameters - looked_up * m.hidden
    dense += m.mtp_layers * m.vocab * m.hidden - idle_parameters(m)
    return tokens, tokens * (6.0 * dense + 3.0 * attention_flops(m, s.training.seq_len))


def _warnings(planned: Planned) -> tuple[str, ...]:
    framework = framework_of(planned.scenario)
    found = list(framework.caveats(planned.scenario, planned.model))
    f = planned.scenario.faults
    if f.jitter != 1.0 or any(
        getattr(f, f"jitter_{name}") is not None for name in JITTERS
    ):
        found.append(
            "faults.jitter: the step, its breakdown and links are without noise; --replicas N draws it"
        )
    return tuple(found)


SAMPLES = {
    "transformer": "tokens",
    "resnet": "images",
}  # what is counted per second; of other models samples


def _summary(planned: Planned) -> dict[str, object]:
    s, p = planned.scenario, planned.scenario.parallel
    layout = " x ".join(
        f"{axis} {n}"
        for axis, n in (("dp", p.dp), ("pp", p.pp), ("tp", p.tp), ("ep", p.ep))
        if n > 1
    )
    return {
        "name": s.where,
        "cluster": planned.fabric.name,
        "gpu": planned.gpu.name,
        "gpus": planned.lowered.layout.world,
        "model": planned.model.name,
        "parameters": planned.lowered.parameters,
        "layout": layout or "single GPU",
        "data_parallel": p.data_parallel,
        "framework": s.training.framework,
        "precision": s.training.precision,
        "sample": SAMPLES.get(planned.model.kind, "samples"),
    }
