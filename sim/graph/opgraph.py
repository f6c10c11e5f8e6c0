"""The operation graph: what a training step executes, as columns.

An operation is one launch on one stream of one rank: a kernel, a collective, a batch of sends and
receives, or a wait of the host. Operations of a rank are stored in the order its host thread issues
them; operations of one stream run in that order; ``deps`` adds the event waits between streams.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from prestep.sim.graph.kernel import Kernel

KERNEL, COMM, SYNC = 0, 1, 2
KINDS = ("kernel", "comm", "sync")
# Operations of one rank on its host's links (sim/planning/host_memory.py): copies, and what the CPU does meanwhile.
TO_GPU, TO_HOST, UPDATE_ON_HOST, NORM_ON_HOST = (
    "to_gpu",
    "to_host",
    "update_on_host",
    "norm_on_host",
)
Groups = tuple[tuple[int, ...], ...]
Communicator = tuple[str, tuple[int, ...]]  # its axis and its ranks
PHASES_COMMUNICATION = 3  # index in OpGraph.phases under which communication is shown


@dataclass(frozen=True)
class Tokens:
    """Tokens on their way to the ranks of their experts or back, as DeepEP's and HybridEP's kernels move them.

    Counts are those of the busiest rank.

    Attributes
    ----------
    way : str
        "dispatch" (to the experts) or "combine" (back, added up).
    count : float
        Tokens of the rank.
    size : float
        Bytes of one.
    ranks, hosts : float
        Ranks, and hosts, with experts that a token chose: its copies over NVLink and over the network.
    over : int
        Hosts of the group.
    sms : int
        That the kernel takes on every GPU.
    kernel : str
        Whose it is: "deepep" or "hybridep".
    """

    way: str
    count: float
    size: float
    ranks: float
    hosts: float
    over: int
    sms: int
    kernel: str = "deepep"


@dataclass(frozen=True)
class Comm:
    """One rendezvous: a collective or one point-to-point transfer.

    Attributes
    ----------
    op : str
        ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``all_to_all``, ``broadcast`` or ``send``; of one rank with
        its host ``to_gpu``, ``to_host``, ``update_on_host`` or ``norm_on_host``.
    size : float
        Bytes in the convention of nccl-tests (the large side of a gather or scatter).
    groups : tuple of tuple of int
        The ranks that take part; several groups when symmetric copies run at the same moment.
    axis : str
        The parallel axis it belongs to: dp, tp, pp, cp or ep; ``offload`` for what a rank does with its host.
    arrivals : int
        How many simulated operations must arrive before it starts.
    in_place : bool
        Inputs lie in the outputs.
    copied : bool
        Copy engines move it, or SMs that products leave free for it (user buffers): it takes none of theirs.
    everywhere : int
        Groups that do the same, with those on other hosts that `groups` does not list; 0: it lists all.
    tokens : Tokens or None
        What a kernel of its own exchanges; None: a library's collective.
    sender : int
        Rank that starts it alone, because the receiver's buffers hold it all; -1: it starts when all have arrived.
    """

    op: str
    size: float
    groups: tuple[tuple[int, ...], ...]
    axis: str
    arrivals: int
    in_place: bool = False
    sender: int = -1
    copied: bool = False
    everywhere: int = 0
    tokens: Tokens | None = None

    @property
    def communicator(self) -> Communicator:
        """The one of the simulated ranks, whose kernels run one after the other on a GPU.

        Either way to the host and back has a copy engine of its own, and the CPU works beside both.
        """
        if self.axis == "offload":
            return f"{self.axis} {self.op}", self.groups[0]
        return self.axis, self.groups[0]

    @property
    def copies(self) -> float:
        """Groups that do the same, by the groups that it lists."""
        return max(1.0, self.everywhere / len(self.groups))


@dataclass(frozen=True, eq=False)
class Chain:
    """Work of one rank that is recorded and executed once, and stands in a larger graph as two kernels.

    The first lasts as long as the work without its last kernel and waits only for the host's first launch; the second
    is that last kernel and waits for the host to have launched all of it. So a chain ends when its GPU work or its
    host work does, whichever is later.

    Attributes
    ----------
    name : str
        Of the unit and its pass ("layer forward").
    graph : OpGraph
        One simulated rank's operations; host times are ignored.
    times : int
        Repetitions back to back.
    tail : bool
        The second of the two kernels.
    """

    name: str
    graph: OpGraph
    times: int
    tail: bool
    kind: str = "chain"
    bytes: float = 0.0

    def exchanged(self, axis: str) -> tuple[Comm, float]:
        """The first of its communications of an axis, and the bytes of all of them in all repetitions."""
        program = self.graph.programs[0]
        batches = program.payload[program.kind == COMM].tolist()
        parts = [part for batch in batches for part in program.parts[batch]]
        comms = [self.graph.comms[part] for part in parts]
        mine = [comm for comm in comms if comm.axis == axis]
        return mine[0], self.times * sum(comm.size for comm in mine)

    @cached_property
    def flops(self) -> float:
        """Of all repetitions, counted on the first kernel."""
        kernels = self.graph.kernels
        one = sum(
            kernels[k].flops
            for p in self.graph.programs
            for k in p.payload[p.kind == KERNEL].tolist()
        )
        return 0.0 if self.tail else float(self.times * one)


@dataclass(frozen=True)
class Program:
    """Operations of one simulated rank in the order its host issues them (columns of length n)."""

    rank: int
    kind: np.ndarray
    stream: np.ndarray
    payload: (
        np.ndarray
    )  # kernel: index into OpGraph.kernels; comm: index into Program.parts
    host: np.ndarray  # seconds the host spends before the launch
    deps: tuple[
        tuple[int, ...], ...
    ]  # operations of this rank that must have ended; negative: of the step before
    phase: np.ndarray
    layer: np.ndarray
    microbatch: np.ndarray
    parts: tuple[tuple[int, ...], ...]  # rendezvous each comm operation takes part in
    names: tuple[str, ...]
    gap: np.ndarray | None = (
        None  # seconds after the operation before it and its deps; None: the machine's
    )
    latency: np.ndarray | None = (
        None  # seconds from its launch to its start; None: the machine's
    )

    def __len__(self) -> int:
        return len(self.kind)


@dataclass(frozen=True, eq=False)
class OpGraph:
    """Programs of all simulated ranks with what they share.

    ``represents[r]`` lists the ranks that a simulated rank stands for (symmetry folding); ``pace[r]`` is that of them
    whose speed it has, where that is not its own. ``moved[r]`` has the groups that exchange something within the chains
    of a rank, by those with which the chains were recorded.
    """

    programs: tuple[Program, ...]
    kernels: tuple[Kernel | Chain, ...]
    comms: tuple[Comm, ...]
    streams: tuple[str, ...]
    phases: tuple[str, ...]
    represents: dict[int, tuple[int, ...]]
    launch_limit: int = 1024
    meta: dict[str, float] = field(default_factory=dict)
    pace: dict[int, int] = field(default_factory=dict)
    moved: dict[int, dict[Groups, Groups]] = field(default_factory=dict)

    def met(self, rank: int, comm: Comm) -> Groups:
        """The groups that a rank meets in a communication of one of its chains."""
        return self.moved.get(rank, {}).get(comm.groups, comm.groups)

    @property
    def operations(self) -> int:
        return sum(len(p) for p in self.programs)


class Rendezvous:
    """Numbers the communications of a graph so that the ranks that meet get the same index."""

    def __init__(self) -> None:
        self.comms: list[Comm] = []
        self._index: dict[tuple[object, ...], int] = {}

    def index(self, key: tuple[object, ...]) -> int | None:
        """Index of the communication called ``key``, if it was made."""
        return self._index.get(key)

    def join(
        self,
        key: tuple[object, ...],
        op: str,
        size: float,
        groups: Sequence[Sequence[int]],
        axis: str,
        arrivals: int,
        in_place: bool = False,
        copied: bool = False,
        everywhere: int = 0,
        tokens: Tokens | None = None,
    ) -> int:
        """Index of the communication called ``key``, made on first use."""
        if key not in self._index:
            self._index[key] = len(self.comms)
            self.comms.append(
                Comm(
                    op,
                    size,
                    tuple(map(tuple, groups)),
                    axis,
                    arrivals,
                    in_place,
                    copied=copied,
                    everywhere=everywhere,
                    tokens=tokens,
                )
            )
        return self._index[key]


#: What a transfer puts on links: their numbers, ascending, and bytes on each (per byte of payload, or in all).
Usage = tuple[np.ndarray, np.ndarray]


def by_link(parts: Sequence[Usage]) -> Usage:
    """Returns the sum of usages: every link once, ascending. Within a part a link may occur several times."""
    if not parts:
        return np.empty(0, dtype=np.int64), np.empty(0)
    links = np.concatenate([links for links, _ in parts])
    amounts = np.concatenate([amounts for _, amounts in parts])
    unique, at = np.unique(links, return_inverse=True)
    return unique, np.bincount(at, weights=amounts, minlength=len(unique))
