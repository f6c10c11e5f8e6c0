"""Attention that a GPU's tables lack, by attention that they have, times ratios measured side by side.

A mask, uneven lengths and other libraries count as they do on the GPU where operations were measured. In fp8 attention
takes a share of what it does in 16 bits. With wide heads it takes longer than with heads of 128, the widest that tables
have: cuDNN computes tiles that are as wide as a head, a Hopper's are 64, 128, 192 and 256 elements wide (names of its
kernels say so), and a head between two of them takes the time of the next. Latent attention, whose values are narrower
than its queries, has kernels of its own. Measured: `lab/cases/attention-widths`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from prestep.sim.costs import terms
from prestep.sim.costs.estimators import EXTRAPOLATED, Basis, Estimator, lent_octaves
from prestep.sim.graph.kernel import (
    ATTENTION,
    BACKWARD,
    FUSED_ATTENTION,
    LATENT,
    ORDERED,
    Kernel,
    attention,
)
from prestep.sim.schema import Items, Number, Schema, Table, Text

if TYPE_CHECKING:
    from prestep.sim.costs.gpu import Gpu

FP8, WIDE = "fp8", "bf16"
_NUMBERS: dict[str, Schema] = {
    key: Items(Number(above=True)) for key in ("tokens", *ATTENTION)
}
_TEXTS: dict[str, Schema] = {"source": Text(), "over": Text()}
_RATIOS: Schema = Table(
    {kind: Items(Number(above=True)) for kind in ATTENTION}, ATTENTION
)
#: Of a GPU's file: in fp8 over 16 bits; on this GPU over the one named.
IN_FP8 = Table({"source": Text(), LATENT: _RATIOS, **_NUMBERS}, ("source", *_NUMBERS))
ON_BOTH = Table(_TEXTS | _NUMBERS, (*_TEXTS, *_NUMBERS))
#: Widths of tiles that tables have.
NARROW, REFERENCE = 64, 128
#: Libraries whose attention tables of kernels have, and its formats; other attention is read beside cuDNN's.
PLAIN = FUSED_ATTENTION["cudnn"], FUSED_ATTENTION["flash"]
FORMATS = ("bf16", "fp16")
OVER = ("192", "256", LATENT)
#: Of kernels whose blocks of keys add their part of a query's gradient in turn, where they add it as they are done
#: otherwise: FlashAttention 3 took 2.900 ms, 2.391 else (causal, 8,192 tokens, 16 heads of 128; pull request 1893 of
#: Dao-AILab/flash-attention). Of cuDNN nobody published a pair.
IN_ORDER = 2.900 / 2.391
_KEYS: dict[str, Schema] = {"source": Text(), "tokens": Items(Number(above=True))}
#: Of a GPU's file: time over that of heads of 128, as many heads of as many tokens.
WIDTHS = Table(_KEYS | dict.fromkeys(OVER, _RATIOS), (*_KEYS,))


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
    latent
        Those of latent attention, where it was measured by itself.
    """

    source: str
    tokens: tuple[float, ...]
    shares: Mapping[str, tuple[float, ...]]
    over: str = ""
    latent: Mapping[str, tuple[float, ...]] | None = None

    def of(self, kernel: Kernel) -> float:
        """The ratio for a kernel."""
        shares = self.latent if LATENT in kernel.layout else None
        return _between(self.tokens, (shares or self.shares)[kernel.direction], kernel)


def _between(
    tokens: tuple[float, ...], shares: tuple[float, ...], kernel: Kernel
) -> float:
    """A ratio at a kernel's tokens: between measured lengths by their logarithm, beyond them that of the nearest."""
    return float(np.interp(math.log(kernel.shape[3]), np.log(tokens), shares))


def is_fp8(kernel: Kernel) -> bool:
    """Whether a kernel is attention in fp8."""
    return kernel.dtype == FP8 and kernel.is_attention


def widened(kernel: Kernel) -> Kernel:
    """The same attention in 16 bits, whose time that in fp8 follows."""
    return replace(kernel, dtype=WIDE) if is_fp8(kernel) else kernel


def ratios(table: Mapping[str, Any]) -> Ratios:
    """A checked table of a GPU's file."""
    tokens, latent = tuple(map(float, table["tokens"])), table.get(LATENT)
    of_latent, over = latent and _of_kinds(latent), table.get("over", "")
    return Ratios(table["source"], tokens, _of_kinds(table), over, of_latent)


def _of_kinds(table: Mapping[str, Any]) -> dict[str, tuple[float, ...]]:
    return {kind: tuple(map(float, table[kind])) for kind in ATTENTION}


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

    def stand(self, kernel: Kernel) -> Stand | None:
        """Attention of heads of 128 in place of wider ones; beyond the widest tile time grows as heads do.

        None where such attention was not measured.
        """
        width = kernel.shape[5]
        tile = next((name for name in OVER[:2] if width <= int(name)), OVER[1])
        over = LATENT if LATENT in kernel.layout else tile
        if over not in self.over:
            return None
        share = _between(self.tokens, self.over[over][kernel.direction], kernel)
        if over == LATENT:
            return Stand(of_reference(kernel), share)
        if width <= REFERENCE:
            return Stand(of_reference(kernel), 1.0)
        return Stand(of_reference(kernel), max(1.0, width / int(tile)) * share)


