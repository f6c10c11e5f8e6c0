"""Communications of GPUs that lie alike: the first is planned, and its plan moved to the links of the others."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from prestep.sim.collectives.plan import Plan
from prestep.sim.collectives.wires import paths
from prestep.topologies.core.links import Ints
from prestep.topologies.fabric import Fabric
from prestep.topologies.routes.images import Images

Gpus = Sequence[Sequence[str]]  # of every copy: the GPUs of its communicator


@dataclass(frozen=True, eq=False)
class _Planned:
    """A plan, and the positions of the GPUs for which it was made."""

    nodes: Ints
    plan: Plan


@dataclass(frozen=True, eq=False)
class _Memory:
    """What has been planned on a fabric: by what it is and how the GPUs lie; and how those lie."""

    first: dict[Hashable, _Planned] = field(default_factory=dict)
    marks: dict[tuple[tuple[str, ...], ...], tuple[Ints, bytes | None]] = field(
        default_factory=dict
    )


def planned_once(
    fabric: Fabric, what: Hashable, gpus: Gpus, make: Callable[[], Plan]
) -> Plan:
    """What `make` returns, or the plan that it returned for other GPUs, moved to these.

    Parameters
    ----------
    what
        All that the plan depends on beside the fabric and the GPUs.
    """
    images = fabric.images
    if images is None:
        return make()
    memory = paths.once(fabric, ("plans of GPUs that lie alike",), _Memory)
    nodes, mark = _marked(fabric, images, memory, gpus)
    if mark is None:
        return make()
    key = (what, tuple(map(len, gpus)), mark)
    first = memory.first.get(key)
    moved = _moved(images, first, nodes, gpus) if first else None
    if moved is not None:
        return moved
    plan = make()
    if first is None and images.settled(nodes):
        memory.first[key] = _Planned(nodes, plan)
    return plan


def _marked(
    fabric: Fabric, images: Images, memory: _Memory, gpus: Gpus
) -> tuple[Ints, bytes | None]:
    """Positions of the GPUs, and how they lie."""
    key = tuple(map(tuple, gpus))
    if key not in memory.marks:
        nodes = fabric.positions(list(chain.from_iterable(gpus)))
        memory.marks[key] = nodes, images.mark(nodes)
    return memory.marks[key]


def _moved(images: Images, first: _Planned, nodes: Ints, gpus: Gpus) -> Plan | None:
    """The plan on the links of GPUs that lie like those for which it was made; None where a link has no image."""
    plan = first.plan
    rows = images.rows(plan.links, first.nodes, nodes)
    if rows is None:
        return None
    order = np.argsort(rows)
    return plan.on(rows[order], order, ranks=tuple(gpus[0]))


def by_host(
    fabric: Fabric, communicators: Sequence[tuple[str, ...]]
) -> list[list[tuple[str, ...]]]:
    """Communicators in their order, those next to each other that lie on one host together."""
    found: list[list[tuple[str, ...]]] = []
    before = ""
    for gpus in communicators:
        hosts = {fabric.host_of(gpu) for gpu in gpus}
        host = hosts.pop() if len(hosts) == 1 else ""
        if host and host == before:
            found[-1].append(gpus)
        else:
            found.append([gpus])
        before = host
    return found
