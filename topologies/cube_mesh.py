"""Eight GPUs joined by NVLinks in a cube mesh, without a switch: DGX-1 and its like."""

from __future__ import annotations

from dataclasses import dataclass

from prestep.sim.errors import InputError, Mistake
from prestep.topologies import host
from prestep.topologies.core.quantity import LinkSpec, Quantity
from prestep.topologies.fabric import Fabric
from prestep.topologies.fabric.builder import FabricBuilder
from prestep.topologies.fabric.wiring import add_network

# Physical links between two GPUs: (GPU, GPU, links). Of four GPUs all are joined, and each to one of the other four.
MESH = (
    *((0, 1, 1), (0, 2, 1), (0, 3, 2), (1, 2, 2), (1, 3, 1), (2, 3, 2)),
    *((4, 5, 1), (4, 6, 1), (4, 7, 2), (5, 6, 2), (5, 7, 1), (6, 7, 2)),
    *((0, 4, 2), (1, 5, 2), (2, 6, 1), (3, 7, 1)),
)
GPUS = 8
NVLINK2 = LinkSpec(
    Quantity(20e9, "fitted", "NCCL src/graph/topo.h: sm70 NVLink"),
    Quantity(
        0.3e-6,
        "guess",
        "as for NVLink4: half of NCCL's 0.6 us per LL step between GPUs",
    ),
    raw=Quantity(25e9, "datasheet", "NVIDIA V100 whitepaper: NVLink2, 6 links"),
)


@dataclass(frozen=True)
class Params(host.Params):
    """A host as `prestep.topologies.host` makes it, of eight GPUs; defaults are a DGX-1 with V100.

    Attributes
    ----------
    nvlinks, peer_nvlinks
        None: the mesh says which GPUs are joined, and by how many of `nvlink`.
    """

    gpu: str = "v100"
    gpus: int = GPUS
    nvlinks: tuple[int, ...] = ()
    gpus_per_pcie_switch: int = 2
    nics: int = 4
    nvmes: int = 4
    nvlink: LinkSpec = NVLINK2

    def __post_init__(self) -> None:
        super().__post_init__()
        said = {"gpus": (self.gpus, GPUS), "peer_nvlinks": (self.peer_nvlinks, 0)}
        mistakes = [
            Mistake("cube_mesh", key, str(found), f"{wanted}: the mesh is wired so")
            for key, (found, wanted) in said.items()
            if found != wanted
        ]
        if self.nvlinks:
            found, expected = str(list(self.nvlinks)), "[]: there are no NVSwitches"
            mistakes.append(Mistake("cube_mesh", "nvlinks", found, expected))
        if mistakes:
            raise InputError(mistakes)


def build(params: Params) -> Fabric:
    r"""One host whose GPUs are the corners of a cube; sides and diagonals of both faces are NVLinks, and four edges.

    ::

        gpu0 --- gpu1        gpu4 --- gpu5        gpu0 == gpu4
          | \\ // |            | \\ // |          gpu1 == gpu5      = two links
          | // \\ |            | // \\ |          gpu2 -- gpu6      - one
        gpu3 === gpu2        gpu7 === gpu6        gpu3 -- gpu7

    GPU 0 reaches GPU 4 over ``gpu0 > gpu4``, two links. It has none to GPU 5, and NCCL's rings keep to the links.

    Parameters
    ----------
    params : Params

    Returns
    -------
    Fabric
        Nodes as `prestep.topologies.host` names them; six NVLinks a GPU; bandwidths in bytes/s, latencies in s.

    Raises
    ------
    InputError
        If a count is too small, or it is not eight GPUs without NVSwitches.

    References
    ----------
    NVIDIA, DGX-1 with Tesla V100 System Architecture, whitepaper WP-08437-002, figure 4.
    """
    builder = FabricBuilder()
    nics = host.add_host(builder, params, "host0")
    for a, b, links in MESH:
        builder.link(f"gpu{a}", f"gpu{b}", "nvlink", params.nvlink, links)
    if nics:
        add_network(builder, nics, params.nic)
    return builder.finish("cube_mesh", params.gpu, "cube_mesh")