def of_reference(kernel: Kernel) -> Kernel:
    """The same attention with heads of 128, as wide for values."""
    *sizes, width = kernel.shape
    marks = [mark for mark in kernel.layout.split("_") if mark != LATENT]
    part = REFERENCE / width
    return replace(
        kernel,
        shape=(*sizes, REFERENCE),
        layout="_".join(marks),
        bytes=part * kernel.bytes,
        flops=part * kernel.flops,
    )


def widths(table: Mapping[str, Any]) -> Widths:
    """A checked table of a GPU's file."""
    over = {name: _of_kinds(table[name]) for name in OVER if name in table}
    return Widths(table["source"], tuple(map(float, table["tokens"])), over)


def is_plain(kernel: Kernel) -> bool:
    """Whether tables of kernels have such attention: causal, of as many keys as queries, by a library of `PLAIN`."""
    _, _, _, queries, keys, _ = kernel.shape
    marks = {*kernel.layout.split("_")} - {LATENT}
    known = kernel.kind.removesuffix(BACKWARD) in PLAIN
    return known and queries == keys and marks == {"causal"}


def plain(kernel: Kernel) -> Kernel:
    """The plain attention that others are read beside: of as many scores if all keys were seen."""
    *many, queries, keys, width = kernel.shape
    side = queries if queries == keys else max(1, round(math.sqrt(queries * keys)))
    library = "flash" if kernel.kind.startswith(PLAIN[1]) else "cudnn"
    return attention(
        (*many, side, width),
        kernel.dtype,
        backward=kernel.kind.endswith(BACKWARD),
        library=library,
        latent=LATENT in kernel.layout,
    )


class Variant(Estimator):
    """Attention with a mask, of uneven lengths or by another library, beside the plain one."""

    name = "plain attention"
    covers = "attention that is not plain, on a GPU where no operations were measured"
    final = loaded = True

    def answers(self, kernel: Kernel) -> bool:
        if not kernel.is_attention or kernel.dtype not in FORMATS:
            return False
        return not is_plain(kernel) and self.gpu.surface(kernel) is None

    def seconds(self, kernel: Kernel) -> float:
        """As much longer than the plain one as on the GPU where both were measured; else as their work is."""
        measured, beside = self.gpu, plain(kernel)
        while measured.aten_tables is None and measured.like is not None:
            measured = measured.like
        if measured.aten_tables is not None:
            longer = measured.duration(kernel) / measured.duration(beside)
        else:
            bound = self.gpu.roofline.bound
            longer = bound(kernel) / bound(beside)
        return self.gpu.lent(beside) * longer

    def basis(self, kernel: Kernel) -> Basis:
        """A guess: nobody measured here by how much a variant differs."""
        return self.gpu.basis(plain(kernel))._replace(grade="guess")


