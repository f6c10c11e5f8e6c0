"""Attention of every query to keys of its own choice, and the indexer that chooses them.

Keys are compressed (DeepSeek-V4's CSA and HCA) or those of single tokens (DeepSeek-V3.2's and GLM-5's DSA).
Source: megatron/core/transformer/experimental_attention_variant/csa_utils/fused_sparse_attention.py (branch dev,
d48bd6be) and dsa_cudnn_kernels.py (main, d98e8a64): FlashMLA's kernel forward, cuDNN's backward, both over lists of
keys; the indexer's scores of all keys, a radix top-k, and, where it is trained, a loss over the chosen keys whose
gradients are made in the forward pass.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.exchanges.tensor import exchange
from prestep.workloads.megatron.documents import in_documents
from prestep.workloads.megatron.elementwise import fused, pass_over, unsaved
from prestep.workloads.megatron.linear import column_linear
from prestep.workloads.megatron.shard import Shard, unquantized, whole
from prestep.workloads.models import compressed
from prestep.workloads.models.compressed import overlap
from prestep.workloads.models.counts import pairs
from prestep.workloads.models.model import ModelSpec
from prestep.workloads.torch import indexing
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
# The same of tokens: places are held against a sequence's end, and sorted: valid ones to the left, then by place. With
# a loss they are held in both orders, and scores go along.
OF_TOKENS, OF_TOKENS_TAUGHT = (26, 2), (42, 3)
# FlashMLA takes lists of whole multiples, and heads, as cuDNN's gradients of the indexer do.
MULTIPLE, HEADS = 512, 64
# The most bytes of scores at once: queries are scored in chunks.
CHUNK = float(1 << 30)
# The indexer's loss: bytes that each operator moves for a chosen key of a query. Positions as long integers, scores
# gathered and masked, a softmax; both distributions clamped, their logarithms, difference, product and sum.
DISTRIBUTION = (8.0, 12.0, 16.0, 14.0, 8.0)
DIVERGENCE = (8.0, 8.0, 8.0, 8.0, 12.0, 12.0, 4.0, 8.0, 8.0)
# What its gradients are made of: scores' gradients in place, three products of the chosen keys, a cast.
SCORE_GRADIENTS, PRODUCTS = 12.0, 3


@dataclass(frozen=True)
class Lists:
    """Keys that queries have.

    Attributes
    ----------
    width, seen, chosen : int
        Keys of a list, those that its query sees on average, and those that an indexer chose of them.
    keys, scored : int
        Keys that there are to choose among, and those before a query on average.
    heads, dim : int
        Heads of queries on this rank, and the mean width of queries and values as kernels take them.
    passes, taught : (int, int)
        Kernels that make a list and sorts of it, without and with a loss; 0: the list is another layer's.
    """

    width: int
    seen: int
    chosen: int
    keys: int
    scored: int
    heads: int
    dim: int
    passes: tuple[int, int]
    taught: tuple[int, int]

    @classmethod
    def compressed(cls, m: ModelSpec, s: Shard, ratio: int) -> Lists:
        """A window and compressed keys; without an indexer lists have no lengths and are read to their end."""
        groups, most = s.seq_len // ratio if ratio else 0, m.window
        sizes = m.heads, m.head_dim
        if ratio != compressed.INDEXED:
            width = -(-(most + groups) // BLOCK) * BLOCK
            none = LISTED, 0
            return cls(width, width, 0, groups, 0, *sizes, none, none)
        seen = round(compressed.keys(m, ratio, s.seq_len))
        chosen = max(1, round(compressed.compressed_keys(m, ratio, s.seq_len)))
        # Half of the scores are of keys behind their query, which the kernel leaves out.
        scored, passes = max(1, groups // 2), (CHOSEN, 0)
        width = most + m.index_topk
        return cls(width, seen, chosen, groups, scored, *sizes, passes, passes)

    @classmethod
    def tokens(cls, m: ModelSpec, s: Shard, ratio: int) -> Lists:
        """Tokens themselves, in the compressed state that is key and value of all heads."""
        width = -(-m.index_topk // MULTIPLE) * MULTIPLE
        seen = max(1, round(pairs(m, 0, in_documents(s).seq_len)))
        heads = -(-m.heads // s.group.size // HEADS) * HEADS
        sizes = heads, m.kv_lora_rank + m.rope_head_dim // 2
        passes = (OF_TOKENS, OF_TOKENS_TAUGHT) if ratio else ((0, 0), (0, 0))
        scored = max(1, s.seq_len // 2)
        return cls(width, seen, seen, s.seq_len, scored, *sizes, *passes)


@dataclass(frozen=True)
class Indexed:
    """What an indexer makes of the tokens: its queries, its keys, and the weights of its heads."""

    queries: Tensor
    keys: Tensor
    weights: Tensor

    @property
    def tensors(self) -> list[Tensor]:
        return [self.queries, self.keys, self.weights]


class Indexer(Module):
    """Scores of keys, by heads of their own; it sees values without their history."""

    def __init__(self, t: Tape, m: ModelSpec, s: Shard) -> None:
        super().__init__()
        self.m, self.s = m, whole(s)
        width = m.index_heads * m.index_head_dim
        self.up = self.add(t, width, m.q_lora_rank, name="linear_wq_b")
        self.weigh = self.add(t, m.index_heads, m.hidden, name="linear_weights_proj")
        self.compressor: Compressor | None = None
        if m.compressed:
            ratio = compressed.INDEXED
            compressor = Compressor(t, m, s, ratio, m.index_head_dim, mixed=True)
            self.compressor = self.child(compressor)
        else:
            self.down = self.add(t, m.index_head_dim, m.hidden, name="linear_wk")
            names = ("k_norm", "k_norm.bias")
            self.norm = [self.add(t, m.index_head_dim, name=name) for name in names]

    def forward(self, t: Tape, x: Tensor, states: Tensor) -> Indexed:
        """``x``: tokens; ``states``: what queries are compressed to."""
        x, states = detached(x), detached(states)
        q = self._turned(t, column_linear(t, states, self.up, self.s))
        if self.compressor is not None:
            k = self.compressor.forward(t, x)
        else:
            k = norm(t, "layer", column_linear(t, x, self.down, self.s), self.norm)
            k = self._turned(t, k)
        w = column_linear(t, x, self.weigh, unquantized(self.s))
        return Indexed(q, k, fused(t, [unsaved(w)], w.shape, 2 * w.size, 2 * w.size))

    def _turned(self, t: Tape, x: Tensor) -> Tensor:
        """Heads' rotated parts, and heads themselves by a Hadamard matrix."""
        turned = 2.0 * x.size * self.m.rope_head_dim / self.m.index_head_dim
        x = fused(t, [unsaved(x)], x.shape, turned, turned)
        mixed = self.m.compressed or self.s.options.dsa_indexer_rotate_activation
        return hadamard(t, x) if mixed else x


