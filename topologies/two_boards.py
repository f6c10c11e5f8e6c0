"""One host of two boards of GPUs: every NVSwitch of a board is tied to its twin on the other. DGX-2 and its like."""

from __future__ import annotations

from dataclasses import dataclass

from prestep.sim.errors import InputError, Mistake
from prestep.topologies import host
from prestep.topologies.core.quantity import LinkSpec
from prestep.topologies.cube_mesh import NVLINK2
from prestep.topologies.fabric import Fabric
from prestep.topologies.fabric.builder import FabricBuilder
from prestep.topologies.fabric.wiring import (
    HostNodes,
    add_network,
    add_nvlinks,
    too_few,
)

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
    gpus: int = 16
    nvlinks: tuple[int, ...] = ()
    gpus_per_pcie_switch: int = 2
    nvlink: LinkSpec = NVLINK2
    switches: int = 6
    trunks: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        mistakes = too_few("two_boards", self, {"switches": 1, "trunks": 1})
        if self.gpus % BOARDS:
            found, expected = str(self.gpus), "an even number: half on each board"
            mistakes.append(Mistake("two_boards", "gpus", found, expected))
        if self.nvlinks:
            found, expected = str(list(self.nvlinks)), "[]: switches and trunks say it"
            mistakes.append(Mistake("two_boards", "nvlinks", found, expected))
        if self.peer_nvlinks:
            found, expected = str(self.peer_nvlinks), "0: GPUs are joined by NVSwitches"
            mistakes.append(Mistake("two_boards", "peer_nvlinks", found, expected))
        if mistakes:
            raise InputError(mistakes)


def build(params: Params) -> Fabric:
    r"""Two boards of GPUs, each under its own NVSwitches, and trunks between the switches.

    ::

        gpu0 ... gpu7                          gpu8 ... gpu15
          |  one NVLink to each of six           |
        nvswitch0 ... nvswitch5  == 8 each ==  nvswitch6 ... nvswitch11

    GPU 0 sends to its own board over one NVSwitch. A sixth of its bytes to GPU 8 take
    ``gpu0 > nvswitch0 > nvswitch6 > gpu8``: 8 trunks for 8 GPUs, so neither board waits for the other.

    Parameters
    ----------
    params : Params

    Returns
    -------
    Fabric
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
    builder = FabricBuilder()
    nics = host.add_host(builder, params, "host0")
    nvswitches = HostNodes(builder, "host0").row("nvswitch", BOARDS * params.switches)
    each = params.gpus // BOARDS
    for at in range(params.gpus):
        first = at // each * params.switches
        board = nvswitches[first : first + params.switches]
        links = [1] * params.switches
        add_nvlinks(builder, f"gpu{at}", board, links, params.nvlink)
    for one, twin in zip(
        nvswitches[: params.switches], nvswitches[params.switches :], strict=True
    ):
        builder.link(one, twin, "nvlink", params.nvlink, params.trunks)
    if nics:
        add_network(builder, nics, params.nic)
    return builder.finish("two_boards", params.gpu, "two_boards")
