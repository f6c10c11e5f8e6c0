"""NVLink SHARP, or SHARP in the network's switches, is off."""

from collections.abc import Sequence

from prestep.validation.doctor.cause import Cause, Change
from prestep.validation.doctor.facts import algorithms_of
from prestep.validation.doctor.sweep import Situation


def _changes(here: Situation) -> Sequence[Change]:
    used = algorithms_of(here)
    nvls = Change("NVLink SHARP is off", nccl={"nvls": False})
    collnet = Change("SHARP in the switches is off", nccl={"collnet": False})
    changes = [nvls] if {"nvls", "nvls_tree"} & used else []
    return [*changes, collnet] if here.nccl.collnet else changes


CAUSE = Cause(
    "SHARP is off",
    "NCCL_DEBUG=INFO: `NVLS multicast support is available`; NCCL_NVLS_ENABLE, NCCL_COLLNET_ENABLE; the fabric "
    "manager, IMEX on NVL72, and the driver's support of multicast",
    _changes,
    signs=(
        r"NVLS multicast support is not available",
        r"NCCL_NVLS_ENABLE set by environment to 0",
        r"NCCL_COLLNET_ENABLE set by environment to 0",
    ),
)
