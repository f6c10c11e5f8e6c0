"""Mixers of tokens other than attention: Mamba-2, gated delta rule, Kimi delta attention, gated convolutions.

A projection makes all that a scan wants, a causal convolution mixes neighbouring tokens, the scan runs over chunks of
the sequence, a norm and a gate, and a projection back. Heads, and the groups of keys that they share, are spread over
the tensor-parallel group. Under context parallelism the scan sees the whole sequence of some heads: every tensor of
the projection goes by an all-to-all of its own, in a copy that lies as it is sent; what arrives is joined, and put in
the order of the sequence, which attention's balance had changed. Behind the scan the same backwards
(megatron/core/ssm/mamba_context_parallel.py, pre_conv_ssm and post_conv_ssm; of the gated delta rule
gated_delta_net/common.py, a2a_cp_to_hp, which sends all in one).
Source: megatron/core/ssm/{mamba_mixer,gated_delta_net/gdn}.py; for Kimi delta attention its model's own code.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from prestep.workloads.exchanges import context
from prestep.workloads.megatron.adapter import adapted_column, adapted_row
from prestep.workloads.megatron.elementwise import fused, pass_over, unsaved
from prestep.workloads.megatron.linear import column_linear
from prestep.workloads.megatron.shard import Shard, kept, whole
from prestep.workloads.models import hybrid
from prestep.workloads.models.hybrid import Sizes
from prestep.workloads.models.model import ModelSpec
from prestep.workloads.torch.activation_checkpoint import discarded
from prestep.workloads.torch.gated_convolution import ConvolutionWeights
from prestep.workloads.torch.scans import (
    CONV_PASSES,
    NORMS,
    WIDE,
    DeltaWeights,
    MambaWeights,
    by_operators,
    convolved_scan,
    kernel_shape,
    measured,
)
from prestep.workloads.torch.tape import Tape, Tensor

# Passes over all that a rank has: what arrived joined, and put in order (_undo_attention_load_balancing).
JOINED, ORDERED = 1, 1
COPIED = 2.0  # bytes moved by a pass for a byte of a tensor: read and written


class Mamba(MambaWeights):
    """Mamba-2: the scan is gated, and its result normed in groups (MambaMixer, use_mem_eff_path).

    What the projection makes is kept; the convolution's result and the states of chunks are made again in backward.
    """

    proj_bias = None

    def __init__(self, t: Tape, m: ModelSpec, s: Shard) -> None:
        super().__init__(t, m, hybrid.sizes_of(m, hybrid.MAMBA).of_rank(s.group.size))
        self.s, self.spread = s, _spread(self.sizes, s)

    def forward(self, t: Tape, x: Tensor) -> Tensor:
        y = adapted_column(t, x, self.projection, self.s)
        y = _to_heads(t, y, self._sent, self.s)
        y = batch_first(t, y)
        shape = _whole_shape(self.s, self.spread, self.chunk)
        y = convolved_scan(t, y, self.spread, shape)
        y = batch_first(t, y)
        y = _to_sequence(t, y, self.s)
        y = measured(t, "gated_norm", y, [y, self.norm], self._shape)
        return adapted_row(t, y, self.output, kept(self.s, "mamba_out"))

    @property
    def _shape(self) -> tuple[int, ...]:
        return kernel_shape(self.s.batch, self.s.tokens, self.sizes, self.chunk)

    @property
    def _sent(self) -> tuple[int, ...]:
        """Columns that go from rank to rank: z, x, B, C and the heads' steps, each by itself."""
        own = self.sizes
        keys = context.shared(own.keys, self.s.parts) * own.key_dim
        return own.value_width, own.value_width, keys, keys, own.values


