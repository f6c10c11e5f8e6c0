"""How tokens reach their experts and come back (megatron/core/transformer/moe/token_dispatcher.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from math import prod
from typing import NamedTuple

from prestep.sim.graph.kernel import Kernel
from prestep.sim.graph.opgraph import Tokens
from prestep.workloads.exchanges.experts import STREAM, TokenExchange, Way
from prestep.workloads.megatron.elementwise import fused, pass_over, unsaved
from prestep.workloads.megatron.shard import Shard, Spread
from prestep.workloads.models.model import ModelSpec
from prestep.workloads.torch.functional import launched
from prestep.workloads.torch.tape import Tape, Tensor


class Calls(NamedTuple):
    """Calls of Python's functions in a layer of experts: the router's, those ahead of the exchange (``moe_preprocess``
    captures them), and those from it on."""

    router: int
    ahead: int
    behind: int


# Forward and backward in MoELayer of Megatron-core 0.16.1 beside router, experts and collectives, with permutations of
# Transformer Engine (20 calls for a launch of Triton's) and the buffers of HybridEP and DeepEP (lab/notes/recipes.md).
CALLS = {
    "alltoall": (Calls(0, 126, 245), Calls(6, 39, 153)),
    "deepep": (Calls(0, 5, 237), Calls(6, 0, 100)),
    "hybridep": (Calls(0, 5, 74), Calls(6, 0, 28)),
}
MEASURED = "alltoall"  # the dispatcher whose layer's time on the host was measured
OPERATORS = 3  # that the host issues for a permutation without fusion


def reorder(
    t: Tape, x: Tensor, shape: tuple[int, ...], moved: float, kernels: int
) -> Tensor:
    """Rows put in another order by kernels that read or write ``moved`` bytes together, forward and backward."""
    return fused(t, [unsaved(x)], shape, moved, moved, kernels=(kernels, kernels))


def select(t: Tape, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Rows selected by their index, a copy for each of their experts; gradients are added by rows (index_add)."""
    copies, tokens = prod(shape), x.elements
    forward = [Kernel("fused", (copies,), bytes=4.0 * copies)]
    backward = [
        Kernel("aten fill", (tokens,), bytes=2.0 * tokens),
        Kernel("index_add", (copies,)),
    ]
    return _permuted(t, x, shape, forward, backward)


