"""Packed samples, whose documents attention tells apart: what it sees, and what is done once for each document.

Without a fused kernel a rotation takes documents one after the other and copies each into the output, which autograd
undoes one by one (megatron/core/models/common/embeddings/rope_utils.py, _apply_rotary_pos_emb_thd: until 17 August
2026, when it became one rotation of all). All-to-alls of heads find each document's tokens by numbers that lie on the
GPU (Transformer Engine until 25 June 2026, context_parallel.py, reorder_seq_chunks_*_thd): operators on single numbers,
two of which the host waits for in each range. Kernels are so short that the host's time is all that counts.
"""

from __future__ import annotations

from dataclasses import replace

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.megatron.shard import Shard
from prestep.workloads.torch.tape import Tape, Tensor

# Operators on queries, and as many on keys, of a document: cosines and sines of its positions, each scaled and cast
# (6), a half negated and joined (2), two products and their sum (3), the rest joined and the copy. Backward the copy's
# (4), the products' (2), the half's (2), the sum of both ways, and of the parts that were cut (5).
TENSORS, ROTATED, ROTATED_BACK = 2, 13, 14
# Of a range of tokens, as they come in: eight operators on single numbers and the range; as they go out half as many
# numbers. The host waits for both ends.
INWARDS, OUTWARDS, ENDS = 9, 5, 2


def documents_of(s: Shard) -> int:
    """Documents that a microbatch's attention tells apart; 0 where samples are not packed.

    Ranks that exchange tokens with experts wait in every layer for the one whose samples hold most documents.
    """
    if s.packed is None or s.packed >= s.seq_len or s.options.attention == "unfused":
        return 0
    from prestep.workloads.packing import most  # few samples are packed

    meeting = 1 if s.spread is None else s.spread.ranks // (s.group.size * s.parts)
    return round(s.batch * most(s.packed, s.seq_len, max(1, meeting)))


def in_documents(s: Shard) -> Shard:
    """What attention sees of packed samples (thd layout): the same tokens in samples as long as a token's document.

    Context parallelism spreads every document.
    """
    if not documents_of(s) or s.packed is None:
        return s
    from prestep.workloads.packing import pieces

    count, length = pieces(s.batch, s.seq_len, s.packed)
    return replace(s, batch=count, tokens=length // s.parts, seq_len=length)


def rotated(t: Tape, x: Tensor, s: Shard) -> Tensor:
    """Charges the host for rotating queries and keys by document, backward the GPU for copies of whole gradients."""
    documents = documents_of(s)
    if s.options.rope_fusion or not documents or s.trainer is not None:
        return x
    t.synchronize()  # lengths are read from the GPU
    _operators(t, "elementwise", TENSORS * documents * ROTATED)

    def backward(g: Tensor) -> list[Tensor | None]:
        _operators(t, "elementwise_backward", TENSORS * documents * ROTATED_BACK)
        moved = 2.0 * documents * g.size
        t.launch(Kernel("aten copy", (documents * g.elements,), bytes=moved))
        return [g]

    return t.apply(Tensor(None, x.shape, x.itemsize), [x], backward)


def reorder(t: Tape, s: Shard, way: str) -> None:
    """Charges the host for all-to-alls of heads around attention in documents, which find tokens by their numbers.

    Forward queries, keys and values come in and the result goes out; backward its gradient comes in and three go out.
    """
    heads = s.context.heads if s.context is not None else None
    documents = documents_of(s)
    if heads is None or not documents or s.trainer is not None:
        return
    inwards, outwards = (3, 1) if way == "fwd" else (1, 3)
    ranges = 2 * heads.size * documents
    t.synchronize()
    numbers = inwards * INWARDS + outwards * OUTWARDS
    _operators(t, "elementwise_nograd", ranges * numbers)
    _operators(t, "blocked_launch", ranges * (inwards + outwards) * ENDS)


def _operators(t: Tape, host: str, count: int) -> None:
    """Charges the host for `count` operators and their launches."""
    t.cpu(host, count)
    t.cpu("launch", count)
