"""What NCCL says that it ran for a size, beside what its own model chooses on the cluster, and what would be faster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from prestep.sim.collectives.interval import NETWORK
from prestep.sim.exchanges import table
from prestep.sim.units import format_bytes, percent
from prestep.validation.doctor.sweep import LATENCY, Situation, Size, Sweep
from prestep.validation.formats.collective_rows import Row
from prestep.validation.formats.nccl_log import Choice, choice_of

# Guess: a choice is named that takes so much less of the measured time.
GAIN = 0.1
#: Settings of NCCL for a row.
ByRow = Callable[[Row], Mapping[str, Any]]


def logged(here: Situation) -> ByRow | None:
    """What the log says NCCL ran, for the rows that it says it of; None where it says nothing."""
    ran = dict(filter(None, map(choice_of, here.lines)))
    rows = [row for series in here.series for row in series]
    if not any(_of(ran, row.op, row.size) for row in rows):
        return None

    def settings(row: Row) -> Mapping[str, Any]:
        algo, proto, channels = _of(ran, row.op, row.size) or ("", "", None)
        count = {"min_channels": channels, "max_channels": channels} if channels else {}
        return {"algo": algo, "proto": proto, **count} if algo else {}

    return settings


def differs(here: Situation, line: str) -> bool:
    """Whether a line says that NCCL ran something else for a size than its own model chooses on the cluster."""
    pair = choice_of(line)
    if pair is None:
        return False
    (op, size), (algo, proto, _) = pair
    return any(
        (one.expected.algo, one.expected.proto) != (algo, proto)
        for sweep, one in here.measured
        if op in ("", sweep.op) and one.size == size
    )


def _of(ran: Mapping[tuple[str, int], Choice], op: str, size: int) -> Choice | None:
    """What ran for a size; old releases of NCCL name no operation."""
    return ran.get((op, size)) or ran.get(("", size))


def faster(here: Situation) -> tuple[str, ...]:
    """What NCCL could have chosen and would take clearly less time than was measured, by what prestep predicts.

    Of the sizes that bandwidth bounds, and of operations where it holds for most of these: a single size may lie where
    the prediction changes its protocol elsewhere than NCCL does.
    """
    return tuple(text for sweep in here.sweeps for text in _better(here, sweep))


def _better(here: Situation, sweep: Sweep) -> list[str]:
    sizes = [
        size
        for size in sweep.sizes
        if size.expected.place == NETWORK
        and size.expected.algo
        and size.expected.part != LATENCY
    ]
    found = [text for size in sizes if (text := _choice(here, sweep, size))]
    return found if 2 * len(found) > len(sizes) else []


def _choice(here: Situation, sweep: Sweep, size: Size) -> str:
    """The better choice for a size in words; "" where there is none."""
    (row,) = table.sweep(
        here.fabric,
        op=sweep.op,
        gpus=here.ranks_of(sweep.row),
        min_bytes=size.size,
        max_bytes=size.size,
        nccl=here.nccl,
    )
    if (plan := row.faster) is None:
        return ""
    gain = 1.0 - plan.duration(here.fabric.links.bandwidth) / size.measured
    run = f"{plan.algo} {plan.proto} with {plan.channels} channels"
    text = (
        f"{sweep.op} of {format_bytes(size.size)} as {run}: {percent(gain)} less time"
    )
    return text if gain > GAIN else ""
