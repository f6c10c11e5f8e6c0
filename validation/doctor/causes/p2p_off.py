"""GPUs of a host that talk through its memory."""

from collections.abc import Sequence

from prestep.validation.doctor.cause import Cause, Change
from prestep.validation.doctor.sweep import Situation


def _changes(here: Situation) -> Sequence[Change]:
    if len(here.gpus) <= here.hosts:
        return ()
    return (
        Change("GPUs of a host talk through its memory", nccl={"p2p_disable": True}),
    )


CAUSE = Cause(
    "P2P between the GPUs of a host is off",
    "NCCL_P2P_DISABLE and NCCL_P2P_LEVEL; `nvidia-smi topo -p2p r`; the fabric manager has to run where there are "
    "NVSwitches (`systemctl status nvidia-fabricmanager`)",
    _changes,
    signs=(
        r"via SHM/",
        r"NCCL_P2P_DISABLE set by environment to 1",
        r"NCCL_P2P_LEVEL set by environment to (LOC|0)\b",
    ),
    rules_out=(r"via P2P/",),
)
