"""Sentences that warn the reader of a prediction: idle settings, contradictions, lopsided groups, unsteady steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from prestep.sim.analysis.step_times import UNLIKE, by_rank, host_times, longest, spread
from prestep.sim.collectives.nccl import rccl
from prestep.sim.collectives.plan import Plan
from prestep.sim.collectives.planner import plan_collective
from prestep.sim.collectives.settings import COMMUNICATORS, Nccl
from prestep.sim.collectives.wires import paths, sharp
from prestep.sim.engine.execution import Run
from prestep.sim.graph.opgraph import Comm, OpGraph
from prestep.sim.planning import host_memory
from prestep.sim.planning.planned import Planned
from prestep.sim.units import percent
from prestep.workloads.job.faults import Faults

WITHOUT_NOISE = (
    "the step, its breakdown and links are without noise; --replicas N draws it"
)
LOPSIDED = 2  # the largest share over the smallest from which on it is said
SMALL = 1 << 20  # bytes up to which latency counts, not NICs
#: Keys that say who runs collectives and by which tables: they have a part in whatever is run.
ALWAYS = ("nccl.backend", "nccl.version", "nccl.collnet")
#: Settings of the channels of rings and trees, which NVLink SHARP does not take.
CHANNELS = ("nccl.min_channels", "nccl.max_channels")


def warnings_of(planned: Planned) -> tuple[str, ...]:
    """Sentences about a step before it has run: keys without a part, contradictions, what its network lacks."""
    remarks, machine, fabric = planned.job.remarks, planned.machine, planned.fabric
    # Where CollNet was asked for in vain, and where another library than NCCL runs the collectives.
    without_sharp = sharp.without(fabric, machine.nccl)
    modelled = rccl.caveat(fabric.gpu_model) or machine.nccl.newer
    without_nccl = modelled if planned.graph.comms else ""
    caveats = (
        *remarks.decided,
        *remarks.unused,
        *idle_settings(planned, remarks.unused),
        *remarks.caveats,
        *_contradictions(planned),
        *filter(None, [machine.host.caveat, without_sharp, without_nccl]),
        *lopsided(fabric, planned.gpus, planned.graph.comms),
    )
    jitter = _jitter_keys(machine.faults)
    return (*caveats, f"{', '.join(jitter)}: {WITHOUT_NOISE}") if jitter else caveats


def unsteady_of(planned: Planned, run: Run) -> tuple[str, ...]:
    """Whether the last step stands for those after it; with noise no step is like another."""
    return () if planned.noise is not None else unsteady(planned.graph, run)


def _contradictions(planned: Planned) -> tuple[str, ...]:
    """What the cluster's file says that cannot be so, such as links that its GPUs do not have."""
    return tuple(
        f"{planned.fabric.name}: {known.source}"
        for key, known in planned.fabric.facts.items()
        if key.startswith("contradiction:")
    )


def _jitter_keys(faults: Faults) -> list[str]:
    """The stated keys of noise, which replicas alone draw."""
    names = [key.name for key in fields(faults) if key.name.startswith("jitter_")]
    drawn = [name for name in names if getattr(faults, name) is not None]
    stated = ["jitter"] if faults.jitter != 1.0 else []
    return [f"faults.{name}" for name in (*stated, *drawn)]


def idle_settings(planned: Planned, unused: Sequence[str]) -> Iterator[str]:
    """Sentences about settings without a part in a step, beside those that `unused` names already.

    What NCCL does with a setting depends on what it chooses for every collective: NVLink SHARP has CTAs of its own and
    takes no notice of the channels of rings, and a bound that nothing reaches bounds nothing. So each collective is
    planned again without the setting; where none is another, the reader is told.
    """
    named, comms = " ".join(unused), _distinct(planned)
    same = [
        key
        for key in _settings(planned.machine.nccl)
        if key not in named and _same_without(planned, comms, key)
    ]
    if comms and same:
        have = "has" if len(same) == 1 else "have"
        why = "that wants collectives which are run otherwise for it"
        yield f"{', '.join(same)} {have} no part in this step: {why}{_hint(planned, same)}"
    kept = any(memory.on_host for memory in planned.lowered.memory.values())
    if planned.machine.host_memory is not None and not kept:
        yield "cluster.host_memory has no part in this step: that wants something kept there (parallel.offload)"


def _settings(nccl: Nccl) -> Iterator[str]:
    """Keys of the settings that are not NCCL's own, and count by what they do to collectives."""
    for entry in fields(Nccl):
        key = f"nccl.{entry.name}"
        if getattr(nccl, entry.name) != entry.default and key not in ALWAYS:
            yield key


def _hint(planned: Planned, keys: Sequence[str]) -> str:
    """What bounds NVLink SHARP where the channels of rings were set in vain."""
    if not set(keys) & set(CHANNELS):
        return ""
    sharp = any(plan.algo.startswith("nvls") for plan in planned.plans)
    return "; NVLink SHARP has CTAs of its own (nccl.max_ctas)" if sharp else ""


