"""A NIC that NCCL does not use."""

from collections.abc import Sequence

from prestep.validation.doctor.cause import Cause, Change
from prestep.validation.doctor.facts import nics_of
from prestep.validation.doctor.sweep import Situation


def _changes(here: Situation) -> Sequence[Change]:
    nics = nics_of(here)
    if here.hosts < 2 or len(nics) < 2:
        return ()
    return (Change(f"{nics[-1]} is gone", {nics[-1]: "off"}),)


CAUSE = Cause(
    "a NIC missing",
    "compare `NET/IB : Using` of every host (NCCL_DEBUG=INFO), NCCL_IB_HCA and `ibstat` (State: Active)",
    _changes,
)
