"""DeepEP's kernels in normal mode: tokens to the ranks of their experts and back, over NVLink and RDMA.

A token goes to another host once, to the GPU on its own rail, which hands it on over NVLink to the GPUs there that hold
its experts (`combine` the other way round). What the kernel's SMs reach was fitted to published times of DeepEP
(`deepep.toml`, by `python -m lab.fit.token_exchanges`); links may be slower, or taken by others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from prestep.sim import schema
from prestep.sim.collectives import machine
from prestep.sim.collectives.assemble import wires
from prestep.sim.collectives.group import Group, group_of
from prestep.sim.collectives.plan import Plan
from prestep.sim.collectives.settings import Nccl
from prestep.sim.collectives.wires import paths
from prestep.sim.graph.opgraph import Tokens

FILE = Path(__file__).with_suffix(".toml")
HOSTS = "hosts"  # the table of what several hosts add
PER_HOST = 8  # most GPUs of a host that DeepEP was measured on
MEASURED = 4  # hosts
GPUS = ("h100", "h200", "b200", "b300")
WAYS = ("dispatch", "combine")
UNITS = ("s", "s/B", "1")


@dataclass(frozen=True)
class Inside:
    """A kernel on one host.

    Attributes
    ----------
    start, start_byte : float
        Seconds of one token alone, and what they grow by with each of its bytes.
    token, copy, byte : float
        Seconds of one SM for a token, for each of its copies, and for each byte of a copy.
    nvlink : float
        Share of a GPU's NVLinks that it reaches.
    """

    start: float
    start_byte: float
    token: float
    copy: float
    byte: float
    nvlink: float


@dataclass(frozen=True)
class Over:
    """What several hosts add: seconds at the start, work over that on one host, and the share of a NIC it reaches."""

    start: float
    work: float
    nic: float


def plan(
    op: str,
    size: float,
    ranks: Sequence[str],
    fabric: Any,
    settings: Nccl,
    tokens: Tokens,
) -> Plan | None:
    """The exchange of `tokens`, `size` bytes a rank; None where DeepEP's kernels were not measured.

    That is on GPUs without a table, in NVLink domains of more than 8, and where hosts hold unequal parts of the group
    or P2P is off.
    """
    group = group_of(fabric, ranks, settings)
    if not measured(group, fabric, settings, tokens) or size <= 0:
        return None
    inside: Any = curves()[fabric.gpu_model][tokens.way]
    over: Any = curves()[HOSTS][tokens.way]
    latency = inside.start + inside.start_byte * tokens.size
    work, nic = seconds_of_sms(inside, tokens), 1.0
    if group.nodes > 1:
        latency = max(latency + over.start, group.remote_latency)
        work, nic = work * over.work, over.nic
    links, data = loads(group, fabric, tokens)
    # SMs and links work at once: the slower of the two decides the rate.
    rate = min(size / work, _narrowest(fabric, links, data, inside.nvlink, nic))
    return Plan(
        op,
        size,
        tuple(ranks),
        "deepep",
        tokens.way,
        tokens.sms,
        latency,
        links,
        data / wires(links, fabric, machine.of(fabric).wire),
        rate,
        "fitted" if group.nodes <= MEASURED else "guess",
        data=data,
    )


def _narrowest(
    fabric: Any, links: np.ndarray, data: np.ndarray, nvlink: float, nic: float
) -> float:
    """Bytes/s of a rank that the fullest link lets pass, of which kernels reach the share `nvlink` or `nic`."""
    kinds, bandwidth = fabric.links.kind[links], fabric.links.bandwidth[links]
    reached = np.where(kinds == "nvlink", nvlink, nic)
    return float(np.min(bandwidth * reached / data))


def measured(group: Group, fabric: Any, settings: Nccl, tokens: Tokens) -> bool:
    """Whether times of DeepEP exist for such a group."""
    sizes = {len(host) for host in group.hosts}
    return (
        fabric.gpu_model in curves()
        and settings.backend == "nccl"
        and group.inside == group.outside == "auto"
        and group.nodes == tokens.over
        and len(sizes) == 1
        and max(sizes) <= PER_HOST
        and "nvlink" in (group.local_kind or "nvlink")
    )


def seconds_of_sms(inside: Inside, tokens: Tokens) -> float:
    """What the kernel's SMs take for the tokens of a rank."""
    copies = tokens.ranks * (inside.copy + inside.byte * tokens.size)
    return tokens.count * (inside.token + copies) / tokens.sms


def loads(group: Group, fabric: Any, tokens: Tokens) -> tuple[np.ndarray, np.ndarray]:
    """Links, and bytes on each per byte that a rank sends: over rails to every host, and on from there."""
    key = ("deepep", group, tokens.ranks / tokens.hosts)
    return paths.once(fabric, key, lambda: _relayed(group, fabric, key[-1]))


def _relayed(group: Group, fabric: Any, fan: float) -> tuple[np.ndarray, np.ndarray]:
    """`fan`: copies that leave a GPU over NVLink for each that came to its host."""
    place = fabric.positions(group.ranks).reshape(group.nodes, -1)
    each = fan / place.shape[1]
    near = [(a, b) for a in place.T for b in place.T if a[0] != b[0]]
    total = np.zeros(len(fabric.links))
    for a, b in near:
        total += fabric.loads(a, b, np.full(len(a), each))
    if group.nodes > 1:
        for rail in place.T:
            total += fabric.exchange(rail, rail, 1.0 / group.nodes)
    return paths.used(total)


@cache
def curves() -> Mapping[str, Mapping[str, Inside | Over]]:
    """By GPU, or `HOSTS`, and way."""
    tables = schema.read(FILE, _schema())
    return {
        name: {way: _curve(name, row) for way, row in table.items()}
        for name, table in tables.items()
    }


def _schema() -> schema.Table:
    """What the file says: every number with its unit and what it rests on."""
    number = {**schema.sourced(schema.Number()).keys, "unit": schema.Text(UNITS)}
    kinds = dict.fromkeys(GPUS, Inside) | {HOSTS: Over}
    rows = {
        name: dict.fromkeys(
            (entry.name for entry in fields(kind)), schema.Table(number, number)
        )
        for name, kind in kinds.items()
    }
    ways = {
        name: dict.fromkeys(WAYS, schema.Table(row, row)) for name, row in rows.items()
    }
    return schema.Table(
        {name: schema.Table(way, WAYS) for name, way in ways.items()}, kinds
    )


def _curve(name: str, row: Mapping[str, Any]) -> Inside | Over:
    kind = Over if name == HOSTS else Inside
    return kind(**{entry.name: row[entry.name]["value"] for entry in fields(kind)})
