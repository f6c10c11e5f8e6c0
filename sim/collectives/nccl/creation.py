"""What it costs to make a communicator: ncclCommInitRank, once per process group and again for every split.

In order (NCCL src/init.cc, src/bootstrap.cc): the process's first communicator loads NCCL's kernels; every rank
registers with the root, which answers them one after the other; addresses, peers and channels go round a ring of the
ranks in three all-gathers of n - 1 steps; the topology is found and searched, for which every rank walks through pairs
of ranks; rings (two neighbours) and trees (three) are connected on every channel.

    total = [kernels] + alloc + bootstrap + per_rank n + gathers (n - 1) step + pair n^2 + topology + connections

Constants: [creation.nccl] of sim/costs/hardware/extra-nccl.toml, measured on 2 and 4 ranks of one machine; how it
grows with ranks was read off published figures of 49,152 and 98,304. Machines differ by far more than ranks do: beyond
those that were measured the interval reaches up to what users have reported (`slower`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from prestep.sim.collectives import constants
from prestep.sim.errors import InputError
from prestep.sim.units import format_duration

GATHERS = 3  # peers (twice: before and after the topology is known), channels
PARTS = ("kernels", "alloc", "bootstrap", "topology", "connections")


@dataclass(frozen=True)
class Cost:
    """Seconds to make a communicator of `ranks`, by part; `first`: with loading of the kernels."""

    ranks: int
    parts: dict[str, float]
    evidence: str
    slower: float = 1.0  # times as long on a slow machine, all but the kernels
    faster: float = 1.0  # as long on a fast one, as a share

    @property
    def first(self) -> float:
        return sum(self.parts.values())

    @property
    def again(self) -> float:
        return self.first - self.parts["kernels"]

    @property
    def interval(self) -> tuple[float, float]:
        """Seconds of a second communicator on the fastest and on the slowest machine that are known."""
        return self.again * self.faster, self.again * self.slower

    def to_json(self) -> dict[str, Any]:
        """Plain values in SI units; `time` is a process's first communicator."""
        low, high = self.interval
        return {
            "op": "init",
            "ranks": self.ranks,
            "time": self.first,
            "time_again": self.again,
            "interval_again": {"low": low, "high": high},
            "parts": self.parts,
            "evidence": self.evidence,
        }


def cost(ranks: int, gpu: str = constants.REFERENCE) -> Cost:
    """What a communicator of `ranks` costs.

    Raises
    ------
    InputError
        If there is no rank.
    """
    if ranks < 1:
        raise InputError.of("creation", "ranks", str(ranks), "at least one")
    table = constants.load(gpu).tables["creation"]["nccl"]
    parts = {name: float(table[name]) for name in PARTS}
    rounds = float(table["per_rank"]) * ranks
    rounds += GATHERS * (ranks - 1) * float(table["step"])
    parts["bootstrap"] += rounds
    parts["topology"] += float(table["pair"]) * ranks**2
    measured = ranks <= int(table["measured_ranks"])
    return Cost(
        ranks,
        parts,
        "measured" if measured else "guess",
        float(table["slower"]),
        float(table["faster"]),
    )


def seconds(ranks: int, first: bool = True, gpu: str = constants.REFERENCE) -> float:
    """Seconds until every rank has its communicator; `first`: the process has none yet and loads NCCL's kernels."""
    one = cost(ranks, gpu)
    return one.first if first else one.again


def counts(ranks: int) -> list[int]:
    """Rank counts of a table: 2, 4, 8, ... and `ranks` itself."""
    powers = [2**k for k in range(1, ranks.bit_length()) if 2**k < ranks]
    return [*powers, ranks]


def render(costs: Sequence[Cost], explain: bool = False) -> str:
    """The table for people; `explain` adds the parts."""
    lines = [f"{'ranks':>10} {'first':>10} {'again':>10}   on other machines"]
    for one in costs:
        lines.append(
            f"{one.ranks:10} {format_duration(one.first):>10} {format_duration(one.again):>10}"
            f"   {' to '.join(format_duration(end) for end in one.interval)}"
        )
        if explain:
            parts = " + ".join(
                f"{name} {format_duration(value)}" for name, value in one.parts.items()
            )
            lines.append(f"           {parts}")
    evidence = ", ".join(sorted({one.evidence for one in costs}))
    legend = (
        "first: a process's first communicator loads NCCL's kernels; again: another, or a split;\n"
        "on other machines: again, on the fastest and slowest that are known (drivers, CPUs, versions of NCCL)"
    )
    return "\n".join([*lines, f"evidence: {evidence}", legend])
