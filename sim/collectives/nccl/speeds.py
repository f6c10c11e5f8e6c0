"""Speeds that NCCL counts on and tries, by generation of GPU (src/graph/topo.h, search.cc)."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from prestep.sim.costs import gpu_files
from prestep.sim.errors import InputError, unknown

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
    "hopper": (
        48,
        45,
        42,
        40,
        30,
        24,
        22,
        20,
        17.5,
        15,
        12,
        6,
        3,
        2.4,
        1.2,
        0.24,
        0.12,
    ),
    "blackwell": (
        96,
        86,
        80,
        48,
        45.1,
        42,
        40,
        30,
        24,
        22,
        20,
        17.5,
        15,
        12,
        6,
        3,
        2.4,
        1.2,
        0.24,
        0.12,
    ),
}
# What NCCL counts on of a link's wire (src/graph/topo.h): 20.6 GB/s of NVLink 4's 25, 40.1 of NVLink 5's 50.
NVLINK = {"volta": 0.8, "ampere": 0.8, "hopper": 20.6 / 25, "blackwell": 40.1 / 50}


# RCCL is NCCL with AMD's links: a guess is that it counts as the NCCL of its time does.
STANDS_FOR = {"cdna3": "hopper", "cdna4": "blackwell"}

# Compute capability, as NCCL compares it.
CAPABILITY = {"volta": 70, "ampere": 80, "hopper": 90, "blackwell": 100}


@lru_cache(maxsize=64)
def generation(gpu: str) -> str:
    """The row of NCCL's tables for a GPU model: volta, ampere, hopper or blackwell, as the GPU's file says.

    Raises
    ------
    InputError
        If no file describes the GPU.
    """
    if gpu.lower() not in gpu_files.names():
        hint = "describe it in sim/costs/hardware, with its generation, or name one that is like it"
        raise InputError(
            replace(unknown("cluster", "gpu", gpu, gpu_files.names()), hint=hint)
        )
    made = gpu_files.generation_of(gpu)
    return STANDS_FOR.get(made, made)


def capability(gpu: str) -> int:
    """Compute capability of a GPU model: 70, 80, 90 or 100."""
    return CAPABILITY[generation(gpu)]


def nvlink_share(kind: str, release: tuple[int, int]) -> float:
    """What NCCL counts on of an NVLink's wire: for sm90 20.0 GB/s of 25 before 2.21."""
    return 20.0 / 25 if kind == "hopper" and release < (2, 21) else NVLINK[kind]


def most_channels(release: tuple[int, int]) -> int:
    """MAXCHANNELS of a release."""
    return 64 if release >= (2, 25) else 32