class InOrder(Estimator):
    """Gradients of attention that are added up in one order, by those that are not.

    FlashAttention 2 spreads the keys of a sample's head over as many blocks of threads as it takes to give each SM one.
    Each adds into queries' gradients of its own in fp32, filled with zeros before and summed up after
    (flash_bwd_launch_template.h): 3 to 9 blocks took 1.28 to 1.85 times as long on an H200 (lab/cases/deterministic).
    """

    name, covers = "attention in any order", "deterministic gradients of attention"
    final = loaded = True

    def answers(self, kernel: Kernel) -> bool:
        return kernel.is_attention and ORDERED in kernel.layout

    def seconds(self, kernel: Kernel) -> float:
        plain = self._plain(kernel)
        if plain.kind.removesuffix(BACKWARD) != FUSED_ATTENTION["flash"]:
            return self.gpu.lent(plain) * IN_ORDER
        heads, sms = math.prod(kernel.shape[:2]), self.gpu.sms
        blocks = heads * math.ceil(sms / heads)
        waves = math.ceil(blocks / sms) * sms / blocks
        # Filled when it is made, again with zeros, and read: more than once, which is how often it is without an order.
        summed = heads * kernel.shape[3] * kernel.shape[5]
        more = summed * (3 * blocks // heads - 2)
        filled = Kernel("aten fill", (more,), "fp32", bytes=4.0 * more)
        return self.gpu.lent(plain) * waves + self.gpu.lent(filled)

    def basis(self, kernel: Kernel) -> Basis:
        """A guess: the ratio is another library's, or waves of blocks."""
        return self.gpu.basis(self._plain(kernel))._replace(grade="guess")

    @staticmethod
    def _plain(kernel: Kernel) -> Kernel:
        marks = (mark for mark in kernel.layout.split("_") if mark != ORDERED)
        return replace(kernel, layout="_".join(marks))


class InFp8(Estimator):
    """Attention in fp8 by that in 16 bits and a library's times of both."""

    name, covers = "attention in 16 bits", "attention in fp8"
    final = loaded = True

    def answers(self, kernel: Kernel) -> bool:
        return is_fp8(kernel)

    def seconds(self, kernel: Kernel) -> float:
        return self.gpu.lent(widened(kernel)) * fp8_share(self.gpu, kernel)

    def basis(self, kernel: Kernel) -> Basis:
        """No better than what it follows and than a ratio; a guess where nobody measured that."""
        basis = self.gpu.basis(widened(kernel))
        if self.gpu.facts.attention_fp8 is None:
            grade = "guess"
        else:
            grade = "fitted" if basis.grade == "measured" else basis.grade
        reason = basis.reason or "that in 16 bits, by a library's times of both"
        return basis._replace(grade=grade, reason=reason)


def fp8_share(gpu: Gpu, kernel: Kernel) -> float:
    """Time of attention in fp8 over that in 16 bits; 1 where no GPU like this one was measured."""
    if gpu.facts.attention_fp8 is not None:
        return gpu.facts.attention_fp8.of(kernel)
    return 1.0 if gpu.like is None else fp8_share(gpu.like, kernel)


class WideHeads(Estimator):
    """Attention with heads that tables lack, by that with heads of 128."""

    name = "attention with heads of 128"
    covers = "attention with wide or latent heads that the GPU's table lacks"
    final = True

    def __init__(self, gpu: Gpu) -> None:
        super().__init__(gpu)
        self._measured_widths: dict[terms.Group, frozenset[int]] = {}

    def answers(self, kernel: Kernel) -> bool:
        return self.stand(kernel) is not None

    def seconds(self, kernel: Kernel) -> float:
        wide = self._stand(kernel)
        bound = self.gpu.roofline.bound(kernel)
        return max(wide.share * self.gpu.lent(wide.kernel), bound)

    def basis(self, kernel: Kernel) -> Basis:
        """No better than a ratio; a guess where nobody measured that."""
        basis = self.gpu.unloaded_basis(self._stand(kernel).kernel)
        if widths_of(self.gpu, kernel) is None:
            grade, words = "guess", "heads of 128, as their products are wide"
        else:
            grade = "fitted" if basis.grade == "measured" else basis.grade
            words = "heads of 128, by ratios"
        octaves, reason = self._past(kernel, basis.reason), basis.reason or words
        return basis._replace(grade=grade, reason=reason, octaves=octaves)

    def _past(self, kernel: Kernel, reason: str) -> float:
        """Octaves past a table by the kernel's own sizes, not by those of the attention that stands for it.

        The width of its heads counts too, and latent attention, of which there is no table, lies past none.
        """
        like = self.gpu.like
        if like is not None and reason.startswith(f"the {like.name}'s"):
            return lent_octaves(like, kernel)
        if reason != EXTRAPOLATED:
            return 0.0
        surface = self.gpu.surface(kernel)
        return surface[0].past(kernel) if surface else self.gpu.tables.past(kernel)

    def stand(self, kernel: Kernel) -> Stand | None:
        """Attention with heads of 128 that stands for a kernel; None for what tables have."""
        if not kernel.is_attention:
            return None
        width, latent = kernel.shape[5], LATENT in kernel.layout
        if self.gpu.surface(kernel) is not None:
            # Of latent attention there are no rows, and of wide heads none of long sequences.
            wide = is_plain(kernel) and (width > REFERENCE or latent)
        else:
            wide = width > NARROW and (width != REFERENCE or latent)
        if not wide or self._has_width(kernel):
            return None
        measured = widths_of(self.gpu, kernel)
        if measured is not None:
            return measured.stand(kernel)
        # Nobody measured by how much: narrower heads are in the tables, wider ones take time as their products do.
        if width >= REFERENCE:
            return Stand(of_reference(kernel), width / REFERENCE)
        layout = kernel.layout.replace(f"_{LATENT}", "")
        return Stand(replace(kernel, layout=layout), 1.0) if latent else None

    def _stand(self, kernel: Kernel) -> Stand:
        wide = self.stand(kernel)
        assert wide is not None
        return wide

    def _has_width(self, kernel: Kernel) -> bool:
        """Whether this GPU's own table has attention with such heads."""
        group = terms.group(kernel)
        if group not in self._measured_widths:
            rows = self.gpu.tables.rows(group)
            self._measured_widths[group] = frozenset(
                row.kernel.shape[5] for row in rows
            )
        return kernel.shape[5] in self._measured_widths[group]


def widths_of(gpu: Gpu, kernel: Kernel) -> Widths | None:
    """What such attention takes on a GPU, or on the one that it is like, if its units are the same; None: unknown."""
    like, measured = gpu.like, gpu.facts.attention_widths
    if measured is not None:
        return measured if measured.stand(kernel) is not None else None
    same = like is not None and like.facts.capability == gpu.facts.capability
    return widths_of(like, kernel) if like is not None and same else None
