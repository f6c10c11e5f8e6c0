"""Which chains under way must share their links: those that use one which all that is under way could overfill."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from sim.engine.fair_share import EQUAL
from sim.engine.sharing import OnLinks, Shapes, Sharing

if TYPE_CHECKING:
    from sim.collectives.plan import Plan


class Chained(Protocol):
    """A chain under way; `transfer` is the number of its own transfer under way, -1: none."""

    @property
    def flowing(self) -> bool: ...
    @property
    def transfer(self) -> int: ...
    def disturb(self) -> None: ...


class Moving(Protocol):
    """A transfer under way."""

    number: int
    shape: int
    plan: Plan


class Crowding:
    """The chains under way, and the transfers beside them."""

    def __init__(self, sharing: Sharing, active: Mapping[int, Moving]) -> None:
        self.shapes, self.bandwidth = sharing.shapes, sharing.bandwidth
        self.active = active
        self._chains: dict[Chained, int] = {}  # with the shapes of all they exchange
        self._narrowest = _Narrowest(self.shapes, self.bandwidth)

    def enter(self, chain: Chained, uses: OnLinks) -> None:
        """A chain begins that puts at most ``uses`` bytes/s on links; all there are disturbed if that is too much."""
        self._chains[chain] = self.shapes.of(uses)
        self.disturb_near(self._chains[chain])

    def leave(self, chain: Chained) -> None:
        """A chain has ended."""
        del self._chains[chain]

    def disturb_near(self, shape: int) -> None:
        """Chains that flow are disturbed where what has begun on their links is too much for these."""
        if not self._chains:
            return
        near = self.shapes.near[shape]
        for chain, own in list(self._chains.items()):
            if near[own] and chain.flowing and self.crowded(chain):
                chain.disturb()

    def crowded(self, chain: Chained) -> bool:
        """Whether any link that a chain uses would be overfull if all that is under way there came at once."""
        others = [*self._transfers(chain), *self._other_chains(chain)]
        mine = self.shapes.plans[self._chains[chain]]
        return bool(others) and self._overfull(mine, others)

    def _transfers(self, chain: Chained) -> Iterator[tuple[OnLinks, float]]:
        """Transfers that share links with a chain and are no chain's, with their payload bytes/s alone."""
        near = self.shapes.near[self._chains[chain]]
        of_chains = {other.transfer for other in self._chains}
        for one in self.active.values():
            if near[one.shape] and one.number not in of_chains:
                yield one.plan, min(one.plan.rate_cap, self._narrowest[one.shape])

    def _other_chains(self, chain: Chained) -> Iterator[tuple[OnLinks, float]]:
        """Chains that share links with a chain."""
        near = self.shapes.near[self._chains[chain]]
        for other, shape in self._chains.items():
            if other is not chain and near[shape]:
                yield self.shapes.plans[shape], 1.0

    def _overfull(self, mine: OnLinks, others: Sequence[tuple[OnLinks, float]]) -> bool:
        """Whether any of the links of `mine` has to carry more than it can; `others` with the pace of each."""
        load = mine.usage.copy()
        for other, pace in others:
            at = np.minimum(np.searchsorted(mine.links, other.links), len(load) - 1)
            common = mine.links[at] == other.links
            np.add.at(load, at[common], other.usage[common] * pace)
        return bool((load > self.bandwidth[mine.links] * (1 + EQUAL)).any())


class _Narrowest(dict[int, float]):
    """Payload bytes/s that the links of each shape let pass."""

    def __init__(self, shapes: Shapes, bandwidth: np.ndarray) -> None:
        super().__init__()
        self.shapes, self.bandwidth = shapes, bandwidth

    def __missing__(self, shape: int) -> float:
        plan = self.shapes.plans[shape]
        with np.errstate(divide="ignore"):
            widths = self.bandwidth[plan.links] / plan.usage
        narrowest = self[shape] = float(widths.min(initial=float("inf")))
        return narrowest
