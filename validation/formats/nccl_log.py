"""What an NCCL_DEBUG=INFO log (subsystem TUNING) says of NCCL's choice.

Lines: `AllReduce: 8 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}` (since 2.23; before: `... -> Algo 1 proto 0
time 10.2`). Source: src/enqueue.cc.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from prestep.validation.formats.nccl_env import ALGOS, FUNCTIONS, PROTOS, plain

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
    if match is None or (match[1] or "AllReduce").lower() not in FUNCTIONS:
        return None
    op, size, algo, proto, low, high = match.groups()
    algorithm, protocol = (
        _named(algo, ALGOS, algo.lower()),
        _named(proto, PROTOS, proto),
    )
    channels = int(high) - int(low) + 1 if low is not None else None
    function = FUNCTIONS[op.lower()] if op else ""
    return (function, int(size)), (algorithm, protocol, channels)


def _named(said: str, names: Mapping[str, str], unknown: str) -> str:
    """What is meant by a number or a name."""
    numbered = list(dict.fromkeys(names.values()))
    return numbered[int(said)] if said.isdecimal() else names.get(plain(said), unknown)
