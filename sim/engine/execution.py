"""What an execution is given, and what comes out of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from prestep.sim.graph.opgraph import OpGraph

if TYPE_CHECKING:
    from prestep.sim.collectives.plan import Plan
    from prestep.sim.costs.power import Load, Power
    from prestep.sim.engine.exchange_timeline import ExchangeTimeline
    from prestep.sim.engine.traffic import LinkBytes, Traffic
    from prestep.sim.planning.noise import Noise


def undisturbed(kernel: int, channels: int) -> float:
    """Kernels that take as long beside communication as alone."""
    return 1.0


def even(channels: int) -> float:
    """1: of collectives that suffer alike, however few channels they have."""
    return 1.0


@dataclass(frozen=True, eq=False)
class Limited:
    """A GPU under a power limit; `loads` of the kernels, by index."""

    power: Power
    loads: tuple[Load, ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class Timed:
    """An operation graph with how long everything in it takes: all that the engine needs.

    Attributes
    ----------
    graph : OpGraph
        What is executed.
    durations : np.ndarray, shape (kernels,)
        Seconds that each of ``graph.kernels`` takes alone.
    plans : tuple of Plan
        How each of ``graph.comms`` moves its bytes.
    bandwidth : np.ndarray, shape (links,)
        Bytes per second of every directed link.
    slowdown : callable
        (kernel index, channels) -> factor >= 1 while communication holds that many SMs. A value, no closure.
    contention : float
        Factor >= 1 on the time of a collective that runs beside kernels; of what it is over 1, collectives of so many
        channels suffer `scarcity`.
    hops : float
        Factor >= 1 on `Plan.hops` of its latency, where kernels run as it begins.
    beside : mapping
        The same beside single kernels, by index, where it is another.
    kernel_gap, launch_latency : float
        Seconds between two kernels of a stream, and from a launch to the start on an idle stream.
    yielding : frozenset of int
        Kernels that start after a communication that could start at the same time. Others start before it, since their
        stream waits for no other, and take all SMs (measured: lab/cases/launch-order).
    scale : mapping
        Slow ranks: factor on kernel durations by rank, one for all or one per kernel.
    idle : frozenset of int
        Kernels that leave the GPU to others while they run (they spin on one SM): they neither slow nor delay
        communication, nor are slowed.
    grain : mapping
        Kernels that stand for many, by index: seconds until the one of them that runs at some moment ends, on average.
    timelines : mapping
        Kernels that stand for many and move bytes beside them, by rank and index: how.
    exclusive : bool
        Communication waits for free SMs and runs one after the other on a GPU; recorded starts have that in them.
    background : tuple of Plan
        Transfers that are under way from the start and beside everything.
    limit : Limited or None
        The GPUs' power limit: what would draw more slows down when it is reached; None: it never is.
    limited : mapping
        That of ranks whose GPU has another power limit or a lower clock.
    in_run : bool
        Whether it stands for the middle of a long step, in which nothing is left of power budgets.
    spent : frozenset of int
        Ranks of whose budget nothing is left at the start (`prestep.sim.engine.engine`).
    noise : Noise or None
        Factors on operations and transfers, drawn (`prestep.sim.planning.noise`).
    """

    graph: OpGraph
    durations: np.ndarray
    plans: tuple[Plan, ...]
    bandwidth: np.ndarray
    slowdown: Callable[[int, int], float] = undisturbed
    contention: float = 1.0
    hops: float = 1.0
    scarcity: Callable[[int], float] = even
    beside: Mapping[int, float] = field(default_factory=dict)
    kernel_gap: float = 0.0
    launch_latency: float = 0.0
    yielding: frozenset[int] = frozenset()
    scale: Mapping[int, float | np.ndarray] = field(default_factory=dict)
    idle: frozenset[int] = frozenset()
    grain: Mapping[int, float] = field(default_factory=dict)
    timelines: Mapping[int, Mapping[int, ExchangeTimeline]] = field(
        default_factory=dict
    )
    exclusive: bool = True
    background: tuple[Plan, ...] = ()
    limit: Limited | None = None
    limited: Mapping[int, Limited] = field(default_factory=dict)
    in_run: bool = False
    spent: frozenset[int] = frozenset()
    noise: Noise | None = None

    def limit_of(self, rank: int) -> Limited | None:
        """The power limit of a rank's GPU."""
        return self.limited.get(rank, self.limit)


@dataclass(frozen=True, eq=False)
class Run:
    """Times of every operation: arrays of shape (steps, operations) by simulated rank.

    `bytes` has what every link carried. `exposed` has, by simulated rank and operation counted over steps, the seconds
    in which a kernel that stands for many waited for its own exchanges, by axis. `events` and `solves` count the work
    of the run: events of SimPy, and solutions of the network's rates. `budget` has the seconds of the GPU's power
    budget that were left after kernels.
    """

    launch: tuple[np.ndarray, ...]
    start: tuple[np.ndarray, ...]
    end: tuple[np.ndarray, ...]
    ready: tuple[dict[int, float], ...]
    exposed: tuple[Mapping[int, Mapping[str, float]], ...]
    plans: tuple[Plan, ...]
    bytes: LinkBytes
    traffic: Traffic
    events: int
    solves: int
    finished: float
    budget: tuple[np.ndarray, ...] = ()

    @property
    def steps(self) -> int:
        """How often the graph was executed."""
        return int(self.end[0].shape[0])
