"""Products of compiled linear layers, in 16 bits or in a quantized format with the casts of their operands."""

from __future__ import annotations

import math

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.torch import functional as F
from prestep.workloads.torch.aten_products import multiply_sizes
from prestep.workloads.torch.block import Block
from prestep.workloads.torch.block_units import biases_of
from prestep.workloads.torch.casts import Casts, Passes, casts_of, kernels
from prestep.workloads.torch.tape import Tape, Tensor


class Products:
    """The linear layers of a compiled graph.

    Operands that several layers share are cast once for the forward and once for the backward pass: AOTAutograd
    finds them equal.
    """

    def __init__(self, t: Tape, block: Block) -> None:
        self.t, self.block = t, block
        self.biases = biases_of(block)
        self.bias_gradients: dict[Tensor, Tensor] = {}
        self.casts: Casts | None = casts_of(t.products_of(block.index), t.choices)
        self.rows: tuple[int, ...] = ()
        self.part_rows: tuple[int, ...] = ()
        self.whole_rows: tuple[int, ...] = ()
        self._cast_already: set[str] = set()

    def _new(self, width: int, itemsize: int = 2) -> Tensor:
        return self.t.empty((*self.rows, width), itemsize)

    @property
    def tokens(self) -> int:
        """Rows of the layers' inputs."""
        return self.whole_rows[0] * self.whole_rows[1]

    def _fused(self, kind: str, width: int, passes: float) -> None:
        """A kernel of Inductor over the current rows."""
        elements = self.rows[0] * self.rows[1] * width
        self.t.launch(Kernel(kind, (elements,), bytes=passes * 2 * elements))

    # -- products -------------------------------------------------------------------------------
    def _linear(self, w: Tensor, name: str) -> Tensor:
        """The layer's output of the input that has a name."""
        n, k = w.shape
        if self.casts is not None and self._casts_here(self.casts):
            if name not in self._cast_already:
                self._cast(self.casts.activations, self.tokens * k)
                self._cast_already.add(name)
            self._cast(self.casts.weights, n * k, fused=False)
        self._launch(self.tokens, n, k, "nt", w in self.biases)
        return self._new(n)

    def _casts_here(self, casts: Casts) -> bool:
        """Not where the product is left out of what runs again, and backward casts from 16 bits."""
        return self.t.drop is None or casts.again or not self.t.drop.drops_next

    def _data_grad(self, w: Tensor, made: bool = True) -> Tensor:
        """The gradient of the input; ``made``: a kernel of Inductor made that of the output."""
        n, k = w.shape
        if self.casts is not None:
            self._cast(self.casts.gradients, self.tokens * n, fused=made)
            self._cast(self.casts.weights_late, n * k, fused=False)
        self._launch(self.tokens, k, n, "nn")
        return self._new(k)

    def _weight_grad(
        self, w: Tensor, name: str, *needed: Tensor | None
    ) -> Tensor | None:
        """The gradient of ``w`` from the input that has a name; tensors ``needed`` stay alive until it is launched.

        None: the weight is frozen.
        """
        if not w.requires_grad:
            return None
        n, k = w.shape
        grad = self.t.empty(w.shape, w.itemsize)
        if self.casts is not None:
            self._cast(self.casts.gradients_late, self.tokens * n, fused=False)
            late = f"{name} late"
            if late not in self._cast_already:
                self._cast(self.casts.activations_late, self.tokens * k, fused=False)
                self._cast_already.add(late)
        self._launch(n, k, self.tokens, "tn")
        bias = self.biases.get(w)
        if bias is not None:
            self._bias_grad(bias)
        return grad

    def _bias_grad(self, bias: Tensor) -> None:
        """The gradient of a bias: the output's, summed over tokens in a kernel of its own."""
        elements = self.tokens * bias.elements
        self.t.launch(Kernel("fused_reduction", (elements,), bytes=2.0 * elements))
        self.bias_gradients[bias] = self.t.empty(bias.shape, bias.itemsize)

    def _launch(
        self, m: int, n: int, k: int, layout: str, biased: bool = False
    ) -> None:
        """A product, which adds a bias if it is biased; quantized operands were put in rows."""
        if self.casts is not None:
            F.launch_quantized(self.t, m, n, k, self.casts.products)
        else:
            multiply_sizes(self.t, m, n, k, layout, biased)

    def _cast(self, passes: Passes, elements: int, fused: bool = True) -> None:
        for kernel in kernels(passes, elements, fused, self.t.drop is not None):
            self.t.launch(kernel)

    # -- memory ---------------------------------------------------------------------------------
    def _kept(self, x: Tensor) -> Tensor:
        """What backward finds of a layer's input."""
        if self.casts is None or self.casts.kept is None:
            return x
        return self.t.empty((math.ceil(x.elements * self.casts.kept),), 1)

    def _kept_weight(self, w: Tensor) -> Tensor | None:
        """What backward finds of a weight beside the parameter."""
        if self.casts is None or self.casts.kept is None:
            return None
        return self.t.empty((math.ceil(w.elements * self.casts.kept),), 1)
