"""HybridEP's kernels within an NVLink domain: tokens to the ranks of their experts and back, by a published bandwidth.

It was measured on a GB200, for 8 to 36 ranks (`hybridep.toml`); fewer ranks go as 8, more as 36. GPUs with the same
NVLinks take it as it is: B200, 8 ranks, is within 2 % of it. Small tokens go to their experts as fast, but each copy
that comes back, a read of another GPU's memory, takes a while of its own; for other numbers of SMs that is a guess.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from prestep.sim import schema
from prestep.sim.collectives import backends
from prestep.sim.collectives.group import Group, group_of
from prestep.sim.collectives.plan import Plan
from prestep.sim.collectives.settings import Nccl
from prestep.sim.costs.gpu_files import generation_of
from prestep.sim.graph.opgraph import Tokens
from prestep.sim.schema import Items, Number, Table, Text

FILE = Path(__file__).with_suffix(".toml")
WAYS = ("dispatch", "combine")
GIGA = 1e9
COLUMNS = ("ranks", *WAYS)
FIGURES = dict.fromkeys(COLUMNS, Items(Number(0)))
SCHEMA = Table(
    {"evidence": Text(), "gpus": Items(Text()), "copy_ns": Number(0), **FIGURES},
    needed=("evidence", "gpus", "copy_ns", *COLUMNS),
)


def plan(
    op: str,
    size: float,
    ranks: Sequence[str],
    fabric: Any,
    settings: Nccl,
    tokens: Tokens,
) -> Plan | None:
    """The exchange of `size` bytes a rank; None where its kernels were not measured: over the network, other GPUs."""
    group = group_of(fabric, ranks, settings)
    if not measured(group, fabric, settings) or size <= 0:
        return None
    links = backends.plan_of(op, size, ranks, fabric, settings, False)
    table = curve()
    measured_here = fabric.gpu_model in table["gpus"] and group.n <= max(table["ranks"])
    return replace(
        links,
        algo="hybridep",
        proto=tokens.way,
        channels=tokens.sms,
        rate_cap=size / duration(size, group.n, tokens),
        evidence="fitted" if measured_here else "guess",
    )


def measured(group: Group, fabric: Any, settings: Nccl) -> bool:
    """Whether a bandwidth of such a group is known: one NVLink domain, of GPUs with NVLink 5."""
    return (
        generation_of(fabric.gpu_model).nvlink5
        and settings.backend == "nccl"
        and group.nodes == 1
        and group.inside == group.outside == "auto"
        and "nvlink" in group.local_kind
    )


def duration(size: float, ranks: int, tokens: Tokens) -> float:
    """Seconds for `size` bytes a rank; copies that come back and are small take what one of them takes at least."""
    rate = bandwidth(ranks, tokens.way)
    least = curve()["copy_ns"] * 1e-9 if tokens.way == "combine" else 0.0
    waiting = max(0.0, least - tokens.size / rate)
    return size / rate + tokens.count * tokens.ranks * waiting


def bandwidth(ranks: int, way: str) -> float:
    """Bytes a second of a rank, those to itself included."""
    table = curve()
    return GIGA * float(np.interp(np.log(ranks), np.log(table["ranks"]), table[way]))


@cache
def curve() -> dict[str, Any]:
    """GB/s by ranks and way."""
    return schema.read(FILE, SCHEMA)
