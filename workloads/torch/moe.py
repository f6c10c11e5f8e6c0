"""Mixture of experts with balanced routing, and experts spread over an expert-parallel group.

Tokens are routed to experts in a fixed, balanced pattern (capacity factor 1), so every expert gets the
same number of rows and the all-to-all is even. Routing is by sort: assignments are argsorted by expert,
rows picked in that order, sent to their experts, and added back with the gate's weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from prestep.workloads.exchanges.context import moved
from prestep.workloads.models.model import ModelSpec
from prestep.workloads.operators.copies import fill
from prestep.workloads.parallel.group import Group
from prestep.workloads.torch import aten
from prestep.workloads.torch import functional as F
from prestep.workloads.torch import indexing as I
from prestep.workloads.torch.clamped_experts import ClampedExperts
from prestep.workloads.torch.grouped_experts import GroupedFeedForward
from prestep.workloads.torch.joined_experts import JoinedExperts
from prestep.workloads.torch.modules import FeedForward, Linear, Module, scaled_by_token
from prestep.workloads.torch.tape import Tape, Tensor

if TYPE_CHECKING:
    from prestep.workloads.sharding.module_unit import ModuleUnit

#: Runs the experts that see every token.
Beside = Callable[[], Tensor | None]
STREAM, REMAINDER = "nccl ep", "remainder.Scalar"


class MixtureOfExperts(Module):
    """A gate and the experts of one rank.

    Parameters
    ----------
    group : Group, optional
        The expert-parallel group; each of its ranks holds ``experts / group.size`` experts.
    parts : int
        Ranks over which each expert is split (tensor parallelism): this one computes a part of the sum.

    Attributes
    ----------
    expert_parameters : list of Tensor
        Parameters that belong to this rank's experts: data parallelism does not average them over the group.
    sharded : ModuleUnit, optional
        Gathers them, where they are a group of FSDP's own.
    """

    label = "experts"

    def __init__(
        self, t: Tape, m: ModelSpec, group: Group | None = None, parts: int = 1
    ) -> None:
        super().__init__()
        self.sharded: ModuleUnit | None = None
        self.experts, self.chosen, self.group = m.experts, m.experts_per_token, group
        self.shards = group.size if group is not None else 1
        if m.experts % self.shards:
            raise ValueError(
                f"{m.experts} experts do not divide over {self.shards} ranks"
            )
        # A bias of the gate's own product (gpt-oss), or one that corrects the choice alone and is not trained
        # (DeepSeek-V3, e_score_correction_bias).
        trained = m.router_bias and m.bias
        self.corrected = m.router_bias and not m.bias
        self.gate = self.project(t, m.experts, m.hidden, "gate", trained)
        # Where experts see narrower tokens, two projections that are no expert's (Nemotron 3 Super).
        narrow = m.moe_latent
        self.down = self.add_if(t, narrow > 0, narrow, m.hidden, name="latent_down")
        self.up = self.add_if(t, narrow > 0, m.hidden, narrow, name="latent_up")
        self.count = m.experts // self.shards
        self.grouped: GroupedFeedForward | JoinedExperts | None = None
        self.local: list[FeedForward] = []  # experts that run one after the other
        self.expert_parameters = self._routed(t, m, parts)
        self.shared = self._shared(t, m, parts) if m.shared_experts else None
        self.shared_gate = self.add_if(
            t, m.shared_gate, 1, m.hidden, name="shared_gate"
        )

    def _routed(self, t: Tape, m: ModelSpec, parts: int) -> list[Tensor]:
        """Builds the experts that tokens are routed to, together or apart; their parameters."""
        m, before = replace(m, hidden=m.routed_hidden), len(self.parameters)
        if t.choices is not None and t.choices.experts == "grouped":
            joined = ClampedExperts if m.clamped and m.bias else JoinedExperts
            style = joined if t.written_out else GroupedFeedForward
            self.grouped = style(t, m, self.count, parts)
            at = len(self.parameters) if t.written_out else 0
            self.parameters[at:at] = self.grouped.parameters
            return self.grouped.parameters
        one = replace(m, ffn=m.moe_ffn)
        self.local = [
            self.child(FeedForward(t, one, parts, m.clamped)) for _ in range(self.count)
        ]
        return self.parameters[before:]

    def _shared(self, t: Tape, m: ModelSpec, parts: int) -> FeedForward:
        """Experts that see every token: one feed-forward network as wide as all of them, without biases."""
        width = m.moe_ffn * m.shared_experts
        shared = FeedForward(t, replace(m, ffn=width, bias=False), parts)
        shared.beside = True
        return self.child(shared)

    def forward(
        self, t: Tape, x: Tensor, column: Linear = F.linear, row: Linear = F.linear
    ) -> Tensor:
        shape = x.shape
        t.cpu("module")
        flat = aten.reshape(t, x, x.elements // shape[-1], shape[-1])
        del x
        beside = partial(self._beside, t, flat, shape)
        mixed = partial(self._one_by_one, column, row)
        if self.grouped is not None:
            mixed = partial(self.grouped.mixed, self, beside)
        score = partial(F.linear, w=self.gate, bias=self.biases.get(self.gate))
        y, other = mixed(t, score(t, flat), _projected(t, flat, self.down))
        y = _projected(t, y, self.up)
        other = other or beside()
        y = y if other is None else aten.add(t, y, other)
        return aten.reshape(t, y, *shape)

    def _one_by_one(
        self, column: Linear, row: Linear, t: Tape, logits: Tensor, x: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Weighted results of experts that run one after the other, each on as many tokens."""
        scores = I.softmax(t, logits)
        del logits
        if self.corrected:
            F.elementwise(t, "aten add", scores.elements, 2 * scores.size)
        tokens = I.integer(t, "arange.default", x.shape[0])
        order = I.argsort(t, _flat(self._assigned(t, tokens)))
        out = self.gathered(
            x, lambda x: self._run_experts(t, self._dispatch(t, x, order), column, row)
        )
        zeros = _zeros_like(t, x)  # onto which the experts' results are added
        del x
        weights = self._weights(t, scores, tokens, order)
        where = self._tokens_of(t, order)
        weighted = aten.mul(t, out, aten.reshape(t, weights, *weights.shape, 1))
        return I.index_add(t, zeros, weighted, where), None

    def gathered(self, x: Tensor, run: Callable[[Tensor], Tensor]) -> Tensor:
        """What the routed experts make of a value; their parameters are gathered for it where they are sharded."""
        return run(x) if self.sharded is None else self.sharded.forward(x, run)

    def _beside(self, t: Tape, x: Tensor, shape: tuple[int, ...]) -> Tensor | None:
        return (
            None if self.shared is None else self._seen_by_all(t, self.shared, x, shape)
        )

    def _seen_by_all(
        self, t: Tape, shared: FeedForward, x: Tensor, shape: tuple[int, ...]
    ) -> Tensor:
        """What shared experts make of every token; ``shape``: samples, tokens and width of ``x``."""
        y, w = shared.forward(t, x), self.shared_gate
        return y if w is None else scaled_by_token(t, y, F.linear(t, x, w))

    def _weights(
        self, t: Tape, probabilities: Tensor, tokens: Tensor, order: Tensor
    ) -> Tensor:
        """The gate's weight of every row, in the order of the rows."""
        chosen = I.gather(t, probabilities, self._assigned(t, tokens))
        return I.index(t, aten.reshape(t, chosen, chosen.elements), order)

    def _tokens_of(self, t: Tape, order: Tensor) -> Tensor:
        """The token that each row is of."""
        return I.integer(t, "floor_divide.default", order, self.chosen)

    def _dispatch(self, t: Tape, flat: Tensor, order: Tensor) -> Tensor:
        """The rows of this rank's experts, (expert, row, hidden), from all ranks of the group."""
        rows = self.exchange(
            t, I.index(t, flat, self._tokens_of(t, order), self.chosen)
        )
        shape = (self.count, rows.shape[0] // self.count, flat.shape[-1])
        return _transposed(t, rows, self.shards, self.count, shape)

    def _run_experts(
        self, t: Tape, rows: Tensor, column: Linear, row: Linear
    ) -> Tensor:
        """What the experts make of their rows, sent back to the ranks that the rows are from."""
        each = enumerate(self.local)
        parts = [e.forward(t, I.select(t, rows, i), column, row) for i, e in each]
        out = I.stack(t, parts)
        del parts
        experts, count, hidden = out.shape
        shape = (experts * count, hidden)
        return self.exchange(t, _transposed(t, out, experts, self.shards, shape))

    def _assigned(self, t: Tape, tokens: Tensor) -> Tensor:
        """Expert numbers of every token: ``(token + offset) % experts`` for each choice, beside each other."""
        step = self.experts // self.chosen
        parts = [I.integer(t, REMAINDER, tokens, self.experts)]
        for choice in range(1, self.chosen):
            shifted = I.integer(t, "add.Tensor", tokens, choice * step)
            parts.append(I.integer(t, REMAINDER, shifted, self.experts))
            del shifted
        return I.stack(t, parts, 1)

    def told(self, t: Tape, counts: Tensor) -> Tensor:
        """Rows of each rank for each of its experts, which ranks tell each other, and which the host waits for."""
        group = self.group
        if group is None or group.size == 1:
            return counts
        size = float(I.INDEX * self.experts)
        group.collective(t, "all_to_all", size, STREAM, "all_to_all")
        t.wait(t.record(STREAM))
        I.sums(t, counts.view(group.size, self.count), 1)
        t.synchronize(t.stream)
        return counts

    def exchange(self, t: Tape, x: Tensor) -> Tensor:
        """All-to-all of the routed rows, forward and backward; nothing without a group."""
        group = self.group
        if group is None or group.size == 1:
            return x

        size = x.size

        def send() -> None:
            group.collective(t, "all_to_all", size, STREAM, "all_to_all")
            t.wait(t.record(STREAM))

        def send_back() -> None:
            t.cpu("custom_function_backward")
            send()

        t.cpu("custom_function")
        return moved(t, x, x.shape, send, send_back)


def _projected(t: Tape, x: Tensor, w: Tensor | None) -> Tensor:
    """A value by a projection that not every model has."""
    return x if w is None else F.linear(t, x, w)


def _zeros_like(t: Tape, x: Tensor) -> Tensor:
    zeros, name = t.empty(x.shape, x.itemsize), "zeros_like.default"
    return aten.call(t, fill, name, (x,), zeros)


def _flat(x: Tensor) -> Tensor:
    return x.view(x.elements)


def _transposed(t: Tape, x: Tensor, a: int, b: int, shape: tuple[int, ...]) -> Tensor:
    """``x.view(a, b, ...).transpose(0, 1).reshape(shape)``."""
    rows, hidden = x.elements // x.shape[-1], x.shape[-1]
    parts = aten.reshape(t, x, a, b, rows // (a * b), hidden)
    return aten.reshape(t, aten.transpose(t, parts, 0, 1), *shape)
