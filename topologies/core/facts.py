"""Facts that a cluster file of any family may state: one table with the name, type, unit and meaning of each.

A file's other numbers are parameters of its family; they are in `Fabric.facts` too, with their evidence and source.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from prestep.sim.errors import InputError
from prestep.sim.units import parse_bandwidth, parse_bytes, parse_duration
from prestep.topologies.core.quantity import Quantity


@dataclass(frozen=True)
class Kind:
    """A type of fact: how a file writes it, how it is read, and what the program gets (SI units)."""

    written: str
    parse: Callable[[object, str, str], float]
    type: Callable[[float], Any] = float


def _positive(value: object, where: str, key: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
        raise InputError.of(where, key, repr(value), "a number above 0")
    return float(value)


def _switch(value: object, where: str, key: str) -> float:
    if value not in (0, 1):
        raise InputError.of(where, key, repr(value), "0 (no) or 1 (yes)")
    return float(value)


def _share(value: object, where: str, key: str) -> float:
    number = _positive(value, where, key)
    if number > 1:
        raise InputError.of(where, key, repr(value), "a share above 0, at most 1")
    return number


NUMBER = Kind("a number", _positive)
SWITCH = Kind("0 or 1", _switch, bool)
SHARE = Kind("a share, at most 1", _share)
BUCKET = Kind("bytes", _positive)
SIZE = Kind('"64 KiB"', parse_bytes)
TIME = Kind('"2 us"', parse_duration)
RATE = Kind('"14 GB/s"', parse_bandwidth)


def fact(kind: Kind, meaning: str) -> Any:
    """A fact that a file need not state: None then."""
    return field(default=None, metadata={"kind": kind, "meaning": meaning})


@dataclass(frozen=True)
class ClusterFacts:
    """What a cluster's file says of its hosts and network; None: it does not say. Bytes, seconds, bytes/s, shares."""

    host_factor: float | None = fact(
        NUMBER,
        "Host time for framework code, as a factor.",
    )
    host_factor_experts: float | None = fact(
        NUMBER,
        "The same for models with experts, where it differs.",
    )
    host_spread: float | None = fact(
        NUMBER,
        "Standard deviation of the logarithm of `host_factor`.",
    )
    host_memory: float | None = fact(SIZE, "Memory of a host.")
    nvlink_sharp: bool | None = fact(
        SWITCH, "NVSwitches multicast and reduce (NVLink SHARP)."
    )
    liquid: bool | None = fact(SWITCH, "Hosts are cooled by liquid, without fans.")
    sharp: bool | None = fact(SWITCH, "The network's switches reduce (SHARP).")
    token_bucket: float | None = fact(BUCKET, "Size of the ports' token buckets.")
    tcp: bool | None = fact(SWITCH, "TCP sockets; bandwidths are TCP's goodput.")
    net_reported: float | None = fact(
        RATE,
        "Speed that a NIC's driver reports to NCCL.",
    )
    amd_cpu: bool | None = fact(
        SWITCH,
        "The hosts' CPUs are AMD's.",
    )
    socket_rate: float | None = fact(
        RATE,
        "Speed of a link between sockets, as NCCL assumes it.",
    )
    pcie_duplex: float | None = fact(
        SHARE,
        "Of a PCIe link: each direction's share when both are busy.",
    )
    net_share: float | None = fact(
        SHARE, "Share of the ports' payload that NCCL reaches."
    )
    net_pairs_share: float | None = fact(SHARE, "The same for messages between pairs.")
    net_ll: float | None = fact(
        TIME, "A step between hosts with LL, beside the links' latency."
    )
    net_ll128: float | None = fact(TIME, "The same with LL128.")
    net_simple: float | None = fact(TIME, "The same with Simple.")
    net_message: float | None = fact(TIME, "The proxy, for each part of a message.")
    net_post: float | None = fact(
        TIME,
        "The proxy, for each message of a channel.",
    )
    net_post_ll: float | None = fact(TIME, "The same with LL.")
    net_inject: float | None = fact(
        TIME,
        "The proxy, for parts of up to 192 bytes.",
    )
    net_rendezvous: float | None = fact(TIME, "The proxy, for agreeing on a message.")
    net_eager: float | None = fact(SIZE, "Size from which both sides agree first.")
    net_channel: float | None = fact(RATE, "One channel of messages between hosts.")
    net_copy: float | None = fact(RATE, "LL's messages, copied by the receiving CPU.")
    net_copy_mapped: float | None = fact(SIZE, "Up to this size.")
    net_copy_driver: float | None = fact(RATE, "Larger ones, copied by CUDA's driver.")
    net_copy_call: float | None = fact(TIME, "A call of the driver for one of these.")
    net_write_trip: float | None = fact(
        TIME,
        "Experts' tokens: a trip between hosts.",
    )
    net_write_target: float | None = fact(
        TIME, "Experts' tokens: each rank written to."
    )
    net_write: float | None = fact(TIME, "Experts' tokens: each write of a NIC.")
    net_queue: float | None = fact(
        SHARE, "Share of a tree's chunks that one waits for."
    )


#: Files of measured times beside a cluster's, by key, and the fields of a `Fabric` that name them.
FILES = {"nccl": "constants", "kernels": "kernels"}
#: Every fact's type, by its key in a file.
KINDS: Mapping[str, Kind] = {
    entry.name: entry.metadata["kind"] for entry in fields(ClusterFacts)
}
#: Every fact's meaning, by its key in a file.
MEANINGS: Mapping[str, str] = {
    entry.name: entry.metadata["meaning"] for entry in fields(ClusterFacts)
}


def cluster_facts(stated: Mapping[str, Quantity]) -> ClusterFacts:
    """The facts among a file's numbers, each of its type."""
    return ClusterFacts(
        **{
            key: kind.type(stated[key].value)
            for key, kind in KINDS.items()
            if key in stated
        }
    )
