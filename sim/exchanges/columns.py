"""The table of `prestep collective` for people: sizes in the columns of nccl-tests."""

from __future__ import annotations

from collections.abc import Sequence

from prestep.sim.exchanges.table import Row, short
from prestep.sim.units import format_bandwidth, format_bytes, format_duration


def render(rows: Sequence[Row], explain: bool = False) -> str:
    """The table for people; `explain` adds what decides and what NCCL compared."""
    columns = f"{'size':>8} {'algo':>9} {'proto':>6} {'ch':>3} {'time':>9} {'90%':>5}"
    lines = [f"{columns} {'algbw':>10} {'busbw':>10}  bound by"]
    for row in rows:
        lines.append(_line(row))
        if explain:
            lines += _explained(row)
    evidence = sorted({row.plan.evidence for row in rows})
    lines.append(f"evidence: {', '.join(evidence)}")
    if any(row.interval for row in rows):
        lines.append(
            "90%: how far nine in ten measured times lie from the predicted one (20%: from time / 1.2 to time x 1.2)"
        )
    notes = sorted({note for row in rows for note in row.plan.notes})
    notes += _not_the_fastest(rows)
    return "\n".join([*lines, *(f"note: {note}" for note in notes)])


def _not_the_fastest(rows: Sequence[Row]) -> list[str]:
    """A note on sizes for which NCCL's tables choose what takes longer than something else; the largest is shown."""
    slow = [(row, row.faster) for row in rows if row.faster is not None]
    if not slow:
        return []
    row, other = slow[-1]
    sizes = ", ".join(format_bytes(row.plan.size) for row, _ in slow)
    named = f"{other.algo} {other.proto} with {other.channels} channels"
    return [
        f"NCCL chooses by its own tables, not what is predicted to be fastest, for {sizes}: "
        f"{format_bytes(row.plan.size)} as {named} (NCCL_ALGO, NCCL_PROTO, NCCL_MIN_CTAS)"
    ]


def _line(row: Row) -> str:
    plan, time = row.plan, format_duration(row.time)
    algbw, busbw = format_bandwidth(row.algbw), format_bandwidth(row.busbw)
    return (
        f"{format_bytes(plan.size):>8} {plan.algo:>9} {plan.proto:>6} {plan.channels:3} "
        f"{time:>9} {_width(row):>5} {algbw:>10} {busbw:>10}  {short(row.bottleneck)}"
    )


def _width(row: Row) -> str:
    return (
        f"{row.interval.high / row.time - 1:.0%}" if row.interval and row.time else ""
    )


def _explained(row: Row) -> list[str]:
    p = row.plan
    lines = [
        f"           latency {format_duration(p.latency)}, then at most {format_bandwidth(p.rate_cap)} of payload"
    ]
    return lines + [
        f"           NCCL's estimate for {c.algo} {c.proto}: {format_duration(c.time)} = "
        f"{format_duration(c.latency)} + size / {format_bandwidth(c.bandwidth)}"
        for c in row.candidates
    ]
