"""Decoder-only transformers as symbolic PyTorch modules: embedding, blocks, norm and head, further predictions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from prestep.sim.extras import lazily
from prestep.workloads.models.model import ModelSpec
from prestep.workloads.torch import aten
from prestep.workloads.torch import functional as F
from prestep.workloads.torch.block import Block, BlockParallel, Norm
from prestep.workloads.torch.modules import Module, without
from prestep.workloads.torch.tape import Tape, Tensor

with lazily():
    from prestep.workloads.torch import liger

if TYPE_CHECKING:
    from prestep.workloads.sharding.module_unit import ModuleUnit

#: Of Gemma 2's logits; any number takes the same time.
CAP = 30.0


class Further(Module):
    """Multi-token prediction: the ``index``-th block, behind the last one, predicts a later token (arXiv 2412.19437).

    Operators are those of DeepSeek-V3's module: the state and the next token's embedding, both normed, beside each
    other, projected to one state; a block; a norm before the head that all predictions share. What is outside the block
    is whole on every tensor-parallel rank, as the last norm and the head are.
    """

    def __init__(
        self, t: Tape, m: ModelSpec, index: int, parallel: BlockParallel
    ) -> None:
        super().__init__()
        norms = (self.child(Norm(t, m)) for _ in range(3))
        self.state_norm, self.word_norm, self.last_norm = norms
        self.projection = self.add(t, m.hidden, 2 * m.hidden, name="eh_proj")
        self.block = self.child(Block(t, m, index, parallel))

    def forward(
        self,
        t: Tape,
        state: Tensor,
        words: Tensor,
        run_block: Callable[[Block, Tensor], Tensor],
    ) -> Tensor:
        """The state behind the block, which the next prediction begins with; `last_norm` stands before the head."""
        t.cpu("module")
        state = self.state_norm.forward(t, state)
        words = self.word_norm.forward(t, words)
        both = aten.cat(t, [state, words])
        del state, words
        return run_block(self.block, F.linear(t, both, self.projection))


class Transformer(Module):
    """A stage of a transformer: optionally the embedding, some blocks, optionally norm, head and loss.

    Parameters
    ----------
    layers : range
        Indices of the blocks this stage holds.
    first, last : bool
        Whether it holds the embedding, and the final norm with the output head.
    """

    def __init__(
        self,
        t: Tape,
        m: ModelSpec,
        layers: range,
        first: bool,
        last: bool,
        parallel: BlockParallel | None = None,
    ) -> None:
        super().__init__()
        self.spec, self.first, self.last = m, first, last
        self.parallel = parallel or BlockParallel()
        self.token = self._tokens(t, m) if first else None
        self.position = self._positions(t, m) if first else None
        embedded = first and m.embedding_norm
        self.embedding_norm = self.child(Norm(t, m)) if embedded else None
        self.blocks = [self.child(Block(t, m, i, self.parallel)) for i in layers]
        self.norm = self.child(Norm(t, m)) if last else None
        self.head = self._head(t, m) if last else None
        self.further = [
            self.child(Further(t, m, m.layers + i, self.parallel))
            for i in range(m.mtp_layers if last else 0)
        ]
        #: FSDP's groups of the embedding, and of norm and head, where they have groups of their own.
        self.embedding_group: ModuleUnit | None = None
        self.head_group: ModuleUnit | None = None

    def _tokens(self, t: Tape, m: ModelSpec) -> Tensor:
        """The embedding of tokens; a tied one gets a gradient in every row, by the head."""
        # Adam finds no rows of zeros in a tied embedding.
        name = "tied embedding" if m.tied_embeddings else "embedding"
        return self.add(t, self._rows(m), m.hidden, name=name)

    def _rows(self, m: ModelSpec) -> int:
        """Rows of the vocabulary that this rank has."""
        return -(-m.vocab // self.parallel.vocabulary_shards)

    def _positions(self, t: Tape, m: ModelSpec) -> Tensor | None:
        """The embedding of positions, if they are learned."""
        if m.positions != "learned":
            return None
        return self.add(t, m.max_positions, m.hidden, name="position")

    def _head(self, t: Tape, m: ModelSpec) -> Tensor:
        """The output projection, which may be the tokens' embedding."""
        if m.tied_embeddings and self.token is not None:
            return self.token
        return self.project(t, self._rows(m), m.hidden, "head", m.head_bias)

    @property
    def all_blocks(self) -> list[Block]:
        """The blocks, and those of further predictions."""
        return self.blocks + [each.block for each in self.further]

    @property
    def is_tied(self) -> bool:
        """Whether the head's weight is the embedding's, here."""
        return self.head is not None and self.head is self.token

    @property
    def embedding_parameters(self) -> list[Tensor]:
        """Parameters before the blocks."""
        tables = [p for p in (self.token, self.position) if p is not None]
        norm = self.embedding_norm
        return tables + ([] if norm is None else norm.parameters)

    @property
    def root_parameters(self) -> list[Tensor]:
        """Parameters outside the blocks."""
        inside = [p for b in self.all_blocks for p in b.parameters]
        return without(self.parameters, inside)

    def outputs(
        self,
        t: Tape,
        x: Tensor | tuple[int, int],
        run_block: Callable[[Block, Tensor], Tensor],
    ) -> list[Tensor]:
        """The activation that is sent on, or the logits of the next token and of every further one.

        ``x`` is (batch, seq) of token ids on the first stage, else the activation received.
        """
        t.cpu("module")
        ids = x if isinstance(x, tuple) else None
        h = self._entered(t, x)
        del x
        for block in self.blocks:
            h = run_block(block, h)
        if self.norm is None or self.head is None:
            return [h]
        logits = [self._first_logits(t, h, self.norm, self.head)]
        for each in self.further:
            h = each.forward(t, h, self._words(t, ids, h), run_block)
            logits.append(self._logits(t, h, each.last_norm, self.head))
        return logits

    def _entered(self, t: Tape, x: Tensor | tuple[int, int]) -> Tensor:
        """What the first block takes; the embedding is gathered for it, where it is a group of its own."""
        group = self.embedding_group
        with t.within("embedding"):
            if group is None:
                return self._embedded(t, x)
            return group.forward_first(lambda: self._embedded(t, x))

    def _embedded(self, t: Tape, x: Tensor | tuple[int, int]) -> Tensor:
        """What the first block takes."""
        h = (
            self.parallel.looked_up(t, F.embedding(t, x, self.token))
            if self.token is not None and isinstance(x, tuple)
            else x
        )
        if self.position is not None and isinstance(x, tuple) and isinstance(h, Tensor):
            h = aten.add(t, h, F.embedding(t, (1, x[1]), self.position))
        if not isinstance(h, Tensor):
            raise TypeError(
                "a later pipeline stage needs the activation of the stage before it"
            )
        if self.embedding_norm is not None:
            h = self.embedding_norm.forward(t, h)
        split = (
            self.parallel.vocabulary_shards > 1
        )  # what is looked up is in parts then
        return self.parallel.enter(t, h) if self.first and not split else h

    def _words(self, t: Tape, ids: tuple[int, int] | None, like: Tensor) -> Tensor:
        """Embeddings of the tokens that come next, as the blocks hold them.

        A last stage of a pipeline that is not the first takes them as they are: its copy of the embedding is left out.
        """
        if self.token is None or ids is None:
            return t.empty(like.shape, like.itemsize)
        words = F.embedding(t, ids, self.token)
        if self.parallel.vocabulary_shards > 1:
            return self.parallel.looked_up(t, words)
        return self.parallel.enter(t, words)

    def _first_logits(self, t: Tape, h: Tensor, norm: Norm, head: Tensor) -> Tensor:
        """The next token's logits; norm and head are gathered for them, where they are a group of their own."""
        logits = partial(self._logits, t, norm=norm, head=head)
        group = self.head_group
        return logits(h) if group is None else group.forward(h, logits)

    def _logits(self, t: Tape, h: Tensor, norm: Norm, head: Tensor) -> Tensor:
        with t.within("head"):
            bias = self.biases.get(head)
            # Liger patches no model whose head has a bias.
            if t.by_liger("fused_linear_cross_entropy") and bias is None:
                h = norm.forward(t, self.parallel.leave(t, h))
                return liger.linear_cross_entropy(t, h, head)
            logits = self.parallel.logits(t, h, norm, head, bias)
            return capped(t, logits) if self.spec.capped_logits else logits


def capped(t: Tape, x: Tensor) -> Tensor:
    """``tanh(x / cap) * cap`` (Gemma2ForCausalLM)."""
    inner = aten.activation(t, "tanh", aten.mul_number(t, x, CAP, "div.Tensor"))
    return aten.mul_number(t, inner, CAP)