class Delta(DeltaWeights):
    """The gated delta rule (GatedDeltaNet): queries and keys normed, decay and strength of each head by the token."""

    proj_bias = None

    def __init__(self, t: Tape, m: ModelSpec, s: Shard) -> None:
        super().__init__(t, m, hybrid.sizes_of(m, self.part).of_rank(s.group.size))
        self.s, self.spread = s, _spread(self.sizes, s)

    @property
    def _width(self) -> int:
        """Columns of the projection on this rank."""
        return hybrid.delta_width(self.sizes)

    def _projections(self, t: Tape) -> None:
        self.projection = self.add(t, self._width, self.m.hidden, name="in_proj")

    def forward(self, t: Tape, x: Tensor) -> Tensor:
        y = _to_heads(t, self._project(t, x), (self._width,), self.s)
        y = batch_first(t, y)
        mixed = self._part(t, y, self.spread.convolved)
        mixed = self._convolved(t, mixed)
        mixed = self._prepared(t, mixed)
        y = self._scan(t, mixed)
        again = "gdn_norm_out" in self.s.options.recompute_modules
        y = discarded(t, lambda given: self._normed(t, given), y, again)
        y = _to_sequence(t, y, self.s)
        return adapted_row(t, y, self.output, self.s)

    def _normed(self, t: Tape, x: Tensor) -> Tensor:
        """The scan's result normed and gated, in the order of the sequence."""
        return batch_first(t, gated_by_head(t, x, self.norm))

    def _project(self, t: Tape, x: Tensor) -> Tensor:
        """All that convolution and scan want of the tokens."""
        return adapted_column(t, x, self.projection, self.s)

    @property
    def _shape(self) -> tuple[int, ...]:
        return _whole_shape(self.s, self.spread, self.chunk)

    def _part(self, t: Tape, x: Tensor, width: int) -> Tensor:
        """Some columns of a projection, without a copy."""
        y = Tensor(None, (*x.shape[:-1], width), x.itemsize)
        return t.apply(y, [unsaved(x)], lambda g: [t.empty(x.shape, x.itemsize)])

    def _prepared(self, t: Tape, x: Tensor) -> Tensor:
        """Norms of queries and keys; decays in fp32 and strengths by a softplus and a sigmoid."""
        own, tokens = self.spread, x.elements // x.shape[-1]
        keys = 2.0 * tokens * own.key_width * x.itemsize
        width = self.decay_width // self.s.parts
        decays = tokens * width * (x.itemsize + WIDE)
        forward, backward = 2 * keys + decays, 3 * keys + 2 * decays
        return fused(t, [x], x.shape, forward, backward, kernels=(NORMS + 1, NORMS + 1))

    def _convolved(self, t: Tape, x: Tensor) -> Tensor:
        """Neighbouring tokens mixed; where sums have one order by PyTorch's convolution, between two transposes."""
        if not t.deterministic:
            return measured(t, "fla_conv1d", x, [x], self._shape)
        ahead, back = (passes + 4.0 for passes in CONV_PASSES)
        moved = ahead * x.size, back * x.size
        return fused(t, [x], x.shape, *moved, kernels=(4, 5))

    def _scan(self, t: Tape, x: Tensor) -> Tensor:
        if t.deterministic and self.kernel == DeltaWeights.kernel:
            return by_operators(t, x, self.spread.value_width, self._shape)
        y = t.empty((*x.shape[:-1], self.spread.value_width), x.itemsize)
        return measured(t, self.kernel, y, [x], self._shape)


