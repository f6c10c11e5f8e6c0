"""What it costs to make a communicator: ncclCommInitRank, once per process group and again for every split.

In order (NCCL src/init.cc, src/bootstrap.cc): the process's first communicator loads NCCL's kernels; every rank
registers with the root, which answers them one after the other; addresses, peers and channels go round a ring of the
ranks in three all-gathers of n - 1 steps; the topology is found and searched; rings (two neighbours) and trees (three)
are connected on every channel.

    total = [kernels] + alloc + bootstrap + per_rank n + gathers (n - 1) step + topology + connections

Constants: [creation.nccl] of sim/costs/hardware/extra-nccl.toml, measured on 2 and 4 ranks of one machine; how it
grows with ranks is a guess.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sim.collectives import constants
from sim.errors import InputError, Mistake
from sim.units import format_duration

GATHERS = 3  # peers (twice: before and after the topology is known), channels
PARTS = ("kernels", "alloc", "bootstrap", "topology", "connections")


@dataclass(frozen=True)
class Cost:
    """Seconds to make a communicator of `ranks`, by part; `first`: with loading of the kernels."""

    ranks: int
    parts: dict[str, float]
    evidence: str

    @property
    def first(self) -> float:
        return sum(self.parts.values())

    @property
    def again(self) -> float:
        return self.first - self.parts["kernels"]

    def to_json(self) -> dict[str, Any]:
        """Plain values in SI units; `time` is a process's first communicator."""
        return {
            "op": "init",
            "ranks": self.ranks,
            "time": self.first,
            "time_again": self.again,
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
        raise InputError(Mistake("creation", "ranks", str(ranks), "at least one"))
    table = constants.load(gpu).tables["creation"]["nccl"]
    parts = {name: float(table[name]) for name in PARTS}
    parts["bootstrap"] += float(table["per_rank"]) * ranks + GATHERS * (
        ranks - 1
    ) * float(table["step"])
    return Cost(
        ranks, parts, "measured" if ranks <= int(table["measured_ranks"]) else "guess"
    )


def seconds(ranks: int, first: bool = True, gpu: str = constants.REFERENCE) -> float:
    """Seconds until every rank has its communicator; `first`: the process has none yet and loads NCCL's kernels."""
    made = cost(ranks, gpu)
    return made.first if first else made.again


def counts(ranks: int) -> list[int]:
    """Rank counts of a table: 2, 4, 8, ... and `ranks` itself."""
    powers = [2**k for k in range(1, ranks.bit_length()) if 2**k < ranks]
    return [*powers, ranks]


def render(costs: Sequence[Cost], explain: bool = False) -> str:
    """The table for people; `explain` adds the parts."""
    lines = [f"{'ranks':>10} {'first':>10} {'again':>10}"]
    for one in costs:
        lines.append(
            f"{one.ranks:10} {format_duration(one.first):>10} {format_duration(one.again):>10}"
        )
        if explain:
            parts = " + ".join(
                f"{name} {format_duration(value)}" for name, value in one.parts.items()
            )
            lines.append(f"           {parts}")
    evidence = ", ".join(sorted({one.evidence for one in costs}))
    told = "first: a process's first communicator loads NCCL's kernels; again: another, or a split"
    return "\n".join([*lines, f"evidence: {evidence}", told])
