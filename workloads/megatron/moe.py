"""Megatron's layer of experts: router, dispatch of tokens over the expert-parallel group, grouped GEMMs, combination.

Source: megatron/core/transformer/moe/{moe_layer,router,token_dispatcher,experts,shared_experts}.py. That the host waits
for the numbers of tokens by expert is a time it takes, not a stop. Not modelled: auxiliary losses beyond their passes
over the router's scores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from sim.graph.kernel import Kernel
from workloads.megatron import functional as M
from workloads.megatron.feed_forward import FeedForward
from workloads.megatron.shard import Shard
from workloads.megatron.spread import Spread, distinct
from workloads.models.model import ModelSpec
from workloads.parallel.group import Group
from workloads.torch.modules import Module
from workloads.torch.tape import Tape, Tensor

STREAM = "nccl ep"
PREFIX = "experts."  # of the names of parameters that only the expert data-parallel group shares
# Rows of an expert are computed in whole tiles: grouped GEMMs of CUTLASS and cuBLAS begin a tile for every expert.
TILE = 128
# Products of experts one after the other on a few streams, over one product of all rows: in bf16 1.2 (A100) and 1.4
# (B200, of small experts 1.3 to 1.6), measured by SimuMax; for fp8 a guess.
GROUPED = 1.25
# Copies to the host that a layer waits for where tokens are not padded: tokens by expert, splits of what is sent and of
# what is received, rows after the permutation (token_dispatcher.py, preprocess).
COUNTS = 4
# Passes over the router's scores, forward and backward: softmax or sigmoid, top-k, two scatters, counts, auxiliary loss
# (router.py, moe_utils.py: topk_softmax_with_capacity, switch_load_balancing_loss_func), each reading or writing fp32.
ROUTER_PASSES = (8, 6)


class Experts(Module):
    """A feed-forward layer of experts with its router, and experts that see every token beside them."""

    fc2_bias = None  # already added here

    def __init__(self, t: Tape, m: ModelSpec, s: Shard, spread: Spread) -> None:
        super().__init__()
        self.m, self.s, self.spread = m, s, spread
        self.gate = self.add(t, m.experts, m.hidden, name="router")
        self.gate_bias = self.fc1_bias = self.down_bias = None
        if m.router_bias:
            self.gate_bias = self.add(t, m.experts, name="router.bias")
        local = m.experts // spread.group.size
        inner = m.moe_ffn // self._shards
        up = inner * (2 if m.gated else 1)
        self.fc1 = self.add(t, local, up, m.hidden, name=f"{PREFIX}linear_fc1")
        if m.bias:
            self.fc1_bias = self.add(t, local, up, name=f"{PREFIX}linear_fc1.bias")
        self.fc2 = self.add(t, local, m.hidden, inner, name=f"{PREFIX}linear_fc2")
        if m.bias:
            self.down_bias = self.add(
                t, local, m.hidden, name=f"{PREFIX}linear_fc2.bias"
            )
        self.shared = None
        if m.shared_experts:
            self.shared = FeedForward(
                t, replace(m, ffn=m.moe_ffn * m.shared_experts, bias=False), s
            )
            self.parameters += self.shared.parameters

    def forward(self, t: Tape, x: Tensor) -> Tensor:
        s, m = self.s, self.m
        with t.capture("moe_router" in s.options.cuda_graph_scope, False):
            routed = route(t, x, self.gate, s.numbers)
        if not s.options.moe_pad_to_capacity:
            t.cpu("moe_counts", COUNTS)
        tokens = s.rows * s.batch
        beside: list[Tensor] = []
        if self.shared is not None and s.options.moe_shared_expert_overlap:
            rows = self._dispatch(
                t, routed, tokens, lambda: beside.append(self._share(t, x))
            )
        else:
            rows = self._dispatch(t, routed, tokens, None)
        apart, fused = (
            "moe_act" in s.options.recompute_modules,
            s.options.moe_fused_mlp and bool(s.numbers.products),
        )
        together = s.options.moe_grouped_gemm
        y = grouped_linear(
            t,
            rows,
            self.fc1,
            self._counts(tokens),
            s.numbers,
            together,
            (True, not fused),
            fused,
        )
        del rows
        if (
            fused
        ):  # both kernels write what backward needs, and what they multiply next in fp8
            y = M.fused(
                t,
                [y],
                (*y.shape[:-1], y.shape[-1] // (1 + m.gated)),
                0.0,
                0.0,
                kernels=(0, 0),
            )
        else:
            y = M.discarded(
                t,
                lambda given: M.activate(t, given, self.fc1_bias, m.gated, s.options),
                y,
                apart,
            )
        y = grouped_linear(
            t,
            y,
            self.fc2,
            self._counts(tokens),
            s.numbers,
            together,
            (not fused, True),
            fused,
        )
        if self.down_bias is not None:
            # Weighted by the router expert by expert, in fp32: product, sum, joined, cast (TEGroupedMLP._apply_bias).
            y = M.fused(
                t,
                [M.unsaved(y), self.down_bias],
                y.shape,
                14 * y.size,
                18 * y.size,
                0.0,
                1,
                (4, 5),
            )
        y = self._combine(t, y, tokens, x.shape)
        if self.shared is not None and not beside:
            beside.append(self._share(t, x))
        for other in beside:
            y = M.fused(
                t,
                [M.unsaved(y), M.unsaved(other)],
                y.shape,
                3 * y.size,
                0.0,
                kernels=(1, 0),
            )
        return y

    def _share(self, t: Tape, x: Tensor) -> Tensor:
        """The experts that see every token."""
        shared = self.shared
        if shared is None:
            raise RuntimeError("no shared experts")
        if "shared_experts" in self.s.options.recompute_modules:
            return M.again(t, lambda given: shared.forward(t, given), x)
        return shared.forward(t, x)

    # -- how tokens reach their experts -------------------------------------------------------------
    @property
    def _shards(self) -> int:
        return self.spread.tensor.size if self.spread.tensor is not None else 1

    def _counts(self, tokens: int) -> list[float]:
        """Rows of each local expert."""
        mean = (
            tokens
            * self._shards
            * self.spread.group.size
            * self.m.experts_per_token
            / self.m.experts
        )
        return [mean * load for load in self.spread.loads]

    def _rows(self, tokens: int) -> int:
        return max(1, round(sum(self._counts(tokens))))

    def _received(self, tokens: int) -> int:
        """Rows that an exchange brings here: DeepEP sends a token once to a rank with experts it chose."""
        way, ranks = self.s.options.moe_token_dispatcher, self.spread.group.size
        if way == "alltoall":
            return max(1, self._rows(tokens) // self._shards)
        return max(
            1,
            round(
                tokens
                * (
                    ranks
                    if way == "allgather"
                    else distinct(ranks, self.m.experts, self.m.experts_per_token)
                )
            ),
        )

    def _size(self, tokens: int) -> float:
        """Bytes of an exchange on one rank; DeepEP sends a token once to each host, on one host once to each rank."""
        m, spread, way = self.m, self.spread, self.s.options.moe_token_dispatcher
        copies = float(m.experts_per_token)
        if way == "allgather":
            return 2.0 * m.hidden * tokens * spread.group.size
        if way == "flex":
            copies = distinct(
                spread.hosts if spread.hosts > 1 else spread.group.size,
                m.experts,
                m.experts_per_token,
            )
        return 2.0 * m.hidden * tokens * copies * sum(spread.loads) / len(spread.loads)

    @property
    def _aside(self) -> bool:
        return self.s.options.overlap_moe_expert_parallel_comm

    @property
    def _sorts(self) -> bool:
        """Whether rows arrive in another order than the experts'."""
        one_way = self.s.options.moe_token_dispatcher == "alltoall"
        return not one_way or (
            len(self.spread.loads) > 1 and self.spread.group.size > 1
        )

    def _dispatch(
        self, t: Tape, x: Tensor, tokens: int, meanwhile: Callable[[], None] | None
    ) -> Tensor:
        """Tokens of all ranks that chose experts here, in the order of the experts."""
        h, chosen, way = (
            self.m.hidden,
            self.m.experts_per_token,
            self.s.options.moe_token_dispatcher,
        )
        if way == "alltoall":
            x = self._permute(
                t, x, (tokens * chosen, h), tokens + tokens * chosen, "out"
            )
        here, rows = self._received(tokens), self._rows(tokens)
        x = exchange(
            t,
            x,
            (here, h),
            self._size(tokens),
            self.spread.group,
            way,
            True,
            meanwhile,
            self._aside,
        )
        if self.spread.tensor is not None:
            here *= self._shards
            x = exchange(
                t, x, (here, h), 2.0 * here * h, self.spread.tensor, "allgather", True
            )
        return self._permute(t, x, (rows, h), here + rows) if self._sorts else x

    def _combine(
        self, t: Tape, y: Tensor, tokens: int, shape: tuple[int, ...]
    ) -> Tensor:
        """Results back to where the tokens came from, added up with the router's weights."""
        h, chosen, way = (
            self.m.hidden,
            self.m.experts_per_token,
            self.s.options.moe_token_dispatcher,
        )
        here, rows = self._received(tokens), self._rows(tokens)
        if self._sorts:
            y = self._permute(
                t, y, (here * self._shards, h), rows + here * self._shards
            )
        if self.spread.tensor is not None:
            y = exchange(
                t,
                y,
                (here, h),
                2.0 * here * self._shards * h,
                self.spread.tensor,
                "allgather",
                False,
            )
        back = tokens * (chosen if way == "alltoall" else 1)
        y = exchange(
            t,
            y,
            (back, h),
            self._size(tokens),
            self.spread.group,
            way,
            False,
            None,
            self._aside,
        )
        if way == "alltoall":
            return self._permute(t, y, shape, tokens + tokens * chosen, "back")
        done = Tensor(y.storage, shape, y.itemsize, y.node)
        done.requires_grad = y.requires_grad
        return done

    def _permute(
        self, t: Tape, x: Tensor, shape: tuple[int, ...], moved: float, way: str = ""
    ) -> Tensor:
        """Rows put in another order, repeated ("out") or added up ("back"): ``moved`` rows are read or written."""
        size = 2.0 * moved * self.m.hidden
        if self.s.options.moe_permute_fusion or not way:
            steps = (
                1 if self.s.options.moe_permute_fusion else 3
            )  # else sorted and indexed
            return M.fused(t, [M.unsaved(x)], shape, size, size, kernels=(steps, steps))
        return _scatter(t, x, shape, way == "out")


