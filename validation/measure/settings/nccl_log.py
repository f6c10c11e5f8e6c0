"""NCCL's log: a group of processes that writes it."""

from __future__ import annotations

from collections.abc import Sequence

from prestep.validation.measure.options import Options, Place
from prestep.validation.measure.plan import Variant

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