class Kimi(Delta):
    """Kimi delta attention: a decay for each element of a key, which goes through a bottleneck, as does the gate."""

    part, kernel = hybrid.KIMI, "kda"

    @property
    def _width(self) -> int:
        return self.sizes.convolved + self.sizes.values

    def _decays(self, t: Tape) -> None:
        own, m = self.sizes, self.m
        decays = own.values * own.key_dim
        self.down = self.add(t, 2 * own.value_dim, m.hidden, name="bottleneck")
        self.up = self.add(
            t, decays + own.value_width, own.value_dim, name="bottleneck_up"
        )
        self.add(t, decays, name="dt_bias")
        self.add(t, own.values, name="A_log")

    def _project(self, t: Tape, x: Tensor) -> Tensor:
        """Beside queries, keys and values what decays and gate are made of, from two narrow states of a token."""
        narrow = column_linear(t, x, self.down, whole(self.s))
        half = Tensor(None, (*narrow.shape[:-1], narrow.shape[-1] // 2))
        half = t.apply(half, [unsaved(narrow)], lambda g: [t.empty(narrow.shape)])
        wide = column_linear(t, half, self.up, self.s)
        y = super()._project(t, x)
        both = Tensor(y.storage, y.shape, y.itemsize)

        def backward(g: Tensor) -> list[Tensor | None]:
            _ = (g, wide)
            return [t.empty(y.shape, y.itemsize), t.empty(wide.shape, wide.itemsize)]

        return t.apply(both, [y, wide], backward)


class GatedConvolution(ConvolutionWeights):
    """A short convolution between two gates, which no Megatron has: channels are spread as heads of scans are."""

    proj_bias = None

    def __init__(self, t: Tape, m: ModelSpec, s: Shard) -> None:
        super().__init__(t, m, m.hidden // s.group.size)
        self.s = s

    def forward(self, t: Tape, x: Tensor) -> Tensor:
        y = adapted_column(t, x, self.projection, self.s)
        y = batch_first(t, y)
        y = batch_first(t, self._convolved(t, y))
        return adapted_row(t, y, self.output, self.s)

    def _convolved(self, t: Tape, x: Tensor) -> Tensor:
        """The first gate, the convolution and the second gate by a kernel each; the input alone is saved."""
        channels = x.shape[-1] // 3
        shape, each = (*x.shape[:-1], channels), x.size / 3
        # A gate reads two and writes one, backward three and two; the convolution is causal_conv1d's.
        ahead, back = CONV_PASSES
        forward, backward = (2 * 3 + ahead) * each, (2 * 5 + ahead + back) * each
        inputs = [x, self.filters]
        return fused(t, inputs, shape, forward, backward, 0.0, 1, kernels=(3, 4))


def _whole_shape(s: Shard, own: Sizes, chunk: int) -> tuple[int, ...]:
    """A scan of the whole sequence, where a rank has a part of it otherwise."""
    return kernel_shape(s.batch, s.tokens * s.parts, own, chunk)


def _spread(own: Sizes, s: Shard) -> Sizes:
    """A rank's heads while it has the whole sequence; where groups of keys are fewer than ranks, each has one whole."""
    keys = context.shared(own.keys, s.parts) // s.parts
    return Sizes(keys, own.key_dim, own.values // s.parts, own.value_dim)


def _to_heads(t: Tape, x: Tensor, columns: Sequence[int], s: Shard) -> Tensor:
    """``x`` (part of the sequence, samples, width) as (sequence, samples, part of the columns).

    ``columns``: those of each tensor that is sent by itself, of all heads of this tensor-parallel rank.
    """
    rows, ranks = prod(x.shape[:-1]), s.parts
    sizes = [float(rows * count * x.itemsize) for count in columns]
    shape = (x.shape[0] * ranks, *x.shape[1:-1], sum(columns) // ranks)
    return _moved(t, x, shape, sizes, s, JOINED + ORDERED)


def _to_sequence(t: Tape, y: Tensor, s: Shard) -> Tensor:
    """``y`` (sequence, samples, part of the columns) as (part of the sequence, samples, columns)."""
    shape = (y.shape[0] // s.parts, *y.shape[1:-1], y.shape[-1] * s.parts)
    return _moved(t, y, shape, [y.size], s, ORDERED)


def _moved(
    t: Tape,
    x: Tensor,
    shape: tuple[int, ...],
    sizes: Sequence[float],
    s: Shard,
    passes: int,
) -> Tensor:
    """The same elements elsewhere: each tensor copied as it is sent, and sent; then so many passes over all of them."""
    if s.context is None or s.parts == 1:
        return x
    group, total = s.context.group, sum(sizes)

    def copy(size: float) -> None:
        pass_over(t, round(size / 2), COPIED * size)

    def exchange() -> None:
        for size in sizes:
            copy(size)
            context.all_to_all(t, group, (size,), "functional_collective")
        for _ in range(passes):
            copy(total)

    return context.moved(t, unsaved(x), shape, exchange, exchange)


def batch_first(t: Tape, x: Tensor) -> Tensor:
    """Tokens of a sample beside each other, or back: a copy where there are several samples."""
    if x.shape[1] == 1:
        return x
    moved = 2 * x.size
    return fused(t, [unsaved(x)], x.shape, moved, moved)


def gated_by_head(t: Tape, x: Tensor, weight: Tensor) -> Tensor:
    """Each head's result normed and gated (jit-fused): reads both, writes one; backward also both gradients."""
    moved, back = 3 * x.size, 5 * x.size
    return fused(t, [x, weight], x.shape, moved, back, parameters=1)
