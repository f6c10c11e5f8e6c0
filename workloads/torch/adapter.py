"""Low-rank adapters beside frozen weights in plain PyTorch, as Hugging Face's PEFT composes them.

Source: peft/tuners/lora/layer.py, `Linear.forward`: ``result + lora_B(lora_A(dropout(x))) * scaling``, each operator a
kernel of its own. In fp32 (`autocast_adapter_dtype`) an adapter's input is converted to its type
(`_cast_input_dtype`), and back by autocast before the product.

Beside tensor parallelism (peft/tuners/lora/tp.py, and the styles of transformers' distributed/tensor_parallel.py) a
column's A is whole on every rank and its B has the rank's outputs; a row's A has the rank's inputs and its B is whole.
What travels is the thin value between them: a column's gradient of it is summed over ranks, a row's value is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.job.adapter import Adapter
from prestep.workloads.torch import aten
from prestep.workloads.torch.functional import (
    Step,
    launch_elementwise,
    product,
)
from prestep.workloads.torch.tape import Tape, Tensor

MASK = (
    1.0  # bytes that dropout keeps of an element (native_dropout's mask is of booleans)
)
FP32 = 4  # bytes of an element

Way = Literal["whole", "column", "row"]


@dataclass(frozen=True)
class Exchanges:
    """How tensor-parallel ranks share an adapter.

    Attributes
    ----------
    way
        Which of its matrices is split: none, a column's B, a row's A.
    between
        What the thin value passes on its way from A to B; None: nothing.
    into, out
        Sums over ranks the gradient of A, or of B, of which each rank has a part; None: each has it whole.
    """

    way: Way = "whole"
    between: Step | None = None
    into: Step | None = None
    out: Step | None = None


@dataclass(frozen=True)
class LowRank:
    """The adapter of a projection: a product into its rank, and one out of it."""

    into: Tensor
    out: Tensor
    choices: Adapter
    exchanges: Exchanges = Exchanges()

    @property
    def matrices(self) -> tuple[Tensor, Tensor]:
        """What is trained."""
        return self.into, self.out

    def added(self, t: Tape, x: Tensor, y: Tensor) -> Tensor:
        """The projection's output with the adapter's for the same input."""
        t.cpu("module", 2)
        if self.choices.fp32:
            x = there_and_back(t, x)
        over = self.exchanges
        thin = product(t, self._dropped(t, x, "pre"), self.into, summed=over.into)
        if over.between is not None:
            thin = over.between(t, thin)
        if self.choices.scaled == "inner":
            thin = aten.mul_number(t, thin, 2.0)
        wide = product(t, thin, self.out, summed=over.out)
        if self.choices.scaled == "output":
            wide = aten.mul_number(t, wide, 2.0)
        return aten.add(t, y, self._dropped(t, wide, "post"))

    def _dropped(self, t: Tape, x: Tensor, position: str) -> Tensor:
        """Dropout in this place, if it is here; without any PEFT has no module that does something."""
        if not self.choices.dropout or self.choices.dropout_position != position:
            return x
        return dropped(t, x)


def there_and_back(t: Tape, x: Tensor) -> Tensor:
    """An input in fp32, and in 16 bits again: two conversions each way, and a copy that the product keeps."""
    n, shape, itemsize = x.elements, x.shape, x.itemsize
    _convert(t, n, "elementwise")
    wide = t.empty(shape, FP32)
    y = t.empty(shape, itemsize)
    del wide

    def backward(g: Tensor) -> list[Tensor | None]:
        del g
        _convert(t, n, "elementwise_backward")
        return [t.empty(shape, itemsize)]

    return t.apply(y, [x], backward)


def _convert(t: Tape, elements: int, operation: str) -> None:
    for types in ("bf16>fp32", "fp32>bf16"):
        t.cpu(operation)
        moved = float((2 + FP32) * elements)
        t.launch(Kernel("aten copy", (elements,), types, bytes=moved))


def dropped(t: Tape, x: Tensor) -> Tensor:
    """Dropout in one kernel, which writes a mask beside its output; backward reads it."""
    shape, itemsize = x.shape, x.itemsize
    moved = 2 * x.size + MASK * x.elements
    t.cpu("elementwise")
    launch_elementwise(t, "fused", x.elements, moved)
    mask = t.empty(shape, 1)

    def backward(g: Tensor) -> list[Tensor | None]:
        t.cpu("elementwise_backward")
        launch_elementwise(t, "fused", mask.elements, moved)
        return [t.empty(shape, itemsize)]

    return t.apply(t.empty(shape, itemsize), [x], backward)
