"""A GPU as the simulator sees it: how long a kernel runs on it, alone and in a step, and what that number rests on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from prestep.sim.costs import aten, gemm, generated, padding, sustained
from prestep.sim.costs.clock import work_kind
from prestep.sim.costs.draw import Draw
from prestep.sim.costs.estimators import Basis, Estimator, tiles
from prestep.sim.costs.estimators.attention import is_plain, widened
from prestep.sim.costs.estimators.chain import chain_of
from prestep.sim.costs.estimators.operations import AtenTables
from prestep.sim.costs.estimators.roofline import Roofline
from prestep.sim.costs.estimators.table import KernelTables
from prestep.sim.costs.facts import GpuFacts
from prestep.sim.costs.gpu_files import HARDWARE, aten_of, facts_of, names, rows_of
from prestep.sim.costs.kinds import DTYPE_BYTES, check, work
from prestep.sim.costs.power import (
    ATTENTION_FOLLOWS,
    BUSY_ABOVE,
    FILLS_ABOVE,
    Load,
    Power,
)
from prestep.sim.costs.tables import REACH, Kriged, Row, read_operations
from prestep.sim.extras import lazily
from prestep.sim.graph.kernel import GROUPS, PREFIX, Kernel, plain_product

with lazily():
    from prestep.sim.costs.estimators import sibling


class Gpu:
    """One GPU model: its limits, the times of kernels on it, and the evidence for each of them.

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
    power
        The power limit, as far as it slows products down; None where it is in their times or unknown.
    power_limit, draw
        Watts that it may draw, and what draws them; None where nobody says.
    tables
        What was measured of kernels, by kind, layout and dtype.
    chain
        Estimators of kernels, in the order in which they are asked.
    gap
        Pause between back-to-back kernels of one stream, s; `duration` has the pauses inside one aten operation only.
    """

    def __init__(
        self,
        name: str,
        facts: GpuFacts,
        rows: list[Row],
        like: Gpu | None = None,
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
        self.roofline = Roofline(
            dict(facts.peak), facts.bandwidth, facts.l2_bandwidth, facts.l2
        )
        self.tables = KernelTables(
            rows, facts, self.bandwidth * facts.efficiency["bytes"], self.tile_time
        )
        self.tiles = facts.tiles
        self.power = self._power_limit()
        self.ask(*chain_of(self))

    def ask(self, *chain: Estimator) -> None:
        """Prices kernels by these estimators from now on, and forgets what others said."""
        self.chain = chain
        self._times: dict[Kernel, float] = {}
        self._bases: dict[Kernel, Basis] = {}
        self.unfilled: dict[Kernel, float] = {}

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
    def peak(self) -> dict[str, float]:
        """Dense peak flop/s by dtype."""
        return self.roofline.peak

    @property
    def bandwidth(self) -> float:
        """HBM bandwidth, bytes/s."""
        return self.roofline.bandwidth

    @cached_property
    def draw(self) -> Draw | None:
        """What the GPU draws; that of `like` at the same shares of its limits where nobody measured this one."""
        if self.facts.draw is not None:
            return self.facts.draw.with_formats(self.peak)
        like = self.like
        if like is None or not self.power_limit or not like.power_limit:
            return None
        if like.draw is None:
            return None
        here, there = self.roofline, like.roofline
        both = here.peak.keys() & there.peak.keys()
        peak = {dtype: here.peak[dtype] / there.peak[dtype] for dtype in both}
        limit = self.power_limit / like.power_limit
        scaled = like.draw.scaled(limit, peak, here.bandwidth / there.bandwidth)
        return scaled.with_formats(self.peak)

    @cached_property
    def aten_tables(self) -> AtenTables | None:
        """What was measured of ATen operations on this GPU; None where nobody did."""
        if self._operations is None:
            return None
        rows = read_operations(self._operations)
        lent = sibling.lent_operations(self)
        return AtenTables(rows, self.tile_time, self.roofline, lent)

    def surface(self, kernel: Kernel) -> tuple[Kriged, bool] | None:
        """Where an ATen operation is read, and whether in its own group; None for other kernels and without rows."""
        tables = self.aten_tables if kernel.kind.startswith(PREFIX) else None
        if tables is None or not tables.reads(kernel):
            return None
        return tables.surface(kernel)

    # Alone on the GPU.

    def link(self, kernel: Kernel) -> Estimator:
        """The estimator that answers for a kernel; the last one of the chain answers for all."""
        return next(link for link in self.chain if link.answers(kernel))

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
        time = self._times.get(kernel)
        if time is None:
            check(kernel)
            time = self._times[kernel] = self._lent(self._plain(kernel))
        return time

    def _lent(self, kernel: Kernel) -> float:
        link = self.link(kernel)
        if link.final:
            return link.seconds(kernel)
        return padding.filled_up(self, kernel, self.alone)

    def _plain(self, kernel: Kernel) -> Kernel:
        """Returns the kernel to price: the bare product if the GPU has no measured operations for a product.

        Of plain attention what its sizes say counts, whoever recorded it.
        """
        if kernel.is_attention and is_plain(kernel):
            return replace(kernel, bytes=0.0, flops=0.0)
        priced = kernel.is_product and kernel.dtype in DTYPE_BYTES
        if not priced or len(kernel.shape) != 3 or self.surface(kernel) is not None:
            return kernel
        return plain_product(kernel)

    def alone(self, kernel: Kernel) -> float:
        """Seconds by the chain, no less than the limits allow; they may fall where sizes grow (`duration`)."""
        plain = generated.streaming(kernel)
        return max(
            self.link(plain).seconds(plain),
            generated.seconds(kernel, self.roofline),
            self.roofline.bound(kernel),
            self.floor,
        )

    def running(self, kernel: Kernel) -> float:
        """Seconds for which the CUDA kernels of an operation run, without the pauses between them."""
        return max(self.duration(kernel) - self.pauses(kernel), self.floor)

    def pauses(self, kernel: Kernel) -> float:
        """Seconds between the CUDA kernels of an operation that has rows; 0 for others."""
        return self.further_launches(kernel) * self.gap

    def further_launches(self, kernel: Kernel) -> int:
        """CUDA kernels of an operation that has rows, beyond the first; 0 of others."""
        surface = self.surface(kernel)
        return 0 if surface is None else surface[0].starts(kernel) - 1

    def by_operations(self, kernel: Kernel) -> float:
        """Seconds by rows of operations, with the pauses between the CUDA kernels that the nearest row launches.

        A vector that is filled up to a matrix is read where matrices are. Operands that repeat within an operation may
        be read faster than its bytes say: no roofline bounds measured ones.
        """
        surface = self.surface(kernel)
        assert surface is not None
        return max(surface[0].within(kernel), self.floor) + self.pauses(kernel)

    def tile_time(self, kernel: Kernel) -> float:
        """Seconds of a product by the tile model alone, without what rows near it say."""
        return tiles.seconds(self, kernel)

    # What times rest on.

    def basis(self, kernel: Kernel) -> Basis:
        """What the time of a kernel in a step rests on, its load included."""
        basis = self._bases.get(kernel)
        if basis is None:
            check(kernel)
            basis = self._bases[kernel] = self._basis(self._plain(kernel))
        return basis

    def _basis(self, kernel: Kernel) -> Basis:
        basis = self.unloaded_basis(kernel)
        if self.link(kernel).loaded:
            return basis
        load_key = sustained.load_key(self.facts, self.roofline, kernel)
        if basis.octaves > math.log2(REACH) or load_key in self.facts.guessed_load:
            return basis._replace(grade="guess")
        fitted = load_key and basis.grade == "measured"
        return basis._replace(grade="fitted") if fitted else basis

    def unloaded_basis(self, kernel: Kernel) -> Basis:
        """What the time of a kernel alone rests on."""
        return self.link(kernel).basis(kernel)

    def evidence(self, kernel: Kernel) -> str:
        """Grade of a time in a step: "measured" (this shape), "fitted" (this kind), "datasheet" or "guess"."""
        return self.basis(kernel).grade

    # In a step: clocks, sustained load, power, other GPUs, releases of CUDA, SMs that are held.

    def in_step(self, kernel: Kernel, together: bool = False, cuda: str = "") -> float:
        """Seconds of a kernel in a long run, at the clock of hours of load; raises as `duration`.

        `together`: other GPUs of the host work too. `cuda`: the release of CUDA whose cuBLAS multiplies.
        """
        check(kernel)
        kernel = self._plain(kernel)
        is_grouped = kernel.kind in GROUPS and len(kernel.shape) == 4
        time = self.duration(gemm.in_whole_tiles(kernel) if is_grouped else kernel)
        # Starts of tiles follow the clock as their arithmetic does: not only what arithmetic bounds is slower.
        clock = self.crowded if together and work(kernel)[0] > 0 else 1.0
        toolkit = sustained.toolkit(self.facts, kernel, cuda)
        load = clock * self.sustained(kernel) * toolkit
        return time * load * self.sms / (self.sms - kernel.reserved)

    def sustained(self, kernel: Kernel) -> float:
        """Time of a kernel that arithmetic bounds under hours of load over `duration`, where that rests on bursts."""
        return sustained.sustained(self.facts, self.roofline, kernel)

    def beyond_limit(self, kernel: Kernel) -> float:
        """What arithmetic that fills the GPU draws in a burst over the power limit; 0 for other kernels."""
        dtype = widened(kernel).dtype
        if self.power is None or not self.power.own(dtype):
            return 0.0
        is_product = gemm.is_tiled(kernel) or aten.is_product(kernel)
        if not (is_product or kernel.is_attention):
            return 0.0
        duration = self.duration(kernel)
        if duration <= FILLS_ABOVE:
            return 0.0
        if kernel.is_attention:
            return self._watts(kernel, duration)
        busy = work(kernel)[0] > BUSY_ABOVE * self.peak[dtype] * duration
        return self.power.product if busy else 0.0

    def _watts(self, kernel: Kernel, duration: float) -> float:
        """What a kernel draws at the highest clock over the power limit, by its flops and bytes; 0 where unknown."""
        draw, limit = self.draw, self.power_limit
        if draw is None or limit is None:
            return 0.0
        joules = draw.kernel(duration, *work(kernel), work_kind(kernel))
        return (draw.idle + joules / duration) / limit

    def load(self, kernel: Kernel) -> Load:
        """What a kernel draws over the power limit of a GPU that has one, and how it goes with the clock."""
        assert self.power is not None
        drawn = self.beyond_limit(kernel)
        if not drawn:
            return Load(self.power.other)
        if kernel.is_attention:
            return self.power.load(drawn, ATTENTION_FOLLOWS)
        return self.power.load(drawn, own=self.power.own(kernel.dtype))


def load(name: str, folder: Path | None = None) -> Gpu:
    """The GPU `name` from `folder`: `<name>.toml` with facts and, where measured, `-fitted.toml` and `-kernels.csv`.

    What others published of it is in `-published.toml` and `-published.csv`.

    Raises
    ------
    InputError
        If there is no such GPU.
    """
    facts, rows, like = parts(name, folder)
    return Gpu(name.lower(), facts, rows, like, aten_of(name, folder))


def parts(
    name: str, folder: Path | None = None, over: Mapping[str, Any] | None = None
) -> tuple[GpuFacts, list[Row], Gpu | None]:
    """Facts of a GPU, its rows, and the one that lends it what it lacks; `over` and raises as `facts_of`."""
    facts = facts_of(name, folder, over)
    like = load(facts.like, folder) if facts.like else None
    return facts, rows_of(name, folder), like


__all__ = ["HARDWARE", "Gpu", "load", "names", "parts"]
