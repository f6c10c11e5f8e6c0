"""What an execution is given beside the operation graph, and what comes out of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from sim.graph.opgraph import Comm

if TYPE_CHECKING:
    from sim.collectives.plan import Plan
    from sim.costs.power import Power
    from sim.engine.traffic import Traffic
    from sim.planning.noise import Noise


@dataclass(frozen=True)
class Machine:
    """What the engine needs to know of the hardware.

    Attributes
    ----------
    duration : np.ndarray
        Seconds each kernel of the graph takes alone, in the order of ``OpGraph.kernels``.
    slowdown : callable
        (kernel index, channels) -> factor >= 1 while communication holds that many SMs.
    plan : callable
        Comm -> Plan on this fabric.
    bandwidth : np.ndarray
        Bytes per second of every directed link.
    contention : float
        Factor >= 1 on the time of a collective that runs beside kernels.
    beside : mapping
        The same beside single kernels, by index, where it is another.
    kernel_gap, launch_latency : float
        Seconds between two kernels of a stream, and from a launch to the start on an idle stream.
    scale : dict
        Slow ranks: factor on kernel durations by rank, one for all or one per kernel.
    idle : frozenset of int
        Kernels that leave the GPU to others while they run (they spin on one SM): they neither slow nor delay
        communication, nor are slowed.
    grain : mapping
        Kernels that stand for many, by index: seconds until the one of them that runs at some moment ends, on average.
    exclusive : bool
        Communication waits for free SMs and runs one after the other on a GPU; recorded starts have that in them.
    power : Power or None
        The GPU's power limit: products among the kernels, ``hot``, slow down when it is reached; None: it never is.
    budget : float or None
        Seconds of the power budget that is left at the start; None: all of it.
    noise : Noise or None
        Factors on operations and transfers, drawn (`sim.planning.noise`).
    """

    duration: np.ndarray
    slowdown: Callable[[int, int], float]
    plan: Callable[[Comm], Plan]
    bandwidth: np.ndarray
    contention: float
    kernel_gap: float
    launch_latency: float
    scale: Mapping[int, float | np.ndarray]
    idle: frozenset[int] = frozenset()
    exclusive: bool = True
    grain: Mapping[int, float] = field(default_factory=dict)
    background: tuple[Plan, ...] = ()
    beside: Mapping[int, float] = field(default_factory=dict)
    power: Power | None = None
    hot: frozenset[int] = frozenset()
    budget: float | None = None
    noise: Noise | None = None


@dataclass(frozen=True)
class Run:
    """Times of every operation: arrays of shape (steps, operations) by simulated rank.

    `events` and `solves` count the work of the run: events of SimPy, and solutions of the network's rates.
    """

    launch: tuple[np.ndarray, ...]
    start: tuple[np.ndarray, ...]
    end: tuple[np.ndarray, ...]
    ready: tuple[dict[int, float], ...]
    plans: tuple[Plan, ...]
    carried: np.ndarray
    traffic: Traffic
    events: int
    solves: int
    finished: float
