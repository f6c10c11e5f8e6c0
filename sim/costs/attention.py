"""What one library's fused attention takes over another run of it: in fp8 over 16 bits, on a GPU over another one.

Ratios of times that were measured side by side, causal, forward and backward, by tokens of a sample.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from prestep.sim.graph.kernel import Kernel
from prestep.sim.schema import Items, Number, Schema, Table, Text

FP8, WIDE = "fp8", "bf16"
KINDS = ("attention_fwd", "attention_bwd")
_NUMBERS: dict[str, Schema] = {
    key: Items(Number(above=True)) for key in ("tokens", *KINDS)
}
_TEXTS: dict[str, Schema] = {"source": Text(), "over": Text()}
#: Of a GPU's file: in fp8 over 16 bits; on this GPU over the one named.
IN_FP8 = Table({"source": Text()} | _NUMBERS, ("source", *_NUMBERS))
ON_BOTH = Table(_TEXTS | _NUMBERS, (*_TEXTS, *_NUMBERS))


@dataclass(frozen=True)
class Ratios:
    """Ratios of two times of attention, by tokens (ascending).

    Attributes
    ----------
    source
        The library ("cudnn/9.10.2").
    tokens
        Of a sample, as measured.
    shares
        By kind of kernel, the ratio at each of `tokens`.
    over
        The GPU that was measured beside this one; "" where both times are this one's.
    """

    source: str
    tokens: tuple[float, ...]
    shares: Mapping[str, tuple[float, ...]]
    over: str = ""

    def of(self, kernel: Kernel) -> float:
        """Of a kernel, between measured lengths by the logarithm of its tokens; beyond them that of the nearest."""
        at = math.log(kernel.shape[3])
        return float(np.interp(at, np.log(self.tokens), self.shares[kernel.kind]))


def is_fp8(kernel: Kernel) -> bool:
    """Whether a kernel is attention in fp8."""
    return kernel.dtype == FP8 and kernel.kind in KINDS


def widened(kernel: Kernel) -> Kernel:
    """The same attention in 16 bits, whose time that in fp8 follows."""
    return replace(kernel, dtype=WIDE) if is_fp8(kernel) else kernel


def ratios(table: Mapping[str, Any]) -> Ratios:
    """A checked table of a GPU's file."""
    rows = {key: tuple(map(float, table[key])) for key in _NUMBERS}
    return Ratios(table["source"], rows.pop("tokens"), rows, table.get("over", ""))
