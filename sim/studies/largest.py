"""The largest micro batch that fits, by memory alone: `prestep run --max-micro-batch`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from sim.analysis.memory import outside, peaks
from sim.analysis.prediction import FRAGMENTATION, Memory
from sim.costs import load_gpu
from sim.predict import load_fabric, lowered_on, plan
from sim.spec.sections import Scenario
from sim.units import format_bytes
from topologies.fabric import Fabric
from workloads.job.layout import microbatches_of

MOST = 65_536  # samples; no one GPU has room for more of anything
FEW = 3  # microbatches without a pipeline; with one, as many as it holds at once


@dataclass(frozen=True)
class Need:
    """Memory of the fullest rank with a micro batch: bytes in all, by owner, and whether that fits."""

    micro_batch: int
    needed: float
    capacity: float
    owners: dict[str, float]

    @property
    def fits(self) -> bool:
        return self.needed <= self.capacity

    @property
    def usual(self) -> float:
        """With what PyTorch's allocator usually leaves unused."""
        beside = sum(
            self.owners.get(owner, 0.0) for owner in ("context", "communication")
        )
        return FRAGMENTATION * (self.needed - beside) + beside

    @property
    def largest_owner(self) -> str:
        return max(self.owners, key=self.owners.__getitem__)

    def to_dict(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "fits": self.fits,
            "largest_owner": self.largest_owner,
            "usual": self.usual,
        }


@dataclass(frozen=True)
class Limit:
    """The largest micro batch that fits (0: none), and the next one.

    `at` is None if not even one sample fits, `beyond` if `MOST` do; `usual` is the limit when the allocator leaves
    unused what it usually does; `divides` the largest that the scenario's global batch allows (None: it says none).
    """

    at: Need | None
    beyond: Need | None
    usual: int
    global_batch: int | None
    divides: int | None

    @property
    def micro_batch(self) -> int:
        return self.at.micro_batch if self.at is not None else 0

    def to_dict(self) -> dict[str, Any]:
        """Plain values; bytes."""
        return {
            "max_micro_batch": self.micro_batch,
            "at": self.at.to_dict() if self.at is not None else None,
            "next": self.beyond.to_dict() if self.beyond is not None else None,
            "max_micro_batch_with_usual_fragmentation": self.usual,
            "global_batch": self.global_batch,
            "max_micro_batch_of_global_batch": self.divides,
        }

    def __str__(self) -> str:
        lines = [f"largest micro batch that fits: {self.micro_batch or 'none'}"]
        if self.at is not None:
            free = format_bytes(self.at.capacity - self.at.needed)
            lines.append(f"  {_line(self.at)}: fits, {free} free")
        if self.beyond is not None:
            over = format_bytes(self.beyond.needed - self.beyond.capacity)
            lines.append(f"  {_line(self.beyond)}: {over} too much")
        else:
            lines.append(f"  more than {MOST} samples were not tried")
        if self.usual < self.micro_batch:
            unused = f"the {FRAGMENTATION - 1:.0%} that PyTorch's allocator usually leaves unused"
            lines.append(
                f"  with {unused} (measured: 0 to 46 %): {self.usual or 'none'}"
            )
        if self.divides is not None and self.divides != self.micro_batch:
            lines.append(
                f"  of {self.global_batch} samples a step: {self.divides or 'none'}"
            )
        return "\n".join(lines)


def _line(need: Need) -> str:
    owner = need.largest_owner
    return (
        f"{need.micro_batch}: {format_bytes(need.needed)} of {format_bytes(need.capacity)}, "
        f"most of it {owner} ({format_bytes(need.owners[owner])})"
    )


def largest_micro_batch(scenario: Scenario) -> Limit:
    """The limit of a scenario's layout, found by doubling and bisection; the number of microbatches stays.

    Raises
    ------
    InputError
        If the layout does not fit the cluster or the model, or asks for what is not simulated.
    """
    fabric, count = load_fabric(scenario), microbatches_of(scenario)
    beside = _beside(scenario, fabric, 1)
    known: dict[int, dict[int, Memory]] = {}

    def need(samples: int) -> Need:
        if samples not in known:
            known[samples] = peaks(
                lowered_on(
                    with_samples(scenario, samples, _few(scenario, count)), fabric
                ),
                scenario,
            )
        every = [
            {**memory.owners, **beside[rank]}
            for rank, memory in sorted(known[samples].items())
        ]
        owners = max(
            every, key=lambda of: sum(of.values())
        )  # the fullest rank with what lies beside its allocator
        return Need(
            samples, sum(owners.values()), load_gpu(fabric.gpu_model).memory, owners
        )

    if most := _last(lambda n: need(n).fits):  # NCCL chooses by size what it connects
        beside = _beside(scenario, fabric, most)
        most = _last(lambda n: need(n).fits)
    usual = _last(lambda n: need(n).usual <= need(n).capacity)
    whole, dp = scenario.training.global_batch, scenario.parallel.dp
    divides = None
    if whole is not None:
        divides = max(
            (n for n in range(1, most + 1) if whole % (n * dp) == 0), default=0
        )
    return Limit(
        need(most) if most else None,
        need(most + 1) if most < MOST else None,
        usual,
        whole,
        divides,
    )


def _last(fits: Callable[[int], bool]) -> int:
    """The last number from 1 on for which `fits` holds, as it does for all before; 0 for none, at most `MOST`."""
    if not fits(1):
        return 0
    low, high = 1, 2
    while high <= MOST and fits(high):
        low, high = high, 2 * high
    if low >= MOST:
        return MOST
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _few(scenario: Scenario, count: int) -> int:
    """Microbatches that tell the memory of all: accumulation holds no more than the third does."""
    return count if scenario.parallel.pp > 1 else min(count, FEW)


def with_samples(scenario: Scenario, samples: int, microbatches: int) -> Scenario:
    """The same layout with another micro batch and so many microbatches."""
    t = replace(
        scenario.training,
        micro_batch=samples,
        microbatches=None,
        grad_accumulation=None,
        global_batch=samples * scenario.parallel.dp * microbatches,
    )
    return replace(
        scenario, training=t, parallel=replace(scenario.parallel, microbatches=None)
    )


def _beside(
    scenario: Scenario, fabric: Fabric, samples: int
) -> dict[int, dict[str, float]]:
    """Bytes beside the allocator's of a step with few microbatches of so many samples."""
    few = (
        scenario.parallel.pp * max(1, scenario.parallel.vpp)
        if scenario.parallel.pp > 1
        else 1
    )
    return outside(plan(with_samples(scenario, samples, few), fabric))
