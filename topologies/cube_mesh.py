"""Eight GPUs joined by NVLinks in a cube mesh, without a switch: DGX-1 and its like."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import networkx as nx

from prestep.topologies import host
from prestep.topologies.core.quantity import LinkSpec
from prestep.topologies.fabric.wiring import count, default_links, join, star

# Physical links between two GPUs: (GPU, GPU, links). Of four GPUs all are joined, and each to one of the other four.
MESH = (
    *((0, 1, 1), (0, 2, 1), (0, 3, 2), (1, 2, 2), (1, 3, 1), (2, 3, 2)),
    *((4, 5, 1), (4, 6, 1), (4, 7, 2), (5, 6, 2), (5, 7, 1), (6, 7, 2)),
    *((0, 4, 2), (1, 5, 2), (2, 6, 1), (3, 7, 1)),
)
GPUS = 8
LINKS = default_links("cube_mesh")


@dataclass(frozen=True)
class Params(host.Params):
    """A host as `prestep.topologies.host` makes it, of eight GPUs; defaults are a DGX-1 with V100.

    Attributes
    ----------
    nvlinks, peer_nvlinks
        None: the mesh says which GPUs are joined, and by how many of `nvlink`.
    """

    gpu: str = "v100"
    gpus: int = count(GPUS)
    nvlinks: tuple[int, ...] = ()
    gpus_per_pcie_switch: int = count(2, least=0)
    nics: int = count(4, least=0)
    nvmes: int = count(4, least=0)
    nvlink: LinkSpec = LINKS["nvlink"]

    def misfits(self) -> Iterator[tuple[str, str, str]]:
        wired = {"gpus": GPUS, "peer_nvlinks": 0}
        for key, needed in wired.items():
            if getattr(self, key) != needed:
                yield key, str(getattr(self, key)), f"{needed}: the mesh is wired so"
        if self.nvlinks:
            yield "nvlinks", str(list(self.nvlinks)), "[]: there are no NVSwitches"


def build(params: Params) -> nx.MultiDiGraph[str]:
    r"""One host whose GPUs are the corners of a cube; sides and diagonals of both faces are NVLinks, and four edges.

    ::

        gpu0 --- gpu1        gpu4 --- gpu5        gpu0 == gpu4
          | \\ // |            | \\ // |          gpu1 == gpu5      = two links
          | // \\ |            | // \\ |          gpu2 -- gpu6      - one
        gpu3 === gpu2        gpu7 === gpu6        gpu3 -- gpu7

    GPU 0 reaches GPU 4 over ``gpu0 > gpu4``, two links. It has none to GPU 5, and NCCL's rings keep to the links.

    Returns
    -------
    networkx.MultiDiGraph
        Nodes as `prestep.topologies.host` names them; six NVLinks a GPU; bandwidths in bytes/s, latencies in s.

    Raises
    ------
    InputError
        If a count is too small, or it is not eight GPUs without NVSwitches.

    References
    ----------
    NVIDIA, DGX-1 with Tesla V100 System Architecture, whitepaper WP-08437-002, figure 4.
    """
    return star("cube_mesh", _pattern, params)


def _pattern(params: Params, name: str) -> nx.MultiDiGraph[str]:
    """The graph of the host without what is outside."""
    graph = host.pattern(params, name)
    for a, b, links in MESH:
        join(graph, f"gpu{a}", f"gpu{b}", "nvlink", params.nvlink, links)
    return graph
