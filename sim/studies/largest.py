"""The largest micro batch that fits, by memory alone: `prestep run --max-micro-batch`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from prestep.sim.analysis.memory import FRAGMENTATION, Memory, outside, peaks
from prestep.sim.costs import load_gpu
from prestep.sim.lowering import lowered_on
from prestep.sim.outputs.declarations import schemas_beside
from prestep.sim.predict import load_fabric, plan
from prestep.sim.spec.sections import Scenario
from prestep.sim.studies.room import enough_microbatches, with_samples
from prestep.sim.units import format_bytes
from prestep.topologies.fabric import Fabric
from prestep.workloads.job.layout import microbatches_of

MOST = 65_536  # samples; no one GPU has room for more of anything
OUTSIDE = ("context", "communication")  # owners that are not the allocator's


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
        outside = sum(self.owners.get(owner, 0.0) for owner in OUTSIDE)
        return FRAGMENTATION * (self.needed - outside) + outside

    @property
    def fits_usually(self) -> bool:
        return self.usual <= self.capacity

    @property
    def largest_owner(self) -> str:
        return max(self.owners, key=self.owners.__getitem__)


SCHEMA = schemas_beside(__file__)["schema"]


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

    @property
    def fails(self) -> bool:
        """Whether not even one sample fits."""
        return self.at is None

    def to_dict(self) -> dict[str, Any]:
        """Plain values; bytes."""
        return SCHEMA.row(self)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"largest micro batch that fits: {self.micro_batch or 'none'}"
        if self.at is not None:
            free = format_bytes(self.at.capacity - self.at.needed)
            yield f"  {_line(self.at)}: fits, {free} free"
        if self.beyond is not None:
            over = format_bytes(self.beyond.needed - self.beyond.capacity)
            yield f"  {_line(self.beyond)}: {over} too much"
        else:
            yield f"  more than {MOST} samples were not tried"
        if self.usual < self.micro_batch:
            unused = f"the {FRAGMENTATION - 1:.0%} that PyTorch's allocator usually leaves unused"
            yield f"  with {unused} (measured: 0 to 46 %): {self.usual or 'none'}"
        if self.divides is not None and self.divides != self.micro_batch:
            yield f"  of {self.global_batch} samples a step: {self.divides or 'none'}"


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
    memory = _Memory(scenario, load_fabric(scenario))
    most = _last(lambda samples: memory.need(samples).fits)
    if most:  # NCCL chooses by size what it connects
        memory = memory.with_connections_of(most)
        most = _last(lambda samples: memory.need(samples).fits)
    return Limit(
        at=memory.need(most) if most else None,
        beyond=memory.need(most + 1) if most < MOST else None,
        usual=_last(lambda samples: memory.need(samples).fits_usually),
        global_batch=scenario.training.global_batch,
        divides=_largest_divisor(scenario, most),
    )


def fits(scenario: Scenario) -> bool:
    """Whether a scenario's step fits, by memory alone; raises like `largest_micro_batch`."""
    memory = _Memory(scenario, load_fabric(scenario))
    return memory.need(scenario.training.micro_batch).fits


class _Memory:
    """Memory of the scenario's layout by micro batch; `connected`: the one whose NCCL buffers count."""

    def __init__(
        self,
        scenario: Scenario,
        fabric: Fabric,
        connected: int = 1,
        allocated: dict[int, dict[int, Memory]] | None = None,
    ) -> None:
        self.scenario, self.fabric = scenario, fabric
        self.outside = _outside(scenario, fabric, connected)
        self._allocated = {} if allocated is None else allocated

    def with_connections_of(self, samples: int) -> _Memory:
        return _Memory(self.scenario, self.fabric, samples, self._allocated)

    def need(self, samples: int) -> Need:
        """Of the fullest rank with what lies beside its allocator."""
        ranks = [
            {**memory.owners, **self.outside[rank]}
            for rank, memory in sorted(self._peaks(samples).items())
        ]
        owners = max(ranks, key=lambda owners: sum(owners.values()))
        capacity = load_gpu(self.fabric.gpu_model).memory
        return Need(samples, sum(owners.values()), capacity, owners)

    def _peaks(self, samples: int) -> dict[int, Memory]:
        """Bytes of each simulated rank's allocator, lowered once for each micro batch."""
        if samples not in self._allocated:
            few = enough_microbatches(self.scenario, microbatches_of(self.scenario))
            step = with_samples(self.scenario, samples, few)
            lowered = lowered_on(step, self.fabric)
            self._allocated[samples] = peaks(lowered)
        return self._allocated[samples]


def _largest_divisor(scenario: Scenario, most: int) -> int | None:
    """The largest micro batch that fits and divides the global batch (0: none); None where there is none to divide."""
    whole, dp = scenario.training.global_batch, scenario.parallel.dp
    if whole is None:
        return None
    fitting = range(1, most + 1)
    return max((n for n in fitting if whole % (n * dp) == 0), default=0)


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


def _outside(
    scenario: Scenario, fabric: Fabric, samples: int
) -> dict[int, dict[str, float]]:
    """Bytes beside the allocator's of a step with few microbatches of so many samples."""
    parallel = scenario.parallel
    few = parallel.pp * max(1, parallel.vpp) if parallel.pp > 1 else 1
    return outside(plan(with_samples(scenario, samples, few), fabric))
