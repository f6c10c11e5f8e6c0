"""What RCCL, which is NCCL for AMD's GPUs, does otherwise: rings that share no link in one direction.

NCCL's search is content with one order and sends all channels over it, which leaves six of a MI300X's seven links
idle. RCCL knows such boards and has an order for every channel (rocm-systems, projects/rccl/src/graph/rome_models.cc).
Which orders these are does not matter to the bytes on links: any that share none carry the same.
"""

from __future__ import annotations

from typing import Any

from prestep.sim.collectives.group import Group
from prestep.sim.costs import gpu_files

#: Orders of GPUs by their number. Complete graphs have n - 1 cycles that share no link, but of 4 and 6 GPUs fewer:
#: Tillson, J. Combin. Theory B 29 (1980), 68-74.
CYCLES = {
    3: "012 021",
    4: "0132 0231",
    5: "01234 02413 03142 04321",
    6: "012345 021543 032514 041352",
    7: "0123456 0213654 0314625 0426153 0516432 0635241",
    8: "01234567 02135476 03146275 04157263 05361742 06524371 07325164",
}

#: What predictions for AMD's GPUs rest on.
MODELLED = (
    "RCCL is modelled as NCCL's rings and trees with the constants of NVIDIA's GPUs of the same time (guess); nobody "
    "measured it here"
)

Orders = tuple[tuple[int, ...], ...]


def caveat(gpu: str) -> str:
    """What to say of collectives between GPUs of a model; "" where NCCL itself runs."""
    return MODELLED if _runs(gpu) else ""


def _runs(gpu: str) -> bool:
    return gpu_files.generation_of(gpu).amd


def orders(group: Group, fabric: Any) -> tuple[tuple[str, ...], ...]:
    """The orders of all ranks that channels take turns over; empty where the hosts are not joined so."""
    if not _joined(group, fabric):
        return ()
    count = len(group.hosts[0])
    if group.nodes == 1:
        return tuple(_named(group.hosts[0], cycle) for cycle in cycles(count))
    return tuple(
        tuple(
            gpu
            for number, host in enumerate(group.hosts)
            for gpu in _named(host, path[::-1] if number % 2 else path)
        )
        for path in paths(count)
    )


def chains(group: Group, fabric: Any) -> Orders:
    """Places of a host's GPUs along a tree's chain that begins at each of them; empty where hosts are not joined so.

    RCCL draws lines of its own over all links of a board of eight MI300X for its trees across hosts
    (connectRailOptimizedTrees, ROCm/rccl#1540, from ROCm 6.4 on), where NCCL turns one chain around.
    """
    across = group.nodes > 1 and _joined(group, fabric)
    return paths(len(group.hosts[0])) if across else ()


def _named(host: tuple[str, ...], order: tuple[int, ...]) -> tuple[str, ...]:
    return tuple(host[place] for place in order)


def _joined(group: Group, fabric: Any) -> bool:
    """Whether RCCL runs, on hosts of as many GPUs, every two of which have a link of their own."""
    if not _runs(fabric.gpu_model):
        return False
    if len(group.first_of_size) > 1 or group.largest not in CYCLES:
        return False
    host = group.hosts[0]
    return all(len(fabric.route(host[0], other)) == 1 for other in host[1:])


def cycles(count: int) -> Orders:
    """As many cycles through all of `count` GPUs, 3 to 8, as can be without sharing a link in one direction.

    Examples
    --------
    >>> cycles(3)
    ((0, 1, 2), (0, 2, 1))
    """
    return tuple(tuple(map(int, cycle)) for cycle in CYCLES[count].split())


def paths(count: int) -> Orders:
    """A path from every GPU through all of `count`; of an even number no two share a link in one direction.

    They zigzag: k, k + 1, k - 1, k + 2, ... Every ordered pair stands beside each other once (a row-complete Latin
    square: Williams, Aust. J. Sci. Res. A 2 (1949), 149-168).
    """
    steps = [(1 if turn % 2 else -1) * ((turn + 1) // 2) for turn in range(count)]
    return tuple(
        tuple((first + step) % count for step in steps) for first in range(count)
    )
