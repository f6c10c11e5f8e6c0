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


#: A setting of what leaves a host.
between = partial(key, wants="hosts")
# Axes whose communicators may have settings of their own.
COMMUNICATORS = ("dp", "tp", "pp", "cp", "ep", "mp")


@dataclass(frozen=True)
class Nccl:
    """NCCL's settings; what is not said is chosen as NCCL would."""

    WANTS: ClassVar = ("ranks",)

    backend: Literal["nccl", "gloo", "nvshmem"] = key(
        "nccl",
        "who runs collectives; nvshmem: all-to-alls, sends and gathers as puts from kernels, the rest by NCCL",
    )
    transport: Literal["ibgda", "proxy"] = key(
        "ibgda",
        "nvshmem: the GPU posts to the NIC, or a thread of the CPU",
        wants="nccl.backend = nvshmem",
    )
    tensors: Literal["gpu", "cpu"] = key(
        "gpu",
        "gloo: where the tensors live; those on GPUs are copied down and up",
        wants="nccl.backend = gloo",
    )
    version: str = key("2.28.9", "version whose tuning tables are used")
    nvls: bool | None = key(
        None, "NVLink SHARP (NCCL_NVLS_ENABLE); default: what the cluster file says"
    )
    collnet: bool | None = key(
        None,
        "SHARP in the network's switches (NCCL_COLLNET_ENABLE); default false, as NCCL's",
        wants=None,
    )
    algo: str | None = key(
        None,
        "forced algorithm (NCCL_ALGO); `prestep list algorithms`",
        names="algorithms",
    )
    proto: Literal["LL", "LL128", "Simple"] | None = key(
        None, "forced protocol (NCCL_PROTO)"
    )
    min_channels: int | None = key(None, "NCCL_MIN_NCHANNELS", low=1)
    max_channels: int | None = key(None, "NCCL_MAX_NCHANNELS", low=1)
    min_ctas: int | None = key(None, "NCCL_MIN_CTAS, for all communicators", low=1)
    max_ctas: int | None = key(None, "NCCL_MAX_CTAS; limits NVLink SHARP too", low=1)
    dp: Ctas | None = key(None, "communicators of data parallelism")  # noqa: RUF009
    tp: Ctas | None = key(None, "of tensor parallelism")  # noqa: RUF009
    pp: Ctas | None = key(None, "of the pipeline")  # noqa: RUF009
    cp: Ctas | None = key(None, "of context parallelism")  # noqa: RUF009
    ep: Ctas | None = key(None, "of expert parallelism")  # noqa: RUF009
    mp: Ctas | None = key(None, "of the gradient's norm")  # noqa: RUF009
    buffer_size: float | None = key(
        None, "NCCL_BUFFSIZE; default 4 MiB", unit="bytes", above=0
    )
    p2p_net_chunksize: int | None = key(
        None,
        "NCCL_P2P_NET_CHUNKSIZE: bytes of a message to another host in a slot of a channel's buffer; default 131072",
        low=1,
    )
    p2p_disable: bool = key(
        False, "GPUs of a host talk through its memory (NCCL_P2P_DISABLE)"
    )
    p2p_level: Literal["LOC", "NVL", "PIX", "PXB", "PHB", "SYS"] | None = key(
        None,
        "how far apart GPUs of a host may be to talk directly (NCCL_P2P_LEVEL); default PXB, SYS for 2 on AMD",
    )
    net_gdr_level: Literal["LOC", "PIX", "PXB", "P2C", "PHB", "SYS"] | None = key(
        None,
        "how far a NIC may be from a GPU to read its memory (NCCL_NET_GDR_LEVEL), else the host's; default: any",
    )
    shm_disable: bool = key(
        False,
        "not through memory either: with p2p_disable over the network (NCCL_SHM_DISABLE)",
    )
    cross_nic: int = between(
        2,
        "2 or 0: rings stay on rails between hosts; 1: they need not (NCCL_CROSS_NIC)",
        low=0,
    )
    pxn_disable: bool = between(
        False,
        "messages leave by the sender's own NIC, not its peer's rail (NCCL_PXN_DISABLE)",
    )
    hostid: int | None = between(
        None,
        "ranks that share a pretended host (NCCL_HOSTID): others over the network",
        low=1,
    )
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
        None,
        "speed NCCL sees of a NIC; 10 Gbit/s where the driver says none; default: the cluster's",
        unit="bandwidth",
    )
    net: Literal["socket"] | None = between(
        None, "TCP sockets instead of RDMA (NCCL_NET=Socket); default: the cluster's"
    )
    socket_nthreads: int | None = between(
        None, "helper threads of a connection (NCCL_SOCKET_NTHREADS); 0: none", low=0
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
    def most_channels(self) -> int:
        """MAXCHANNELS of the version."""
        return 64 if self.release >= (2, 25) else 32
