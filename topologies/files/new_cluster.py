"""A cluster file from a few answers: a known host, how many, and the network; or over another tool's file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from prestep.sim.errors import InputError
from prestep.sim.units import format_bandwidth
from prestep.topologies.fabric import Fabric
from prestep.topologies.files import host_models, importers

#: Networks over hosts: the family that builds each, its key of hosts under a leaf, and what it is.
NETWORKS = {
    "rail": ("rail_optimized", "hosts_per_group", "a leaf for each NIC of a host"),
    "tree": ("fat_tree", "hosts_per_leaf", "all NICs of a host at one leaf"),
}
#: Switches over leaves, if there are as many cables.
_SPINES = 8


@dataclass(frozen=True)
class Answers:
    """What somebody says of a cluster.

    Attributes
    ----------
    host : str
        A bundled host.
    hosts, below : int
        Hosts in all, and under the same leaves.
    network : str
        One of `NETWORKS`.
    oversubscription : int
        Ports down for one cable up.
    port : float or None
        Bytes/s of a NIC's port on the wire; None: as the host has it.
    """

    host: str
    hosts: int
    network: str
    below: int
    oversubscription: int
    port: float | None
    description: str


def known_hosts() -> list[str]:
    """Hosts that others make clusters of, by name.

    Examples
    --------
    >>> "dgx-h100" in known_hosts()
    True
    """
    return [model.name for model in host_models.models()]


def host_of(file: Path) -> tuple[str, Fabric]:
    """The known host that another tool's file describes, "" where it is none or several hosts; and what was read."""
    fabric = importers.read(file)
    if len(fabric.hosts) != 1 or not fabric.gpus:
        return "", fabric
    links = fabric.links
    rows = [row for row in links.of_kind("nvlink") if links.src[row] == fabric.gpus[0]]
    nvlinks = int(links.count[rows].sum())
    model = host_models.match(fabric.gpu_model, len(fabric.gpus), nvlinks)
    return ("" if model is None else model.name), fabric


def extending(file: Path, output: Path, description: str, host: str = "") -> str:
    """The cluster file over another tool's, which has the network and the hosts, or only the names of the hosts."""
    near = file.resolve().parent == output.resolve().parent
    base = file.name if near else str(file.resolve())
    lines = [
        _HEAD,
        f"extends = {json.dumps(base)}",
        f"description = {json.dumps(description)}",
        *([f"host = {json.dumps(host)}"] if host else []),
        "# host_factor = 1.2             # hosts that take 1.2 times as long for framework code",
        "# [nic]",
        '# bandwidth = "48 GB/s"         # payload of a port, if you measured it',
    ]
    return "\n".join(lines) + "\n"


def text_of(answers: Answers) -> str:
    """The cluster file.

    Raises
    ------
    InputError
        If the hosts under a leaf have no whole number of cables up.

    Examples
    --------
    >>> said = Answers("dgx-h100", 32, "rail", 16, 2, None, "ours")
    >>> print(text_of(said).partition("\\n")[2])
    extends = "dgx-h100"
    family = "rail_optimized"
    description = "ours"
    hosts = 32
    hosts_per_group = 16
    oversubscription = 2
    spines = 8
    <BLANKLINE>
    """
    return "\n".join(_lines(answers)) + "\n"


_HEAD = "# Written by `prestep init cluster`. Look at it: `prestep topology show FILE`."


def _lines(said: Answers) -> Iterator[str]:
    family, below, _ = NETWORKS[said.network]
    nics = host_models.named(said.host).params.nics
    ports = said.below * (1 if said.network == "rail" else nics)
    up, rest = divmod(ports, said.oversubscription)
    if rest or not up:
        found = f"{said.oversubscription}, of {ports} ports under a leaf"
        expected = f"a divisor of {ports}"
        raise InputError.of("init cluster", "oversubscription", found, expected)
    spines = max(n for n in range(1, min(_SPINES, up) + 1) if up % n == 0)
    yield _HEAD
    yield f"extends = {json.dumps(said.host)}"
    yield f'family = "{family}"'
    yield f"description = {json.dumps(said.description)}"
    yield f"hosts = {said.hosts}"
    yield f"{below} = {said.below}"
    yield f"oversubscription = {said.oversubscription}"
    yield f"spines = {spines}"
    if said.port is not None:
        usual = host_models.named(said.host).params.nic
        payload = said.port * usual.bandwidth.value / usual.wire
        yield "[nic]"
        yield f'bandwidth = "{format_bandwidth(payload)}"'
        yield f'raw = "{format_bandwidth(said.port)}"'