def _distinct(planned: Planned) -> list[Comm]:
    """One communication of NCCL of every axis, operation and size, those within chains too."""
    inner = [one.timed.graph.comms for one in planned.chains.values()]
    every = [comm for comms in (planned.graph.comms, *inner) for comm in comms]
    alike = {
        (c.axis, c.op, c.size, c.in_place, c.tokens, len(c.groups[0])): c
        for c in every
        if c.op not in host_memory.OPS and len(c.groups[0]) > 1
    }
    return list(alike.values())


def _same_without(planned: Planned, comms: Sequence[Comm], key: str) -> bool:
    """Whether all communications are planned alike with a setting and without it."""
    now, name = planned.machine.nccl, key.removeprefix("nccl.")
    before = replace(now, **{name: getattr(Nccl(), name)})
    concerned = [c for c in comms if name not in COMMUNICATORS or c.axis == name]
    return all(
        _same_plan(_plan(planned, comm, now), _plan(planned, comm, before))
        for comm in concerned
    )


def _plan(planned: Planned, comm: Comm, settings: Nccl) -> Plan:
    """How one group of a communication would do it with other settings."""
    layout, group = planned.lowered.layout, comm.groups[0]
    idle = [r for r in layout.pipeline(group[0]) if r not in group]
    ranks = (*group, *idle) if comm.axis == "pp" else group
    gpus = tuple(planned.gpus[rank] for rank in ranks)
    wanted = settings.of("" if comm.copied else comm.axis)
    fabric = planned.fabric
    return plan_collective(
        comm.op, comm.size, gpus, fabric, wanted, comm.in_place, comm.tokens
    )


def _same_plan(one: Plan, other: Plan) -> bool:
    """Whether two plans move the same bytes the same way in the same time."""
    return one is other or all(
        _equal(getattr(one, entry.name), getattr(other, entry.name))
        for entry in fields(Plan)
        if entry.name not in ("notes", "idle")  # idle follows from the others
    )


def _equal(one: Any, other: Any) -> bool:
    return (
        bool(np.array_equal(one, other))
        if isinstance(one, np.ndarray)
        else one == other
    )


def lopsided(
    fabric: Any, gpus: Sequence[str], comms: Iterable[Comm]
) -> tuple[str, ...]:
    """A sentence for every axis with a communicator whose hosts have very different numbers of its GPUs.

    Every ring passes every host, so that the NICs of the smallest share carry as much as those of the largest; and
    NCCL's ranks agree on as many channels as the smallest share has room for. 35 GPUs of an NVL72 rack and two of the
    next exchange gradients at the speed of two NICs.
    """
    domains = paths.domains(fabric)
    met = {
        (c.axis, c.groups[0]) for c in comms if c.size > SMALL and len(c.groups[0]) > 2
    }
    worst: dict[str, tuple[int, int]] = {}
    for axis, ranks in sorted(met):
        shares = _most_and_fewest(domains, [gpus[rank] for rank in ranks])
        if shares[0] >= LOPSIDED * shares[1]:
            worst[axis] = max(shares, worst.get(axis, shares), key=_ratio)
    return tuple(_lopsided_axis(axis, *shares) for axis, shares in worst.items())


def _most_and_fewest(
    domains: Mapping[str, int], gpus: Sequence[str]
) -> tuple[int, int]:
    """The most and the fewest GPUs that reach each other without the network."""
    counts = Counter(domains[gpu] for gpu in gpus).values()
    return max(counts), min(counts)


def _ratio(shares: tuple[int, int]) -> float:
    return shares[0] / shares[1]


def _lopsided_axis(axis: str, most: int, fewest: int) -> str:
    one = fewest == 1
    few = "1 GPU is" if one else f"{fewest} GPUs are"
    return (
        f"{axis}: of a communicator {most} GPUs are in one NVLink domain or host and {few} in another, through whose "
        f"NIC{'' if one else 's'} goes as much as through those of the {most}: sizes that fill both alike are faster"
    )


def unsteadiness(graph: OpGraph, run: Run) -> float:
    """Share of the last step by which ranks differ, or by which the host thread of one takes longer than the step.

    Ranks that wait for each other may take unlike times for many steps: a stage that nothing holds back yet gains on
    the others, and groups of ranks whose communications meet on the same links take turns. A host thread that takes
    longer than the step may still have a lead over its GPU from the first step; once that is used up, the step is the
    host's.
    0 where the ranks do not communicate: each has a step of its own.
    """
    times = by_rank(graph, run)
    if not graph.comms or not times:
        return 0.0
    step = longest(times.values())
    behind = max(host_times(graph, run).values()) - step
    return max(spread(times), behind / step if step > 0 else 0.0)


def is_unsteady(graph: OpGraph, run: Run) -> bool:
    """Whether later steps may take another time than the last one."""
    return unsteadiness(graph, run) > UNLIKE


def unsteady(graph: OpGraph, run: Run) -> tuple[str, ...]:
    """A sentence where the last step is not steady."""
    if not is_unsteady(graph, run):
        return ()
    share = percent(unsteadiness(graph, run))
    return (
        f"ranks' steps still differ by {share} when the simulation ends: the step is the slowest rank's, "
        f"and the mean of many steps may be another",
    )
