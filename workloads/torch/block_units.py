"""Units of a transformer block that a compiler does not cut, with the values they use and make."""

from __future__ import annotations

from collections.abc import Sequence

from prestep.workloads.torch.adapter import LowRank
from prestep.workloads.torch.block import Block
from prestep.workloads.torch.modules import Module
from prestep.workloads.torch.tape import Tape, Tensor

# Units that are never cut, in forward order, with the values they use and make.
NORM, ATTENTION, OUTPUT, GATE, UP, DOWN = range(6)
NAMES = ("norm", "attention", "output", "gate", "up", "down")
USES = (("x",), ("n1",), ("merged", "x"), ("n2",), ("act", "n2"), ("prod", "x2"))
MAKES = (("n1",), ("merged",), ("n2", "x2"), ("act",), ("prod",), ("y",))


def uses(unit: int, gated: bool) -> tuple[str, ...]:
    """The values that a unit uses."""
    return ("act", "x2") if unit == DOWN and not gated else USES[unit]


def unit_parameters(block: Block, unit: int) -> list[Tensor]:
    """The parameters of a unit."""
    if unit == NORM:
        return block.norm1.parameters
    if unit == OUTPUT:
        a = block.attention
        return [a.wo, *block.inner_norm]
    if unit == ATTENTION:
        return block.attention.inward
    f = block.ffn
    return [{GATE: f.w1, UP: f.w3, DOWN: f.w2}[unit]]  # type: ignore[attr-defined]


def biases_of(block: Block) -> dict[Tensor, Tensor]:
    """The biases of a block's projections by their weights; those of experts are no unit's."""
    parts = [part for part in block.parts if isinstance(part, Module)]
    return {w: b for part in parts for w, b in part.biases.items()}


def unit_biases(block: Block, unit: int) -> list[Tensor]:
    """The biases that a unit's products add."""
    biases = biases_of(block)
    return [biases[w] for w in unit_parameters(block, unit) if w in biases]


def parameters_of(block: Block, units: Sequence[int]) -> list[Tensor]:
    """The parameters of some units, biases behind all others."""
    biases = [b for u in units for b in unit_biases(block, u)]
    return [p for u in units for p in unit_parameters(block, u)] + biases


def adapters_of(t: Tape, block: Block) -> dict[Tensor, LowRank]:
    """The adapters beside a block's weights; those beside experts are no unit's."""
    return {w: t.adapters[w] for w in block.parameters if w in t.adapters}


def adapter_matrices(t: Tape, block: Block, units: Sequence[int]) -> list[Tensor]:
    """The matrices of adapters beside some units' weights."""
    weights = [w for u in units for w in unit_parameters(block, u)]
    beside = [t.adapters[w] for w in weights if w in t.adapters]
    return [each for adapter in beside for each in adapter.matrices]
