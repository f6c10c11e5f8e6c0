"""Constants of NCCL on one kind of GPU, from sim/costs/hardware/<gpu>-nccl.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from sim.collectives.nccl.speeds import generation
from sim.collectives.registry import algorithms
from sim.errors import PrestepError

FOLDER = Path(__file__).parents[1] / "costs" / "hardware"
# The GPU that most constants were measured on.
REFERENCE = "h200"
# The measured GPU of each generation, whose constants others of it borrow as a guess; nobody measured Volta.
MEASURED = {"volta": "h200", "ampere": "a100", "hopper": "h200", "blackwell": "b200"}
_PROTOS = {"LL", "LL128", "Simple"}
_GRADES = ("measured", "fitted", "datasheet", "guess")

# Operations that do to the data on every hop what another does: copy on, or reduce and pass on.
LIKE = {
    "broadcast": "all_gather",
    "reduce": "reduce_scatter",
    "reduce_scatter": "all_gather",
}


@dataclass(frozen=True)
class Pace:
    """How fast one algorithm runs under one protocol.

    Attributes
    ----------
    start, hop : float
        Seconds to launch and end the kernel; seconds per step between neighbours.
    wide : float
        Share by which a hop grows from one warp to a full CTA (barriers of more threads).
    grain : float
        Bytes a step moves within its hop latency: the first sweep of a CTA's threads is free.
    rate : Mapping
        Bytes/s one channel sustains per primitive, by operation.
    fill : float
        Bytes/s at which one channel's chunk fills a pipeline (tree).
    link : Mapping
        Share of the wire's payload bandwidth reached by endless messages, by operation.
    ramp, power : float
        Link time is longer by (ramp / bytes) ** power: big messages use the switch better.
    sharp, settle : float
        Exponent of the norm that joins channel time and link time; it grows by `settle` with every doubling of the
        link's bytes beyond 16 MiB, because channels that share a link unevenly even out over time.
    spill, cache : float
        Channel time grows by the share `spill` when buffers of more than `cache` bytes miss the L2.
    depth : float
        Share of a broadcast's or reduce's hops that back-to-back operations do not hide.
    ends : float
        Cost of the first and the last primitive of a rank (only send, only receive) over one that does both.
    serial : float
        Share of the time of primitives that send nothing for which the link waits; the rest other channels fill.
    net : float
        Share of the wire's payload bandwidth reached between hosts, where `link` and `ramp` do not count.
    unaligned : Mapping
        How much longer a channel takes, by operation, over ranks' parts that do not all begin at a multiple of 16
        bytes: it then copies element by element (NCCL src/device/common_kernel.h, reduceCopy).
    evidence : str
        What it rests on; "": what the file of the GPU rests on.
    """

    start: float
    hop: float
    rate: Mapping[str, float]
    link: Mapping[str, float]
    wide: float = 0.0
    grain: float = 0.0
    fill: float = 1e12
    ramp: float = 0.0
    power: float = 0.5
    sharp: float = 4.0
    settle: float = 0.0
    spill: float = 0.0
    cache: float = 3e7
    depth: float = 1.0
    ends: Mapping[str, float] = field(default_factory=lambda: {"all_reduce": 1.0})
    serial: float = 0.0
    net: float = 1.0
    unaligned: Mapping[str, float] = field(default_factory=dict)
    evidence: str = ""

    def of(self, table: Mapping[str, float], op: str) -> float:
        """A constant of `op`, else of the operation that does the same to data, else of all-reduce."""
        return table.get(op) or table.get(LIKE.get(op, ""), table["all_reduce"])


@dataclass(frozen=True)
class Pairs:
    """Send and receive.

    Attributes
    ----------
    start, channel : float
        Seconds to launch and end the kernel, and more for each channel beyond the first.
    grain : float
        Bytes of a part that move within the start.
    self_copy : float
        Cost of a rank's own part of an all-to-all over a part that is sent.
    rate : Mapping
        Bytes/s of one channel: "send" one way, "sendrecv" each of both ways.
    link, ramp, power, sharp
        As in `Pace`; link and ramp for "send" and "sendrecv".
    unaligned : float
        As in `Pace`, of all-to-alls, gathers and scatters.
    """

    start: float
    channel: float
    grain: float
    self_copy: float
    rate: Mapping[str, float]
    link: Mapping[str, float]
    ramp: Mapping[str, float]
    power: float
    sharp: float
    settle: float = 0.0
    unaligned: float = 1.0


@dataclass(frozen=True)
class Constants:
    """All of one machine; `tables` keeps the rest of the file (wire, nominal, network, host)."""

    gpu: str
    evidence: str
    paces: Mapping[tuple[str, str], Pace]
    pairs: Pairs
    tables: Mapping[str, Any]

    def pace(self, algo: str, proto: str) -> Pace:
        """How fast an algorithm runs.

        Raises
        ------
        PrestepError
            If neither a file nor the algorithm's own module has constants of it.
        """
        if (algo, proto) not in self.paces:
            raise PrestepError(
                f"sim/collectives/algorithms/{algo}.py: CONSTANTS must say how fast {algo} runs under {proto}"
            )
        return self.paces[algo, proto]

    def wire(self, kind: str) -> float:
        """Share of a link's bandwidth that is payload, by kind of link."""
        wires = self.tables["wire"]
        return float(wires.get(kind, wires["other"]))


def build(tables: Mapping[str, Any], gpu: str, evidence: str) -> Constants:
    """Constants from the tables of a file."""
    named = {
        algo: rows
        for algo, rows in tables.items()
        if isinstance(rows, Mapping) and set(rows) <= _PROTOS
    }
    paces = {
        (algo, proto): Pace(**rows[proto])
        for algo, rows in named.items()
        for proto in rows
    }
    return Constants(gpu, evidence, paces, Pairs(**tables["pairs"]), tables)


def file_of(gpu: str) -> Path:
    """The file of a GPU's constants: its own, or that of the measured GPU of its generation."""
    own = _own_file(gpu)
    return own if own.is_file() else FOLDER / f"{MEASURED[generation(gpu)]}-nccl.toml"


def _own_file(gpu: str) -> Path:
    return FOLDER / f"{gpu.partition('-')[0]}-nccl.toml"


@lru_cache(maxsize=8)
def load(gpu: str) -> Constants:
    """Constants of `gpu` ("h200"); as a guess, of its generation's measured one. An "a100-40gb" is an "a100" to NCCL.

    What that host could not show (NVLink SHARP, switches that reduce) comes from extra-nccl.toml, in which every
    number says what it rests on; what no file has comes from the algorithm's own module, its `CONSTANTS`.
    """
    path = file_of(gpu)
    evidence = "fitted" if path == _own_file(gpu) else "guess"
    extra = tomllib.loads((FOLDER / "extra-nccl.toml").read_text(encoding="utf-8"))
    tables = {
        algo: {proto: _graded(rows) for proto, rows in table.items()}
        for algo, table in extra.items()
    }
    tables = own_constants() | tables
    return build(
        tables | tomllib.loads(path.read_text(encoding="utf-8")), gpu, evidence
    )


def own_constants() -> dict[str, Any]:
    """Tables of the algorithms that bring their constants with them, by protocol."""
    return {
        name: {proto: vars(pace) for proto, pace in module.CONSTANTS.items()}
        for name, module in algorithms().items()
        if hasattr(module, "CONSTANTS")
    }


def _graded(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Values of a table of numbers with evidence; the table is worth what its worst number is."""
    worst = max((str(row["evidence"]) for row in rows.values()), key=_GRADES.index)
    return {name: row["value"] for name, row in rows.items()} | {"evidence": worst}
