"""Kinds of nodes and links by what they are for."""

from __future__ import annotations

import numpy as np

from prestep.topologies.core.links import Ints, Texts

# A byte may start or end here but not pass through.
ENDPOINTS = frozenset({"gpu", "memory", "nvme", "storage"})

# Order of NCCL's path types (NVL, C2C, PIX/PXB, PHB/SYS, NET); kinds not named here count as network.
PREFERENCE = {"nvlink": 0, "c2c": 1, "pcie": 2, "memory": 2, "nvme": 2, "socket": 3}
NETWORK = 4

# Tiers of switches, lowest first; a link belongs to the higher of its two ends. Switches of kinds not named here (PCIe)
# stand inside a host and join nothing of their own.
TIERS = ("nvswitch", "leaf", "switch", "spine", "core", "network")

# Links of the storage fabric: what moves between GPUs does not go over them.
STORAGE_LINKS = frozenset({"storage", "server"})

# Kinds of nodes, and of links, that mean something. Others are switches, and links of the network.
STORAGE_NODES = ("storage_nic", "storage_leaf", "storage_spine")
NODE_KINDS = (*sorted(ENDPOINTS), *TIERS, *STORAGE_NODES, "cpu", "nic")
LINK_KINDS = (*PREFERENCE, *sorted(STORAGE_LINKS))


def rank_of(kind: Texts) -> Ints:
    """The rank of every row's kind in `PREFERENCE`."""
    ranks = np.full(len(kind), NETWORK, dtype=np.int64)
    for name, rank in PREFERENCE.items():
        ranks[kind == name] = rank
    return ranks
