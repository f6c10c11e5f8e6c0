"""What of a forward pass runs again in backward."""

from __future__ import annotations

from dataclasses import dataclass

from prestep.sim.graph.kernel import Kernel


@dataclass(frozen=True)
class Again:
    """What of a unit's forward pass runs again in backward.

    ``full``: all of it, from its input; ``products``: every other product and what is no product, where attention's and
    the others' results are kept (torchtitan's selective checkpointing by operator). ``early``: not what comes after the
    last product's input, which nothing in backward needs. ``attention``: with ``products`` it runs again too.
    """

    full: bool = False
    products: bool = False
    early: bool = False
    attention: bool = False

    def __bool__(self) -> bool:
        return self.full or self.products

    @property
    def shortened(self) -> bool:
        """Only a part of the forward pass runs again."""
        return self.products or (self.full and self.early)

    @property
    def from_input(self) -> bool:
        """Backward begins with all of the forward pass."""
        return self.full and not self.shortened

    def dropped(self) -> Dropped:
        """Which kernels of the forward pass are not repeated."""
        return Dropped(self.products, again_attention=self.attention)

    def drops_collective(self, op: str, size: float) -> bool:
        """Whether a collective is not repeated: a reduce-scatter's result is kept, a sum's is not."""
        return self.products and op == "reduce_scatter"


@dataclass
class Dropped:
    """Which kernels of a forward pass that runs again are left out, asked in their order.

    ``every_other``: products one, three, five ... and attention, whose results are kept. Products in NVFP4 are none
    that count: they are aten._scaled_mm_v2, which torchtitan's list of what is saved lacks (fp8 and MXFP8 tensors
    are multiplied by aten.mm). ``again_attention``: attention is not left out.
    """

    every_other: bool
    seen: int = 0
    again_attention: bool = False

    def __call__(self, kernel: Kernel) -> bool:
        if not self.every_other:
            return False
        product = kernel.is_product and kernel.dtype not in UNLISTED
        self.seen += product
        if "attention" in kernel.kind:
            return not self.again_attention
        return product and self.seen % 2 == 1


UNLISTED = ("nvfp4",)


@dataclass
class Kept(Dropped):
    """Counts what a forward pass keeps instead of computing it again, and leaves nothing out.

    Attributes
    ----------
    itemsize : int
        Bytes of an element of the results.
    size : float
        Bytes so far.
    """

    itemsize: int = 2
    size: float = 0.0

    def __call__(self, kernel: Kernel) -> bool:
        """Counts the result of a kernel that is not repeated."""
        if super().__call__(kernel):
            self.size += _result(kernel, self.itemsize)
        return False

    def collective(self, op: str, size: float) -> bool:
        """Counts the result of a reduce-scatter."""
        self.size += size if self.every_other and op == "reduce_scatter" else 0.0
        return False


def _result(kernel: Kernel, itemsize: int) -> float:
    """Bytes of a product, or of attention's output and its number for each row."""
    if kernel.is_product:
        rows, columns, _ = kernel.shape
        return float(itemsize * rows * columns)
    batch, heads, _, tokens, *_, width = kernel.shape
    return float(batch * heads * tokens * (itemsize * width + 4))


NEVER = Again()
