"""A NIC at half width or a lower rate."""

from collections.abc import Sequence

from prestep.validation.doctor.cause import Cause, Change, slower
from prestep.validation.doctor.sweep import Situation


def _changes(here: Situation) -> Sequence[Change]:
    return slower("one NIC", "nic[0]") if here.hosts > 1 else ()


CAUSE = Cause(
    "a NIC at half width or a lower rate",
    "on every host `ibstat` (Rate), `ethtool IFACE` (Speed) and `lspci -vv` of the NIC (LnkSta: Width, Speed; "
    "downgraded); then nccl-tests on pairs of hosts, to find which",
    _changes,
    signs=(r"speed degraded", r"downgraded"),
)
