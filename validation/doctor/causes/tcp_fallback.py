"""TCP sockets instead of RDMA."""

from collections.abc import Sequence

from prestep.validation.doctor.cause import Cause, Change
from prestep.validation.doctor.sweep import Situation


def _changes(here: Situation) -> Sequence[Change]:
    if here.hosts < 2 or here.fabric.cluster_facts.tcp:
        return ()
    return (Change("NCCL over TCP sockets", nccl={"net": "socket"}),)


CAUSE = Cause(
    "TCP sockets instead of RDMA",
    "look for `Using network` in NCCL_DEBUG=INFO; NCCL_IB_DISABLE, NCCL_NET, the network plug-in "
    "(libnccl-net.so) in the container, /dev/infiniband in it, and `ulimit -l`",
    _changes,
    signs=(
        r"[Uu]sing network Socket",
        r"via NET/Socket",
        r"NCCL_IB_DISABLE set by environment to 1",
        r"NCCL_NET set by environment to Socket",
    ),
    rules_out=(r"via NET/(IB|AWS|OFI|Libfabric)", r"Using network (IB|AWS|OFI|Libf)"),
)