def scatter(t: Tape, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Rows weighted and scattered with atomic additions; gradients are gathered element by element."""
    copies, tokens = x.elements, prod(shape)
    forward = [
        Kernel("fused", (copies,), bytes=4.0 * copies),
        Kernel("aten fill", (tokens,), bytes=2.0 * tokens),
        Kernel("scatter_add", (copies,)),
    ]
    backward = [
        Kernel("gather", (copies,)),
        # Gradients of rows and of their weights.
        Kernel("fused", (copies,), bytes=8.0 * copies),
    ]
    return _permuted(t, x, shape, forward, backward)


def _permuted(
    t: Tape,
    x: Tensor,
    shape: tuple[int, ...],
    forward: Sequence[Kernel],
    backward: Sequence[Kernel],
) -> Tensor:
    """Rows moved by PyTorch's operators; they are saved for the gradients of their weights."""

    def launch(host: str, kernels: Sequence[Kernel]) -> None:
        t.cpu(host, OPERATORS)
        for kernel in kernels:
            t.launch(kernel)

    ahead, back = ("fused", forward), ("fused_backward", backward)
    both = partial(launch, *ahead), partial(launch, *back)
    return launched(t, [unsaved(x)], shape, *both, [x])


ITEM = 2.0  # bytes of an element
WIDE = 4.0  # of a router's weight
# Without fusion rows of received tokens are sorted and indexed.
UNFUSED_KERNELS = 3


@dataclass(frozen=True)
class TokenDispatcher:
    """The way of one rank's tokens: permuted and sent, gathered by all, or sent by DeepEP's kernels (flex)."""

    m: ModelSpec
    s: Shard
    spread: Spread

    @property
    def shards(self) -> int:
        """Ranks that hold one expert together."""
        return self.spread.tensor.size if self.spread.tensor is not None else 1

    @property
    def tokens(self) -> int:
        """Of this rank."""
        return self.s.rows * self.s.batch

    @property
    def copies(self) -> int:
        """Of this rank's tokens, one for each expert that they chose."""
        return self.tokens * self.m.experts_per_token

    @property
    def counts(self) -> tuple[float, ...]:
        """Rows of each local expert."""
        chosen = self.copies * self.shards * self.spread.group.size
        mean = chosen / self.m.experts
        return tuple(mean * load for load in self.spread.loads)

    @property
    def rows(self) -> int:
        """Of all local experts."""
        return max(1, round(sum(self.counts)))

    @property
    def received(self) -> int:
        """Rows that an exchange brings here: DeepEP sends a token once to a rank with experts it chose."""
        if self._way == "alltoall":
            return max(1, self.rows // self.shards)
        ranks: float = self.spread.group.size
        if self._way == "flex":
            ranks = self._distinct(self.spread.group.size)
        return max(1, round(self.tokens * ranks))

    def preprocess(self, t: Tape, x: Tensor) -> Tensor:
        """Rows as they are sent."""
        return self._permute(t, x) if self._way == "alltoall" else x

    def dispatch(
        self, t: Tape, x: Tensor, meanwhile: Callable[[], None] | None
    ) -> Tensor:
        """Rows of all ranks that chose experts here, in the order of the experts."""
        hidden, here = self.m.hidden, self.received
        if self._hybrid and self.spread.group.size > 1:
            self._map_routes(t)
        if self.s.counts_wait:
            t.synchronize()
        x = self._exchange.to_experts(t, x, (here, hidden), meanwhile)
        if self._hybrid and self.spread.group.size > 1:
            x = self._with_routes(t, x)
        if self._shards_exchange is not None:
            here *= self.shards
            x = self._shards_exchange.to_experts(t, x, (here, hidden))
        return self._sort(t, x, self.rows) if self._sorts else x

    def combine(self, t: Tape, y: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Results back to where the tokens came from, added up with the router's weights."""
        hidden, here = self.m.hidden, self.received
        if self._sorts:
            y = self._sort(t, y, here * self.shards)
        if self._shards_exchange is not None:
            y = self._shards_exchange.from_experts(t, y, (here, hidden))
        if self._way == "alltoall":
            y = self._exchange.from_experts(t, y, (self.copies, hidden))
            return self._unpermute(t, y, shape)
        y = self._exchange.from_experts(t, y, (self.tokens, hidden))
        tokens = Tensor(y.storage, shape, y.itemsize, y.node)
        tokens.requires_grad = y.requires_grad
        return tokens

    @property
    def _way(self) -> str:
        return self.s.options.moe_token_dispatcher

    @property
    def calls(self) -> tuple[Calls, Calls]:
        """What the host does in a layer, forward and backward; gathering tokens is taken for an all-to-all."""
        backend = self.s.options.moe_flex_dispatcher_backend
        return CALLS[backend if self._way == "flex" else MEASURED]

    def _distinct(self, places: int) -> float:
        """Ranks, or hosts, that have an expert which a token chose."""
        return self.spread.met(places, self.m.experts, self.m.experts_per_token)

    @cached_property
    def _exchange(self) -> TokenExchange:
        """With all expert-parallel ranks."""
        aside = self.s.options.overlap_moe_expert_parallel_comm
        if self._way == "allgather":
            size = ITEM * self.m.hidden * self.tokens * self.spread.group.size
            forth, back = Way("all_gather"), Way("reduce_scatter")
        else:
            size = self._sent
            forth, back = self._towards("dispatch"), self._towards("combine")
        weights = self._weights if self._hybrid else 0.0
        return TokenExchange(self.spread.group, forth, back, size, aside, weights)

    @property
    def _hybrid(self) -> bool:
        """Whether HybridEP's kernels send the tokens."""
        o = self.s.options
        return self._way == "flex" and o.moe_flex_dispatcher_backend == "hybridep"

    def _map_routes(self, t: Tape) -> None:
        """HybridEP's metadata: every rank gets the choices of all, a byte for each token and expert, and reads them.

        deep_ep/hybrid_ep_buffer.py: all_gather_into_tensor of the routing map, then metadata_preprocessing.
        """
        group = self.spread.group
        size = float(self.tokens * group.size * self.m.experts)
        group.collective(t, "all_gather", size, STREAM, "functional_collective")
        t.wait(t.record(STREAM))
        pass_over(t, round(size), size)

    def _with_routes(self, t: Tape, x: Tensor) -> Tensor:
        """Tokens whose backward wants HybridEP's handle.

        For each token of all ranks: whether it goes to each expert here and to which row, and its row on each rank
        (bool and int32; csrc/hybrid_ep/executor/executor.cu, metadata_preprocess_core).
        """
        ranks = self.spread.group.size
        size = self.tokens * ranks * (5 * (self.m.experts // ranks) + 4)
        handle = t.empty((size,), 1)

        def backward(g: Tensor) -> list[Tensor | None]:
            nonlocal handle
            del handle
            return [g]

        return t.apply(Tensor(x.storage, x.shape, x.itemsize), [x], backward)

    @property
    def _weights(self) -> float:
        """Bytes of the router's weights that HybridEP sends beside tokens: with every copy those of all experts of its
        NVLink domain, in fp32 (prob_bytes of its kernels)."""
        experts = self.m.experts / self.spread.hosts
        return WIDE * experts * self._sent / (ITEM * self.m.hidden)

    def _towards(self, way: str) -> Way:
        """To the experts ("dispatch") or back ("combine"): by DeepEP's or HybridEP's kernel with "flex"."""
        flex = self._way == "flex"
        return Way("all_to_all", self._tokens(way) if flex else None)

    def _tokens(self, way: str) -> Tokens:
        """What DeepEP's or HybridEP's kernel exchanges, of the busiest rank."""
        spread, o = self.spread, self.s.options
        backend = o.moe_flex_dispatcher_backend
        ranks = self._distinct(spread.group.size)
        return Tokens(
            way,
            count=self.tokens * self._load,
            size=ITEM * self.m.hidden,
            ranks=ranks,
            hosts=self._distinct(spread.hosts) if spread.hosts > 1 else ranks,
            over=spread.hosts,
            sms=getattr(o, f"moe_{backend}_num_sms"),
            kernel=backend,
        )

    @property
    def _load(self) -> float:
        """Tokens of the busiest rank over the mean."""
        return sum(self.spread.loads) / len(self.spread.loads)

    @property
    def _sent(self) -> float:
        """Bytes that a rank sends; DeepEP sends a token once to each host, on one host once to each rank."""
        copies = float(self.m.experts_per_token)
        if self._way == "flex":
            spread = self.spread
            copies = self._distinct(
                spread.hosts if spread.hosts > 1 else spread.group.size
            )
        ranks = self.spread.group.size
        rows = self.tokens * copies * self._load
        # Whole rows to each rank: messages are as well aligned as rows are.
        return ITEM * self.m.hidden * ranks * max(1, round(rows / ranks))

    @cached_property
    def _shards_exchange(self) -> TokenExchange | None:
        """With the ranks that hold the same experts together: each needs the tokens of all."""
        if self.spread.tensor is None:
            return None
        size = ITEM * self.received * self.shards * self.m.hidden
        forth, back = Way("all_gather"), Way("reduce_scatter")
        return TokenExchange(self.spread.tensor, forth, back, size)

    @property
    def _sorts(self) -> bool:
        """Whether rows arrive in another order than the experts'."""
        several = len(self.spread.loads) > 1 and self.spread.group.size > 1
        return several or self._way != "alltoall"

    def _sort(self, t: Tape, x: Tensor, rows: int) -> Tensor:
        """Rows between the order of arrival and that of the experts, ``rows`` afterwards."""
        received = self.received * self.shards
        moved = ITEM * (received + self.rows) * self.m.hidden
        kernels = 1 if self.s.options.moe_permute_fusion else UNFUSED_KERNELS
        return reorder(t, x, (rows, self.m.hidden), moved, kernels)

    def _permute(self, t: Tape, x: Tensor) -> Tensor:
        """A copy of each token for each of its experts, in their order."""
        shape = (self.copies, self.m.hidden)
        if not self.s.options.moe_permute_fusion:
            return select(t, x, shape)
        return reorder(t, x, shape, self._permuted_bytes, 1)

    def _unpermute(self, t: Tape, y: Tensor, shape: tuple[int, ...]) -> Tensor:
        """The copies of each token added up with the router's weights."""
        if not self.s.options.moe_permute_fusion:
            return scatter(t, y, shape)
        return reorder(t, y, shape, self._permuted_bytes, 1)

    @property
    def _permuted_bytes(self) -> float:
        """Of tokens and of their copies."""
        return ITEM * (self.tokens + self.copies) * self.m.hidden