class SparseAttention:
    """The core of attention over lists of keys."""

    def __init__(self, m: ModelSpec, s: Shard, lists: Lists) -> None:
        self.m, self.s, self.lists = m, s, lists
        self.trains = s.options.dsa_indexer_loss_coeff > 0

    def attend(
        self,
        t: Tape,
        inputs: list[Tensor],
        shape: tuple[int, ...],
        indexed: Indexed | None,
    ) -> Tensor:
        """The output, of a shape, of queries over keys, the first two inputs; ``indexed`` chooses those of each."""
        tokens = self.s.batch * self.s.tokens
        t.cpu("attention")
        gradients = [] if indexed is None else self._choose(t, tokens, indexed)
        y = t.empty(shape, inputs[0].itemsize)
        if indexed is None:
            self._list(t, tokens, self.lists.passes)
        self._attend(t, tokens, "fwd")
        if indexed is not None:
            self._teach(t, tokens)
        # The output, a float of every row and head, the lists, and the indexer's gradients.
        listed, heads = (tokens, self.lists.width), (tokens, self.lists.heads)
        saved = [detached(y), t.empty(heads, 4), t.empty(listed, 4)]
        kept = [unsaved(x) if x.storage is None else detached(x) for x in inputs[:2]]
        if indexed is not None and self.trains:
            inputs = [*inputs, *indexed.tensors]
        sizes = [(x.shape, x.itemsize) for x in inputs]

        def backward(g: Tensor) -> list[Tensor | None]:
            _ = (g, saved, kept)
            t.cpu("attention_backward")
            self._attend(t, tokens, "bwd")
            for made in gradients:
                # Scaled by the loss's own gradient.
                pass_over(t, made.elements, 2 * made.size)
            return [t.empty(*size) for size in sizes]

        return t.apply(y, inputs, backward)

    def _attend(self, t: Tape, tokens: int, way: str) -> None:
        """The kernel over lists, forward or backward."""
        shape = (tokens, self.lists.heads, self.lists.seen, self.lists.dim)
        t.launch(Kernel(f"sparse_attention_{way}", shape))

    def _list(self, t: Tape, tokens: int, passes: tuple[int, int]) -> None:
        """Lists of keys for every query."""
        shape, (kernels, sorts) = (tokens, self.lists.width), passes
        _operators(t, tokens * self.lists.width, (LIST_BYTES,) * kernels)
        for _ in range(sorts):
            indexing.argsort(t, Tensor(None, shape, indexing.INDEX))

    def _choose(self, t: Tape, tokens: int, indexed: Indexed) -> list[Tensor]:
        """Chooses keys by their scores, and lists them; what will hold the indexer's gradients."""
        m, lists = self.m, self.lists
        written = 4.0 * tokens * lists.keys
        scores = Kernel(
            "index_scores",
            (tokens, m.index_heads, lists.scored, m.index_head_dim),
            bytes=indexed.queries.size + written,
        )
        weights = indexed.weights
        pass_over(t, weights.elements, 6 * weights.elements)
        t.launch(scores)
        t.scratch(min(written, CHUNK))
        read = 4.0 * tokens * (lists.scored + m.index_topk)
        pass_over(t, tokens * lists.keys, read)
        self._list(t, tokens, lists.taught if self._taught(t) else lists.passes)
        if not self.trains:
            return []
        return [t.empty(x.shape, x.itemsize) for x in indexed.tensors]

    def _taught(self, t: Tape) -> bool:
        """Whether the indexer's loss is made: of tokens only where a layer has a backward pass."""
        return self.trains and t.grad_enabled

    def _teach(self, t: Tape, tokens: int) -> None:
        """What the indexer should have chosen, by attention's own scores of the chosen keys; its loss and gradients.

        Of compressed keys both distributions are made whether the loss counts or not.
        """
        m, lists = self.m, self.lists
        if m.indexed and not self._taught(t):
            return
        count = tokens * m.index_topk
        if (
            m.index_pattern
        ):  # apart from attention, the loss makes its statistics itself
            self._attend(t, tokens, "fwd")
        _operators(t, count, DISTRIBUTION)
        t.launch(Kernel("index_scores", (tokens, lists.heads, lists.chosen, lists.dim)))
        if self.s.group.size > 1:  # ranks have other heads of the same queries
            exchange(t, "all_reduce", 4.0 * count, self.s.group)
        if not self.trains:
            return
        _operators(t, count, (*DIVERGENCE, SCORE_GRADIENTS))
        shape = (tokens, max(HEADS, m.index_heads), lists.chosen, m.index_head_dim)
        flops = PRODUCTS * 2.0 * math.prod(shape)
        t.launch(Kernel("index_scores", shape, flops=flops))
