"""All-gather in one step: every rank writes its part to all others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from prestep.sim.collectives.constants import Constants
from prestep.sim.collectives.group import Group, group_of
from prestep.sim.collectives.plan import Plan, Send
from prestep.sim.collectives.settings import Nccl
from prestep.sim.collectives.wires import paths

OPS = ("all_gather",)
PROTOS = ("Simple",)
START = 5e-6  # s, guess: a launch and one hop


def plan(
    op: str,
    size: float,
    ranks: Sequence[str],
    fabric: Any,
    nccl: Nccl | None = None,
    proto: str = "Simple",
    channels: int = 1,
    table: Constants | None = None,
) -> Plan:
    """What it puts on every link, per byte of the gathered buffer: each part once from its rank to every other."""
    group = group_of(fabric, ranks, nccl or Nccl())
    pairs = [(a, b, 1 / group.n) for a in group.ranks for b in group.ranks if a != b]
    links, usage = paths.gather(fabric, group.expand(fabric, pairs))
    return Plan(
        op,
        size,
        group.ranks,
        "one_shot",
        proto,
        channels,
        START,
        links,
        usage,
        math.inf,
        "guess",
    )


def steps(op: str, n: int) -> list[list[Send]]:
    """Rounds of transfers between ranks 0..n-1, which a test replays: chunk r is rank r's part."""
    return [[Send(a, b, a, False) for a in range(n) for b in range(n) if a != b]]


def runs_on(op: str, group: Group, fabric: Any, wanted: Nccl) -> str | None:
    """Why it cannot run there, or None."""
    return None
