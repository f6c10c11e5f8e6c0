"""Which hosts NCCL's search cannot tell apart: what it finds on one of them it finds on all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from prestep.sim.collectives.wires import paths

# What `prestep.sim.collectives.nccl.system` takes of a host beside the communicator's GPUs.
PARTS = ("cpu", "pcieswitch", "nic")


def likeness(fabric: Any, host: Sequence[str]) -> tuple[Any, ...]:
    """All that the search sees of a host with the communicator's GPUs on it, without names.

    Equal for two hosts whose nodes and links, in the fabric's order, are the same but for their names.
    """
    key = ("likeness", tuple(host))
    found: tuple[Any, ...] = paths.once(fabric, key, lambda: _likeness(fabric, host))
    return found


def _likeness(fabric: Any, host: Sequence[str]) -> tuple[Any, ...]:
    rows = paths.once(fabric, ("rows of hosts",), lambda: _rows(fabric))
    hosts = [rows.codes[name] for name in dict.fromkeys(map(fabric.host_of, host))]
    kinds = fabric.nodes.kinds
    inside = np.sort(np.concatenate([rows.nodes[code] for code in hosts])).tolist()
    gpus = [fabric.node_index(gpu) for gpu in host]
    nodes = [node for node in inside if kinds[node] in PARTS] + gpus
    links = np.sort(np.concatenate([rows.links[code] for code in hosts]))
    edges = _edges(fabric, links, {node: at for at, node in enumerate(nodes)})
    return tuple(kinds[node] for node in nodes), len(gpus), edges


def _edges(fabric: Any, links: np.ndarray, number: dict[int, int]) -> tuple[Any, ...]:
    """Ends, kinds and speeds of the links that leave numbered nodes; -1 is a node without a number.

    Links to GPUs that take no part are none to the search.
    """
    src, dst = (ends[links].tolist() for ends in fabric.ends)
    kinds = fabric.nodes.kinds
    return tuple(
        (
            number[a],
            number.get(b, -1),
            str(fabric.links.kind[i]),
            float(fabric.links.raw[i]),
        )
        for i, a, b in zip(links.tolist(), src, dst, strict=True)
        if a in number and (b in number or kinds[b] != "gpu")
    )


class _Rows(NamedTuple):
    """Number of every host by its name; positions of its nodes, and rows of the links that leave them, by number."""

    codes: dict[str, int]
    nodes: list[np.ndarray]
    links: list[np.ndarray]


def _rows(fabric: Any) -> _Rows:
    codes: dict[str, int] = {}
    of_node = np.array(
        [codes.setdefault(host, len(codes)) for host in fabric.nodes.hosts]
    )
    of_link = of_node[fabric.ends[0]]
    return _Rows(codes, _grouped(of_node, len(codes)), _grouped(of_link, len(codes)))


def _grouped(codes: np.ndarray, count: int) -> list[np.ndarray]:
    """Positions of every code, in their order."""
    order = np.argsort(codes, kind="stable")
    return np.split(order, np.cumsum(np.bincount(codes, minlength=count))[:-1])
