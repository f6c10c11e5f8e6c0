"""The matrix that `nvidia-smi topo -m` prints."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from pathlib import Path

import networkx as nx

from prestep.sim.errors import InputError
from prestep.topologies import host
from prestep.topologies.core.quantity import LinkSpec
from prestep.topologies.fabric import Fabric
from prestep.topologies.fabric.compile import compile_graph
from prestep.topologies.fabric.wiring import add_node, add_nvlinks, join, new_graph
from prestep.topologies.files.host_models import HostModel
from prestep.topologies.files.importers._text import Source, text_of
from prestep.topologies.foreign import _rates
from prestep.topologies.foreign._hosts import match

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_DEVICE = re.compile(r"(GPU\d+|NIC\d+|[a-z]+\w*\d\w*)")
_PATHS = ("X", "SYS", "NODE", "PHB", "PXB", "PIX")
_CLOSE = ("PXB", "PIX")  # below one PCIe switch
_SAME_CPU = ("NODE", "PHB", *_CLOSE)
# NVLinks that a GPU of each generation has: total -> (compute capability, PCIe speed in GT/s)
_GENERATIONS = {4: (60, 8.0), 6: (70, 8.0), 12: (80, 16.0), 18: (90, 32.0)}
_LINKS = {sm: links for links, (sm, _) in _GENERATIONS.items()}
_MODELS = {60: "p100", 70: "v100", 80: "a100", 90: "h100"}
Matrix = dict[str, dict[str, str]]  # by row, then by column


def sniff(text: str) -> bool:
    """A line of the matrix: GPU0 with X in its own column."""
    return re.search(r"^\s*GPU0\s+X\s", _ANSI.sub("", text), re.MULTILINE) is not None


def read(path: str | Path) -> Fabric:
    """One host from the paths between its GPUs and NICs.

    ::

        gpu0 ... gpu7  == NV18 ==  nvswitch0           PIX, PXB: below one PCIe switch
          |        |                                   PHB, NODE: below one CPU
        cpu0 ... cpu1 (NUMA affinity), SYS between     SYS: below different CPUs

    NV# between all GPUs that adds up to more links than a GPU has is one NVSwitch; else links from GPU to GPU. The
    matrix has no rates: they are guessed from the number of NVLinks. See `notes`.

    Raises
    ------
    InputError
        If the matrix is not square or an entry is none that nvidia-smi prints; row and column are named.
    """
    source = Source(path)
    matrix, affinity = _matrix(source, text_of(path))
    try:
        return source.finish(_Host(source, matrix, affinity).fabric())
    except InputError as error:
        raise source.checked(error) from None


def _matrix(source: Source, text: str) -> tuple[Matrix, dict[str, str]]:
    """Entries by row and column, and the NUMA node of every GPU."""
    rows = [line.split() for line in _ANSI.sub("", text).splitlines() if line.strip()]
    header = _header(source, rows)
    # "CPU Affinity", "GPU NUMA ID" and the like follow the devices.
    columns = list(itertools.takewhile(_DEVICE.fullmatch, header))
    width = len(columns)
    matrix: Matrix = {}
    affinity: dict[str, str] = {}
    for row in rows:
        name, *cells = row
        if name not in columns or row is header or name in matrix:
            continue
        matrix[name] = _row(source, name, cells[:width], columns)
        if len(cells) > width + 1 and cells[width + 1].isdecimal():
            affinity[name] = cells[width + 1]
    for name in columns:
        if name not in matrix:
            source.fail(f"row {name}", "no such row", "a row for every column")
    return matrix, affinity


def _header(source: Source, rows: list[list[str]]) -> list[str]:
    headers = [row for row in rows if row[0] == "GPU0" and "X" not in row]
    if not headers:
        expected = "the output of nvidia-smi topo -m"
        source.fail("", "no header that starts with GPU0", expected)
    return headers[0]


def _row(
    source: Source, name: str, entries: list[str], columns: list[str]
) -> dict[str, str]:
    """The entries of a row by column."""
    if len(entries) < len(columns):
        expected = f"{len(columns)}, one for each column"
        source.fail(f"row {name}", f"{len(entries)} entries", expected)
    for column, entry in zip(columns, entries, strict=True):
        if entry not in _PATHS and not re.fullmatch(r"NV[1-9]\d*", entry):
            where = f"row {name}, column {column}"
            source.fail(where, f'"{entry}"', f"NV#, {', '.join(_PATHS)}")
    return dict(zip(columns, entries, strict=True))


class _Host:
    """The host of a matrix, under construction."""

    def __init__(
        self, source: Source, matrix: Matrix, affinity: dict[str, str]
    ) -> None:
        self.source, self.matrix, self.affinity = source, matrix, affinity
        self.gpus = [name for name in matrix if name.startswith("GPU")]
        self.nics = [name for name in matrix if not name.startswith("GPU")]
        self.graph = new_graph(source.title, "", "nvidia_smi")
        self.known: HostModel | None = None
        gpus = {name: self.node("gpu", at) for at, name in enumerate(self.gpus)}
        nics = {name: self.node("nic", at) for at, name in enumerate(self.nics)}
        self.names = gpus | nics

    def node(self, kind: str, number: int) -> str:
        return add_node(self.graph, f"{kind}{number}", kind, "host0")

    def fabric(self) -> Fabric:
        sm, speed, links = self.generation()
        model = _MODELS[sm]
        self.known = match(self.source, model, len(self.gpus), links)
        pcie = _rates.pcie(speed, 16, "guess")
        self.add_tree(self.known.params.pcie if self.known else pcie)
        self.add_nvlinks(sm)
        self.add_network()
        note = self.source.assumed
        note("latencies", "not in the matrix; of the order of a hop of their kind")
        name = self.known.name if self.known else "a DGX H100"
        note("memory and links between sockets", f"not in the matrix; those of {name}")
        note("GPU model", f"not in the matrix; {model} has as many NVLinks")
        self.graph.graph["gpu_model"] = model
        return compile_graph(self.graph)

    def add_network(self) -> None:
        port = self.known.params.nic if self.known else host.LINKS["nic"]
        if self.nics:
            add_node(self.graph, "network", "network")
            speed = f"{port.wire * 8 / 1e9:g} Gbit/s"
            self.source.assumed("speed of NICs", f"not in the matrix; {speed}")
        for nic in self.nics:
            join(self.graph, self.names[nic], "network", "nic", port)

    def nvlinks(self, a: str, b: str) -> int:
        entry = self.matrix[a][b]
        return int(entry[2:]) if entry.startswith("NV") else 0

    def generation(self) -> tuple[int, float, int]:
        """Compute capability, PCIe speed and NVLinks of the GPUs: as many as the widest path, or as all together."""
        counts = [[self.nvlinks(a, b) for b in self.gpus] for a in self.gpus]
        links = max(map(sum, counts), default=0)
        widest = max(itertools.chain(*counts), default=0)
        total = links if links in _GENERATIONS else widest
        enough = [most for most in _GENERATIONS if most >= total]
        sm, speed = _GENERATIONS[enough[0] if enough else 18]
        if not total:
            sm, speed = _GENERATIONS[12]
        self.source.assumed(
            "rates",
            f"not in the matrix; NVLink of sm{sm} and PCIe of {speed:g} GT/s, 16 lanes",
        )
        return sm, speed, total

    def add_tree(self, pcie: LinkSpec) -> None:
        """CPUs with their memory, PCIe switches for devices that are PIX or PXB apart, and devices below them."""
        homes = self.homes()
        cpus = self.add_cpus(list(dict.fromkeys(homes.values())))
        below = _groups(list(self.matrix), self.matrix, _CLOSE)
        sizes = Counter(below.values())
        switches: dict[str, str] = {}
        for name, top in below.items():
            cpu = cpus[homes[name]]
            if sizes[top] > 1 and top not in switches:
                switches[top] = self.node("pcieswitch", len(switches))
                join(self.graph, cpu, switches[top], "pcie", pcie)
            join(self.graph, switches.get(top, cpu), self.names[name], "pcie", pcie)
        if any("PXB" in row.values() for row in self.matrix.values()):
            self.source.assumed(
                "PXB", "several bridges between two devices; one PCIe switch here"
            )

    def homes(self) -> dict[str, str]:
        """The NUMA node of each device: by its affinity, else by what is not SYS apart."""
        near = _groups(list(self.matrix), self.matrix, _SAME_CPU)
        numa = {near[name]: node for name, node in reversed(self.affinity.items())}
        return {
            name: self.affinity.get(name) or numa.get(first, f"of {first}")
            for name, first in near.items()
        }

    def add_cpus(self, numa_nodes: list[str]) -> dict[str, str]:
        cpus = {node: self.node("cpu", at) for at, node in enumerate(numa_nodes)}
        names = list(cpus.values())
        params = self.known.params if self.known else host.Params()
        memory, socket = params.memory, params.socket
        for at, cpu in enumerate(names):
            join(self.graph, cpu, self.node("memory", at), "memory", memory)
            for other in names[:at]:
                join(self.graph, other, cpu, "socket", socket)
        return cpus

    def add_nvlinks(self, sm: int) -> None:
        """Links from GPU to GPU, or to one NVSwitch that stands for all."""
        counts = self.checked_nvlinks()
        nvlink = self.known.params.nvlink if self.known else _rates.nvlink(sm)
        if self.switched(set(counts.values()), sm):
            each: tuple[int, ...] = self.known.params.nvlinks if self.known else ()
            if not each:
                each = (max(counts.values()),)
                note = "hidden in the matrix; one stands for all of them"
                self.source.assumed("NVSwitches", note)
            switches = [self.node("nvswitch", at) for at in range(len(each))]
            for gpu in self.gpus:
                add_nvlinks(self.graph, self.names[gpu], switches, each, nvlink)
            return
        for (a, b), count in counts.items():
            if count:
                join(self.graph, self.names[a], self.names[b], "nvlink", nvlink, count)

    def checked_nvlinks(self) -> dict[tuple[str, str], int]:
        """NVLinks between every two GPUs, for which both rows of the matrix must say the same."""
        pairs = list(itertools.combinations(self.gpus, 2))
        for a, b in pairs:
            if self.nvlinks(a, b) != self.nvlinks(b, a):
                where, found = f"row {b}, column {a}", f'"{self.matrix[b][a]}"'
                expected = f'"{self.matrix[a][b]}", as in row {a}, column {b}'
                self.source.fail(where, found, expected)
        return {(a, b): self.nvlinks(a, b) for a, b in pairs}

    def switched(self, counts: set[int], sm: int) -> bool:
        """Whether all pairs have as many links as only a switch can give them."""
        if len(counts) != 1 or counts == {0}:
            return False
        [each] = counts
        most = _LINKS[sm]
        return (each == most and sm >= 80) or each * (len(self.gpus) - 1) > most


def _groups(names: list[str], matrix: Matrix, paths: tuple[str, ...]) -> dict[str, str]:
    """For every device the first one it hangs together with over `paths`."""
    near = nx.Graph((a, b) for a in names for b in names if matrix[a][b] in paths)
    near.add_nodes_from(names)
    first = {
        name: min(group, key=names.index)
        for group in nx.connected_components(near)
        for name in group
    }
    return {name: first[name] for name in names}
