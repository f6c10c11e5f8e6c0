"""Constants of NCCL on one kind of GPU, from sim/costs/hardware/<gpu>-nccl.toml."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from prestep.sim import schema
from prestep.sim.collectives.algorithms import algorithms
from prestep.sim.collectives.plan import OPS, PROTOS
from prestep.sim.costs import interference
from prestep.sim.costs.gpu_files import folder_of, generation_of
from prestep.sim.errors import PrestepError

FOLDER = Path(__file__).parents[1] / "costs" / "hardware"
EXTRA = FOLDER / "extra-nccl.toml"
# The GPU that most constants were measured on.
REFERENCE = "h200"
# What kernels and collectives cost each other (`prestep.sim.costs.interference`).
OVERLAP = "overlap"

UNITS = ("s", "B", "B/s", "s/B", "1")
_Keys = Mapping[str, schema.Schema]

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
    sends : float
        Cost of an all-gather's first primitive in place, which only sends, over one that passes on; 0: as `ends` say.
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
    sends: float = 0.0
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
class Tcp:
    """TCP on one kind of host: [socket.tcp]. Seconds, and seconds per byte.

    `taken`: a byte that a thread receives between those it sends. `hop`: a hop over NCCL's own guess of it. `light`:
    what a message of LL or LL128 costs the thread over one of Simple. 0, 0 and 1 where nothing was fitted to them.
    `sent`: bytes of a connection that the sender's kernel holds. `pair`: what more a message between pairs costs the
    thread; it waits for no step of a ring.
    """

    send: float
    receive: float
    control: float
    copy: float
    copy_flags: float
    stage: float
    wake: float
    taken: float = 0.0
    hop: float = 0.0
    light: float = 1.0
    sent: float = 0.0
    pair: float = 0.0


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

    @property
    def streams(self) -> float:
        """Seconds that a program's calls take longer than nccl-tests' (0: the constants are of nccl-tests)."""
        return float(self.tables["nominal"].get("streams", 0.0))

    def wire(self, kind: str) -> float:
        """Share of a link's bandwidth that is payload, by kind of link."""
        wires = self.tables["wire"]
        return float(wires.get(kind, wires["other"]))


def _needed(kind: type) -> list[str]:
    """Names of a dataclass's fields without a default."""
    return [
        entry.name
        for entry in fields(kind)
        if entry.default is MISSING and entry.default_factory is MISSING
    ]


_ANY, _POSITIVE = schema.Number(), schema.Number(above=True)
_SHARE = schema.Number(above=True, high=1.0)
# Other operations go by all-reduce's (`Pace.of`).
_BY_OP = schema.Table(dict.fromkeys(OPS, _POSITIVE), ("all_reduce",))
_FACTORS = dict.fromkeys(OPS, _ANY)
_WAYS = ("send", "sendrecv")
_PACE: dict[str, schema.Schema] = {
    **{entry.name: _ANY for entry in fields(Pace)},
    **dict.fromkeys(("fill", "power", "sharp", "cache", "net"), _POSITIVE),
    **dict.fromkeys(("rate", "link"), _BY_OP),
    "ends": schema.Table(_FACTORS, ("all_reduce",)),
    "unaligned": schema.Table(_FACTORS),
    "evidence": schema.Text(schema.GRADES),
}
_PAIRS: dict[str, schema.Schema] = {
    **{entry.name: _ANY for entry in fields(Pairs)},
    **dict.fromkeys(("power", "sharp"), _POSITIVE),
    **dict.fromkeys(("rate", "link"), schema.all_of(_WAYS, _POSITIVE)),
    "ramp": schema.all_of(_WAYS, _ANY),
}
_GLOO: dict[str, schema.Schema] = {
    **dict.fromkeys(("start", "hop"), _ANY),
    **dict.fromkeys(("rate", "reduce"), _POSITIVE),
}
_PATH: dict[str, schema.Schema] = {"latency": _ANY, "message": _ANY, "share": _SHARE}
_SHOT: dict[str, schema.Schema] = {"start": _ANY, "rate": _POSITIVE}
_POSTING: dict[str, schema.Schema] = dict.fromkeys(("step", "message"), _ANY)
_MEMORY: dict[str, schema.Schema] = {
    **dict.fromkeys(("send", "sendrecv", "ring"), _POSITIVE),
    **dict.fromkeys(("one_way", "both_ways", "duplex"), _SHARE),
}
_PHASES = ("kernels", "alloc", "bootstrap", "topology", "connections")
_CREATION: dict[str, schema.Schema] = {
    **dict.fromkeys((*_PHASES, "per_rank", "step", "pair"), _ANY),
    **dict.fromkeys(("slower", "faster"), _POSITIVE),
    "measured_ranks": schema.Number(1, whole=True),
}
_TCP: dict[str, schema.Schema] = {entry.name: _ANY for entry in fields(Tcp)}
#: What every GPU has alike (extra-nccl.toml), by table and row: keys, and those that a row needs.
_SHARED: dict[str, dict[str, tuple[_Keys, Collection[str]]]] = {
    "socket": dict.fromkeys(("tcp", "nic"), (_TCP, _needed(Tcp))),
    "proxy": {"rdma": (_POSTING, _POSTING)},
    "host_memory": {"shm": (_MEMORY, _MEMORY)},
    "gloo": {"tcp": (_GLOO, _GLOO)},
    "one_sided": dict.fromkeys(("nvlink", "ibgda", "proxy"), (_PATH, _PATH)),
    "shots": dict.fromkeys(("one_shot", "two_shot"), (_SHOT, _SHOT)),
    "creation": {"nccl": (_CREATION, _CREATION)},
}
_WIRES = ("nvlink", "c2c", "pcie", "socket", "memory", "nvme", "nic", "other")
_TABLES: Mapping[str, schema.Schema] = {
    "nominal": schema.Table({"latency": _ANY, "streams": _ANY}),
    "wire": schema.Table(dict.fromkeys(_WIRES, _SHARE)),
    "host": schema.Table(_FACTORS),
    OVERLAP: interference.OVERLAP,
}
#: Tables of numbers; the others are tables of rows.
PLAIN = (*_TABLES, "pairs")


