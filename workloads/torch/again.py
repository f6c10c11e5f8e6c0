"""What of a forward pass runs again in backward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sim.graph.kernel import Kernel


@dataclass(frozen=True)
class Again:
    """What of a unit's forward pass runs again in backward.

    ``full``: all of it, from its input; ``products``: every other product and what is no product, where attention's and
    the others' results are kept (torchtitan's selective checkpointing by operator). ``early``: not what comes after the
    last product's input, which nothing in backward needs.
    """

    full: bool = False
    products: bool = False
    early: bool = False

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

    def dropped(self) -> Callable[[Kernel], bool]:
        """Which kernels of the forward pass are not repeated, asked in their order."""
        seen = 0

        def drop(kernel: Kernel) -> bool:
            nonlocal seen
            product = kernel.kind.startswith("gemm")
            seen += product
            return "attention" in kernel.kind or (product and seen % 2 == 1)

        return drop if self.products else lambda kernel: False


NEVER = Again()