def _scatter(t: Tape, x: Tensor, shape: tuple[int, ...], out: bool) -> Tensor:
    """Rows selected by their index on the way out, and weighted and scattered with atomic additions on the way back.

    As PyTorch's operators do it (moe_utils.py, permute and unpermute without fusion): each is the other's backward, but
    that a selection's gradient is added by rows (index_add) and a scatter's gathered element by element.
    """
    before, rows = x.shape, max(x.elements, Tensor(None, shape).elements)
    back = min(x.elements, Tensor(None, shape).elements)
    t.cpu("fused", 3)
    y = t.empty(shape, x.itemsize)
    if out:
        t.launch(Kernel("fused", (rows,), bytes=4.0 * rows))
    else:
        t.launch(Kernel("fused", (rows,), bytes=4.0 * rows))
        t.launch(Kernel("fill", (back,), bytes=2.0 * back))
        t.launch(Kernel("scatter_add", (rows,)))

    def backward(g: Tensor) -> list[Tensor | None]:
        t.cpu("fused_backward", 3)
        if out:
            t.launch(Kernel("fill", (back,), bytes=2.0 * back))
            t.launch(Kernel("index_add", (rows,)))
        else:
            t.launch(Kernel("gather", (rows,)))
            t.launch(
                Kernel("fused", (rows,), bytes=8.0 * rows)
            )  # gradients of rows and of their weights
        return [t.empty(before, x.itemsize)]

    return t.apply(y, [M.unsaved(x)], backward)


