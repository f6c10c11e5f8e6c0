"""What an NCCL_DEBUG=INFO log (subsystem TUNING) says of NCCL's choice.

Lines: `AllReduce: 8 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}` (since 2.23; before: `... -> Algo 1 proto 0
time 10.2`). Source: src/enqueue.cc.
"""

from __future__ import annotations

import re

OPS = {
    "AllReduce": "all_reduce",
    "AllGather": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "Broadcast": "broadcast",
    "Reduce": "reduce",
}
ALGOS = {
    "tree": "tree",
    "ring": "ring",
    "collnetdirect": "collnet_direct",
    "collnet_direct": "collnet_direct",
    "collnetchain": "collnet_chain",
    "collnet_chain": "collnet_chain",
    "nvls": "nvls",
    "nvlstree": "nvls_tree",
    "nvls_tree": "nvls_tree",
    "pat": "pat",
}
PROTOS = ("LL", "LL128", "Simple")
_CHOICE = re.compile(
    r"(?:(\w+): )?\b(\d+) Bytes -> Algo (\w+) proto (\w+)(?:.*?=\{(\d+)\.\.(\d+)\})?"
)
Choice = tuple[str, str, int | None]


def is_log(text: str) -> bool:
    """Whether a text is such a log."""
    return " NCCL INFO " in text


def choice_of(line: str) -> tuple[tuple[str, int], Choice] | None:
    """What NCCL chose for an operation and bytes, by name or by number; releases before 2.23 name no operation.

    Examples
    --------
    >>> choice_of("AllReduce: 8 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}")
    (('all_reduce', 8), ('ring', 'LL', 2))
    >>> choice_of("65536 Bytes -> Algo 0 proto 0 time 37.8")
    (('', 65536), ('tree', 'LL', None))
    """
    match = _CHOICE.search(line)
    if match is None or (match[1] or "AllReduce") not in OPS:
        return None
    op, size, algo, proto, low, high = match.groups()
    algos = list(dict.fromkeys(ALGOS.values()))
    protos = {name.lower(): name for name in PROTOS}
    algorithm = (
        algos[int(algo)] if algo.isdecimal() else ALGOS.get(algo.lower(), algo.lower())
    )
    protocol = (
        PROTOS[int(proto)] if proto.isdecimal() else protos.get(proto.lower(), proto)
    )
    channels = int(high) - int(low) + 1 if low is not None else None
    return (OPS[op] if op else "", int(size)), (algorithm, protocol, channels)
