"""Transfers to and from storage as activities of the network, by SimPy: a flow is a row of legs, one after the other.

A leg takes a fixed time (a file is created, a plan is made), then moves bytes over links that others use too.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import simpy

from prestep.sim.collectives.plan import Plan
from prestep.sim.engine.clock import Clock
from prestep.sim.engine.fluid import Network


def _no_links() -> np.ndarray:
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Leg:
    """Part of a flow: `latency` seconds, then `size` bytes over `links` at `cap` bytes/s at most."""

    name: str
    size: float = 0.0
    cap: float = float("inf")
    latency: float = 0.0
    links: np.ndarray = field(default_factory=_no_links)
    usage: np.ndarray = field(default_factory=_no_links)

    @property
    def plan(self) -> Plan:
        """As the network takes it."""
        return Plan(
            self.name,
            self.size,
            (),
            "storage",
            "",
            0,
            self.latency,
            self.links,
            self.usage,
            self.cap,
            "guess",
            on_cpu=True,
        )


def play(flows: Sequence[Sequence[Leg]], bandwidth: np.ndarray) -> list[list[float]]:
    """Runs all flows at once from second 0; the end of every leg, in s.

    Parameters
    ----------
    flows
        Legs of each flow, in order.
    bandwidth
        Bytes/s of every link, shape (links,).
    """
    env = Clock()
    network = Network(env, bandwidth)
    ends: list[list[float]] = [[] for _ in flows]
    for at, legs in enumerate(flows):
        env.process(flow(env, network, legs, ends[at]))
    env.run()
    return ends


def flow(
    env: simpy.Environment, network: Network, legs: Sequence[Leg], ends: list[float]
) -> Generator[Any, Any, None]:
    """A SimPy process: the legs of a flow in turn, whose ends (s) it adds to `ends`."""
    for leg in legs:
        if leg.latency > 0:
            yield env.timeout(leg.latency)
        if leg.size > 0:
            yield network.begin(leg.plan).done
        ends.append(float(env.now))
