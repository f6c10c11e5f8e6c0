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

from prestep.workloads.job.adapter import Adapter
from prestep.workloads.operators.pointwise import elementwise
from prestep.workloads.torch import aten
from prestep.workloads.torch.functional import Step, product
from prestep.workloads.torch.tape import Tape, Tensor

MASK = (
    1  # bytes that dropout keeps of an element (native_dropout's mask is of booleans)
)
FP32 = 4  # bytes of an element


@dataclass(frozen=True)
class Exchanges:
    """How tensor-parallel ranks share an adapter.

    Attributes
    ----------
    between
        What the thin value passes on its way from A to B; None: nothing.
    into, out
        Sums over ranks the gradient of A, or of B, of which each rank has a part; None: each has it whole.
    """

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
        into, out = self.matrices
        if self.choices.fp32 and t.traces:
            into, out = _autocast(t, into), _autocast(t, out)
        thin = product(t, self._dropped(t, x, "pre"), into, summed=over.into)
        if over.between is not None:
            thin = over.between(t, thin)
        if self.choices.scaled == "inner":
            thin = aten.mul_number(t, thin, 2.0)
        wide = product(t, thin, out, summed=over.out)
        if self.choices.scaled == "output":
            wide = aten.mul_number(t, wide, 2.0)
        return aten.add(t, y, self._dropped(t, wide, "post"))

    def _dropped(self, t: Tape, x: Tensor, position: str) -> Tensor:
        """Dropout in this place, if it is here; without any PEFT has no module that does something."""
        if not self.choices.dropout or self.choices.dropout_position != position:
            return x
        return dropped(t, x)


def _autocast(t: Tape, p: Tensor) -> Tensor:
    """A matrix of 32 bits as autocast's products take it; operators do that beside the product."""
    wide = Tensor(p.storage, p.shape, FP32)
    y = aten.over(t, "_to_copy.default", wide, itemsize=t.itemsize)

    def backward(g: Tensor) -> list[Tensor | None]:
        return [aten.over(t, "_to_copy.default", g, itemsize=FP32)]

    return t.apply(y, [p], backward)


def there_and_back(t: Tape, x: Tensor) -> Tensor:
    """An input in fp32, and in 16 bits again: two conversions each way, which a compiler takes out, and a copy."""
    return x if t.traces else aten.to(t, aten.to(t, x, FP32), x.itemsize)


def dropped(t: Tape, x: Tensor) -> Tensor:
    """Dropout in one kernel, which writes a mask beside its output; backward reads it."""
    mask, y = t.empty(x.shape, MASK), t.empty(x.shape, x.itemsize)
    name, kept = "native_dropout.default", 0.5
    aten.call(t, elementwise, name, (x, kept, True), y, mask)

    def backward(g: Tensor) -> list[Tensor | None]:
        name = "native_dropout_backward.default"
        return [aten.over(t, name, g, mask, 1.0 / kept)]

    return t.apply(y, [x], backward)
