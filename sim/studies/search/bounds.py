"""What a layout cannot do: fit with less than its memory, and take less time than its kernels.

Both are found by lowering the layout with a few microbatches only, which takes milliseconds, and are admissible: more
microbatches never take less memory, and a step never takes less than the kernels on its compute stream.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace

import numpy as np

from prestep.sim.analysis.memory import CONTEXT, fullest
from prestep.sim.analysis.step_times import longest
from prestep.sim.graph.opgraph import KERNEL, Chain, OpGraph, Program
from prestep.sim.planning.planned import KernelTimes
from prestep.sim.predict import timed_kernels
from prestep.sim.spec.sections import Scenario
from prestep.sim.studies.search.space import Candidate
from prestep.topologies.fabric import Fabric
from prestep.workloads.frameworks import framework_of
from prestep.workloads.job.layout import microbatches_of
from prestep.workloads.models.model import load_model

# Rounding of sums in another order, and of steps that begin a shade apart.
MARGIN = 1e-6
FEW = 3  # microbatches without a pipeline: the first, one like all others, the last
LOOPS = (
    "1f1b",
    "interleaved",
    "gpipe",
)  # schedules whose first microbatch goes down all ranks before the last works


@dataclass(frozen=True)
class Bound:
    """At least: bytes on the fullest rank, most of them its `owner`'s, and seconds of a step."""

    memory: float
    owner: str
    time: float


def bound(scenario: Scenario, fabric: Fabric) -> Bound:
    """Bounds of a valid layout.

    Raises
    ------
    InputError
        If it is refused after all when its step is recorded.
    """
    few = few_of(scenario)
    lowered, times = timed_kernels(changed_batch(scenario, few), fabric)
    needed = fullest(lowered)
    time = _time(scenario, lowered.graph, times, microbatches_of(scenario) - few) * (
        1 - MARGIN
    )
    return Bound(needed.total + CONTEXT, needed.largest_owner, time)


def quick(scenario: Scenario, fabric: Fabric) -> float:
    """Seconds that a step takes at least, from a fraction of the work: for every layout that `sibling` calls alike.

    Megatron's pipelines meet in every step, so the mean over ranks counts, however layers are cut. Of other frameworks
    one and two layers of each stage are recorded: all layers of a model without experts in some of them are alike.
    """
    p = scenario.parallel
    every = microbatches_of(scenario)
    if framework_of(scenario).level:
        few = min(every, FEW)
        plain = replace(p, vpp=1, schedule="1f1b", uneven_stages=True)
        lowered, times = timed_kernels(
            changed_batch(replace(scenario, parallel=plain), few), fabric
        )
        compute = lowered.graph.streams.index("compute")
        busy = [
            _busy(one, times, compute, every - few, body=True)
            for one in lowered.graph.programs
        ]
        return float(np.mean(busy)) * (1 - MARGIN)
    return _by_layers(scenario, fabric) * (1 - MARGIN)


def sibling(candidate: Candidate) -> Hashable:
    """What `quick` depends on."""
    if not framework_of(candidate.scenario).level:
        return candidate.index
    free = ("parallel.vpp", "parallel.schedule", "parallel.data_parallel")
    return tuple(item for item in candidate.chosen if item[0] not in free)


def _by_layers(scenario: Scenario, fabric: Fabric) -> float:
    model, p = load_model(scenario.model, scenario.where), scenario.parallel
    each, few = model.layers // (p.pp * p.vpp), few_of(scenario)
    if model.kind != "transformer" or model.window or each <= 2:
        return 0.0
    busy = []
    for layers in (1, 2):
        short = replace(
            scenario, model=replace(scenario.model, layers=layers * p.pp * p.vpp)
        )
        lowered, times = timed_kernels(changed_batch(short, few), fabric)
        graph, compute = lowered.graph, lowered.graph.streams.index("compute")
        more = microbatches_of(scenario) - few
        busy.append(
            np.array(
                [_busy(one, times, compute, more, body=True) for one in graph.programs]
            )
        )
    return longest(busy[0] + (each - 1) * (busy[1] - busy[0]))


def few_of(scenario: Scenario) -> int:
    """Microbatches that tell the memory and the work of all: those in flight in a pipeline, where it has more."""
    every, p = microbatches_of(scenario), scenario.parallel
    if p.pp == 1 or p.schedule in ("1f1b", "gpipe"):
        return min(every, max(p.pp, FEW))
    few = 2 * p.pp
    return (
        few
        if p.schedule == "interleaved" and few < every and every % p.pp == 0
        else every
    )


def changed_batch(scenario: Scenario, microbatches: int) -> Scenario:
    """The same layout with so many microbatches."""
    batch = scenario.training.micro_batch * scenario.parallel.dp * microbatches
    return replace(scenario, training=replace(scenario.training, global_batch=batch))


def _time(scenario: Scenario, graph: OpGraph, times: KernelTimes, more: int) -> float:
    """Least seconds of the step with `more` microbatches: those of the rank that has most to do.

    Megatron's pipeline meets at the gradients' norm in every step, so there the way of the first microbatch down to
    the last rank and of the last one back counts too.
    """
    compute = graph.streams.index("compute")
    busy = [_busy(p, times, compute, more) for p in graph.programs]
    p = scenario.parallel
    if framework_of(scenario).level and p.pp > 1:
        return max(
            *busy, _through(graph, times, compute, more) if p.schedule in LOOPS else 0.0
        )
    return longest(busy)


def _kernels(
    p: Program, times: KernelTimes, compute: int
) -> tuple[np.ndarray, np.ndarray]:
    """Operations of a rank that are kernels on its compute stream, and their seconds alone."""
    at = np.flatnonzero((p.kind == KERNEL) & (p.stream == compute))
    return at, times.of(p.rank, p.payload[at])


def _busy(
    p: Program, times: KernelTimes, compute: int, more: int, body: bool = False
) -> float:
    """Seconds of a rank's kernels (`body`: without the optimizer), left out microbatches counted as the shortest."""
    at, time = _kernels(p, times, compute)
    if body:
        at, time = at[p.phase[at] < 2], time[p.phase[at] < 2]
    return float(time.sum()) + more * _shortest(p, at, time)


def _shortest(p: Program, at: np.ndarray, time: np.ndarray) -> float:
    body = p.phase[at] < 2
    by_microbatch = np.bincount(p.microbatch[at][body], weights=time[body])
    return float(by_microbatch.min()) if len(by_microbatch) else 0.0


def _through(graph: OpGraph, times: KernelTimes, compute: int, more: int) -> float:
    """The last rank's work between the first microbatch's way down and the last one's way back up."""
    ends, last = 0.0, graph.programs[-1]
    chain = np.array([isinstance(k, Chain) for k in graph.kernels])
    for p in graph.programs[:-1]:
        at, time = _kernels(p, times, compute)
        own = chain[p.payload[at]] & (p.phase[at] < 2)
        ends += _run(p, at[own], time[own], 0) + _run(
            p, at[own][::-1], time[own][::-1], 1
        )
    at, time = _kernels(last, times, compute)
    own = chain[last.payload[at]]
    return ends + float(time[own].sum()) + more * _shortest(last, at[own], time[own])


def _run(p: Program, at: np.ndarray, time: np.ndarray, phase: int) -> float:
    """Seconds of the leading operations of one microbatch in one direction."""
    alike = (
        (p.phase[at] == phase) & (p.microbatch[at] == p.microbatch[at[0]])
        if len(at)
        else np.zeros(0, bool)
    )
    stop = len(alike) if alike.all() else int(np.argmin(alike))
    return float(time[:stop].sum())
