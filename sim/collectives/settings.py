"""The section [nccl] of a scenario: settings of the library that runs collectives."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

from prestep.sim.strict import key


@dataclass(frozen=True)
class Ctas:
    """CTAs that the communicators of an axis are made with; NCCL_MIN_CTAS and NCCL_MAX_CTAS come before them."""

    min_ctas: int | None = key(None, "least channels (ncclConfig_t.minCTAs)", low=1)
    max_ctas: int | None = key(None, "most channels (ncclConfig_t.maxCTAs)", low=1)


#: The newest release whose cost model prestep follows; newer ones are predicted as it.
NEWEST = "2.32.3"
#: A setting of what leaves a host.
between = partial(key, wants="hosts")
# Axes whose communicators may have settings of their own.
COMMUNICATORS = ("dp", "tp", "pp", "cp", "ep", "mp")


@dataclass(frozen=True)
class Nccl:
    """NCCL's settings; what is not said is chosen as NCCL would."""

    WANTS: ClassVar = ("ranks",)

    backend: Literal["nccl", "gloo", "nvshmem", "one_shot", "two_shot"] = key(
        "nccl",
        "who runs collectives; nvshmem: all-to-alls, sends and gathers; one_shot, two_shot: all-reduces of a host",
    )
    transport: Literal["ibgda", "proxy"] = key(
        "ibgda",
        "nvshmem: the GPU or the CPU posts to the NIC",
        wants="nccl.backend = nvshmem",
    )
    tensors: Literal["gpu", "cpu"] = key(
        "gpu", "gloo: where tensors live", wants="nccl.backend = gloo"
    )
    version: str = key("2.28.9", "version whose tuning tables are used")
    nvls: bool | None = key(
        None, "NVLink SHARP (NCCL_NVLS_ENABLE); default: the cluster's"
    )
    collnet: bool | None = key(
        None, "SHARP in switches (NCCL_COLLNET_ENABLE); default false", wants=None
    )
    algo: str | None = key(
        None,
        "forced algorithm (NCCL_ALGO); `prestep list algorithms`",
        names="algorithms",
    )
    proto: Literal["LL", "LL128", "Simple"] | None = key(
        None, "forced protocol (NCCL_PROTO)"
    )
    tuner: Literal["aws-p5", "aws-p5en", "aws-p6-b200", "aws-p6-b300"] | None = between(
        None, "Amazon's tuner plug-in and its machine (NCCL_TUNER_PLUGIN)"
    )
    min_channels: int | None = key(None, "NCCL_MIN_NCHANNELS", low=1)
    max_channels: int | None = key(None, "NCCL_MAX_NCHANNELS", low=1)
    min_ctas: int | None = key(None, "NCCL_MIN_CTAS, for all communicators", low=1)
    max_ctas: int | None = key(None, "NCCL_MAX_CTAS; limits NVLink SHARP too", low=1)
    dp: Ctas | None = key(None, "communicators of data parallelism")
    tp: Ctas | None = key(None, "of tensor parallelism")
    pp: Ctas | None = key(None, "of the pipeline")
    cp: Ctas | None = key(None, "of context parallelism")
    ep: Ctas | None = key(None, "of expert parallelism")
    mp: Ctas | None = key(None, "of the gradient's norm")
    buffer_size: float | None = key(
        None, "NCCL_BUFFSIZE; default 4 MiB", unit="bytes", above=0
    )
    p2p_net_chunksize: int | None = key(
        None, "NCCL_P2P_NET_CHUNKSIZE, bytes; default 131072", low=1
    )
    p2p_disable: bool = key(False, "GPUs talk through host memory (NCCL_P2P_DISABLE)")
    p2p_level: Literal["LOC", "NVL", "PIX", "PXB", "PHB", "SYS"] | None = key(
        None,
        "farthest GPUs that talk directly (NCCL_P2P_LEVEL); default PXB, SYS for 2 on AMD",
    )
    net_gdr_level: Literal["LOC", "PIX", "PXB", "P2C", "PHB", "SYS"] | None = key(
        None, "farthest NIC that reads GPU memory (NCCL_NET_GDR_LEVEL); default: any"
    )
    shm_disable: bool = key(
        False, "with p2p_disable: over the network (NCCL_SHM_DISABLE)"
    )
    cross_nic: int = between(
        2, "1: rings may leave their rail between hosts (NCCL_CROSS_NIC)", low=0
    )
    pxn_disable: bool = between(
        False, "messages leave by the sender's NIC (NCCL_PXN_DISABLE)"
    )
    hostid: int | None = between(None, "ranks of a pretended host (NCCL_HOSTID)", low=1)
    min_p2p_nchannels: int | None = key(
        None, "channels for messages at least (NCCL_MIN_P2P_NCHANNELS)", low=1
    )
    max_p2p_nchannels: int | None = key(
        None, "channels for messages at most (NCCL_MAX_P2P_NCHANNELS)", low=1
    )
    nchannels_per_net_peer: int | None = between(
        None, "NCCL_NCHANNELS_PER_NET_PEER", low=1
    )
    net_speed: float | None = between(
        None, "NIC speed that NCCL sees; default: the cluster's", unit="bandwidth"
    )
    net: Literal["socket"] | None = between(
        None, "TCP instead of RDMA (NCCL_NET=Socket); default: the cluster's"
    )
    socket_nthreads: int | None = between(
        None, "threads of a connection (NCCL_SOCKET_NTHREADS); 0: none", low=0
    )
    nsocks_perthread: int | None = between(
        None, "sockets of each helper thread (NCCL_NSOCKS_PERTHREAD)", low=1
    )

    def of(self, axis: str) -> Nccl:
        """The settings of an axis's communicators."""
        own = (getattr(self, axis) if axis in COMMUNICATORS else None) or Ctas()
        if not any(getattr(self, one) for one in COMMUNICATORS):
            return self
        # The environment overrides what a communicator was made with (NCCL, init.cc: envConfigOverride).
        most = own.max_ctas if self.max_ctas is None else self.max_ctas
        least = own.min_ctas if self.min_ctas is None else self.min_ctas
        apart: dict[str, Any] = dict.fromkeys(COMMUNICATORS)
        return replace(self, min_ctas=least, max_ctas=most, **apart)

    @property
    def peers_off(self) -> bool:
        """Whether no two GPUs of a host talk directly."""
        return self.p2p_disable or self.p2p_level == "LOC"

    @property
    def least_channels(self) -> int:
        """Channels that a communicator has at least."""
        return max(self.min_channels or 1, self.min_ctas or 1)

    @property
    def release(self) -> tuple[int, ...]:
        """The numbers of the version: (2, 28, 9)."""
        return tuple(map(int, self.version.split(".")))

    @property
    def newer(self) -> str:
        """What to say of a release that is newer than any that prestep follows; "" of others."""
        if self.release[:2] <= tuple(map(int, NEWEST.split(".")))[:2]:
            return ""
        return f"NCCL {self.version} is predicted as {NEWEST}, the newest whose cost model prestep follows"

    @property
    def most_channels(self) -> int:
        """MAXCHANNELS of the version."""
        return 64 if self.release >= (2, 25) else 32
