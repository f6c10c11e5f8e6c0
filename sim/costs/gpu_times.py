"""Limits of a GPU, and how long a kernel runs on it."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from prestep.sim.costs import (
    aten,
    gemm,
    generated,
    padding,
    scans,
    similar,
    sustained,
    terms,
    tile_times,
)
from prestep.sim.costs.adamw import Adamw
from prestep.sim.costs.attention import is_fp8, widened
from prestep.sim.costs.attention_widths import Stand, Widths, stand
from prestep.sim.costs.counterparts import InModels, in_models
from prestep.sim.costs.draw import Draw
from prestep.sim.costs.facts import GpuFacts
from prestep.sim.costs.kernel_tables import KernelTables
from prestep.sim.costs.kinds import ATTENTIONS, check, work
from prestep.sim.costs.library_steps import LibrarySteps
from prestep.sim.costs.power import BUSY_ABOVE, FILLS_ABOVE, Power
from prestep.sim.costs.roofline import Roofline, estimate
from prestep.sim.costs.tables import Curve, Kriged, Row
from prestep.sim.graph.kernel import STATED, Kernel

# Waves; measured: GEMMs of <= 1.94 waves have no memset in the traces, of >= 3.88 all have.
DYNAMIC_ABOVE = 2.0


class GpuTimes:
    """One GPU model: its limits, and the times of kernels on it.

    Attributes
    ----------
    name, sms
        Name ("h200") and number of streaming multiprocessors.
    facts
        What the GPU's files state.
    roofline
        Datasheet limits (peak flop/s by dtype, HBM bandwidth, L2 size).
    memory
        HBM capacity, bytes.
    spread
        Standard deviation of speed between GPUs of the model, relative.
    like
        A measured GPU of a similar kind, whose tables stand in where this one has none: its times, longer or shorter
        as the datasheet limits of the two differ for the kernel (arithmetic or memory, whichever bounds it on each).
    crowded
        Factor on kernels bound by the SMs' clock while other GPUs of the host work too (power and heat lower clocks).
    fused
        Factor on Megatron's fused elementwise kernels over streams of as many bytes; default that of ``like``.
    unaligned
        Factor on a product whose operands' rows are no multiples of 16 bytes, which tensor cores want.
    stream
        HBM bytes/s that a streaming kernel reached; None where nobody measured it.
    power
        The power limit, as far as it slows products down; None where it is in their times or unknown.
    power_limit, draw
        Watts that it may draw, and what draws them; None where nobody says.
    tables
        What was measured of kernels, by kind, layout and dtype.
    gap
        Pause between back-to-back kernels of one stream, s; `duration` has the pauses inside one aten operation only.
    """

    def __init__(
        self,
        name: str,
        facts: GpuFacts,
        rows: list[Row],
        like: GpuTimes | None = None,
        operations: Path | None = None,
    ) -> None:
        """`operations`: the file of measured ATen operations, read when one is asked for."""
        self.name: str = name
        self._operations = operations
        self.like = like
        self.facts = facts
        self.sms = facts.sms
        self.memory, self.nominal_memory = facts.room, facts.memory
        self.gap = facts.gap
        self.floor = facts.floor
        self.spread = facts.spread
        self.crowded = facts.crowded
        self.fused = self._fused()
        self.unaligned = facts.unaligned
        self.roofline = Roofline(
            dict(facts.peak), facts.bandwidth, facts.l2_bandwidth, facts.l2
        )
        self.stream = facts.stream
        self.tables = KernelTables(
            rows, facts, self.bandwidth * facts.efficiency["bytes"], self.tile_time
        )
        self.forget()
        self._row_widths: dict[terms.Group, frozenset[int]] = {}
        self.tiles = facts.tiles
        self.libraries = LibrarySteps(
            name, facts.libraries, self.roofline, self.tile_time
        )
        self.power = self._power_limit()

    def _fused(self) -> float:
        if self.facts.fused is not None:
            return self.facts.fused
        return 1.0 if self.like is None else self.like.fused

    def _power_limit(self) -> Power | None:
        if self.facts.power is not None:
            return self.facts.power
        # Times lent by another GPU are those at its highest clock; a GPU with rows of its own has its own load in them.
        lent = self.like is not None and gemm.of_dtype(self.tiles, "bf16") is None
        return self.like.power if self.like is not None and lent else None

    @property
    def power_limit(self) -> float | None:
        """Watts that the GPU may draw; None: not known."""
        return self.facts.power_limit

    @property
    def clock(self) -> float:
        """The SMs' highest clock over that of the model."""
        return 1.0

    @property
    def model_clock(self) -> float | None:
        """The highest clock of the model's SMs, Hz; None where its file does not say."""
        return self.facts.clock

    @cached_property
    def draw(self) -> Draw | None:
        """What the GPU draws; that of `like` at the same shares of its limits where nobody measured this one."""
        if self.facts.draw is not None:
            return self.facts.draw.with_formats(self.peak)
        return similar.draw(self)

    @cached_property
    def aten_tables(self) -> aten.AtenTables | None:
        """What was measured of ATen operations on this GPU; None where nobody did."""
        if self._operations is None:
            return None
        rows = aten.read(self._operations)
        return aten.AtenTables(rows, self.tile_time, self.roofline)

    def _surface(self, kernel: Kernel) -> tuple[aten.Surface, bool] | None:
        """Where an ATen operation is read, and whether in its own group; None for other kernels and without tables."""
        if not kernel.kind.startswith(aten.PREFIX) or self.aten_tables is None:
            return None
        return self.aten_tables.surface(kernel)

    def reading(self, kernel: Kernel) -> InModels | None:
        """The kernels of models as which an operation of PyTorch is priced; None where it was measured itself."""
        return in_models(kernel) if self._operations is None else None

    def main(self, kernel: Kernel) -> Kernel:
        """The kernel that says what another one's time rests on: itself, unless it is read as one of models."""
        reading = self.reading(kernel)
        return kernel if reading is None else reading.main

    def hot(self, kernel: Kernel) -> bool:
        """Whether a kernel draws more than the power limit: products of 16 bits that fill the GPU."""
        kernel = self.main(kernel)
        if (
            self.power is None
            or not (kernel.kind in gemm.KINDS or aten.is_product(kernel))
            or gemm.SAME.get(kernel.dtype, kernel.dtype) != "bf16"
        ):
            return False
        duration = self.duration(kernel)
        if aten.is_product(kernel):
            least = BUSY_ABOVE * self.peak["bf16"] * duration
            return duration > FILLS_ABOVE and kernel.flops > least
        return duration > FILLS_ABOVE

    def forget(self) -> None:
        """Empties what was worked out of kernels: a GPU made of another one begins with nothing of it."""
        self._known: dict[Kernel, float] = {}
        self.unfilled: dict[Kernel, float] = {}
        self._ratios: dict[Kernel, float | None] = {}
        self._evidence: dict[Kernel, str] = {}

    @property
    def peak(self) -> dict[str, float]:
        """Dense peak flop/s by dtype."""
        return self.roofline.peak

    @property
    def bandwidth(self) -> float:
        """HBM bandwidth, bytes/s."""
        return self.roofline.bandwidth

    def duration(self, kernel: Kernel) -> float:
        """Seconds from the first to the end of the last CUDA kernel of one aten operation, alone on the GPU.

        Raises
        ------
        InputError
            If the kind is unknown and says neither bytes nor flops, the shape does not fit the kind, or the GPU has no
            units for the format.
        """
        time = self.lent(kernel)
        self.roofline.check_format(kernel, self.name)
        return time

    def lent(self, kernel: Kernel) -> float:
        """As `duration`; also in formats that only a GPU has which takes this one's times."""
        if kernel.kind == STATED:
            return kernel.shape[0] * 1e-9
        known = self._known.get(kernel)
        if known is None:
            check(kernel)
            if (reading := self.reading(kernel)) is not None:
                known = self._known[kernel] = self._read(reading, kernel)
                return known
            if kernel.kind == "bmm":
                return max(self._batch(kernel), self.roofline.bound(kernel))
            if is_fp8(kernel):
                return self.lent(widened(kernel)) * self.fp8_share(kernel)
            if (wide := self.stand(kernel)) is not None:
                known = self._known[kernel] = self._wide(wide, kernel)
                return known
            if (surface := self._surface(kernel)) is not None:
                pauses = (surface[0].starts(kernel) - 1) * self.gap
                known = self._known[kernel] = self.running(kernel) + pauses
                return known
            known = self._known[kernel] = padding.filled_up(self, kernel, self.alone)
        return known

    def _read(self, reading: InModels, kernel: Kernel) -> float:
        """Seconds of an operation of PyTorch as models have it, with the pauses between its kernels."""
        pauses = (len(reading.kernels) - 1) * self.gap
        time = sum(map(self.lent, reading.kernels)) + pauses
        if reading.beside is None:
            return time
        return time * similar.variant(self, kernel, reading.beside)

    def alone(self, kernel: Kernel) -> float:
        """Seconds by a table or a model, no less than the limits allow; they may fall where sizes grow (`duration`)."""
        return max(
            self.by_table(generated.streaming(kernel)),
            generated.seconds(kernel, self.roofline),
            self.roofline.bound(kernel),
            self.floor,
        )

    def stand(self, kernel: Kernel) -> Stand | None:
        """Attention with heads of 128 that stands for one with other heads; None for what tables have."""
        wide = stand(kernel, self.widths)
        return None if wide is None or self._has_width(kernel) else wide

    def _has_width(self, kernel: Kernel) -> bool:
        """Whether this GPU's own table has attention with such heads."""
        if kernel.kind not in ATTENTIONS:
            return False
        group = terms.group(kernel)
        if group not in self._row_widths:
            rows = self.tables.rows(group)
            self._row_widths[group] = frozenset(row.kernel.shape[4] for row in rows)
        return kernel.shape[4] in self._row_widths[group]

    @cached_property
    def widths(self) -> Widths | None:
        """What attention with wide heads takes here, or on the GPU that this one is like, if its units are the same."""
        like, facts = self.like, self.facts
        same = like is not None and like.facts.capability == facts.capability
        if facts.attention_widths is not None or like is None or not same:
            return facts.attention_widths
        return like.widths

    def _wide(self, wide: Stand, kernel: Kernel) -> float:
        """Seconds of attention that another one stands for, no less than its limits allow."""
        return max(wide.share * self.lent(wide.kernel), self.roofline.bound(kernel))

    def _batch(self, kernel: Kernel) -> float:
        """Seconds of a batch of products: as one tall product, or without tensor cores where rows lie badly."""
        product = gemm.one_product(kernel)
        share = self.facts.unaligned_batch
        _, shape = gemm.products(product)
        if share and gemm.unaligned(shape, product.layout, product.dtype):
            return work(kernel)[0] / (share * self.peak["fp32"])
        return self.lent(product)

    def fp8_share(self, kernel: Kernel) -> float:
        """Time of attention in fp8 over that in 16 bits; 1 where no GPU like this one was measured."""
        if self.facts.attention_fp8 is not None:
            return self.facts.attention_fp8.of(kernel)
        return 1.0 if self.like is None else self.like.fp8_share(kernel)

    def running(self, kernel: Kernel) -> float:
        """Seconds for which the CUDA kernels of an operation run, without the pauses between them.

        Operands that repeat within an operation may be read faster than its bytes say: no roofline bounds measured
        ones.
        """
        surface = self._surface(kernel)
        if surface is None:
            return self.duration(kernel)
        return max(padding.filled_up(self, kernel, surface[0].seconds), self.floor)

    def waves(self, kernel: Kernel) -> float:
        """Waves of thread blocks of a GEMM over the SMs (1.0 fills the GPU once); other kinds by bytes moved.

        It tells how a GEMM fares beside a collective that holds SMs: up to `DYNAMIC_ABOVE` waves its tiles are bound
        to CTAs beforehand, so those without an SM run after the others (twice the time); beyond, free SMs share them.
        """
        kernel = self.main(kernel)
        if kernel.kind in gemm.KINDS or aten.is_product(kernel):
            count, shape = gemm.products(kernel)
            return gemm.waves(shape, self.sms) * count
        return work(kernel)[1] / (self.sms * 64 * 1024)

    def launches(self, kernel: Kernel) -> int:
        """CUDA kernels that one aten operation starts on the GPU (memsets included)."""
        if (reading := self.reading(kernel)) is not None:
            return sum(map(self.launches, reading.kernels))
        if kernel.kind == "adamw":
            return (self.facts.adamw or Adamw(((1.0, 0.0),), 1.0)).launches(
                kernel.shape[0], kernel.shape[1]
            )
        if (surface := self._surface(kernel)) is not None:
            return surface[0].starts(kernel)
        if kernel.kind in gemm.KINDS:
            # Beyond two waves cuBLAS hands out tiles by an atomic counter, which a memset clears first.
            return 1 + (self.waves(kernel) > DYNAMIC_ABOVE)
        parts = self.facts.parts
        table = "_".join(filter(None, terms.group(kernel)[:2]))
        return parts.get(table, parts.get(kernel.kind, 1))

    def by_table(self, kernel: Kernel) -> float:
        """Seconds by the table or the model that has the kernel, whatever the limits allow."""
        efficiency = self.facts.efficiency
        if kernel.kind in scans.KINDS:
            return scans.seconds(kernel, self)
        if kernel.kind == "adamw" and self.facts.adamw is not None:
            elements, tensors = kernel.shape[:2]
            return self.facts.adamw.time(elements, tensors, kernel.layout, self.gap)
        if kernel.kind in efficiency:  # no table, but the share of the peak it reaches
            shares = {**efficiency, "flops": efficiency[kernel.kind]}
            return estimate(self.roofline, kernel, self.floor, shares)
        if kernel.kind in gemm.KINDS and kernel.dtype in self.facts.beyond_alike:
            return tile_times.beyond_alike(self, kernel)
        if self._by_products(kernel):
            return self._of_library(kernel)
        model = self.tables.model(terms.group(kernel))
        if isinstance(model, Curve):
            return model(work(kernel)[1])
        if isinstance(model, Kriged):
            limit = estimate(self.roofline, kernel, self.floor, efficiency)
            return model.continued(kernel, limit)
        if self.like is not None and not self._own_tiles(kernel):
            return similar.seconds(self, self.like, kernel)
        if kernel.kind in gemm.KINDS:
            return self.tile_time(kernel)
        return estimate(self.roofline, kernel, self.floor, efficiency)

    def _by_products(self, kernel: Kernel) -> bool:
        """Whether the kernel is a product that a library's table of this GPU says the time of."""
        product = kernel.kind in ("gemm", "gemm_bias")
        return product and self.libraries.stack(kernel) is not None

    def _of_library(self, kernel: Kernel) -> float:
        """Seconds of a product by a library."""
        return self.libraries.forward(kernel) * tile_times.odd_rows(self, kernel)

    def _own_tiles(self, kernel: Kernel) -> bool:
        """Whether this GPU has a tile model of its own for the kernel."""
        if kernel.kind not in gemm.KINDS:
            return False
        fitted = (
            kernel.kind != "grouped_gemm"
            and gemm.of_dtype(self.tiles, kernel.dtype) is not None
        )
        return fitted or self.facts.gemm is not None

    def measured_ratio(self, like: GpuTimes, kernel: Kernel) -> float | None:
        """Time of an operation here over that on the GPU that it is like; None where not both were measured."""
        if kernel not in self._ratios:
            self._ratios[kernel] = similar.measured_ratio(self, like, kernel)
        return self._ratios[kernel]

    def _in_steps(self, kernel: Kernel) -> InModels | None:
        """The kernels of models whose times an operation of PyTorch takes in a step, where it was measured in bursts.

        Models' tables are of traced steps: power bounds products and attention there, and what else a step does is in
        the caches. Products that fill no GPU draw less and stay; models have few with a bias or in batches, and few
        convolutions.
        """
        reading = None if self._operations is None else in_models(kernel)
        if reading is None or reading.main.kind.startswith("conv"):
            return None
        if not aten.is_product(kernel):
            return reading
        filling = reading.main.kind == "gemm" and self.hot(kernel)
        return reading if filling else None

    def in_step(self, kernel: Kernel, together: bool = False, cuda: str = "") -> float:
        """Seconds of a kernel in a long run, at the clock of hours of load; raises as `duration`.

        `together`: other GPUs of the host work too. `cuda`: the release of CUDA whose cuBLAS multiplies.
        """
        if (stepped := self._in_steps(kernel)) is not None:
            pauses = (len(stepped.kernels) - 1) * self.gap
            parts = [self.in_step(part, together, cuda) for part in stepped.kernels]
            beside = stepped.beside
            apart = self.duration(kernel) / self.duration(beside) if beside else 1.0
            return (sum(parts) + pauses) * apart
        time, kernel = self.duration(kernel), self.main(kernel)
        if not sustained.is_clocked(kernel):
            return time
        clock = self.crowded if together else 1.0
        load = clock * self.sustained(kernel) * self.toolkit(kernel, cuda)
        return time * load * self.sms / (self.sms - kernel.reserved)

    def sustained(self, kernel: Kernel) -> float:
        """Time of a kernel that arithmetic bounds under hours of load over `duration`, where that rests on bursts."""
        return sustained.sustained(self.facts, self.roofline, kernel)

    def toolkit(self, kernel: Kernel, cuda: str) -> float:
        """Time of a product with the cuBLAS of a CUDA release over that of the tables."""
        return sustained.toolkit(self.facts, kernel, cuda)

    def tile_time(self, kernel: Kernel) -> float:
        """Seconds of a product by the tile model alone, without what rows near it say."""
        return tile_times.seconds(self, kernel)
