"""Attention of every query to keys of its own choice, and the indexer that chooses (DeepSeek-V4's CSA and HCA).

Source: megatron/core/transformer/experimental_attention_variant/csa_utils/fused_sparse_attention.py (branch dev,
d48bd6be): FlashMLA's kernel forward, cuDNN's backward, both over lists of keys; the indexer's scores of all compressed
keys, a radix top-k, and, where it is trained, a loss over the chosen keys whose gradients are made in the forward pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.megatron.elementwise import fused, pass_over, unsaved
from prestep.workloads.megatron.linear import column_linear
from prestep.workloads.megatron.shard import Shard, unquantized, whole
from prestep.workloads.models import compressed
from prestep.workloads.models.compressed import overlap
from prestep.workloads.models.model import ModelSpec
from prestep.workloads.torch.activation_checkpoint import detached
from prestep.workloads.torch.functional import launched, norm
from prestep.workloads.torch.modules import Module
from prestep.workloads.torch.tape import Tape, Tensor

# Bytes an element of a projection's output that each operator moves: the places' bias added in fp32; a softmax over a
# group, its cast, the product with values, their sum. Backward the product's two gradients, a cast, the softmax's, the
# bias's sum over groups, and a cast.
POOLED = (6.0, 8.0, 6.0, 6.0, 2.0)
POOLED_BACK = (4.0, 4.0, 6.0, 12.0, 4.0, 6.0)
# Where groups overlap both are put together first, values in 16 bits and scores in 32: a fill, two copies of halves;
# backward of each copy its gradient is copied, what it wrote filled, its source's gradient filled and copied; both are
# added.
OVERLAPPED = tuple(size * one for size in (2.0, 4.0) for one in (1.0, 1.0, 1.0))
OVERLAPPED_BACK = tuple(
    size * one
    for size in (2.0, 4.0)
    for one in (2.0, 0.5, 1.0, 1.0, 2.0, 0.5, 1.0, 1.0, 3.0)
)
# What backward needs of an element: the softmax in fp32 and in 16 bits, and the values.
SAVED = 8
# A rotation by a Hadamard matrix reads and writes what it rotates (fast_hadamard_transform).
HADAMARD = 2.0


class Compressor(Module):
    """A key of ``width`` elements for every ``ratio`` tokens; ``mixed``: rotated by a Hadamard matrix besides."""

    def __init__(
        self,
        t: Tape,
        m: ModelSpec,
        s: Shard,
        ratio: int,
        width: int,
        mixed: bool = False,
    ) -> None:
        super().__init__()
        self.m, self.s = m, unquantized(whole(s))
        self.ratio, self.width, self.mixed = ratio, width, mixed
        columns = overlap(ratio) * width
        self.values = self.add(t, columns, m.hidden, name="linear_wkv")
        self.gate = self.add(t, columns, m.hidden, name="linear_wgate")
        self.places = self.add(t, ratio, columns, name="ape")
        self.norm = self.add(t, width, name="compressor_norm")

    def forward(self, t: Tape, x: Tensor) -> Tensor:
        values = column_linear(t, x, self.values, self.s)
        scores = column_linear(t, x, self.gate, self.s)
        keys = norm(t, "rms", self._pooled(t, values, scores), [self.norm])
        turned = 2.0 * keys.size * self.m.rope_head_dim / self.width
        keys = fused(t, [unsaved(keys)], keys.shape, turned, turned)
        return hadamard(t, keys) if self.mixed else keys

    def _pooled(self, t: Tape, values: Tensor, scores: Tensor) -> Tensor:
        """Of each group the sum of its values, by a softmax of its scores; tokens of no whole group are left."""
        twice = overlap(self.ratio) > 1
        ahead = (*POOLED[:1], *(OVERLAPPED if twice else ()), *POOLED[1:])
        back = (*POOLED_BACK[:4], *(OVERLAPPED_BACK if twice else ()), *POOLED_BACK[4:])
        shape = (values.shape[0] // self.ratio, *values.shape[1:-1], self.width)
        over = partial(_operators, t, values.elements)
        both = partial(over, ahead), partial(over, back, "elementwise_backward")
        saved = [t.empty((values.elements,), SAVED)]
        return launched(t, [values, scores, self.places], shape, *both, saved)


def hadamard(t: Tape, x: Tensor) -> Tensor:
    """Rotated by a Hadamard matrix, backward too (rotate_activation)."""
    moved = HADAMARD * x.size
    return fused(t, [unsaved(x)], x.shape, moved, moved)


def _operators(
    t: Tape, elements: int, moves: tuple[float, ...], host: str = "elementwise"
) -> None:
    """Kernels that move so many bytes an element."""
    t.cpu(host, len(moves))
    for moved in moves:
        pass_over(t, elements, moved * elements)


# Lists without lengths are read to their end, in blocks of so many keys (FlashMLA on Blackwell; on Hopper 128).
BLOCK = 64
# Kernels over lists of keys, each of which reads and writes 4 bytes a key: without an indexer they are joined and made
# positions in the whole batch (four); chosen ones are compared, moved behind the tokens, selected, packed (four more).
LISTED, CHOSEN = 4, 8
LIST_BYTES = 8.0
# The indexer's loss: bytes that each operator moves for a chosen key of a query. Positions as long integers, scores
# gathered and masked, a softmax; both distributions clamped, their logarithms, difference, product and sum.
DISTRIBUTION = (8.0, 12.0, 16.0, 14.0, 8.0)
DIVERGENCE = (8.0, 8.0, 8.0, 8.0, 12.0, 12.0, 4.0, 8.0, 8.0)
# What its gradients are made of: scores' gradients in place, three products of the chosen keys, a cast.
SCORE_GRADIENTS, PRODUCTS = 12.0, 3


@dataclass(frozen=True)
class Indexed:
    """What an indexer makes of the tokens: its queries, its compressed keys, and the weights of its heads."""

    queries: Tensor
    keys: Tensor
    weights: Tensor

    @property
    def tensors(self) -> list[Tensor]:
        return [self.queries, self.keys, self.weights]


class Indexer(Module):
    """Scores of compressed keys, by heads of their own; it sees values without their history."""

    def __init__(self, t: Tape, m: ModelSpec, s: Shard) -> None:
        super().__init__()
        self.m, self.s = m, whole(s)
        width = m.index_heads * m.index_head_dim
        self.up = self.add(t, width, m.q_lora_rank, name="linear_wq_b")
        self.weigh = self.add(t, m.index_heads, m.hidden, name="linear_weights_proj")
        ratio = compressed.INDEXED
        compressor = Compressor(t, m, s, ratio, m.index_head_dim, mixed=True)
        self.compressor = self.child(compressor)

    def forward(self, t: Tape, x: Tensor, states: Tensor) -> Indexed:
        """``x``: tokens; ``states``: what queries are compressed to."""
        x, states = detached(x), detached(states)
        q = column_linear(t, states, self.up, self.s)
        turned = 2.0 * q.size * self.m.rope_head_dim / self.m.index_head_dim
        q = hadamard(t, fused(t, [unsaved(q)], q.shape, turned, turned))
        k = self.compressor.forward(t, x)
        w = column_linear(t, x, self.weigh, unquantized(self.s))
        return Indexed(q, k, fused(t, [unsaved(w)], w.shape, 2 * w.size, 2 * w.size))


class SparseAttention:
    """The core of compressed attention in a layer of a ratio, on a rank that has all heads."""

    def __init__(self, m: ModelSpec, s: Shard, ratio: int) -> None:
        self.m, self.s, self.ratio = m, s, ratio
        self.trains = s.options.dsa_indexer_loss_coeff > 0

    def attend(
        self, t: Tape, q: Tensor, keys: Tensor, sinks: Tensor, indexed: Indexed | None
    ) -> Tensor:
        """Every query's heads over its keys, ``keys`` being all there are."""
        tokens = self.s.batch * self.s.tokens
        t.cpu("attention")
        gradients = [] if indexed is None else self._choose(t, tokens, indexed)
        y = t.empty(q.shape, q.itemsize)
        if indexed is None:
            self._list(t, tokens, LISTED)
        t.launch(Kernel("sparse_attention_fwd", self._shape(tokens)))
        if indexed is not None:
            self._teach(t, tokens)
        # The output, a float of every row and head, the lists, and the indexer's gradients.
        listed = (tokens, self._width)
        saved = [detached(y), t.empty((tokens, self.m.heads), 4), t.empty(listed, 4)]
        inputs = [q, keys, sinks]
        if indexed is not None and self.trains:
            inputs += indexed.tensors
        sizes = [(x.shape, x.itemsize) for x in inputs]
        kept = [unsaved(x) if x.storage is None else detached(x) for x in (q, keys)]

        def backward(g: Tensor) -> list[Tensor | None]:
            _ = (g, saved, kept)
            t.cpu("attention_backward")
            t.launch(Kernel("sparse_attention_bwd", self._shape(tokens)))
            for made in gradients:
                # Scaled by the loss's own gradient.
                pass_over(t, made.elements, 2 * made.size)
            return [t.empty(*size) for size in sizes]

        return t.apply(y, inputs, backward)

    @property
    def _width(self) -> int:
        """Keys of a list, seen or not."""
        m, s = self.m, self.s
        if self.ratio == compressed.INDEXED:
            return m.window + m.index_topk
        listed = m.window + (s.seq_len // self.ratio if self.ratio else 0)
        return -(-listed // BLOCK) * BLOCK

    def _shape(self, tokens: int) -> tuple[int, int, int, int]:
        """Of the kernels: lists of chosen keys have lengths, others are read to their end."""
        m, seen = self.m, self._width
        if self.ratio == compressed.INDEXED:
            seen = round(compressed.keys(m, self.ratio, self.s.seq_len))
        return tokens, m.heads, seen, m.head_dim

    def _list(self, t: Tape, tokens: int, kernels: int) -> None:
        """Lists of keys for every query."""
        count = tokens * self._width
        t.cpu("elementwise", kernels)
        for _ in range(kernels):
            pass_over(t, count, LIST_BYTES * count)

    def _choose(self, t: Tape, tokens: int, indexed: Indexed) -> list[Tensor]:
        """Chooses keys by their scores, and lists them; what will hold the indexer's gradients."""
        m, seq = self.m, self.s.seq_len
        groups = seq // self.ratio
        # Half of the scores are of keys behind their query, which the kernel leaves out.
        scored = max(1, groups // 2)
        scores = Kernel(
            "index_scores",
            (tokens, m.index_heads, scored, m.index_head_dim),
            bytes=indexed.queries.size + 4.0 * tokens * groups,
        )
        weights = indexed.weights
        pass_over(t, weights.elements, 6 * weights.elements)
        t.launch(scores)
        pass_over(t, tokens * groups, 4.0 * tokens * (scored + m.index_topk))
        self._list(t, tokens, CHOSEN)
        if not self.trains:
            return []
        return [t.empty(x.shape, x.itemsize) for x in indexed.tensors]

    def _teach(self, t: Tape, tokens: int) -> None:
        """What the indexer should have chosen, by attention's own scores of the chosen keys; its loss and gradients.

        Both distributions are made whether the loss counts or not.
        """
        m = self.m
        chosen = max(
            1, round(compressed.compressed_keys(m, self.ratio, self.s.seq_len))
        )
        count = tokens * m.index_topk
        t.cpu("elementwise", len(DISTRIBUTION))
        for moved in DISTRIBUTION:
            pass_over(t, count, moved * count)
        t.launch(Kernel("index_scores", (tokens, m.heads, chosen, m.head_dim)))
        if not self.trains:
            return
        t.cpu("elementwise", len(DIVERGENCE) + 1)
        for moved in (*DIVERGENCE, SCORE_GRADIENTS):
            pass_over(t, count, moved * count)
        shape = (tokens, m.index_heads, chosen, m.index_head_dim)
        flops = PRODUCTS * 2.0 * tokens * m.index_heads * chosen * m.index_head_dim
        t.launch(Kernel("index_scores", shape, flops=flops))
