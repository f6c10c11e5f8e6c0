"""The emulated leaf-spine that steps and collectives were measured on, by labels of rows.

`4x1-nic16-spine8-n3nic4`: 4 hosts with 1 GPU each, ports of 16 Gbit/s, 8 between the leaves, and 4 at host 3's port.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from lab import CASES
from prestep.sim.errors import InputError
from prestep.validation.formats import collective_reader
from prestep.validation.formats.collective_rows import Row
from prestep.validation.formats.overlap_rows import Overlap

CLUSTERS = {1: "h200-leafspine-4x1", 2: "h200-leafspine-2x2"}  # by GPUs of a host
#: GB/s of TCP payload per Gbit/s of a port: measured (leafspine_tcp.txt of the measurements).
GOODPUT = 0.124
#: The files of clusters that collectives were measured on; those of 16 Gbit/s throughout are bundled.
FILES = CASES / "collectives-leafspine"

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


def network_of(label: str) -> str:
    """The cluster that collectives of a label were measured on: its name, or its file.

    Raises
    ------
    InputError
        If there is none.
    """
    match = LABEL.fullmatch(label)
    each = int(match[2] or 0) if match else 0
    if match and match.groups()[2:] == ("16", "16", "") and each in CLUSTERS:
        return CLUSTERS[each]
    file = FILES / f"{label}.toml"
    if match is None or not file.is_file():
        expected = f"such as 4x1-nic16-spine8, with a file in {FILES.name}"
        raise InputError.of("leaf-spine", "label", repr(label), expected)
    return str(file)


def read_lines(path: str | Path) -> tuple[list[Row], list[Overlap]]:
    """Rows of collectives and of overlap in JSON lines, those with a label of the emulated network on its cluster."""
    rows, beside = collective_reader.read_lines(path)
    if not any(LABEL.match(row.label) for row in rows):
        return rows, beside
    rows, beside = collective_reader.read_lines(path, CLUSTERS[1])
    return [_placed(row) for row in rows], beside


def _placed(row: Row) -> Row:
    match = LABEL.match(row.label)
    if match is None:
        return row
    hosts, each = int(match[1] or 0), int(match[2] or 0)
    per_host = each if hosts * each == row.ranks else None
    cluster = network_of(row.label)
    return replace(row, cluster=cluster, per_host=per_host, machine="leaf-spine")
