"""What a layout cannot do: fit with less than its memory, and take less time than its kernels.

Both are found by lowering the layout with a few microbatches only, which takes milliseconds, and are admissible: more
microbatches never take less memory, and a step never takes less than the kernels on its compute stream.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from prestep.sim.analysis.effects import step_time
from prestep.sim.analysis.memory import CONTEXT, Memory, fullest
from prestep.sim.analysis.step_times import longest
from prestep.sim.costs.spreads import slowest_of
from prestep.sim.graph.opgraph import KERNEL, Chain, OpGraph, Program
from prestep.sim.lowering import Step, lower, lowered_on
from prestep.sim.planning.planned import KernelTimes, kernel_times
from prestep.sim.predict import execute, plan, timed_kernels
from prestep.sim.spec.sections import Scenario
from prestep.sim.studies.search.space import Candidate
from prestep.topologies.fabric import Fabric
from prestep.workloads.frameworks import framework_of
from prestep.workloads.job.layout import microbatches_of
from prestep.workloads.models.model import ModelSpec, load_model

# Rounding of sums in another order, and of steps that begin a shade apart.
MARGIN = 1e-6
# Of a bound from a simulation: links are shared in other ways when more is under way.
CLOSE = 1e-3
FEW = 3  # microbatches without a pipeline: the first, one like all others, the last
_OF_PIPELINES = (
    "parallel.dp",
    "parallel.pp",
    "parallel.vpp",
    "parallel.schedule",
    "parallel.data_parallel",
)
LOOPS = (
    "1f1b",
    "interleaved",
    "gpipe",
)  # schedules whose first microbatch goes down all ranks before the last works


NOTHING = Memory()


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


@dataclass(frozen=True)
class Work:
    """Least work of every layout that `sibling` calls alike: a fraction of a step that tells what the rest takes.

    Attributes
    ----------
    step : float
        Seconds of a step, where layouts have nothing in common.
    layers, others, head : float
        Seconds of one microbatch through all layers, through what is not one of them, and of that through what comes
        between its way down and back, on GPUs that wait for nobody.
    spread : float
        By how much GPUs differ, as ranks wait for the slowest.
    held, beside : Memory
        Bytes of all layers, and of what is not one of them: their state, unsharded, and activations of one microbatch.
    """

    step: float = 0.0
    layers: float = 0.0
    others: float = 0.0
    head: float = 0.0
    spread: float = 0.0
    held: Memory = NOTHING
    beside: Memory = NOTHING

    def bound(self, scenario: Scenario) -> Bound:
        """Both; no bytes where layers are not alike."""
        held = self.least_memory(scenario)
        needed = held.total + CONTEXT if held.total else 0.0
        return Bound(needed, held.largest_owner, self.least(scenario))

    def least_memory(self, scenario: Scenario) -> Memory:
        """Bytes that the first stage holds at least.

        That is its share of the layers, the embedding, which is half of what is no layer, and the activations of all
        that it issues before the first microbatch comes back.
        """
        if _is_uneven(scenario):
            return NOTHING
        p, held, beside = scenario.parallel, self.held, self.beside
        ranks = p.dp * p.cp
        replicated = p.data_parallel in ("none", "ddp")
        state = 1 if replicated or p.data_parallel == "zero1" else ranks
        optimizer = 1 if replicated else ranks
        stages, ends = 1.0 / p.pp, 0.49 if p.pp > 1 else 1.0
        warmup = 2 * (p.pp - 1) + (p.vpp - 1) * p.pp + 1 if p.vpp > 1 else p.pp
        in_flight = min(microbatches_of(scenario) * p.vpp, warmup) / p.vpp
        return Memory(
            (stages * held.parameters + ends * beside.parameters) / state,
            (stages * held.gradients + ends * beside.gradients) / state,
            (stages * held.optimizer + ends * beside.optimizer) / optimizer,
            stages * held.activations * in_flight if p.schedule in LOOPS else 0.0,
        )

    def least(self, scenario: Scenario) -> float:
        """Seconds of a step of a layout.

        Megatron's pipelines meet in every step, so the mean over stages counts, and where stages are alike the way of
        the first microbatch down to the last stage and of the last one back.
        """
        p, every = scenario.parallel, microbatches_of(scenario)
        time = every * (self.layers + self.others) / p.pp
        if p.schedule in LOOPS and not _is_uneven(scenario):
            beside = (p.pp - 1) / (p.pp * p.vpp)
            last = every * (self.layers / p.pp + self.head)
            time = max(time, beside * self.layers + last)
        time *= slowest_of(p.dp * p.tp, self.spread)
        return max(self.step, time) * (1 - MARGIN)


def _is_uneven(scenario: Scenario) -> bool:
    o = scenario.megatron
    cut = o.account_for_embedding or o.account_for_loss or o.pipeline_layout
    return bool(scenario.parallel.uneven_stages or cut)


def quick(scenario: Scenario, fabric: Fabric) -> Work:
    """What a step takes at least, from a fraction of the work: for every layout that `sibling` calls alike.

    Of Megatron's layers a few microbatches are recorded without a pipeline. Of other frameworks one and two layers of
    each stage: all layers of a model without experts in some of them are alike.
    """
    if not framework_of(scenario).level:
        return Work(_by_layers(scenario, fabric))
    p, few = scenario.parallel, min(microbatches_of(scenario), FEW)
    flat = replace(p, pp=1, vpp=1, dp=p.dp * p.pp, schedule="1f1b")
    if flat.dp * p.cp > 1:
        flat = replace(flat, data_parallel="ddp")
    short = changed_batch(replace(scenario, parallel=flat), few)
    step = lower(short, fabric)
    graph = step.lowered.graph
    times = kernel_times(step.job, step.machine, graph)
    compute = graph.streams.index("compute")
    program, spread = graph.programs[0], step.machine.gpu.spread
    at, seconds = _kernels(program, times, compute)
    seconds = seconds / slowest_of(flat.dp * flat.tp, spread)
    chain = np.array([isinstance(k, Chain) for k in graph.kernels])
    layers = _shortest(program, at, np.where(chain[program.payload[at]], seconds, 0.0))
    others = _shortest(program, at, seconds) - layers
    head = _head(program, at, seconds, chain[program.payload[at]])
    return Work(0.0, layers, others, head, spread, *_held(short, fabric, step))


def _head(p: Program, at: np.ndarray, seconds: np.ndarray, chain: np.ndarray) -> float:
    """Seconds of the first microbatch between its last layer down and the first one back."""
    first = p.microbatch[at] == p.microbatch[at[chain][0]]
    down = np.flatnonzero(chain & first & (p.phase[at] == 0))
    back = np.flatnonzero(chain & first & (p.phase[at] == 1))
    return float(seconds[down[-1] + 1 : back[0]].sum())


def _held(scenario: Scenario, fabric: Fabric, step: Step) -> tuple[Memory, Memory]:
    """Bytes of all layers, where they are alike, and of the rest: half of the layers tell them apart."""
    model = step.model
    half, kinds = model.layers // 2, {*map(partial(_kind, model), range(model.layers))}
    if not half or model.mtp_layers or len(kinds) > 1:
        return NOTHING, NOTHING
    fewer = replace(scenario, model=replace(scenario.model, layers=half))
    less = fullest(lowered_on(fewer, fabric)).owners
    every = fullest(step.lowered).owners
    more = model.layers / (model.layers - half)
    held = {owner: more * max(0.0, every[owner] - less[owner]) for owner in every}
    rest = {owner: max(0.0, every[owner] - held[owner]) for owner in every}
    return Memory(**held), Memory(**rest)


def _kind(model: ModelSpec, layer: int) -> Hashable:
    """What a layer is; those of one kind hold as much."""
    expert, window = model.has_experts(layer), model.window_of(layer)
    return (
        expert,
        window,
        model.attends(layer),
        model.part_of(layer),
        model.ratio_of(layer),
    )


def sibling(candidate: Candidate) -> Hashable:
    """What `quick` depends on."""
    if not framework_of(candidate.scenario).level:
        return candidate.index
    return tuple(item for item in candidate.chosen if item[0] not in _OF_PIPELINES)


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


def of_few(scenario: Scenario, fabric: Fabric) -> float:
    """Seconds that a pipeline's step takes at least: of few microbatches, and the slowest stage's work of the others.

    More microbatches fill no gap that a few leave: pipelines fill and drain once, and gradients are reduced once.
    """
    few = scenario.parallel.pp
    planned = plan(changed_batch(scenario, few), fabric)
    times = KernelTimes(planned.durations, planned.scale)
    compute = planned.graph.streams.index("compute")
    each = max(
        _shortest(p, *_kernels(p, times, compute)) for p in planned.graph.programs
    )
    more = microbatches_of(scenario) - few
    return (step_time(planned, execute(planned)) + more * each) * (1 - CLOSE)


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
    own = last.phase[at] < 2
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
