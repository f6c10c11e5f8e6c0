"""What NCCL found and chose: its debug log (graph, tuning table, choices) and its topology and graph as XML."""

from __future__ import annotations

from collections.abc import Sequence

from validation.measure.options import Options, Place
from validation.measure.plan import Variant
from validation.measure.probes.collectives import call_of
from validation.measure.session import Session

TITLE, NEEDS, WEIGHT, ORDER = "NCCL's log and topology", "gpus", 12.0, 80
OPS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
ENV = {
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "INIT,ENV,GRAPH,TUNING",
    "NCCL_DEBUG_FILE": "{files}/nccl/nccl.%p.log",
    "NCCL_TOPO_DUMP_FILE": "{files}/nccl/topo.xml",
    "NCCL_GRAPH_DUMP_FILE": "{files}/nccl/graph.xml",
    "NCCL_TOPO_DUMP_FILE_RANK": "0",
    "NCCL_GRAPH_DUMP_FILE_RANK": "0",
}


def variants(options: Options, place: Place) -> Sequence[Variant]:
    """One group of its own: a log of every call slows calls down."""
    return [Variant("nccl-log", ENV, order=20)]


def measure(session: Session) -> None:
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
