"""What attention with wide heads takes over that with heads of 128, the widest that tables of kernels have.

cuDNN computes tiles that are as wide as a head: a Hopper's are 64, 128, 192 and 256 elements wide (names of its kernels
say so), and a head between two of them takes the time of the next. Latent attention, whose values are narrower than
its queries, has kernels of its own. Measured: `lab/cases/attention-widths`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from prestep.sim.costs.attention import KINDS
from prestep.sim.graph.kernel import Kernel
from prestep.sim.schema import Items, Number, Schema, Table, Text

#: Widths of tiles that tables have.
NARROW, REFERENCE = 64, 128
#: Layout of attention whose values are narrower than its queries.
LATENT = "latent"
#: PyTorch's operations of cuDNN's attention, whose tables have no latent ones, and which of `KINDS` they are like.
OPERATIONS = {
    "aten _scaled_dot_product_cudnn_attention": "attention_fwd",
    "aten _scaled_dot_product_cudnn_attention_backward": "attention_bwd",
}
OVER = ("192", "256", LATENT)
_RATIOS = Table({kind: Items(Number(above=True)) for kind in KINDS}, KINDS)
_KEYS: dict[str, Schema] = {"source": Text(), "tokens": Items(Number(above=True))}
#: Of a GPU's file: time over that of heads of 128, as many heads of as many tokens.
WIDE = Table(_KEYS | dict.fromkeys(OVER, _RATIOS), (*_KEYS, *OVER))


@dataclass(frozen=True)
class Stand:
    """Attention that tables have, and what another takes over it."""

    kernel: Kernel
    share: float


@dataclass(frozen=True)
class Widths:
    """Ratios of measured times, causal attention.

    Attributes
    ----------
    source
        The library ("cudnn/9.19").
    tokens
        Of a sample, ascending, as measured.
    over
        By width of a tile or `LATENT`, and by kind of kernel: time over heads of 128, at each of `tokens`.
    """

    source: str
    tokens: tuple[float, ...]
    over: Mapping[str, Mapping[str, tuple[float, ...]]]

    def stand(self, kernel: Kernel) -> Stand:
        """Attention of heads of 128 in place of wider ones: the next tile, and beyond the last as wide as they are."""
        if kernel.layout == LATENT:
            return Stand(of_reference(kernel), self._ratio(LATENT, kernel))
        width = kernel.shape[4]
        if width <= REFERENCE:
            return Stand(of_reference(kernel), 1.0)
        tile = next((name for name in OVER[:2] if width <= int(name)), OVER[1])
        beyond = max(1.0, width / int(tile))
        return Stand(of_reference(kernel), beyond * self._ratio(tile, kernel))

    def _ratio(self, over: str, kernel: Kernel) -> float:
        """Between measured lengths by the logarithm of the tokens; beyond them that of the nearest."""
        at = math.log(kernel.shape[3])
        return float(np.interp(at, np.log(self.tokens), self.over[over][kernel.kind]))


def stand(kernel: Kernel, widths: Widths | None) -> Stand | None:
    """What stands for a kernel in tables; None for one that they have, or whose kind is none of these.

    Without `widths`, wider heads take time as their products do, and narrower ones are in the tables.
    """
    if kernel.kind in OPERATIONS:
        return _of_operation(kernel, widths) if LATENT in kernel.layout else None
    if kernel.kind not in KINDS or kernel.shape[4] <= NARROW:
        return None
    if kernel.shape[4] == REFERENCE and not kernel.layout:
        return None
    if widths is not None:
        return widths.stand(kernel)
    if kernel.shape[4] < REFERENCE:
        return None if not kernel.layout else Stand(replace(kernel, layout=""), 1.0)
    return Stand(of_reference(kernel), kernel.shape[4] / REFERENCE)


def _of_operation(kernel: Kernel, widths: Widths | None) -> Stand:
    """PyTorch's operation on heads of 128, as much longer as attention is without its mask or its dropout."""
    width = kernel.shape[5]
    part = REFERENCE / width
    marks = [mark for mark in kernel.layout.split("_") if mark != LATENT]
    shape = (*kernel.shape[:5], REFERENCE)
    plain = replace(
        kernel,
        shape=shape,
        layout="_".join(marks),
        bytes=part * kernel.bytes,
        flops=part * kernel.flops,
    )
    alike = Kernel(OPERATIONS[kernel.kind], (*kernel.shape[:4], width), layout=LATENT)
    share = 1.0 / part if widths is None else widths.stand(alike).share
    return Stand(plain, share)


def of_reference(kernel: Kernel) -> Kernel:
    """The same attention with heads of 128."""
    shape = (*kernel.shape[:4], REFERENCE)
    return replace(kernel, shape=shape, layout="", bytes=0.0, flops=0.0)


def widths(table: Mapping[str, Any]) -> Widths:
    """A checked table of a GPU's file."""
    over = {
        name: {kind: tuple(map(float, table[name][kind])) for kind in KINDS}
        for name in OVER
    }
    return Widths(table["source"], tuple(map(float, table["tokens"])), over)
