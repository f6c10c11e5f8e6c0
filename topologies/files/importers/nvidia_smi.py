"""The matrix that `nvidia-smi topo -m` prints."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from pathlib import Path

from sim.errors import InputError
from topologies.fabric import Fabric
from topologies.fabric.builder import FabricBuilder
from topologies.files.importers import _rates
from topologies.files.importers._text import Source, text_of
from topologies.host import MEMORY, NIC, SOCKET

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_DEVICE = re.compile(r"(GPU\d+|NIC\d+|[a-z]+\w*\d\w*)")
_PATHS = ("X", "SYS", "NODE", "PHB", "PXB", "PIX")
_CLOSE = ("PXB", "PIX")  # below one PCIe switch
_SAME_CPU = ("NODE", "PHB", *_CLOSE)
# NVLinks that a GPU of each generation has: total -> (compute capability, PCIe speed in GT/s)
_GENERATIONS = {4: (60, 8.0), 6: (70, 8.0), 12: (80, 16.0), 18: (90, 32.0)}


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
        return source.finish(_build(source, matrix, affinity))
    except InputError as error:
        raise source.checked(error) from None


def _matrix(
    source: Source, text: str
) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """Entries by row and column, and the NUMA node of every GPU."""
    rows = [line.split() for line in _ANSI.sub("", text).splitlines() if line.strip()]
    header = next((row for row in rows if row[0] == "GPU0" and "X" not in row), None)
    if header is None:
        source.fail(
            "", "no header that starts with GPU0", "the output of nvidia-smi topo -m"
        )
    # "CPU Affinity", "GPU NUMA ID" and the like follow the devices.
    columns = list(itertools.takewhile(_DEVICE.fullmatch, header))
    matrix, affinity = {}, {}
    for row in rows:
        if row[0] not in columns or row is header or row[0] in matrix:
            continue
        entries = row[1 : len(columns) + 1]
        if len(entries) < len(columns):
            source.fail(
                f"row {row[0]}",
                f"{len(entries)} entries",
                f"{len(columns)}, one for each column",
            )
        for column, entry in zip(columns, entries, strict=True):
            if entry not in _PATHS and not re.fullmatch(r"NV[1-9]\d*", entry):
                source.fail(
                    f"row {row[0]}, column {column}",
                    f'"{entry}"',
                    f"NV#, {', '.join(_PATHS)}",
                )
        matrix[row[0]] = dict(zip(columns, entries, strict=True))
        rest = row[len(columns) + 1 :]
        if len(rest) > 1 and rest[1].isdigit():
            affinity[row[0]] = rest[1]
    missing = [name for name in columns if name not in matrix]
    if missing:
        source.fail(f"row {missing[0]}", "no such row", "a row for every column")
    return matrix, affinity


def _build(
    source: Source, matrix: dict[str, dict[str, str]], affinity: dict[str, str]
) -> Fabric:
    gpus = [name for name in matrix if name.startswith("GPU")]
    others = [name for name in matrix if not name.startswith("GPU")]
    links = max(
        (sum(_nvlinks(matrix[gpu][other]) for other in gpus) for gpu in gpus), default=0
    )
    sm, speed = _generation(source, matrix, gpus, links)
    builder = FabricBuilder()
    names = {
        gpu: builder.node(f"gpu{at}", "gpu", "host0") for at, gpu in enumerate(gpus)
    }
    names |= {
        nic: builder.node(f"nic{at}", "nic", "host0") for at, nic in enumerate(others)
    }
    _add_tree(builder, source, matrix, affinity, names, speed)
    _add_nvlinks(builder, source, matrix, gpus, names, sm)
    if others:
        builder.node("network", "network")
        source.assumed("speed of NICs", "not in the matrix; 400 Gbit/s")
    for nic in others:
        builder.link(names[nic], "network", "nic", NIC)
    source.assumed(
        "latencies", "not in the matrix; of the order of a hop of their kind"
    )
    source.assumed(
        "memory and links between sockets", "not in the matrix; those of a DGX H100"
    )
    model = {60: "p100", 70: "v100", 80: "a100", 90: "h100"}[sm]
    source.assumed("GPU model", f"not in the matrix; {model} has as many NVLinks")
    return builder.finish(source.title, model, "nvidia_smi")


def _nvlinks(entry: str) -> int:
    return int(entry[2:]) if entry.startswith("NV") else 0


def _generation(
    source: Source, matrix: dict[str, dict[str, str]], gpus: list[str], links: int
) -> tuple[int, float]:
    """Compute capability and PCIe speed of the GPUs with as many NVLinks as the widest path, or as all together."""
    widest = max((_nvlinks(matrix[a][b]) for a in gpus for b in gpus), default=0)
    total = links if links in _GENERATIONS else widest
    sm, speed = next(
        (found for known, found in _GENERATIONS.items() if known >= total),
        _GENERATIONS[18],
    )
    if not total:
        sm, speed = _GENERATIONS[12]
    source.assumed(
        "rates",
        f"not in the matrix; NVLink of sm{sm} and PCIe of {speed:g} GT/s, 16 lanes",
    )
    return sm, speed


def _groups(
    names: list[str], matrix: dict[str, dict[str, str]], paths: tuple[str, ...]
) -> dict[str, str]:
    """For every device the first one it hangs together with over `paths`."""
    first = {name: name for name in names}
    for name in names:
        for other in names:
            if matrix[name][other] in paths and first[name] != first[other]:
                low, high = sorted((first[name], first[other]), key=names.index)
                first = {
                    key: low if value == high else value for key, value in first.items()
                }
    return first


def _add_tree(
    builder: FabricBuilder,
    source: Source,
    matrix: dict[str, dict[str, str]],
    affinity: dict[str, str],
    names: dict[str, str],
    speed: float,
) -> None:
    """CPUs by NUMA affinity (else by what is not SYS apart), PCIe switches by PIX and PXB."""
    devices = list(matrix)
    near = _groups(devices, matrix, _SAME_CPU)
    numa = {near[name]: node for name, node in reversed(affinity.items())}
    home = {
        name: affinity.get(name) or numa.get(near[name], f"of {near[name]}")
        for name in devices
    }
    cpus = {
        node: builder.node(f"cpu{at}", "cpu", "host0")
        for at, node in enumerate(dict.fromkeys(home.values()))
    }
    for at, cpu in enumerate(cpus.values()):
        builder.link(
            cpu, builder.node(f"memory{at}", "memory", "host0"), "memory", MEMORY
        )
        for other in list(cpus.values())[:at]:
            builder.link(other, cpu, "socket", SOCKET)
    below = _groups(devices, matrix, _CLOSE)
    sizes, switches = Counter(below.values()), dict[str, str]()
    spec = _rates.pcie(speed, 16, "guess")
    for name in devices:
        top = below[name]
        if sizes[top] > 1 and top not in switches:
            switches[top] = builder.node(
                f"pcieswitch{len(switches)}", "pcieswitch", "host0"
            )
            builder.link(cpus[home[name]], switches[top], "pcie", spec)
        builder.link(switches.get(top, cpus[home[name]]), names[name], "pcie", spec)
    if any("PXB" in row.values() for row in matrix.values()):
        source.assumed(
            "PXB", "several bridges between two devices; one PCIe switch here"
        )


def _add_nvlinks(
    builder: FabricBuilder,
    source: Source,
    matrix: dict[str, dict[str, str]],
    gpus: list[str],
    names: dict[str, str],
    sm: int,
) -> None:
    pairs = {
        (a, b): _nvlinks(matrix[a][b])
        for at, a in enumerate(gpus)
        for b in gpus[at + 1 :]
    }
    counts = set(pairs.values())
    for (a, b), count in pairs.items():
        if _nvlinks(matrix[b][a]) != count:
            source.fail(
                f"row {b}, column {a}",
                f'"{matrix[b][a]}"',
                f'"{matrix[a][b]}", as in row {a}, column {b}',
            )
    most = {60: 4, 70: 6, 80: 12, 90: 18}[sm]
    switched = (
        len(counts) == 1
        and counts != {0}
        and ((counts == {most} and sm >= 80) or max(counts) * (len(gpus) - 1) > most)
    )
    if switched:
        source.assumed("NVSwitches", "hidden in the matrix; one stands for all of them")
        switch = builder.node("nvswitch0", "nvswitch", "host0")
        for gpu in gpus:
            builder.link(names[gpu], switch, "nvlink", _rates.nvlink(sm), max(counts))
        return
    for (a, b), count in pairs.items():
        if count:
            builder.link(names[a], names[b], "nvlink", _rates.nvlink(sm), count)
