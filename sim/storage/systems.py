"""Storage systems: how fast they are by size of request and number of threads, from `sim/costs/storage/NAME.toml`.

    throughput = min(bandwidth, client, requests/s * request, threads * request / (latency + request / thread))

Systems that merge neighbouring requests (`merges`) count requests per second for random access alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from prestep.sim import data_files, schema
from prestep.sim.errors import InputError, Mistake, unknown
from prestep.sim.units import parse_bandwidth, parse_bytes, parse_duration
from prestep.topologies.fabric import Fabric
from prestep.topologies.fabric.stores import Stores

FOLDER = Path(__file__).parents[1] / "costs" / "storage"
Op = Literal["read", "write"]
FLAGS = ("page_cache", "gpudirect", "merges")
#: Python time of torch.distributed.checkpoint for each tensor, and for each tensor and writer.
PYTHON = ("plan_tensor", "plan_writer", "item", "result_tensor", "result_writer")
#: Quantities with units: of a system, and of the hosts and frameworks that save and load.
_OF_SYSTEM = {
    **dict.fromkeys(("read", "write", "client", "thread"), parse_bandwidth),
    **dict.fromkeys(("latency", "metadata"), parse_duration),
    **dict.fromkeys(("capacity", "disk"), parse_bytes),
}
_OF_HOST = {
    **dict.fromkeys(
        ("copy", "fresh", "serialise", "load", "writeback", "pin"), parse_bandwidth
    ),
    **dict.fromkeys(("expire", "plan", "context", *PYTHON), parse_duration),
    "memory": parse_bytes,
}
_PARSE = {**_OF_SYSTEM, **_OF_HOST}


class _Flag:
    """1 or 0, which a number with its source may be; or true or false."""

    def mistakes(self, where: str, key: str, value: object) -> Iterator[Mistake]:
        if value not in (0, 1):
            yield Mistake(where, key, repr(value)[:60], "true or false")


_NUMBERS: dict[str, schema.Schema] = {
    **{key: schema.Written(parse) for key, parse in _OF_SYSTEM.items()},
    **dict.fromkeys(("iops", "write_iops"), schema.Number(above=True)),
    **dict.fromkeys(FLAGS, _Flag()),
    "threads": schema.Number(above=True, whole=True),
}
#: A file of a system: texts, and numbers with their sources.
SCHEMA = schema.Table(
    {
        "description": schema.Text(),
        "attach": schema.Text(("nvme", "block", "network", "storage")),
        **{key: schema.sourced(number) for key, number in _NUMBERS.items()},
    },
    ("description", "attach", "latency", "metadata", "thread"),
)
#: What a host and a framework do to a checkpoint, apart from links and disks.
HOST_FILE = FOLDER.parent / "checkpoint.toml"
_HOST_KEYS: dict[str, schema.Schema] = {
    **{key: schema.sourced(schema.Written(parse)) for key, parse in _OF_HOST.items()},
    "dirty_share": schema.sourced(schema.Number(above=True, high=1.0)),
}
HOST_SCHEMA = schema.Table(_HOST_KEYS, _HOST_KEYS)
REQUEST = 2.0**20  # of sequential access: what kernels merge and frameworks write
PART = 2.0**23  # of uploads to an object store
THREADS = 64  # requests in flight of a page cache that is written back, and of the gdsio runs that systems come from


@dataclass(frozen=True)
class System:
    """A storage system.

    Attributes
    ----------
    attach : str
        Where it hangs: "nvme" at the cluster's disks, "block" at each host by itself, "network" behind the hosts' NICs,
        "storage" at the cluster's own storage servers.
    read, write : float or None
        Bytes/s of the whole system (nvme, block: of each host); None: the cluster's links decide.
    client : float or None
        Bytes/s of one host at most.
    iops, write_iops : float or None
        Requests/s of one host, and those that write where they are fewer.
    latency, metadata : float
        Seconds of a request, and of creating or opening a file.
    thread : float
        Bytes/s of one thread.
    capacity, disk : float or None
        Bytes of all of it, and of one disk of a cluster.
    page_cache, gpudirect, merges : bool
        Whether files go through the host's page cache; whether GPUs can reach it without a bounce through memory;
        whether neighbouring requests are merged, so that requests per second bind random access alone.
    evidence, source : mapping
        Grade and source by key.
    """

    name: str
    description: str
    attach: str
    latency: float
    metadata: float
    thread: float
    read: float | None = None
    write: float | None = None
    client: float | None = None
    iops: float | None = None
    write_iops: float | None = None
    capacity: float | None = None
    disk: float | None = None
    page_cache: bool = True
    merges: bool = False
    gpudirect: bool = False
    threads: int = THREADS
    evidence: Mapping[str, str] = field(default_factory=dict)
    source: Mapping[str, str] = field(default_factory=dict)

    def at(self, fabric: Fabric) -> Stores:
        """The system at a cluster."""
        limits = {"read": self.read, "write": self.write}
        return Stores(fabric, self.name, self.attach, limits, self.client)

    def bandwidth(self, op: Op) -> float:
        """Bytes/s of one host at most; infinite where the cluster's links decide."""
        limits = [self.read if op == "read" else self.write, self.client]
        return min(
            (limit for limit in limits if limit is not None), default=float("inf")
        )

    def throughput(
        self, request: float, threads: int, op: Op = "read", random: bool = False
    ) -> float:
        """Bytes/s of one host with requests of `request` bytes from `threads` threads.

        Raises
        ------
        InputError
            If a request has no bytes, or there is no thread.
        """
        if request <= 0 or threads < 1:
            found = f"{request:g} bytes, {threads} threads"
            expected = "requests of at least a byte, at least one thread"
            raise InputError.of(self.name, "request", found, expected)
        limits = [
            self.bandwidth(op),
            threads * request / (self.latency + request / self.thread),
        ]
        requests = self.requests(op)
        if requests is not None and (random or not self.merges):
            limits.append(requests * request)
        return min(limits)

    def requests(self, op: Op) -> float | None:
        """Requests/s of one host at most; None: only threads bound them."""
        return self.write_iops or self.iops if op == "write" else self.iops


