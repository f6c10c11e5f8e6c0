"""Traces of a machine at work, with matrix products as they are at the highest clock: without the power limit's cost.

A step that is long and dense runs its products up to a fifth slower than a short one. Tables of kernels hold the times
at the highest clock; the simulator's meter (sim/costs/power.py) slows them down again as each step wants it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from lab.fit.kineto_fused import fused_kernel
from prestep.sim.costs import gemm
from prestep.sim.costs.gpu import Gpu
from prestep.sim.costs.power import FILLS_ABOVE, Load, Meter, Power
from prestep.sim.costs.tables import Row
from prestep.sim.graph.kernel import Kernel
from prestep.validation.fit.kernel_rows import trace_rows
from prestep.validation.formats.kineto_kernels import (
    Call,
    operations,
    read_calls,
    read_events,
)
from prestep.validation.formats.kineto_operations import Event, classify

HELD_OUT = (
    "8b-fsdp4-b1.default.rank0",
    "1b-pp4-1f1b-m8.default.rank2",
    "1b-pp4-1f1b-m8.default.rank3",
    "2b-single-b8.default.rank0",
    "1b-ddp4-b6.default.rank0",
)
# Emulated clusters and slowed ranks are not the machine at work. Of compiled steps only TorchInductor's own kernels are
# taken: those steps are denser and run their GEMMs at lower clocks (2 % slower forward, 10 % backward).
LEFT_OUT = ("slow3", "spine")
HALVES = ("_input", "_weight")  # of a norm's backward, which traces hold as a whole too
# GPUs of a model differ in what they draw; where a trace's products say so, its GPU's own power is taken out.
POWERS = (1.0, 1.05, 1.1, 1.15, 1.2, 1.25, 1.3, 1.35, 1.4, 1.45, 1.5, 1.55, 1.6)


def of_trace(
    calls: list[Call], power: Power | None, expected: Callable[[Kernel], float]
) -> Power | None:
    """The power limit with the product power that explains this trace best: times at full clock are as `expected`.

    `expected` are seconds of a product at full clock by a model of shapes, so one trace cannot have many of its own.
    """
    if power is None:
        return None

    def wrong(product: float) -> float:
        done = at_full_clock(calls, replace(power, product=product))
        pairs = [
            (c.duration, expected(c.kernel))
            for c in done
            if is_product(c) and not c.overlapped
        ]
        return abs(
            sum(math.log(time / model) * time for time, model in pairs)
        ) + 1e-9 * abs(product - power.product)

    return replace(power, product=min(POWERS, key=wrong))


def offset(
    traces: Iterable[list[Call]],
    power: Power | None,
    expected: Callable[[Kernel], float],
) -> float:
    """Mean log of products over `expected`, of those that ran at full clock while the budget lasted."""
    if power is None:
        return 0.0
    total = weight = 0.0
    for calls in traces:
        ordered = sorted(calls, key=lambda call: call.start)
        for before, after in zip(ordered, at_full_clock(calls, power), strict=True):
            if (
                is_product(before)
                and not before.overlapped
                and after.duration == before.duration
            ):
                total += (
                    math.log(before.duration / expected(before.kernel))
                    * before.duration
                )
                weight += before.duration
    return total / weight if weight else 0.0


class TraceMeter(Meter):
    """A meter that reads a trace: kernels in it have taken what the limit made of them."""

    def free_share(self, now: float, duration: float, load: Load) -> float:
        """Time in a burst over the measured `duration` of a kernel that started `now`."""
        before = self.left, self.until
        longer = self.run(now, duration, load) / duration if duration > 0 else 1.0
        # What it drew was drawn for the measured time.
        self.left, self.until = before
        self.run(now, duration / longer, load)
        return 1.0 / longer


def at_full_clock(calls: list[Call], power: Power | None) -> list[Call]:
    """The calls of one trace, products shortened to their time at full clock; the budget is whole at its start."""
    if power is None or not calls:
        return calls
    ordered = sorted(calls, key=lambda call: call.start)
    meter, done = TraceMeter(power, start=ordered[0].start), []
    other, product = Load(power.other), power.load(power.product, own=power.in_16_bits)
    for call in ordered:
        done.append(call)
        if call.kernel.kind.endswith(HALVES):
            continue
        if not is_product(call):
            meter.run(call.start, call.duration, other)
        else:
            share = meter.free_share(call.start, call.duration, product)
            done[-1] = replace(call, duration=call.duration * share)
    return done


def is_product(call: Call) -> bool:
    """Whether the clock of a product counts: it fills the GPU."""
    return (
        gemm.is_tiled(call.kernel)
        and call.kernel.dtype != "fp32"
        and call.duration > FILLS_ABOVE
    )


def _full_clock(calls: dict[str, list[Call]], gpu: Gpu) -> dict[str, list[Call]]:
    """Products at full clock; of compiled steps TorchInductor's kernels only."""
    bias = math.exp(offset(calls.values(), gpu.power, gpu.tile_time))

    @cache
    def expected(kernel: Kernel) -> float:
        return gpu.tile_time(kernel) * bias

    done = {}
    for trace, mine in calls.items():
        power = of_trace(mine, gpu.power, expected)
        print(f"{trace}: product power {power.product if power else 1.0}")
        full = at_full_clock(mine, power)
        done[trace] = [
            call
            for call in full
            if "compiled" not in trace or call.kernel.kind.startswith("fused")
        ]
    return done


