"""Lines that say what a host has: NCCL's own, and those of nvidia-smi, ibstat, ethtool, lspci and dmesg.

What is normal depends on the cluster: a port of 100 Gbit/s is slow only where the cluster file has 400. NCCL's lines
are those of 2.19 to 2.30 (src/transport/net_ib/init.cc, src/graph/search.cc).
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from prestep.sim.collectives.nccl.ways import PXB
from prestep.sim.collectives.wires import reach
from prestep.validation.doctor.sweep import Situation

#: Lines of programs that look at a host; each is evidence for a cause whose `signs` or `shows` know it.
TOOLS = re.compile(
    r" NCCL WARN |LnkSta:|ACSCtl:|^\s*(?:Rate|State|Physical state|Link layer):|^\s*Speed: \d+\s*[GM]b|Link detected:"
    r"|(?:Slowdown|Power Brake)\s*:\s*(?:Not )?Active|^\s*GPU\d+\s+(?:\S+\s+){2,}|Link \d+: (?:<inactive>|[\d.]+ GB/s)"
    r"|(?:rx_discards_phy|out_of_sequence|packet_seq_err|local_ack_timeout_err|roce_adp_retrans|rx_prio\d_pause)\s*:"
    r"|active_mtu:|nvidia-fabricmanager|NVRM: Xid|mlx5_core .*(?:[Ll]ink (?:up|down)|speed|width)|nvidia[_-]peermem",
    re.MULTILINE,
)
#: Lines that list NICs: those that NCCL uses, and those that it was told to use (not: all but these, or by prefix).
_USED = re.compile(r"NET/(?:IB|OFI) : Using ((?:\[\d+\]\S+\s*)+)")
_WANTED = re.compile(r"NCCL_IB_HCA set to ((?:=?\w+_\d+(?::\d+)?,?)+)\s*$")
_FOUND = re.compile(r"Selected provider is \S+, fabric is \S+ \(found (\d+) nics\)")
#: Rates of a port, with what they are in Gbit/s.
_RATES = (
    (re.compile(r"^Rate:\s*(\d+)"), 1.0),
    (re.compile(r"^Speed:\s*(\d+)\s*Gb"), 1.0),
    (re.compile(r"^Speed:\s*(\d+)\s*Mb"), 1e-3),
    (re.compile(r"NET/IB\s*:\s*\[\d+\] .*\bspeed=(\d+)\b"), 1e-3),
    (re.compile(r"speed change detected: \d+ -> (\d+) Mbps"), 1e-3),
)
#: A rate is lower than the file's if it is below this share: 2 x 100 as 200, but 92 of 100 Gbit/s is the encoding.
LOWER = 0.8
_WAY = re.compile(r"Pattern \d+,.*\btype \w+/(PHB|SYS|NODE)\b")


def nics_of(here: Situation) -> tuple[str, ...]:
    """The NICs of the first host; none where only one host was measured."""
    fabric = here.fabric
    first = fabric.host_of(here.gpus[0]) if here.hosts > 1 else ""
    return tuple(nic for nic in fabric.nic_numbers if fabric.host_of(nic) == first)


def few_nics(here: Situation, line: str) -> bool:
    """Whether a line lists fewer NICs than a host has, or one without a link."""
    own = len(nics_of(here))
    if match := _USED.search(line):
        return match[1].count("[") < own
    if match := _FOUND.search(line):
        return int(match[1]) < own
    if re.search(
        r"^State:\s*Down|Link detected:\s*no|Physical state:\s*(Polling|Disabled)", line
    ):
        return own > 1
    match = _WANTED.search(line)
    return match is not None and match[1].count(",") + 1 < own


def slow_nic(here: Situation, line: str) -> bool:
    """Whether a line has a port's rate that is lower than that of the cluster's NICs."""
    wire = _wire(here.fabric)
    return any(
        0 < float(match[1]) * unit * 1e9 / 8 < LOWER * wire
        for pattern, unit in _RATES
        if (match := pattern.search(line))
    )


def _wire(fabric: Any) -> float:
    """Bytes/s of the slowest port as its data sheet has it; 0 without NICs."""
    raw = fabric.links.raw[fabric.links.kind == "nic"]
    return float(np.min(raw)) if len(raw) else 0.0


def far_nics(here: Situation, line: str) -> bool:
    """Whether a line says that GPUs reach NICs over the CPU, or another one, where those of the cluster need not.

    NCCL prints the type of its ways in a graph; `nvidia-smi topo -m` has a row for each GPU.
    """
    gpus, nics = here.gpus, nics_of(here)
    near = bool(nics) and all(
        reach.distance(here.fabric, gpu, here.fabric.nearest(gpu, "nic")) <= PXB
        for gpu in gpus[: len(nics)]
    )
    if not near:
        return False
    cells = line.split()
    if re.match(r"GPU\d+$", cells[0]) and len(cells) > len(gpus) // here.hosts:
        ways = {
            cell for cell in cells[1:] if re.match(r"(PIX|PXB|PHB|NODE|SYS)$", cell)
        }
        return len(ways) > 0 and not ways & {"PIX", "PXB"}
    return _WAY.search(line) is not None
