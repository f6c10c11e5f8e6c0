"""Turns an executed step into a prediction."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from prestep.sim.analysis import caveats, effects, metrics, step_times, summary
from prestep.sim.analysis.allocations import allocations_of
from prestep.sim.analysis.critical_path import CriticalPath
from prestep.sim.analysis.details import Details
from prestep.sim.analysis.effects import Delay
from prestep.sim.analysis.energy import energy_of, shares_of
from prestep.sim.analysis.evidence import fallbacks_of, tables_of
from prestep.sim.analysis.kernels import kernel_uses
from prestep.sim.analysis.links import link_report
from prestep.sim.analysis.memory import outside, peaks
from prestep.sim.analysis.path_walk import critical_path
from prestep.sim.analysis.prediction import Prediction
from prestep.sim.analysis.shadow_prices import Prices
from prestep.sim.analysis.spans import timeline_of
from prestep.sim.analysis.timeline import Timeline
from prestep.sim.analysis.uncertainty import uncertainty_of, with_routing
from prestep.sim.costs.kinds import work
from prestep.sim.engine.execution import Run
from prestep.sim.extras import lazily
from prestep.sim.graph.opgraph import KERNEL, OpGraph, Program
from prestep.sim.planning.planned import Planned
from prestep.sim.tools.process import with_room
from prestep.workloads.models.counts import attention_flops, idle_parameters
from prestep.workloads.models.model import ModelSpec

with lazily():
    from prestep.sim.analysis import chain_kernels

if TYPE_CHECKING:
    from prestep.sim.analysis.chain_kernels import Chains

Value = TypeVar("Value")


@with_room
def report(
    planned: Planned,
    run: Run,
    prices: Prices | None = None,
    by_rank: Mapping[int, float] | None = None,
) -> Prediction:
    """The last executed step as a prediction, with the links' shadow prices where they are given.

    ``by_rank``: seconds of the step of every rank, where they are not those of the last one.
    """
    graph = planned.graph
    step = _step(planned, run, by_rank)
    timeline = timeline_of(graph, run)
    windows = step_times.windows(graph, run)
    breakdown = _breakdown(graph, timeline, windows, step)
    first = next(iter(windows.values()))
    chains = _chains(planned, run) if planned.chains else None
    path = _path(graph, run, step.computed, chains)
    tables, after = effects.following(planned, run, breakdown.seconds, step.total)
    return Prediction(
        **_speed(planned, step),
        **_memory(planned, step.total),
        **_trust(planned, run, path, step, breakdown.host),
        **_links(planned, run, prices, first, step.waiting),
        breakdown=breakdown.seconds,
        scenario=summary.summary_of(planned),
        timeline=Timeline.concatenate([timeline, *after]) if after else timeline,
        effects={name: d.table for name, d in step.delays.items()} | tables,
        delayed=bool(step.delays),
        critical_path=reduce(lambda path, d: d.path(path), step.delays.values(), path),
        **_details(planned, run, step.total, chains),
    )


def _chains(planned: Planned, run: Run) -> Chains:
    """The chains of a step, and when they ran."""
    times = run.launch, run.start, run.end, run.exposed
    return chain_kernels.Chains(planned.graph, *times, planned.chains)


def _links(
    planned: Planned,
    run: Run,
    prices: Prices | None,
    window: tuple[float, float],
    waiting: float,
) -> dict[str, Any]:
    """The fields of a prediction about links in the window of a step that does nothing for `waiting` seconds."""
    links = link_report(planned.fabric.links, run, window, prices, waiting)
    return {"links": links.links, "link_kinds": links.kinds, "link_loads": links.loads}


def _path(
    graph: OpGraph, run: Run, seconds: float, chains: Chains | None
) -> CriticalPath:
    """The critical path of the last so many seconds."""
    end = step_times.last_end(graph, run)
    return critical_path(graph, run, end - seconds, end, chains=chains)


@dataclass(frozen=True, eq=False)
class _Step:
    """Seconds of a step: what it computes for, alone and with its `delays` by section."""

    computed: float
    total: float
    by_rank: Mapping[int, float]
    delays: Mapping[str, Delay]

    @property
    def waiting(self) -> float:
        """Seconds in which nothing is done but wait."""
        return self.total - self.computed

    @property
    def computing(self) -> float:
        """Share of the step that is not waiting."""
        return self.computed / self.total


def _step(planned: Planned, run: Run, by_rank: Mapping[int, float] | None) -> _Step:
    by_rank = step_times.by_rank(planned.graph, run) if by_rank is None else by_rank
    computed = step_times.longest(by_rank.values())
    delays = effects.delays_of(planned, run, computed)
    total = [computed, *(delay.step_time for delay in delays.values())][-1]
    step_times.check_duration(total, planned.job.where, "model, training", "a step")
    if total > computed:  # the slowest rank has the step's time exactly
        by_rank = {rank: total + (time - computed) for rank, time in by_rank.items()}
    return _Step(computed, total, dict(sorted(by_rank.items())), delays)


def _speed(planned: Planned, step: _Step) -> dict[str, Any]:
    """The step time, and the fields of a prediction that follow from it."""
    job, gpus = planned.job, planned.lowered.layout.world
    tokens, flops = work_of_step(planned)
    peak = summary.peak_of(planned, summary.formats_of(planned))
    return {
        "step_time": step.total,
        "step_time_by_rank": step.by_rank,
        "measured": job.measured,
        "measured_fitted": job.fitted,
        "tokens_per_second_per_gpu": metrics.tokens_per_second(
            tokens, step.total, gpus
        ),
        "mfu": metrics.flops_utilisation(flops, step.total, gpus, peak),
        "tflops_per_gpu": flops / step.total / gpus / 1e12,
    }


def _memory(planned: Planned, step: float) -> dict[str, Any]:
    """The fields of a prediction that say what memory a step of so many seconds takes."""
    allocated = peaks(planned.lowered, planned.job.warmup, step)
    memory = planned.lowered.memory
    return {
        "peak_memory": _of_every_rank(planned.graph, allocated),
        "outside": _of_every_rank(planned.graph, outside(planned)),
        "memory_capacity": planned.gpu.memory,
        "nominal_memory": planned.gpu.nominal_memory,
        **_host_memory(planned),
        "accounts": _of_every_rank(planned.graph, memory),
    }


def _host_memory(planned: Planned) -> dict[str, Any]:
    """What ranks keep in the memory of their hosts, and how much a host has."""
    fabric, memory = planned.fabric, planned.lowered.memory
    kept = {rank: one.on_host for rank, one in memory.items() if one.on_host}
    every = _of_every_rank(planned.graph, kept)
    own = planned.machine.host_memory
    return {
        "on_host": every,
        "hosts": {rank: fabric.host_of(planned.gpus[rank]) for rank in every},
        "host_capacity": fabric.cluster_facts.host_memory if own is None else own,
    }


def _trust(
    planned: Planned, run: Run, path: CriticalPath, step: _Step, host: float
) -> dict[str, Any]:
    """The fields of a prediction that say how far to trust it; `host` as `_Breakdown` has it."""
    gpu_time = [step.total, *(delay.gpu_time for delay in step.delays.values())][-1]
    interval = uncertainty_of(planned, path, gpu_time)
    interval = with_routing(interval, planned.job, gpu_time)
    for delay in step.delays.values():
        interval = delay.interval(interval)
    return {
        "evidence": interval.grades(step.total),
        "tables": tables_of(planned, run),
        "fallbacks": fallbacks_of(planned, run, host * step.computing),
        "warnings": (
            *caveats.warnings_of(planned),
            *caveats.unsteady_of(planned, run),
            *interval.warnings,
        ),
        "uncertainty": interval,
    }


class _Breakdown(NamedTuple):
    """Seconds of a step by share, and the share of what it computes in which GPUs wait for their host."""

    seconds: dict[str, float]
    host: float


def _breakdown(
    graph: OpGraph,
    timeline: Timeline,
    windows: Mapping[int, tuple[float, float]],
    step: _Step,
) -> _Breakdown:
    """Mean over the ranks; what a step waits for is io."""
    weights = {p.rank: float(len(graph.represents[p.rank])) for p in graph.programs}
    shares = metrics.mean_breakdown(timeline, windows, weights)
    total = sum(shares.values())
    seconds = {name: share * step.computed / total for name, share in shares.items()}
    if step.waiting > 0:
        seconds["io"] = seconds.get("io", 0.0) + step.waiting
    return _Breakdown(seconds, shares.get("host", 0.0) / total)


def _of_every_rank(graph: OpGraph, simulated: Mapping[int, Value]) -> dict[int, Value]:
    """Values of simulated ranks for all ranks that they stand for, in the order of ranks."""
    every = {
        member: value
        for rank, value in simulated.items()
        for member in graph.represents[rank]
    }
    return dict(sorted(every.items()))


def _details(
    planned: Planned, run: Run, step: float, chains: Chains | None
) -> dict[str, Any]:
    """What pictures and traces show, and what its kernels draw in a step of so many seconds."""
    graph, (tokens, _) = planned.graph, work_of_step(planned)
    details = Details(
        job=planned.job,
        fabric=planned.fabric,
        gpu=planned.gpu,
        gpus=planned.gpus,
        represents={p.rank: graph.represents[p.rank] for p in graph.programs},
        traffic=run.traffic,
        carried=run.bytes.carried,
        kernels=kernel_uses(planned, run),
        allocations=allocations_of(planned, run),
        chains=chains,
    )
    energy = energy_of(planned, shares_of(planned, run, details.kernels), step, tokens)
    return {"details": details, "energy": energy}


def work_of_step(planned: Planned) -> tuple[float, float]:
    """(tokens, model flops) of a whole step over all GPUs; recomputation does not count.

    Of models that are no transformers: (samples, the flops of their kernels). Of a recorded program: what it reads.
    """
    job, batch, model = planned.job, planned.job.batch, planned.model
    if planned.lowered.model_flops is not None:
        return planned.lowered.reads[0], planned.lowered.model_flops
    samples = batch.samples * batch.microbatches * job.degrees.dp
    if model.kind != "transformer":
        return float(samples), _kernel_flops(planned.graph)
    tokens = float(samples * batch.tokens)
    parameters = planned.lowered.parameters
    per_token = _flops_per_token(model, parameters, batch.attended, job.frozen)
    return tokens, tokens * per_token


def _kernel_flops(graph: OpGraph) -> float:
    """Flops of the kernels of all ranks."""
    return sum(
        _flops_of_rank(graph, p) * len(graph.represents[p.rank]) for p in graph.programs
    )


def _flops_of_rank(graph: OpGraph, p: Program) -> float:
    kernels = p.payload[p.kind == KERNEL]
    return math.fsum(work(graph.kernels[k])[0] for k in kernels)


def _flops_per_token(
    model: ModelSpec, parameters: float, sequence: int, frozen: bool
) -> float:
    """Model flops of a transformer's token, forward and backward (PaLM, appendix B, halved for the causal mask).

    6 per parameter, without the tables that tokens and positions are looked up in; and for attention
    6 * layers * heads * head_dim * sequence, less in a window. Frozen weights have 4: no gradients of their own.
    """
    lookup_rows = (0 if model.tied_embeddings else model.vocab) + model.max_positions
    dense = parameters - lookup_rows * model.hidden
    dense += model.mtp_layers * model.vocab * model.hidden - idle_parameters(model)
    return (4.0 if frozen else 6.0) * dense + 3.0 * attention_flops(model, sequence)