def _kernel_of(op: Event) -> Kernel | None:
    """The kernel of an operator, or of code that TorchInductor generated."""
    return fused_kernel(op) if op["name"].startswith("triton_") else classify(op)


def held_out_rows(calls: dict[str, list[Call]]) -> list[Row]:
    """Rows of each held-out trace by itself (source = the trace), for kernels that no collective overlapped."""
    rows = []
    for trace, mine in calls.items():
        alone = {
            trace: [
                call
                for call in mine
                if not call.overlapped and not call.kernel.kind.endswith(HALVES)
            ]
        }
        rows += [replace(row, source=trace) for row in trace_rows(alone)]
    return rows


@dataclass(frozen=True)
class Traces:
    """Calls by trace, and launches of AdamW in the traces that are fitted to."""

    calls: dict[str, list[Call]]
    launches: list[tuple[int, float]]

    @property
    def fitted(self) -> dict[str, list[Call]]:
        """The traces that are fitted to."""
        return {name: c for name, c in self.calls.items() if name not in HELD_OUT}

    @property
    def held_out(self) -> dict[str, list[Call]]:
        """The others."""
        return {name: c for name, c in self.calls.items() if name in HELD_OUT}


def _adamw_launches(path: Path) -> list[tuple[int, float]]:
    """(chunks, s) of every launch of the fused AdamW."""
    events = read_events(path)
    owners = operations(events)
    launches = []
    for event in events:
        if event.get("cat") != "kernel":
            continue
        owner = owners.get(event["args"].get("External id"))
        if owner and owner["name"] == "aten::_fused_adamw_":
            launches.append((event["args"]["grid"][0], event["dur"] * 1e-6))
    return launches


def read_traces(folders: list[Path], gpu: Gpu) -> Traces:
    """The traces of the machine at work, products at full clock."""
    calls: dict[str, list[Call]] = {}
    launches: list[tuple[int, float]] = []
    ending = ".pt.trace.json.gz"
    paths = [p for folder in folders for p in (folder / "traces").glob(f"*{ending}")]
    for path in sorted(paths):
        trace = path.name.removesuffix(ending)
        if any(word in trace for word in LEFT_OUT):
            continue
        calls[trace] = list(read_calls(path, _kernel_of))
        if trace not in HELD_OUT:
            launches += _adamw_launches(path)
    return Traces(_full_clock(calls, gpu), launches)
