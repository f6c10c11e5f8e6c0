"""NICs that read and write host memory instead of the GPU's."""

from collections.abc import Sequence

from prestep.validation.doctor.cause import Cause, Change
from prestep.validation.doctor.facts import capped_nics, slowest_way
from prestep.validation.doctor.sweep import Situation


def _changes(here: Situation) -> Sequence[Change]:
    """A guess: the bytes pass the way between switch and CPU twice, so that it carries half of its bandwidth."""
    if here.hosts < 2:
        return ()
    text = "every byte to and from a NIC passes host memory"
    return capped_nics(here, slowest_way(here, "pcie") / 2, text)


CAUSE = Cause(
    "no GPUDirect RDMA",
    "NCCL_DEBUG=INFO: connections should end in /GDRDMA; load nvidia-peermem (or use DMA-BUF), switch ACS off on "
    "the PCIe switches, and see NCCL_NET_GDR_LEVEL",
    _changes,
    signs=(
        r"via NET/IB/\d+(?!\S*GDRDMA)\S*\s*$",
        r"GPU Direct RDMA Disabled",
        r"NCCL_NET_GDR_LEVEL set by environment to (LOC|0)\b",
    ),
    rules_out=(r"/GDRDMA",),
)
