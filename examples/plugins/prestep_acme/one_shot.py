"""All-gather in one step: every rank writes its part to all others."""

from __future__ import annotations

import math

from prestep.sim.collectives.assemble import Call
from prestep.sim.collectives.plan import Plan
from prestep.sim.collectives.wires import paths

OPS = ("all_gather",)
PROTOS = ("Simple",)
START = 5e-6  # s, guess: a launch and one hop


def plan(call: Call) -> Plan:
    """What it puts on every link, per byte of the gathered buffer: each part once from its rank to every other."""
    group = call.group
    pairs = [(a, b, 1 / group.n) for a in group.ranks for b in group.ranks if a != b]
    links, usage = paths.gather(call.fabric, group.expand(call.fabric, pairs))
    return Plan(
        call.op,
        call.size,
        group.ranks,
        "one_shot",
        call.proto,
        call.channels,
        START,
        links,
        usage,
        math.inf,
        "guess",
    )
