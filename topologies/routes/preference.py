"""What routes go by: who forwards nothing, and which kinds of links come first."""

from __future__ import annotations

import numpy as np

from topologies.core.links import Ints, Texts

# A byte may start or end here but not pass through.
ENDPOINTS = frozenset({"gpu", "memory", "nvme", "storage"})
# Order of NCCL's path types (NVL, C2C, PIX/PXB, PHB/SYS, NET); kinds not named here count as network.
PREFERENCE = {"nvlink": 0, "c2c": 1, "pcie": 2, "memory": 2, "nvme": 2, "socket": 3}
NETWORK = 4
# Equal-cost paths kept for one pair: a fat tree has one per spine, and a hash spreads no wider in practice.
MAX_PATHS = 64
STRIDE = 7919  # a prime above the numbers of switches in a tier


def rank_of(kind: Texts) -> Ints:
    """The rank of every row's kind in `PREFERENCE`."""
    ranks = np.full(len(kind), NETWORK, dtype=np.int64)
    for name, rank in PREFERENCE.items():
        ranks[kind == name] = rank
    return ranks
