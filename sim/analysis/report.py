"""Turns an executed graph into a timeline and a result."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from sim.analysis import metrics
from sim.analysis.critical_path import critical_path
from sim.analysis.evidence import evidence_of, fallbacks_of
from sim.analysis.links import link_report
from sim.analysis.memory import outside, peaks
from sim.analysis.prediction import Result
from sim.analysis.timeline import Timeline, Words, group_text
from sim.analysis.uncertainty import uncertainty_of, with_readers
from sim.costs.kinds import work
from sim.graph.opgraph import COMM, KERNEL, PHASES_COMMUNICATION, SYNC, OpGraph, Program
from sim.planning.noise import NAMES as JITTERS
from sim.spec.load import sections_in_use
from sim.storage import feeding
from sim.storage.checkpointing import report_of
from workloads.frameworks import framework_of

if TYPE_CHECKING:
    from sim.analysis.shadow_prices import Prices
    from sim.engine.engine import Run
    from sim.predict import Simulation


def result_of(
    simulation: Simulation,
    prices: Prices | None = None,
    by_rank: dict[int, float] | None = None,
) -> Result:
    """The last simulated step as a :class:`~sim.analysis.prediction.Result`, with the links'
    shadow prices where they are given.

    ``by_rank``: step times found otherwise.
    """
    s, graph, run = simulation.scenario, simulation.lowered.graph, simulation.run
    by_rank = _by_rank(graph, run) if by_rank is None else by_rank
    computed = _median(by_rank)
    data = feeding.with_data(simulation, computed)
    step = computed if data is None else data["step_time_with"]
    waiting = step - computed
    if waiting > 0:  # a rank of the median's time has the step's exactly
        by_rank = {rank: step + (time - computed) for rank, time in by_rank.items()}
    timeline = timeline_of(graph, run)
    last = run.end[0].shape[0] - 1
    windows = {
        p.rank: metrics.step_window(timeline, p.rank, last) for p in graph.programs
    }
    weights = {p.rank: float(len(graph.represents[p.rank])) for p in graph.programs}
    shares = metrics.mean_breakdown(timeline, windows, weights)
    total = sum(shares.values())
    breakdown = {name: seconds * computed / total for name, seconds in shares.items()}
    if waiting > 0:
        breakdown["io"] = breakdown.get("io", 0.0) + waiting
    gpus = simulation.lowered.layout.world
    tokens, flops = work_of_step(simulation)
    peak = simulation.gpu.peak.get(s.training.precision, float("nan"))
    alive, beside = peaks(simulation.lowered, s, step), outside(simulation)
    memory = {member: alive[r] for r in alive for member in graph.represents[r]}
    traffic = link_report(simulation, windows[graph.programs[0].rank], prices, waiting)
    path = critical_path(graph, run)
    sure = with_readers(
        uncertainty_of(
            simulation, path, computed, step if data is None else data["gpu_time"]
        ),
        s,
        data,
    )
    return Result(
        step_time=step,
        step_time_by_rank=dict(sorted(by_rank.items())),
        tokens_per_second_per_gpu=metrics.tokens_per_second(tokens, step, gpus),
        mfu=metrics.flops_utilisation(flops, step, gpus, peak),
        tflops_per_gpu=flops / step / gpus / 1e12,
        breakdown=breakdown,
        peak_memory=dict(sorted(memory.items())),
        memory_capacity=simulation.gpu.memory,
        outside={member: beside[r] for r in beside for member in graph.represents[r]},
        links=traffic.links,
        link_kinds=traffic.kinds,
        link_loads=traffic.loads,
        evidence=evidence_of(simulation),
        fallbacks=fallbacks_of(
            simulation, shares.get("host", 0.0) / total * (computed / step)
        ),
        warnings=(*_warnings(simulation), *sure.warnings),
        scenario=_summary(simulation),
        measured=s.measured.step_time,
        timeline=timeline,
        checkpoint=report_of(simulation, step)
        if "checkpoint" in sections_in_use(s)
        else None,
        dataload=data,
        critical_path=feeding.path_with(path, data, computed),
        uncertainty=sure,
        source=simulation,
    )


def step_time(simulation: Simulation) -> float:
    """Seconds of the last simulated step with its data: the median over ranks."""
    computed = _median(_by_rank(simulation.lowered.graph, simulation.run))
    data = feeding.with_data(simulation, computed)
    return computed if data is None else float(data["step_time_with"])


def _median(by_rank: dict[int, float]) -> float:
    return float(np.median(list(by_rank.values())))


def _by_rank(graph: OpGraph, run: Run) -> dict[int, float]:
    steps = step_times(graph, run)
    return {
        member: float(times[-1])
        for r, times in steps.items()
        for member in graph.represents[r]
    }


def step_times(graph: OpGraph, run: Run) -> dict[int, np.ndarray]:
    """Seconds between the ends of consecutive steps on the compute stream, by simulated rank (steps,)."""
    compute = graph.streams.index("compute")
    out = {}
    for p, end in zip(graph.programs, run.end, strict=True):
        marks = end[:, (p.stream == compute) & (p.kind == KERNEL)].max(axis=1)
        out[p.rank] = np.diff(np.concatenate([[0.0], marks]))
    return out


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


def work_of_step(simulation: Simulation) -> tuple[float, float]:
    """(tokens, model flops) of a whole step over all GPUs; recomputation does not count.

    Model flops of a transformer: 6 per parameter (without lookups of tokens and positions) and token, and for causal
    attention 6 * layers * heads * head_dim * sequence per token, less in a window (PaLM, appendix B, halved for
    the mask).
    Other models: the flops of their kernels.
    """
    from sim.spec.rules.layout import microbatches_of
    from workloads.models.counts import attention_flops, idle_parameters

    s, m = simulation.scenario, simulation.model
    samples = s.training.micro_batch * microbatches_of(s) * s.parallel.dp
    if m.kind != "transformer":
        kernels = simulation.lowered.graph.kernels
        flops = sum(
            math.fsum(work(kernels[k])[0] for k in p.payload[p.kind == KERNEL])
            * len(simulation.lowered.graph.represents[p.rank])
            for p in simulation.lowered.graph.programs
        )
        return float(samples), flops
    tokens = float(samples * s.training.seq_len)
    looked_up = (0 if m.tied_embeddings else m.vocab) + m.max_positions
    dense = simulation.lowered.parameters - looked_up * m.hidden
    dense += m.mtp_layers * m.vocab * m.hidden - idle_parameters(m)
    return tokens, tokens * (6.0 * dense + 3.0 * attention_flops(m, s.training.seq_len))


def _warnings(simulation: Simulation) -> tuple[str, ...]:
    framework = framework_of(simulation.scenario)
    found = list(framework.caveats(simulation.scenario, simulation.model))
    f = simulation.scenario.faults
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


def _summary(simulation: Simulation) -> dict[str, object]:
    s, p = simulation.scenario, simulation.scenario.parallel
    layout = " x ".join(
        f"{axis} {n}"
        for axis, n in (("dp", p.dp), ("pp", p.pp), ("tp", p.tp), ("ep", p.ep))
        if n > 1
    )
    return {
        "name": s.where,
        "cluster": simulation.fabric.name,
        "gpu": simulation.gpu.name,
        "gpus": simulation.lowered.layout.world,
        "model": simulation.model.name,
        "parameters": simulation.lowered.parameters,
        "layout": layout or "single GPU",
        "data_parallel": p.data_parallel,
        "framework": s.training.framework,
        "precision": s.training.precision,
        "sample": SAMPLES.get(simulation.model.kind, "samples"),
    }