def route(t: Tape, x: Tensor, gate: Tensor, o: M.Numbers) -> Tensor:
    """Scores of all experts, and the choice among them; the input goes on to the experts chosen."""
    experts, h = gate.shape
    tokens = x.elements // h
    t.cpu("linear")
    M.launch_gemm(t, "gemm", tokens, experts, h, "nt")
    scores = t.empty((tokens, experts), 4)
    t.cpu("elementwise", ROUTER_PASSES[0])
    for _ in range(ROUTER_PASSES[0]):
        t.launch(Kernel("fused", (scores.elements,), bytes=8.0 * scores.elements))
    kept = x

    def backward(g: Tensor) -> list[Tensor | None]:
        _ = (scores, kept)
        t.cpu("elementwise_backward", ROUTER_PASSES[1])
        for _i in range(ROUTER_PASSES[1]):
            t.launch(Kernel("fused", (tokens * experts,), bytes=8.0 * tokens * experts))
        t.cpu("linear_backward")
        M.launch_gemm(t, "gemm", tokens, h, experts, "nn")
        plain = replace(o, products="")
        M.weight_gradient(t, experts, h, tokens, plain, (kept, scores))
        t.launch(
            Kernel("fused", (g.elements,), bytes=3.0 * g.size)
        )  # beside the gradient from the experts
        return [t.empty(kept.shape, kept.itemsize), Tensor(None, gate.shape)]

    y = Tensor(x.storage, x.shape, x.itemsize)
    return t.apply(y, [x, gate], backward)