def schema_over(known: Mapping[str, Any]) -> schema.Table:
    """What a file may say that is laid over the tables `known`; a row must have what neither they nor defaults have."""

    def row(keys: _Keys, needed: Collection[str], *path: str) -> schema.Table:
        before: Mapping[str, Any] = known
        for name in path:
            before = before.get(name, {})
        graded = {**keys, "evidence": schema.Text(schema.GRADES)}
        return schema.Table(graded, [key for key in needed if key not in before])

    paces = {
        algo: schema.Table(
            {proto: row(_PACE, _needed(Pace), algo, proto) for proto in PROTOS}
        )
        for algo in algorithms()
    }
    shared = {
        name: schema.Table({key: row(*rules, name, key) for key, rules in rows.items()})
        for name, rows in _SHARED.items()
    }
    missing = [key for key in _needed(Pairs) if key not in known.get("pairs", {})]
    pairs = schema.Table(_PAIRS, missing)
    return schema.Table({**paces, **shared, **_TABLES, "pairs": pairs})


def own_schema() -> schema.Table:
    """What the file of a GPU's own constants says."""
    over = schema_over({})
    whole = {
        "nominal": schema.Table({"latency": _ANY, "streams": _ANY}, ("latency",)),
        "wire": schema.Table(dict.fromkeys(_WIRES, _SHARE), ("other",)),
    }
    return schema.Table({**over.keys, **whole}, (*whole, "pairs"))


def extra_schema() -> schema.Table:
    """What extra-nccl.toml says: every number with its unit and what it rests on."""
    pace = {key: item for key, item in _PACE.items() if key != "evidence"}
    paces = {
        algo: schema.Table(dict.fromkeys(PROTOS, _graded_row(pace, _needed(Pace))))
        for algo in algorithms()
    }
    shared = {
        name: schema.Table(
            {key: _graded_row(*rules) for key, rules in rows.items()}, rows
        )
        for name, rows in _SHARED.items()
    }
    return schema.Table({**paces, **shared}, shared)


def _graded_row(keys: _Keys, needed: Collection[str]) -> schema.Table:
    return schema.Table({key: _with_unit(item) for key, item in keys.items()}, needed)


def _with_unit(item: schema.Schema) -> schema.Table:
    keys = {**schema.sourced(item).keys, "unit": schema.Text(UNITS)}
    return schema.Table(keys, keys)


def build(tables: Mapping[str, Any], gpu: str, evidence: str) -> Constants:
    """Constants from the tables of a file."""
    paces = {
        (algo, proto): Pace(**rows)
        for algo in algorithms()
        for proto, rows in tables.get(algo, {}).items()
    }
    return Constants(gpu, evidence, paces, Pairs(**tables["pairs"]), tables)


def file_of(gpu: str) -> Path:
    """The file of a GPU's constants: its own, or that of the measured GPU of its generation."""
    own = _own_file(gpu)
    return (
        own if own.is_file() else FOLDER / f"{generation_of(gpu).constants}-nccl.toml"
    )


def _own_file(gpu: str) -> Path:
    """The file that a GPU would have, or the one that it is a size of."""
    own = folder_of(gpu) / f"{gpu}-nccl.toml"
    model = gpu.partition("-")[0]
    return own if own.is_file() else folder_of(model) / f"{model}-nccl.toml"


@lru_cache(maxsize=8)
def load(gpu: str) -> Constants:
    """Constants of `gpu` ("h200"); as a guess, of its generation's measured one. An "a100-40gb" is an "a100" to NCCL.

    What that host could not show (NVLink SHARP, switches that reduce) comes from extra-nccl.toml, in which every
    number says what it rests on; what no file has comes from the algorithm's own module, its `CONSTANTS`.
    """
    path = file_of(gpu)
    evidence = "fitted" if path == _own_file(gpu) else "guess"
    extra = schema.read(EXTRA, extra_schema())
    tables = {
        algo: {proto: _graded(rows) for proto, rows in table.items()}
        for algo, table in extra.items()
    }
    tables = own_constants() | tables
    return build(tables | schema.read(path, own_schema()), gpu, evidence)


def own_constants() -> dict[str, Any]:
    """Tables of the algorithms that bring their constants with them, by protocol."""
    return {
        name: {proto: vars(pace) for proto, pace in module.CONSTANTS.items()}
        for name, module in algorithms().items()
        if hasattr(module, "CONSTANTS")
    }


def _graded(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Values of a table of numbers with evidence; the table is worth what its worst number is."""
    grades = [str(row["evidence"]) for row in rows.values()]
    worst = max(grades, key=schema.GRADES.index)
    return {name: row["value"] for name, row in rows.items()} | {"evidence": worst}
