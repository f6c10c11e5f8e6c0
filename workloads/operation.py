"""An ATen operation as a program called it: its name, its operands and what it returned."""

from __future__ import annotations

from dataclasses import dataclass

#: Bytes of an element, by the names that operands use.
ELEMENT_BYTES: dict[str, int] = {
    "fp64": 8,
    "fp32": 4,
    "bf16": 2,
    "fp16": 2,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "complex128": 16,
    "complex64": 8,
    "complex32": 4,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint64": 8,
    "uint32": 4,
    "uint16": 2,
    "uint8": 1,
    "bool": 1,
}


def words(text: str) -> tuple[str, ...]:
    """Names from a text of them."""
    return tuple(text.split())


@dataclass(frozen=True)
class Operand:
    """A tensor that an operation reads or writes.

    Attributes
    ----------
    dtype
        "bf16", "fp32", "int64", ...: a key of `ELEMENT_BYTES`.
    shape
        Sizes, outermost first; () for a scalar tensor.
    strides
        Distances of neighbours in elements; () where the tensor is contiguous. Of a dimension of one element no program
        depends on it.
    device
        "cuda" or "cpu".
    """

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] = ()
    device: str = "cuda"

    def __post_init__(self) -> None:
        # A dimension of one element has the stride that it would have in front of the next one.
        if self.strides and 1 in self.shape:
            strides, step = list(self.strides), 1
            for at in reversed(range(len(strides))):
                strides[at] = step if self.shape[at] == 1 else strides[at]
                step = strides[at] * self.shape[at]
            object.__setattr__(self, "strides", tuple(strides))

    @property
    def elements(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def bytes(self) -> int:
        """Of the elements, each counted once."""
        return self.elements * ELEMENT_BYTES[self.dtype]


#: A tensor, a list of arguments, a number, a text (also a dtype's name) or nothing.
Argument = Operand | tuple["Argument", ...] | int | float | bool | str | None


@dataclass(frozen=True)
class Operation:
    """One call below autograd, as PyTorch's dispatcher sees it.

    Attributes
    ----------
    name
        With namespace and overload: "aten.mm.default".
    arguments
        Positional ones, in order.
    options
        Those given by name, in order of their names.
    results
        The tensors that it returned, in order.
    """

    name: str
    arguments: tuple[Argument, ...] = ()
    options: tuple[tuple[str, Argument], ...] = ()
    results: tuple[Operand, ...] = ()

    @property
    def operator(self) -> str:
        """As programs name it: "aten::mm"."""
        namespace, name, *_ = self.name.split(".")
        return f"{namespace}::{name}"

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Every tensor among the arguments, those of lists too."""
        return tuple(
            _operands((*self.arguments, *(value for _, value in self.options)))
        )


def _operands(arguments: tuple[Argument, ...]) -> list[Operand]:
    tensors: list[Operand] = []
    for argument in arguments:
        if isinstance(argument, Operand):
            tensors.append(argument)
        elif isinstance(argument, tuple):
            tensors.extend(_operands(argument))
    return tensors
