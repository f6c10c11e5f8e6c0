"""A rail (the NICs of one number and their switch) slower than the others."""

from collections.abc import Sequence

from prestep.validation.doctor.cause import Cause, Change, slower
from prestep.validation.doctor.facts import nics_of
from prestep.validation.doctor.sweep import Situation


def _changes(here: Situation) -> Sequence[Change]:
    each = len(nics_of(here))
    if here.hosts < 2 or each < 2:
        return ()
    hosts = len(here.fabric.gpus_by_host)
    rail = ",".join(str(each * host) for host in range(hosts))
    return slower("rail 0", f"nic[{rail}]")


CAUSE = Cause(
    "a slow rail",
    "run nccl-tests on each rail alone (NCCL_IB_HCA=mlx5_N on every host); look at the errors and pauses of the "
    "rail's switch",
    _changes,
)
