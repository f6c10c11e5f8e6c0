"""The emulated leaf-spine clusters on the measured host, by the labels of their rows.

A label says what differs from `h200-leafspine-*` of topologies/clusters: `4x1-nic16-spine8` is 4 hosts with 1 GPU each,
ports of 16 Gbit/s, and one link of 8 Gbit/s each way between the two leaves.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from prestep.sim.errors import InputError
from prestep.topologies import load_cluster

LABEL = re.compile(r"(\d+)x(\d+)-nic(\d+)-spine(\d+)")
CLUSTERS = {1: "h200-leafspine-4x1", 2: "h200-leafspine-2x2"}  # by GPUs of a host
GOODPUT = 0.124  # GB/s of TCP payload per Gbit/s of a port: measured (leafspine_tcp.txt of the measurements)


def is_label(text: str) -> bool:
    """Whether a label describes such a cluster."""
    return LABEL.match(text) is not None


@lru_cache(maxsize=16)
def build(label: str) -> Any:
    """The cluster of a label.

    Raises
    ------
    InputError
        If the label is none, or no such cluster was emulated.
    """
    match = LABEL.match(label)
    hosts, gpus, port, spine = map(int, match.groups()) if match else (0, 0, 0, 0)
    if gpus not in CLUSTERS or not (hosts and port and spine):
        expected = "such as 4x1-nic16-spine8, with 1 or 2 GPUs a host"
        raise InputError.of("leaf-spine", "label", repr(label), expected)
    rates = {"nic.bandwidth": port, "spine.bandwidth": spine}
    overrides = {key: f"{GOODPUT * gbits:.6g} GB/s" for key, gbits in rates.items()}
    return load_cluster(CLUSTERS[gpus], hosts, overrides, label)
