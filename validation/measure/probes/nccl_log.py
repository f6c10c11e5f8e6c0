"""What NCCL found and chose: its debug log (graph, tuning table, choices) and its topology and graph as XML."""

from __future__ import annotations

from prestep.validation.measure.group import GroupSession
from prestep.validation.measure.probes.collectives import call_of

TITLE, NEEDS, WEIGHT, ORDER = "NCCL's log and topology", "gpus", 12.0, 80
OPS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")


def measure(session: GroupSession) -> None:
    """One call of each operation and size; nothing is timed."""
    for op in OPS:
        for size in [2**8] if session.tiny else [2**k for k in range(3, 31)]:
            if not session.going():
                session.skip(
                    f"NCCL's choice of {op} at {size} bytes and after", "no time left"
                )
                return
            call_of(session, op, size)()
    session.synchronize()
