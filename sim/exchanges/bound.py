"""What bounds a collective: that which, were it faster, would shorten it most.

A link that is full is not always what a collective waits for: on two DGX H100 the NICs and the NVLinks are equally full
in an all-gather, and only faster NVLinks help, for the rate is bound where the two meet channels. So each kind of link
is made 10 % faster, the collective is planned again, NCCL's choices included, and what shortens it most bounds it. The
shares of the time that links, latency and channels decide add up to 1: were everything 10 % faster, so would it be.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from prestep.sim.collectives.plan import Plan

LATENCY = "latency"
FASTER = 1.1
#: A kind of link whose fullest one is busy for less of the transfer than this decides none of it. It is low: links that
#: messages of medium size do not fill decide more than their bytes take.
IDLE = 0.05
#: A share of the time that is worth a name.
NOTICEABLE = 0.02
#: What is left of the time where neither links nor latency decide it, by who moves the bytes.
LEFT = {
    "gloo": "sockets and copies",
    "one_sided": "threads that put",
    "shots": "the kernel",
}
CHANNELS, SOCKETS = "channels", "proxy threads"

Replan = Callable[[Any], Plan]


@dataclass
class Bounds:
    """What bounds the collectives of one sweep over sizes: fabrics with faster links are made once.

    Examples
    --------
    >>> from prestep.sim.collectives.planner import plan_collective
    >>> from prestep.topologies import load_cluster
    >>> fabric = load_cluster("dgx-h100")
    >>> small = lambda on: plan_collective("all_reduce", 8, on.gpus, on)
    >>> Bounds(fabric).of(small(fabric), small)
    'latency'
    """

    fabric: Any
    faster: dict[tuple[str, ...], Any] = field(default_factory=dict)

    def of(self, plan: Plan, replan: Replan) -> str:
        """The name of the fullest link of the kind that decides, or what decides instead: latency, channels, ...

        `replan` plans the same collective on another fabric.
        """
        time = plan.duration(self.fabric.links.bandwidth)
        if plan.latency > time / 2:
            return LATENCY
        kinds = self._busy(plan, time)
        wires = self._share(time, kinds, replan)
        shares = {LATENCY: plan.latency / time}
        shares[_left(plan)] = 1 - wires - shares[LATENCY]
        most = max(shares, key=lambda name: shares[name])
        if wires < shares[most]:
            return most
        alone = {kind: self._share(time, (kind,), replan) for kind in kinds}
        best = max(alone, key=lambda kind: alone[kind])
        if alone[best] > NOTICEABLE:
            return self._name(plan, (best,))
        # Kinds that are equally narrow decide together what neither decides alone.
        return self._name(plan, self._needed(time, kinds, wires, replan))

    def _needed(
        self, time: float, kinds: tuple[str, ...], wires: float, replan: Replan
    ) -> tuple[str, ...]:
        """Of kinds that decide the share `wires` together, those without which less would be saved."""
        for kind in kinds:
            others = tuple(other for other in kinds if other != kind)
            if others and self._share(time, others, replan) > wires - NOTICEABLE:
                return self._needed(time, others, wires, replan)
        return kinds

    def _busy(self, plan: Plan, time: float) -> tuple[str, ...]:
        """Kinds of links that are busy for long enough to decide anything."""
        links = self.fabric.links
        busy = plan.size * plan.usage / links.bandwidth[plan.links]
        full = busy > IDLE * (time - plan.latency)
        kinds: tuple[str, ...] = links.kinds_on(plan.links[full])
        return kinds

    def _share(self, time: float, kinds: tuple[str, ...], replan: Replan) -> float:
        """The share of the time that links of some kinds decide: 1 if it goes as their bandwidth does."""
        if not kinds:
            return 0.0
        if kinds not in self.faster:
            self.faster[kinds] = _faster(self.fabric, kinds)
        faster = self.faster[kinds]
        saved = time - replan(faster).duration(faster.links.bandwidth)
        return max(0.0, saved / time / (1 - 1 / FASTER))

    def _name(self, plan: Plan, kinds: tuple[str, ...]) -> str:
        """The fullest link of each kind, by name."""
        links = self.fabric.links
        rates = links.bandwidth[plan.links] / plan.usage
        names = []
        for kind in kinds:
            own = np.flatnonzero(links.kind[plan.links] == kind)
            narrowest = own[int(np.argmin(rates[own]))]
            names.append(str(links.name(int(plan.links[narrowest]))))
        return " and ".join(names)


def _faster(fabric: Any, kinds: tuple[str, ...]) -> Any:
    """The fabric with faster links of some kinds; it shares its routes, which do not go by speed."""
    links = fabric.links
    factor = np.where(np.isin(links.kind, kinds), FASTER, 1.0)
    changed = links.with_values(
        bandwidth=links.bandwidth * factor, raw=links.raw * factor
    )
    return fabric.with_columns(links=changed).with_routes_of(fabric)


def _left(plan: Plan) -> str:
    """What moves the bytes, as a word for its own part of the time."""
    return LEFT.get(plan.algo, SOCKETS if plan.on_cpu else CHANNELS)
