"""One host of two boards of GPUs: every NVSwitch of a board is tied to its twin on the other. DGX-2 and its like."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import networkx as nx

from prestep.topologies import host
from prestep.topologies.core.quantity import LinkSpec
from prestep.topologies.cube_mesh import LINKS
from prestep.topologies.fabric import wiring

BOARDS = 2


@dataclass(frozen=True)
class Params(host.Params):
    """A host as `prestep.topologies.host` makes it, its GPUs on two boards; defaults are a DGX-2 with V100.

    Attributes
    ----------
    gpus
        Of both boards; the first half are on the first.
    nvlinks, peer_nvlinks
        None: `switches` and `trunks` say how GPUs are joined.
    switches
        NVSwitches of one board; a GPU has one NVLink to each of its board.
    trunks
        NVLinks from an NVSwitch to its twin on the other board.
    """

    gpu: str = "v100"
    gpus: int = wiring.count(16)
    nvlinks: tuple[int, ...] = ()
    gpus_per_pcie_switch: int = wiring.count(2, least=0)
    nvlink: LinkSpec = LINKS["nvlink"]
    switches: int = wiring.count(6)
    trunks: int = wiring.count(8)

    def misfits(self) -> Iterator[tuple[str, str, str]]:
        if self.gpus % BOARDS:
            yield "gpus", str(self.gpus), "an even number: half on each board"
        if self.nvlinks:
            yield "nvlinks", str(list(self.nvlinks)), "[]: switches and trunks say it"
        if self.peer_nvlinks:
            expected = "0: GPUs are joined by NVSwitches"
            yield "peer_nvlinks", str(self.peer_nvlinks), expected


def build(params: Params) -> nx.MultiDiGraph[str]:
    r"""Two boards of GPUs, each under its own NVSwitches, and trunks between the switches.

    ::

        gpu0 ... gpu7                          gpu8 ... gpu15
          |  one NVLink to each of six           |
        nvswitch0 ... nvswitch5  == 8 each ==  nvswitch6 ... nvswitch11

    GPU 0 sends to its own board over one NVSwitch. A sixth of its bytes to GPU 8 take
    ``gpu0 > nvswitch0 > nvswitch6 > gpu8``: 8 trunks for 8 GPUs, so neither board waits for the other.

    Returns
    -------
    networkx.MultiDiGraph
        Nodes as `prestep.topologies.host` names them; NVSwitches of the second board after those of the first;
        bandwidths in
        bytes/s, latencies in s.

    Raises
    ------
    InputError
        If a count is too small, or GPUs do not divide over the boards.

    References
    ----------
    NVIDIA NVSwitch technical overview (DGX-2: 12 NVSwitches, 16 V100, 2.4 TB/s of bisection, both directions counted).
    """
    return wiring.star("two_boards", _pattern, params)


def _pattern(params: Params, name: str) -> nx.MultiDiGraph[str]:
    """The graph of the host without what is outside."""
    graph = host.pattern(params, name)
    switches = wiring.add_row(graph, "nvswitch", BOARDS * params.switches, name)
    boards = wiring.by_units(switches, params.switches)
    gpus = wiring.of_kind(graph, "gpu")
    for board, members in zip(
        boards, wiring.by_units(gpus, params.gpus // BOARDS), strict=True
    ):
        for gpu in members:
            wiring.add_nvlinks(graph, gpu, board, [1] * params.switches, params.nvlink)
    for one, twin in zip(*boards, strict=True):
        wiring.join(graph, one, twin, "nvlink", params.nvlink, params.trunks)
    return graph
