"""Settings that turned out to have no part once a step was planned: its collectives are the same without them.

What NCCL does with a setting depends on what it chooses for every collective: NVLink SHARP has CTAs of its own and
takes no notice of the channels of rings, and a bound that nothing reaches bounds nothing. So each collective is planned
again without the setting; where none is another, the reader is told.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from prestep.sim.collectives.plan import Plan
from prestep.sim.collectives.planner import plan_collective
from prestep.sim.collectives.settings import COMMUNICATORS, Nccl
from prestep.sim.graph.opgraph import Comm
from prestep.sim.planning import host_memory
from prestep.sim.planning.planned import Planned

#: Keys that say who runs collectives and by which tables: they have a part in whatever is run.
ALWAYS = ("nccl.backend", "nccl.version", "nccl.collnet")
#: Settings of the channels of rings and trees, which NVLink SHARP does not take.
CHANNELS = ("nccl.min_channels", "nccl.max_channels")


def unheard(planned: Planned, unused: Sequence[str]) -> Iterator[str]:
    """Sentences about settings without a part in a step, beside those that `unused` names already."""
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
        _alike(_plan(planned, comm, now), _plan(planned, comm, before))
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


def _alike(one: Plan, other: Plan) -> bool:
    """Whether two plans move the same bytes the same way in the same time."""
    return one is other or all(
        _equal(getattr(one, entry.name), getattr(other, entry.name))
        for entry in fields(Plan)
        if entry.name != "notes"
    )


def _equal(one: Any, other: Any) -> bool:
    return (
        bool(np.array_equal(one, other))
        if isinstance(one, np.ndarray)
        else one == other
    )
