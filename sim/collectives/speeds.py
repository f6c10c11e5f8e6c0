"""Speeds that NCCL counts on and tries, by generation of GPU (src/graph/topo.h, search.cc)."""

from __future__ import annotations

# GB/s per channel that the search tries inside a host, by generation of GPU.
SPEEDS = {
    "volta": (40, 30, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3),
    "ampere": (40, 30, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3),
    "hopper": (60, 50, 40, 30, 24, 20, 15, 12, 11, 6, 3),
    "blackwell": (90, 80, 70, 60, 50, 45, 40, 30, 24, 20, 19, 18),
}
_OLD = (48, 30, 28, 24, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3, 2.4, 1.2, 0.24, 0.12)
NET_SPEEDS = {
    "volta": _OLD,
    "ampere": _OLD,
    "hopper": (48, 45, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3, 2.4, 1.2, 0.24, 0.12),
    "blackwell": (96, 86, 80, 48, 45.1, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3, 2.4, 1.2, 0.24, 0.12),
}
# What NCCL counts on of a link's wire (src/graph/topo.h): 20.6 GB/s of NVLink 4's 25, 40.1 of NVLink 5's 50.
NVLINK = {"volta": 0.8, "ampere": 0.8, "hopper": 20.6 / 25, "blackwell": 40.1 / 50}


def generation(gpu: str) -> str:
    """The row of NCCL's tables for a GPU model: volta, ampere, hopper or blackwell."""
    name = gpu.lower()
    if name.startswith(("b1", "b2", "b3", "gb")):
        return "blackwell"
    if name.startswith(("v", "p100", "t4")):
        return "volta"
    return "ampere" if name.startswith(("a", "l4", "rtx")) else "hopper"


def capability(gpu: str) -> int:
    """Compute capability: 80 for A100, 86 and 89 for its PCIe cousins, 90 Hopper, 100 Blackwell, 70 and 75 before."""
    name = gpu.lower()
    if name.startswith(("a10", "a16", "a2", "a30", "a4", "rtx30", "rtxa")) and not name.startswith(("a100", "a30")):
        return 86
    if name.startswith(("l4", "l20", "rtx40", "rtx6000ada")):
        return 89
    return {"volta": 75 if name.startswith("t4") else 70, "ampere": 80, "hopper": 90, "blackwell": 100}[generation(gpu)]


def nvlink_share(kind: str, release: tuple[int, int]) -> float:
    """What NCCL counts on of an NVLink's wire: for sm90 20.0 GB/s of 25 before 2.21."""
    return 20.0 / 25 if kind == "hopper" and release < (2, 21) else NVLINK[kind]


def most_channels(release: tuple[int, int]) -> int:
    """MAXCHANNELS of a release."""
    return 64 if release >= (2, 25) else 32
