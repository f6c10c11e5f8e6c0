"""Devices of another NUMA node: the process, its memory or the NICs' interrupts are on the wrong socket."""

from collections.abc import Sequence

from prestep.validation.doctor.cause import Cause, Change
from prestep.validation.doctor.facts import capped_nics, nics_of, slowest_way
from prestep.validation.doctor.sweep import Situation


def _changes(here: Situation) -> Sequence[Change]:
    """A guess: all NICs of a host share the link between its sockets."""
    nics = nics_of(here)
    if here.hosts < 2 or not nics:
        return ()
    text = "all NICs of a host reach their GPUs over the link between its sockets"
    return capped_nics(here, slowest_way(here, "socket") / len(nics), text)


CAUSE = Cause(
    "a wrong NUMA or NPS setting",
    "`nvidia-smi topo -m`: every GPU needs a NIC at PIX or PXB; the BIOS should say NPS1 (or what the vendor says); "
    "bind ranks to the socket of their GPU (numactl, --cpu-bind), and give NCCL_TOPO_FILE in virtual machines",
    _changes,
)
