"""When an interleaved pipeline's chunks gather parameters and reduce gradients: at one time on all its ranks.

Communication slows computation, and ranks that are slowed at different times wait for each other. So a rank sets it off
as many passes earlier (or later) as it is later (or earlier) in the pipeline
(megatron/core/pipeline_parallel/schedules.py: ``param_sync_func``, ``grad_sync_func``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from prestep.workloads.megatron.pipeline import Issued, Pair
from prestep.workloads.schedules.runtime import Compute

# A pass of a microbatch through a chunk: its stage, and the microbatch.
Passage = tuple[int, int]


@dataclass(frozen=True)
class Alignment:
    """What sets off at which pass of a rank.

    Attributes
    ----------
    gathers : mapping
        The chunk whose parameters are gathered from a forward pass on.
    reductions : mapping
        The chunk whose gradients are reduced when a backward pass has ended.
    """

    gathers: Mapping[Passage, int] = field(default_factory=dict)
    reductions: Mapping[Passage, int] = field(default_factory=dict)


def alignment_of(operations: Sequence[Issued], rank: int) -> Alignment:
    """Of the pipeline rank that issues these operations."""
    forward, backward = _passes(operations, "F"), _passes(operations, "B")
    return Alignment(_gathers(forward, rank), _reductions(backward, rank))


def _passes(operations: Sequence[Issued], kind: str) -> list[Passage]:
    """All passes of a kind, in their order."""
    passes = []
    for operation in operations:
        both = (
            (operation.forward, operation.backward)
            if isinstance(operation, Pair)
            else (operation,)
        )
        for one in both:
            if isinstance(one, Compute) and one.kind == kind:
                passes.append((one.stage, one.microbatch))
    return passes


def _gathers(passes: Sequence[Passage], rank: int) -> dict[Passage, int]:
    """A chunk is gathered when the first rank begins with the one before it; the first two are from the start."""
    chunks = sorted({stage for stage, _ in passes})
    first = {stage: at for at, (stage, _) in reversed(list(enumerate(passes)))}
    begins = {first[before] - rank: chunk for before, chunk in pairwise(chunks[1:])}
    return {passes[at]: chunk for at, chunk in begins.items() if at >= 0}


def _reductions(passes: Sequence[Passage], rank: int) -> dict[Passage, int]:
    """A chunk is reduced when the first rank has ended its last pass; what that leaves out is at the end."""
    last = {stage: at for at, (stage, _) in enumerate(passes)}
    ends = {at + rank: chunk for chunk, at in last.items()}
    return {passes[at]: chunk for at, chunk in ends.items() if at < len(passes)}
