"""What traces call collectives, in the words of prestep: operation, bytes, group."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from prestep.sim import files
from prestep.workloads.job.limits import RANKS
from prestep.workloads.traces.operators import Meta

_TABLES = files.beside(__file__)
#: Operations by the words that frameworks have for them.
OPS: dict[str, str] = {
    w: op for op, words in _TABLES["words"].items() for w in words.split()
}
# Kernels of NCCL and RCCL say what they do; SendRecv is an all-to-all unless the host said otherwise.
KERNEL = re.compile(
    r"(?:nccl|rccl|mscclKernel)\w*?_?(AllReduce|AllGather|ReduceScatter|Broadcast|Reduce|SendRecv)"
)
KERNEL_OPS: dict[str, str] = _TABLES["kernels"]
#: Bytes of an element by the names of its type.
SIZES = {name: int(n) for n, names in _TABLES["bytes"].items() for name in names}
# Bytes of an element whose type no table knows.
UNKNOWN = 4
SYNCHRONISING = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


def metadata(source: Any, groups: dict[str, tuple[int, ...]]) -> Meta | None:
    """What the arguments of an event say of a collective; None if they speak of none."""
    if source is None or source.collective is None:
        return None
    word = str(source.collective).lower()
    group = group_name(source, groups) if source.group is not None else ""
    if word not in OPS:
        return Meta(word, group=group)
    size = SIZES.get(str(source.dtype or "").lower(), UNKNOWN)
    total = float(max(_count(source.inputs), _count(source.outputs)) * size)
    peers = ""
    if word in ("send", "recv"):
        peer = _count(source.destination if word == "send" else source.source, -1)
        peers = f"{word}{'>' if word == 'send' else '<'}{peer}:{int(total)}"
    return Meta(word, OPS[word], total, _count(source.sequence, -1), peers, group)


def communication(kind: str, name: str, meta: Meta | None) -> Meta:
    """What a kernel, or a call of the framework, is of a collective: by its metadata, else by its name."""
    if meta is not None and meta.collective:
        return meta
    found = meta or Meta("")
    if kind == "communication":
        op = (
            "wait"
            if found.word == "wait"
            else OPS.get(name.removeprefix("nccl:").lower(), "")
        )
        return found._replace(collective=op)
    match = KERNEL.search(name)
    return found._replace(collective=KERNEL_OPS[match.group(1)]) if match else found


def group_name(source: Any, groups: dict[str, tuple[int, ...]]) -> str:
    """ "name:0,1,2,3" of a collective's process group; its ranks from the head where the event cuts them off."""
    name, listed = str(source.group), str(source.ranks or "")
    ranks = groups.get(name, ())
    if not ranks and listed.startswith("[") and "..." not in listed:
        ranks = tuple(int(r) for r in re.findall(r"\d+", listed))
    if not ranks and _count(source.group_size) > 1:
        return f"{name}:*{_count(source.group_size)}"
    return f"{name}:{','.join(map(str, ranks))}"


def ranks_of(group: str, world: int) -> tuple[int, ...]:
    """Ranks of a group as `group_name` writes it; all of the job where it does not say."""
    listed = group.partition(":")[2]
    if listed and listed[0] != "*":
        return tuple(int(r) for r in listed.split(","))
    return tuple(range(min(int(listed[1:]), RANKS) if listed else world))


def payload(span_collective: str, shape: str, dtype: str, world: int) -> float:
    """Bytes of a collective from the shapes of the operator that called it; 0 if they are not recorded."""
    try:
        dims, types = json.loads(shape or "[]"), json.loads(dtype or "[]")
        size, elements = SIZES.get(str(types[0]).lower(), UNKNOWN), _elements(dims[0])
    except (ValueError, TypeError, KeyError, IndexError):
        return 0.0
    return float(
        elements * size * (world if span_collective in ("all_gather", "gather") else 1)
    )


def _elements(dims: Any) -> int:
    if not isinstance(dims, list) or not dims:
        return 0
    return (
        sum(map(_elements, dims))
        if isinstance(dims[0], list)
        else math.prod(int(d) for d in dims)
    )


def _count(value: Any, default: int = 0) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return default
    return number if abs(number) < 1 << 62 else default
