"""ZeRO 1 in PyTorch (``ZeroRedundancyOptimizer``): DDP averages all gradients, each rank updates parameters of its own.

Rules from torch/distributed/optim/zero_redundancy_optimizer.py: whole tensors are dealt out, the largest first, each to
the rank that has the fewest elements so far (_partition_parameters). After the update every tensor is broadcast by its
owner, rank after rank, on DDP's communicator, and then all are waited for (_sync_params, parameters not in buckets).
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import ge

from prestep.workloads.parallel.group import Group
from prestep.workloads.sharding.ddp import STREAM
from prestep.workloads.torch.tape import Tape, Tensor

Load = tuple[int, ...]


def partition(sizes: Sequence[int], ranks: int) -> list[list[int]]:
    """Which tensors each rank updates, by their places in `sizes` (elements), largest first."""
    parts: list[list[int]] = [[] for _ in range(ranks)]
    held = [0] * ranks
    for at in sorted(range(len(sizes)), key=lambda at: -sizes[at]):
        rank = held.index(min(held))
        parts[rank].append(at)
        held[rank] += sizes[at]
    return parts


def loads(parameters: Sequence[Tensor], ranks: int) -> list[Load]:
    """What each rank updates: elements, those of embeddings (which take a kernel of their own), and tensors."""
    return [
        (
            sum(p.elements for p in part),
            sum(p.elements for p in part if p.name == "embedding"),
            len(part),
        )
        for part in dealt_out(parameters, ranks)
    ]


def dealt_out(parameters: Sequence[Tensor], ranks: int) -> list[list[Tensor]]:
    """Tensors that each rank updates."""
    places = partition([p.elements for p in parameters], ranks)
    return [[parameters[at] for at in part] for part in places]


def representatives(loads: Sequence[Load]) -> list[int]:
    """Of every rank the one that stands for it: one that has no less to do in any respect.

    All ranks wait for each other behind their updates, so the others are never the last. The first rank stands for
    itself.

    Parameters
    ----------
    loads
        What each rank has to do, as numbers of things that take time on the GPU or on the host.

    Examples
    --------
    >>> representatives([(8, 1), (5, 3), (5, 2), (4, 4), (5, 3)])
    [0, 1, 1, 3, 1]
    """
    first = {load: rank for rank, load in reversed(list(enumerate(loads)))}
    # In order of size, so that whoever stands for others comes before them.
    heaviest: list[Load] = []
    stands: dict[Load, int] = {}
    for load in sorted(first, reverse=True):
        above = (one for one in heaviest if all(map(ge, one, load)))
        stands[load] = first[next(above, load)]
        if stands[load] == first[load]:
            heaviest.append(load)
    return [0, *(stands[load] for load in loads[1:])]


class ZeroRedundancy:
    """The optimizer's share of one rank.

    Parameters
    ----------
    tape : Tape
    parameters : list of Tensor
        All that the optimizer updates, the same on every rank.
    group : Group
        The ranks that hold them.
    place : int, optional
        Of this rank in the group; None: it stands for all, and updates as much as the one with most elements.
    """

    def __init__(
        self, tape: Tape, parameters: Sequence[Tensor], group: Group, place: int | None
    ) -> None:
        self.tape, self.group = tape, group
        self.parts = dealt_out(parameters, group.size)
        loads = [sum(p.elements for p in part) for part in self.parts]
        self.own = self.parts[loads.index(max(loads)) if place is None else place]

    def broadcast(self) -> None:
        """Sends every updated tensor from its owner to all ranks."""
        for p in (p for part in self.parts for p in part):
            self.group.collective(self.tape, "broadcast", p.stored_size, STREAM)
        self.tape.wait(self.tape.record(STREAM))
