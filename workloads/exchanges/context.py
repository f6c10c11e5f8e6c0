"""Context parallelism: how ranks that have a part of every sequence each attend to all of it.

Around a ring, keys and values visit every rank (Liu et al. 2023, arXiv 2310.01889). By an exchange of heads, a rank
gets all tokens of some heads for a part of the tokens of all (DeepSpeed-Ulysses, arXiv 2309.14509). With both,
neighbours exchange heads, and keys and values of those heads go around rings across them (USP, arXiv 2405.07719;
`a2a+p2p` of Transformer Engine; `ring_degree` and `ulysses_degree` of diffusers):

    cp = 8, ring_degree = 2      heads  0 1 2 3 | 4 5 6 7      rings  0-4  1-5  2-6  3-7
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from prestep.workloads.parallel.group import Group
from prestep.workloads.torch.tape import Tape, Tensor

STREAM = "nccl cp"


def groups(role: str, ranks: range, ring_degree: int) -> list[range]:
    """Groups of ranks that share a sequence: all ("cp"), neighbours that exchange "heads", or each "ring" across."""
    size = len(ranks) // ring_degree
    if role == "heads":
        return [ranks[first : first + size] for first in range(0, len(ranks), size)]
    return [ranks[first::size] for first in range(size)] if role == "ring" else [ranks]


@dataclass(frozen=True)
class Context:
    """Ranks that have a part of every sequence each, seen from one of them.

    Attributes
    ----------
    group : Group
        All of them.
    heads : Group, optional
        Neighbours that exchange heads; None: every rank attends with all of its heads.
    ring : Group, optional
        Ranks whose keys and values go around; None: an exchange of heads brings all tokens.
    """

    group: Group
    heads: Group | None = None
    ring: Group | None = None

    @classmethod
    def of(cls, group_of: Callable[[str], Group], ring_degree: int) -> Context:
        """With rings of so many ranks; `group_of` makes the group of a role: see `groups`."""
        whole = group_of("cp")
        if ring_degree == whole.size:
            return cls(whole, ring=whole)
        if ring_degree == 1:
            return cls(whole, heads=whole)
        return cls(whole, group_of("heads"), group_of("ring"))


def shared(keys: int, ranks: int) -> int:
    """Heads of keys that are sent where heads are spread over ranks: fewer than ranks are repeated, one for each."""
    return max(keys, ranks)


def all_to_all(t: Tape, group: Group, sizes: Sequence[float], host: str) -> None:
    """Tensors of so many bytes from parts of the tokens to parts of the heads, or back, by an exchange each."""
    for size in sizes:
        group.collective(t, "all_to_all", size, STREAM, host)
    t.wait(t.record(STREAM))


def moved(
    t: Tape,
    x: Tensor,
    shape: tuple[int, ...],
    forth: Callable[[], object],
    back: Callable[[], object],
) -> Tensor:
    """A value's elements on other ranks, by the exchange `forth`; gradients come by `back`.

    What an exchange returns is there until its result is.
    """
    before, itemsize = x.shape, x.itemsize
    arrived = forth()

    def backward(g: Tensor) -> list[Tensor | None]:
        arrived = back()
        _ = (g, arrived)
        return [t.empty(before, itemsize)]

    y = t.empty(shape, itemsize)
    del arrived
    return t.apply(y, [x], backward)


def around(
    t: Tape, ring: Group, send: Callable[[int], bool], attend: Callable[[int], None]
) -> None:
    """Attends to the keys of every rank of a ring, its own first, while those of the next step travel.

    `send` of a step sends what the next one needs, and returns whether that has to be waited for. Every rank has a part
    from each end of a sequence, so that all have the same work in every step.
    """
    last, travelling = ring.size - 1, False
    for step in range(ring.size):
        if travelling:
            t.wait(t.record(STREAM))
        travelling = step < last and send(step)
        attend(step)
