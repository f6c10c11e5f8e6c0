"""Whether a step fits: what every simulated rank has allocated at its peak, and what lies beside the allocator."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial

from prestep.sim.collectives.algorithms import algorithms
from prestep.sim.collectives.plan import Plan
from prestep.sim.graph.opgraph import KERNEL, Chain, Comm, Program
from prestep.sim.planning.planned import Planned
from prestep.workloads.lowered import Lowered
from prestep.workloads.sharding.ddp import first_buckets_held

# Bytes of a CUDA context with the kernels of PyTorch, cuBLAS and NCCL: guess (400 to 600 MiB on Ampere and Hopper).
CONTEXT = 512 * 2.0**20
# Bytes of NCCL's buffers for a connection of a channel, by protocol (Simple, LL, LL128: src/include/device.h, 2.28).
SIMPLE, EVERY = 4_194_304.0, 4_194_304.0 + 524_288.0 + 4_915_200.0
# Guess: that only the algorithms in use are connected (NCCL_RUNTIME_CONNECT), and that a network's sender has as much
# again. An algorithm's module says over how many CONNECTIONS of a channel a GPU receives; one, if it says nothing.
# Reserved over allocated memory of PyTorch's caching allocator at its peak: the median over ranks of the training runs
# in lab/cases/h200 that allocate more than 1 GB (1.00 to 1.46; measured on one machine, other models differ).
FRAGMENTATION = 1.12


@dataclass(frozen=True)
class Memory:
    """Peak of allocated device memory of a rank in bytes, and what it is made of at that moment."""

    parameters: float = 0.0
    gradients: float = 0.0
    optimizer: float = 0.0
    activations: float = 0.0
    buffers: float = 0.0
    workspace: float = 0.0

    @property
    def owners(self) -> dict[str, float]:
        return dict(
            vars(self)
        )  # `asdict` takes ten times as long, and there are many ranks

    @property
    def total(self) -> float:
        return math.fsum(self.owners.values())

    @property
    def largest_owner(self) -> str:
        owners = self.owners
        return max(owners, key=owners.__getitem__)


@dataclass(frozen=True)
class MemoryVerdict:
    """Whether the fullest rank fits, or the fullest host.

    Attributes
    ----------
    needed, capacity
        Bytes; a capacity of None is not known, and the rank fits.
    largest_owner
        What takes most of it.
    outside
        Bytes of what is needed that are not PyTorch's allocator's: CUDA's context, NCCL's buffers.
    usual
        Bytes needed with what the allocator usually holds without using it; some of that it gives back before it
        gives up.
    host
        The host whose memory is too small for what its ranks keep there; None: it is the rank's GPU's.
    nominal
        Bytes of a GPU by its datasheet; the driver leaves programs `capacity` of them.
    recomputed
        Whether it would fit if activations were computed again.
    """

    fits: bool
    rank: int
    needed: float
    capacity: float | None
    largest_owner: str
    outside: float = 0.0
    usual: float = 0.0
    host: str | None = None
    nominal: float | None = None
    recomputed: Recomputed | None = None

    @property
    def where(self) -> str:
        """Whose memory it is, in words."""
        if self.host is None:
            return f"on rank {self.rank}"
        return f"in the memory of host {self.host}"

    @property
    def tight(self) -> bool:
        """It fits, but not with the usual fragmentation."""
        return self.fits and self.capacity is not None and self.usual > self.capacity


@dataclass(frozen=True)
class Recomputed:
    """What the fullest rank would need if activations were computed again.

    Attributes
    ----------
    way
        Of `training.recompute`.
    needed
        Bytes with it.
    ways
        Bytes needed by every way that was looked at, the weakest first; the last one fits, or none does.
    """

    way: str
    needed: float
    fits: bool
    ways: Mapping[str, float]


def peaks(lowered: Lowered, warmup: int = 0, step: float = 0.0) -> dict[int, Memory]:
    """Bytes by owner at the peak of each simulated rank.

    In short runs DDP's first buckets are among the buffers: those with so many `warmup` steps of so many seconds, where
    a step's time is known.
    """
    found = {}
    for rank, memory in lowered.memory.items():
        held = (
            memory.first_buckets if step and first_buckets_held(warmup, step) else 0.0
        )
        found[rank] = Memory(
            **(memory.at_peak | {"buffers": memory.at_peak["buffers"] + held})
        )
    return found


def fullest(lowered: Lowered) -> Memory:
    """The rank with the highest peak; the lowest of equals."""
    found = peaks(lowered)
    return found[min(found, key=lambda rank: (-found[rank].total, rank))]


def needed(planned: Planned, step: float) -> tuple[float, str]:
    """Bytes that the fullest rank needs in a step of so many seconds, and the owner of most of them."""
    alive = peaks(planned.lowered, planned.job.warmup, step)
    beside = outside(planned)
    owners = {rank: {**alive[rank].owners, **beside[rank]} for rank in alive}
    most = max(sorted(owners), key=lambda rank: sum(owners[rank].values()))
    return sum(owners[most].values()), max(owners[most], key=owners[most].__getitem__)


def outside(planned: Planned) -> dict[int, dict[str, float]]:
    """Bytes of device memory that are not the allocator's, by simulated rank: the context, NCCL's buffers."""
    return {
        p.rank: {
            "context": CONTEXT,
            "communication": sum(_buffers(planned, p).values()),
        }
        for p in planned.graph.programs
    }


def _buffers(planned: Planned, p: Program) -> dict[object, float]:
    """Bytes by communicator: that of its largest plan."""
    found: dict[object, float] = {}
    several = cache(partial(_several_hosts, planned))  # most plans have one group
    for comm, plan in _plans(planned, p):
        pair = comm.op == "send"
        key = (comm.axis, pair, comm.groups[0])
        own = comm.tokens is not None and comm.tokens.kernel == "hybridep"
        size = _token_buffers(comm) if own else _bytes(plan, pair, several)
        found[key, own] = max(found.get((key, own), 0.0), size)
    return found


def _plans(planned: Planned, p: Program) -> Iterator[tuple[Comm, Plan]]:
    graph = planned.graph
    for index in sorted({one for part in p.parts for one in part}):
        yield graph.comms[index], planned.plans[index]
    kernels = [
        graph.kernels[k] for k in sorted(set(p.payload[p.kind == KERNEL].tolist()))
    ]
    for inner in dict.fromkeys(
        kernel.graph for kernel in kernels if isinstance(kernel, Chain)
    ):
        yield from zip(inner.comms, planned.chains[inner].plans, strict=True)


def _token_buffers(comm: Comm) -> float:
    """Bytes that HybridEP allocates itself for tokens in 16 bits: of all ranks, and for each NVLink domain beyond.

    Source: HybridEP's buffers, deep_ep (branch hybrid-ep), csrc/hybrid_ep/buffer: intranode.cu (one buffer for both
    ways, fp32 scales of 128 numbers beside it), internode_doca.cu (what is sent, and three buffers a domain).
    """
    tokens = comm.tokens
    if tokens is None or len(comm.groups[0]) < 2:
        return 0.0
    own, ranks, others = (
        tokens.count * tokens.size,
        len(comm.groups[0]),
        tokens.over - 1,
    )
    return own * (ranks * (1 + 1 / 64) + (1 + 3 * others if others else 0))


def _several_hosts(planned: Planned, gpus: tuple[str, ...]) -> bool:
    return len({planned.fabric.host_of(gpu) for gpu in gpus}) > 1


def _bytes(plan: Plan, pair: bool, several: Callable[[tuple[str, ...]], bool]) -> float:
    if plan.on_cpu or len(plan.ranks) < 2:
        return 0.0
    ends = 2 if several(plan.ranks) else 1
    if pair:
        return plan.channels * SIMPLE
    connections = getattr(algorithms().get(plan.algo), "CONNECTIONS", 1)
    return plan.channels * EVERY * connections * ends
