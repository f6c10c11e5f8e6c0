"""Which chains under way must share their links: those that use one which all that is under way could overfill."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from prestep.sim.engine.fair_share import EQUAL
from prestep.sim.engine.sharing import REMEMBERED, OnLinks, Sharing

if TYPE_CHECKING:
    from prestep.sim.engine.chain_run import ChainRun
    from prestep.sim.engine.fluid import Activity

# Shapes under way, with the payload bytes/s of each.
_Others = tuple[tuple[int, float], ...]


class Crowding:
    """The chains under way, and the transfers beside them."""

    def __init__(self, sharing: Sharing, active: Mapping[int, Activity]) -> None:
        self.shapes, self.bandwidth = sharing.shapes, sharing.bandwidth
        self.active = active
        self._chains: dict[ChainRun, int] = {}  # with the shapes of all they exchange
        self._narrowest = cache(self._pass)
        # Whether a chain of a shape is crowded beside others: the same few come again and again.
        self._crowded: dict[tuple[int, _Others], bool] = {}

    def enter(self, chain: ChainRun, uses: OnLinks) -> None:
        """A chain begins that puts at most ``uses`` bytes/s on links; all there are disturbed if that is too much."""
        self._chains[chain] = self.shapes.of(uses)
        self.disturb_near(self._chains[chain])

    def leave(self, chain: ChainRun) -> None:
        """A chain has ended."""
        del self._chains[chain]

    def disturb_near(self, shape: int) -> None:
        """Chains that flow are disturbed where what has begun on their links is too much for these."""
        if not self._chains:
            return
        near = self.shapes.near[shape]
        reached = [chain for chain, own in self._chains.items() if near[own]]
        for chain in reached:
            if chain.flowing and self.crowded(chain):
                chain.disturb()

    def crowded(self, chain: ChainRun) -> bool:
        """Whether any link that a chain uses would be overfull if all that is under way there came at once."""
        own = self._chains[chain]
        others = (*self._transfers(own), *self._other_chains(chain, own))
        if not others:
            return False
        key = own, others
        if key not in self._crowded:
            if len(self._crowded) >= REMEMBERED:
                self._crowded.clear()
            self._crowded[key] = self._overfull(own, others)
        return self._crowded[key]

    def _transfers(self, own: int) -> list[tuple[int, float]]:
        """Transfers that share links with a shape and are no chain's, with their payload bytes/s alone."""
        near = self.shapes.near[own]
        reached = [one for one in self.active.values() if near[one.shape]]
        if not reached:
            return []
        of_chains = {other.transfer for other in self._chains}
        return [
            (one.shape, min(one.plan.rate_cap, self._narrowest(one.shape)))
            for one in reached
            if one.number not in of_chains
        ]

    def _other_chains(self, chain: ChainRun, own: int) -> list[tuple[int, float]]:
        """Chains that share links with a chain of the shape `own`."""
        near = self.shapes.near[own]
        return [
            (shape, 1.0)
            for other, shape in self._chains.items()
            if near[shape] and other is not chain
        ]

    def _overfull(self, own: int, others: _Others) -> bool:
        """Whether any link of the shape `own` has to carry more than it can; `others` with the pace of each."""
        mine = self.shapes.plans[own]
        load = mine.usage.copy()
        for shape, pace in others:
            other = self.shapes.plans[shape]
            at = np.minimum(np.searchsorted(mine.links, other.links), len(load) - 1)
            common = mine.links[at] == other.links
            np.add.at(load, at[common], other.usage[common] * pace)
        return bool((load > self.bandwidth[mine.links] * (1 + EQUAL)).any())

    def _pass(self, shape: int) -> float:
        """Payload bytes/s that the links of a shape let pass."""
        plan = self.shapes.plans[shape]
        with np.errstate(divide="ignore"):
            widths = self.bandwidth[plan.links] / plan.usage
        return float(widths.min(initial=float("inf")))
