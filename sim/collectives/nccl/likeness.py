"""Which hosts NCCL's search cannot tell apart: what it finds on one of them it finds on all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sim.collectives.wires import paths

# What `sim.collectives.nccl.system` takes of a host beside the communicator's GPUs.
PARTS = ("cpu", "pcieswitch", "nic")


def likeness(fabric: Any, host: Sequence[str]) -> tuple[Any, ...]:
    """All that the search sees of a host with the communicator's GPUs on it, without names.

    Equal for two hosts whose nodes and links, in the fabric's order, are the same but for their names.
    """
    key = ("likeness", tuple(host))
    found: tuple[Any, ...] = paths.once(fabric, key, lambda: _likeness(fabric, host))
    return found


def _likeness(fabric: Any, host: Sequence[str]) -> tuple[Any, ...]:
    codes, by_node, by_row, (src, dst) = paths.once(
        fabric, ("rows of hosts",), lambda: _rows(fabric)
    )
    inside = [codes[name] for name in dict.fromkeys(map(fabric.host_of, host))]
    kinds = fabric.nodes.kinds
    nodes = np.sort(np.concatenate([by_node[code] for code in inside])).tolist()
    gpus = [fabric.node_index(gpu) for gpu in host]
    taken = [node for node in nodes if kinds[node] in PARTS] + gpus
    number = {node: at for at, node in enumerate(taken)}
    links, rows = (
        fabric.links,
        np.sort(np.concatenate([by_row[code] for code in inside])).tolist(),
    )
    edges = tuple(
        (number[a], number.get(b, -1), str(links.kind[row]), float(links.raw[row]))
        for row, a, b in zip(rows, src[rows].tolist(), dst[rows].tolist(), strict=True)
        if a in number
    )
    return tuple(kinds[node] for node in taken), len(gpus), edges


def _rows(
    fabric: Any,
) -> tuple[
    dict[str, int], list[np.ndarray], list[np.ndarray], tuple[np.ndarray, np.ndarray]
]:
    """Number of every host, positions of its nodes and rows of the links that leave them, and the ends of all rows."""
    codes: dict[str, int] = {}
    of_node = np.array(
        [codes.setdefault(host, len(codes)) for host in fabric.nodes.hosts]
    )
    src, dst = fabric.ends
    return (
        codes,
        _grouped(of_node, len(codes)),
        _grouped(of_node[src], len(codes)),
        (src, dst),
    )


def _grouped(codes: np.ndarray, count: int) -> list[np.ndarray]:
    order = np.argsort(codes, kind="stable")
    return np.split(order, np.cumsum(np.bincount(codes, minlength=count))[:-1])
