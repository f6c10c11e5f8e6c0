"""The emulated leaf-spine that steps were measured on, by labels of rows, as [cluster] of a scenario.

`4x1-nic16-spine8-n3nic4`: 4 hosts with 1 GPU each, ports of 16 Gbit/s, 8 between the leaves, and 4 at host 3's port.
"""

from __future__ import annotations

import re
from typing import Any

from prestep.sim.errors import InputError
from prestep.validation.formats.leafspine import CLUSTERS, GOODPUT

_RATE = r"(\d+(?:\.\d+)?)"
LABEL = re.compile(
    rf"(?:(\d+)x(\d+)-)?nic{_RATE}-spine{_RATE}((?:-n\d+nic{_RATE[1:-1]})*)"
)
SLOW_PORT = re.compile(rf"-n(\d+)nic{_RATE}")
#: Hosts, by GPUs of a host, where a label does not say them.
HOSTS = {1: 4, 2: 2}


def cluster_of(label: str) -> dict[str, Any]:
    """[cluster] of a label: the cluster, with the rates of its ports and between its leaves.

    Raises
    ------
    InputError
        If the label is none.
    """
    match = LABEL.fullmatch(label)
    if match is None or int(match[2] or 1) not in CLUSTERS:
        expected = (
            "such as 4x1-nic16-spine8, 2x2-nic16-spine16 or 4x1-nic16-spine16-n3nic4"
        )
        raise InputError.of("leaf-spine", "label", label, expected)
    hosts, per_host, port, spine, slow = match.groups()
    rates = {"nic.bandwidth": port, "spine.bandwidth": spine}
    # The filter of a port slows both of its directions, and only the network's side: not the NIC's slot in the host.
    for host, rate in SLOW_PORT.findall(slow):
        rates[f"nic[host{host}].bandwidth"] = rate
    overrides = {
        key: f"{float(rate) * GOODPUT:.4g} GB/s" for key, rate in rates.items()
    }
    cluster: dict[str, Any] = {
        "name": CLUSTERS[int(per_host or 1)],
        "set": overrides,
    }
    usual = HOSTS[int(per_host or 1)]
    return cluster if int(hosts or usual) == usual else cluster | {"hosts": int(hosts)}