def names() -> list[str]:
    """Storage systems that there are."""
    return list(data_files.files(FOLDER, "storage"))


def load_system(name_or_file: str, where: str = "storage", key: str = "") -> System:
    """The system of that name, or of a TOML file.

    Raises
    ------
    InputError
        If there is none, or the file has mistakes.
    """
    if name_or_file.endswith(".toml"):
        path: Path | None = Path(name_or_file)
    else:
        known = name_or_file in names()
        path = data_files.file(FOLDER, "storage", name_or_file) if known else None
    if path is None or not path.is_file():
        wanted, listed = "a file, or one of", "prestep list storage"
        raise InputError(unknown(where, key, name_or_file, names(), wanted, listed))
    return _bundled(path) if path.parent == FOLDER else _read(path)


@cache
def _bundled(path: Path) -> System:
    return _read(path)


def _read(path: Path) -> System:
    """Reads the system of a file; every mistake in it is reported."""
    table = schema.read(path, SCHEMA)
    texts = {key: table.pop(key) for key in ("description", "attach")}
    values = {key: _si(key, entry["value"]) for key, entry in table.items()}
    values |= {flag: bool(values[flag]) for flag in FLAGS if flag in values}
    return System(
        path.stem,
        **texts,
        **values,
        evidence={key: entry["evidence"] for key, entry in table.items()},
        source={key: entry["source"] for key, entry in table.items()},
    )


def _si(key: str, value: Any) -> Any:
    """A value of a file in SI units."""
    parse = _PARSE.get(key)
    return parse(value, "", key) if parse else value


@cache
def host_table() -> dict[str, tuple[float, str, str]]:
    """What a host and a framework do to a checkpoint, by key: number in SI units, grade and source."""
    return {
        key: (float(_si(key, entry["value"])), entry["evidence"], entry["source"])
        for key, entry in schema.read(HOST_FILE, HOST_SCHEMA).items()
    }


def constants() -> dict[str, float]:
    """The numbers of `host_table` alone."""
    return {name: value for name, (value, _, _) in host_table().items()}
