"""Low-rank adapters beside frozen layers of a compiled graph (PEFT's LoRA under ``torch.compile``).

PEFT's forward (peft/tuners/lora/layer.py, `Linear.forward`: ``result + lora_B(lora_A(dropout(x))) * scaling``) is two
thin products beside the layer's own. What is elementwise is no kernel where Inductor makes or reads a value anyway:
the kernel behind a layer reads the adapter's output beside the layer's, and the one that makes a gradient writes it
scaled as well. Where libraries' kernels (attention, products) are on both sides, Inductor has one of its own.
Conversions to fp32 and back (`autocast_adapter_dtype`) cancel out, but for those of an adapter's own matrices and their
gradients.

What backward finds was read off AOTAutograd's graphs of such a block (PyTorch 2.14): what products of backward take,
sums of a layer's and its adapter's output rather than both, and of dropout the mask and the result.
"""

from __future__ import annotations

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.torch.adapter import FP32, MASK, LowRank
from prestep.workloads.torch.aten_products import multiply_sizes
from prestep.workloads.torch.block import Block
from prestep.workloads.torch.block_units import adapters_of
from prestep.workloads.torch.compiled_products import Products
from prestep.workloads.torch.tape import Tape, Tensor


class Adapted(Products):
    """The linear layers of a compiled graph, and what stands beside them.

    Attributes
    ----------
    adapters : dict
        Those of the block, by the weight that they are beside.
    adapter_gradients : dict
        Gradients of their matrices, by matrix.
    """

    def __init__(self, t: Tape, block: Block) -> None:
        super().__init__(t, block)
        self.adapters: dict[Tensor, LowRank] = adapters_of(t, block)
        self.adapter_gradients: dict[Tensor, Tensor] = {}
        self._between: dict[Tensor, list[Tensor]] = {}  # what backward finds

    # -- passes of Inductor's kernels around the layers -----------------------------------------
    def _read(self, *weights: Tensor | None) -> float:
        """Further passes of a kernel that reads layers' outputs: their adapters', of which it may write a mask."""
        beside = [w for w in weights if w in self.adapters]
        masks = sum(self._drops(w, "post") for w in beside)
        return len(beside) + masks * MASK / self.t.itemsize

    def _scaled(self, *weights: Tensor | None) -> int:
        """Further passes of a kernel that makes outputs' gradients: it writes each times alpha over rank as well."""
        return sum(self._scales(w) for w in weights)

    def _scales(self, w: Tensor | None) -> bool:
        adapter = None if w is None else self.adapters.get(w)
        return adapter is not None and adapter.choices.scaled == "output"

    def _dropped(self, *weights: Tensor | None) -> float:
        """Further passes of a kernel that makes layers' inputs: what is left of each, and its mask."""
        count = sum(self._drops(w, "pre") for w in weights)
        return count * (1 + MASK / self.t.itemsize)

    def _masked(self, *weights: Tensor | None) -> float:
        """Further passes of a kernel that reads adapters' parts of inputs' gradients: masks of dropout."""
        count = sum(self._drops(w, "pre") for w in weights)
        return count * MASK / self.t.itemsize

    def _drops(self, w: Tensor | None, position: str) -> bool:
        adapter = None if w is None else self.adapters.get(w)
        if adapter is None or not adapter.choices.dropout:
            return False
        return adapter.choices.dropout_position == position

    def _needs(self, w: Tensor) -> bool:
        """Whether a product of backward takes the layer's input: not what dropout left of it."""
        if w in self.adapters:
            return not self._drops(w, "pre")
        return w.requires_grad

    def _add_up(self, w: Tensor) -> None:
        """A layer's output with its adapter's, where no kernel of Inductor reads it."""
        if w in self.adapters:
            self._fused("fused_add", w.shape[0], 2 + self._read(w))

    # -- products -------------------------------------------------------------------------------
    def _linear(self, w: Tensor, name: str) -> Tensor:
        """The layer's output; its adapter's lies beside it until a kernel adds them up."""
        y = super()._linear(w, name)
        adapter = self.adapters.get(w)
        if adapter is not None:
            self._between[w] = self._in_and_out(w, adapter)
        return y

    def _in_and_out(self, w: Tensor, adapter: LowRank) -> list[Tensor]:
        """An adapter's products; what backward finds of them."""
        (n, k), rank = w.shape, adapter.choices.rank
        kept = self._converted(adapter)
        if self._drops(w, "pre"):
            kept += [self._new(k), self._new(k, int(MASK))]
        multiply_sizes(self.t, self.tokens, rank, k, "nt")
        if adapter.choices.scaled == "inner":
            self._fused("fused_mul", rank, 2)
        kept.append(self._new(rank))
        multiply_sizes(self.t, self.tokens, n, rank, "nt")
        if self._drops(w, "post"):
            kept.append(self._new(n, int(MASK)))
        return kept

    def _converted(self, adapter: LowRank) -> list[Tensor]:
        """Matrices in fp32 as autocast's products take them: copies that backward takes too."""
        if not adapter.choices.fp32:
            return []
        return [self._cast_of(each, self.t.itemsize) for each in adapter.matrices]

    def _cast_of(self, x: Tensor, itemsize: int) -> Tensor:
        """A matrix of an adapter, or its gradient, in the other of both types."""
        moved = float((self.t.itemsize + FP32) * x.elements)
        self.t.launch(Kernel("fused_cast", (x.elements,), bytes=moved))
        return self.t.empty(x.shape, itemsize)

    def _adapter_grads(self, w: Tensor, made: bool, wanted: bool) -> list[Tensor]:
        """Gradients of the matrices beside a weight and, if it is `wanted`, the adapter's part of the input's.

        `made`: a kernel of Inductor made the output's gradient, which else needs one that scales it or drops of it.
        """
        adapter = self.adapters.get(w)
        if adapter is None:
            return []
        t, (n, k), rank = self.t, w.shape, adapter.choices.rank
        if not made and (self._scales(w) or self._drops(w, "post")):
            self._fused("fused_mul", n, 2)
        multiply_sizes(t, n, rank, self.tokens, "tn")
        multiply_sizes(t, self.tokens, rank, n, "nn")
        if adapter.choices.scaled == "inner":
            self._fused("fused_mul", rank, 2)
        multiply_sizes(t, rank, k, self.tokens, "tn")
        for each in adapter.matrices:
            grad = t.empty(each.shape, t.itemsize)
            wide = adapter.choices.fp32
            self.adapter_gradients[each] = self._cast_of(grad, FP32) if wide else grad
        del self._between[w]
        if not wanted:
            return []
        multiply_sizes(t, self.tokens, k, rank, "nn")
        return [self._new(k)]