def exchange(
    t: Tape,
    x: Tensor,
    shape: tuple[int, ...],
    size: float,
    group: Group,
    way: str,
    out: bool,
    meanwhile: Callable[[], None] | None = None,
    aside: bool = False,
) -> Tensor:
    """Rows to the ranks of their experts (``out``) or back; nothing for one rank. ``meanwhile`` runs beside it.

    ``aside`` lets all computation run beside it: that of another microbatch, which lasts as long as this one's.
    """
    if group.size == 1:
        if meanwhile is not None:
            meanwhile()
        return x
    ops = (
        ("all_gather", "reduce_scatter")
        if way == "allgather"
        else ("all_to_all", "all_to_all")
    )
    forth, back = ops if out else ops[::-1]
    stream = STREAM if group.axis == "ep" else M.STREAM
    before, itemsize = x.shape, x.itemsize

    def send(
        op: str, target: tuple[int, ...], beside: Callable[[], None] | None
    ) -> Tensor:
        y = t.empty(target, itemsize)
        group.collective(t, op, size, stream, "functional_collective")
        event = t.record(stream)
        if beside is not None:
            beside()
        if not aside:
            t.wait(event)
        return y

    y = send(forth, shape, meanwhile)
    return t.apply(y, [M.unsaved(x)], lambda g: [send(back, before, None)])


def grouped_linear(
    t: Tape,
    x: Tensor,
    w: Tensor,
    counts: Sequence[float],
    o: M.Numbers,
    together: bool = True,
    casts: tuple[bool, bool] = (True, True),
    fused: bool = False,
) -> Tensor:
    """``x[rows of e] @ w[e].T`` for every local expert e, as one grouped GEMM or one after the other.

    ``casts``: whether the operands of the forward and of the backward pass are quantized here, in fp8; ``fused``: the
    GEMMs are single kernels with epilogues of their own.
    """
    experts, n, k = w.shape
    each = [max(1, round(c)) for c in counts]
    parts = [each] if together else [[c] for c in each]
    t.cpu("linear", len(parts))
    t.cpu("grouped_gemm", experts if together else 0)
    if casts[0]:
        _quantize_each(t, each, k, o)
    for part in parts:
        _grouped(t, part, n, k, "nt", o, fused)
    y = t.empty((*x.shape[:-1], n), x.itemsize)

    def backward(g: Tensor) -> list[Tensor | None]:
        t.cpu("linear_backward", len(parts))
        t.cpu("grouped_gemm", 2 * experts if together else 0)
        if casts[1]:
            _quantize_each(t, each, n, o)
        grad = t.empty(x.shape, x.itemsize)
        for part in parts:
            _grouped(t, part, k, n, "nn", o, fused)
            M.later(t, partial(_grouped, t, part, n, k, "tn", o, fused), (g, x))
        if not o.fused_accumulation:
            M.later(t, partial(_accumulate, t, experts * n * k, o), ())
        return [grad, Tensor(None, w.shape)]

    return t.apply(y, [x, w], backward)


def _quantize_each(t: Tape, rows: Sequence[int], width: int, o: M.Numbers) -> None:
    """In fp8 each expert's rows have a scale of their own: found, then applied."""
    for count in rows if o.products else ():
        t.launch(Kernel("fused", (count * width,), bytes=2.0 * count * width))
        M.quantize(t, count * width, o)


def _accumulate(t: Tape, elements: int, o: M.Numbers) -> None:
    """Adds a gradient to the buffer that accumulates it."""
    moved = float(elements * (2 + 2 * o.wide))
    t.launch(Kernel("fused", (elements,), bytes=moved))


def _grouped(
    t: Tape,
    rows: Sequence[int],
    n: int,
    k: int,
    layout: str,
    o: M.Numbers,
    fused: bool = False,
) -> None:
    """Products of experts with so many rows each; flops and bytes are the rows' own.

    In bf16 as grouped GEMMs were measured, rows of the mean. In fp8, where none were, as one GEMM of whole tiles,
    longer by what bf16 ones are where they are not single kernels (``fused``); there weight gradients ("tn"), as deep
    as an expert has rows, are one product with the weights' rows of all experts.
    """
    if not o.products:
        _grouped_bf16(t, rows, n, k, layout)
        return
    total, weights = sum(rows), float(len(rows) * n * k)
    longer = 1.0 if fused or len(rows) == 1 else GROUPED
    if layout == "tn":
        shape = (round(len(rows) * n * longer), k, max(1, round(total / len(rows))))
        moved = total * (n + k) + 2 * o.wide * weights
    else:
        shape = (round(sum(-(-c // TILE) * TILE for c in rows) * longer), n, k)
        moved = total * k + weights + 2.0 * total * n
    flops = 2.0 * total * n * k
    t.launch(Kernel("gemm", shape, o.products, "nt", bytes=moved, flops=flops))


def _grouped_bf16(t: Tape, rows: Sequence[int], n: int, k: int, layout: str) -> None:
    """As grouped GEMMs were measured: every expert has the mean of the rows."""
    mean = max(1, round(sum(rows) / len(rows)))
    shape = (n, k, mean) if layout == "tn" else (mean, n, k)
    if len(rows) == 1:
        M.launch_gemm(t, "gemm", *shape, layout)
        return
    t.launch(Kernel("grouped_gemm", (len(rows), *shape), "bf16", layout))
