"""ZeRO 1 in PyTorch (``ZeroRedundancyOptimizer``): DDP averages all gradients, each rank updates parameters of its own.

Rules from torch/distributed/optim/zero_redundancy_optimizer.py: whole tensors are dealt out, the largest first, each to
the rank that has the fewest elements so far (_partition_parameters). After the update every tensor is broadcast by its
owner, rank after rank, on DDP's communicator, and then all are waited for (_sync_params, parameters not in buckets).
"""

from __future__ import annotations

from collections.abc import Sequence

from workloads.parallel.ddp import STREAM
from workloads.parallel.group import Group
from workloads.torch.tape import Tape, Tensor


def partition(sizes: Sequence[int], ranks: int) -> list[list[int]]:
    """Which tensors each rank updates, by their places in `sizes` (elements), largest first."""
    parts: list[list[int]] = [[] for _ in range(ranks)]
    held = [0] * ranks
    for at in sorted(range(len(sizes)), key=lambda at: -sizes[at]):
        rank = held.index(min(held))
        parts[rank].append(at)
        held[rank] += sizes[at]
    return parts


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
        Of this rank in the group; None: it stands for all, so for the one with most to update, whom the others await.
    """

    def __init__(
        self,
        tape: Tape,
        parameters: Sequence[Tensor],
        group: Group,
        place: int | None,
    ) -> None:
        sizes = [p.elements for p in parameters]
        places = partition(sizes, group.size)
        self.tape, self.group = tape, group
        self.parts = [[parameters[at] for at in part] for part in places]
        loads = [sum(sizes[at] for at in part) for part in places]
        self.own = self.parts[loads.index(max(loads)) if place is None else place]

    def broadcast(self) -> None:
        """Sends every updated tensor from its owner to all ranks."""
        for p in (p for part in self.parts for p in part):
            self.group.collective(self.tape, "broadcast", p.stored_size, STREAM)
        self.tape.wait(self.tape.record(STREAM))
