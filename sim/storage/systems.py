"""Storage systems: how fast they are by size of request and number of threads, from `sim/costs/storage/NAME.toml`.

    throughput = min(bandwidth, client, requests/s * request, threads * request / (latency + request / thread))

Systems that merge neighbouring requests (`merges`) count requests per second for random access alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from prestep.sim import data_files, files, schema
from prestep.sim.errors import InputError, Mistake, unknown
from prestep.sim.units import parse_bandwidth, parse_bytes, parse_duration
from prestep.topologies.fabric import Fabric
from prestep.topologies.fabric.stores import Stores

FOLDER = Path(__file__).parents[1] / "costs" / "storage"
Op = Literal["read", "write"]
SOURCED = "{ value = ..., evidence = ..., source = ... }"
#: What a system says of itself, and what is collected from its numbers.
NO_NUMBERS = {"name", "description", "attach", "evidence", "source"}
FLAGS = ("page_cache", "gpudirect", "merges")
ATTACHED = ("nvme", "block", "network", "storage")
ENTRY = schema.sourced(schema.Anything())
_PARSE = {
    "read": parse_bandwidth,
    "write": parse_bandwidth,
    "client": parse_bandwidth,
    "thread": parse_bandwidth,
    "latency": parse_duration,
    "metadata": parse_duration,
    "capacity": parse_bytes,
    "disk": parse_bytes,
}
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
    evidence : mapping
        Grade by key.
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
    evidence: Mapping[str, str] = ()  # type: ignore[assignment]
    source: Mapping[str, str] = ()  # type: ignore[assignment]

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
            raise InputError(
                Mistake(
                    self.name,
                    "request",
                    found,
                    "requests of at least a byte, at least one thread",
                )
            )
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
        raise InputError(
            unknown(
                where,
                key,
                name_or_file,
                names(),
                "a file, or one of",
                "prestep list storage",
            )
        )
    return _bundled(path) if path.parent == FOLDER else _read(path)


@cache
def _bundled(path: Path) -> System:
    return _read(path)


def _read(path: Path) -> System:
    """The system of a file, every mistake in which is reported."""
    table = read_table(path)
    description, attach = (table.pop(key, None) for key in ("description", "attach"))
    mistakes = _wrong_texts(path.name, description, attach, table)
    if mistakes:
        raise InputError(mistakes)
    if attach not in ATTACHED:
        raise InputError(unknown(path.name, "attach", str(attach), ATTACHED))
    mistakes = _wrong_keys(path.name, table)
    if mistakes:
        raise InputError(mistakes)
    values: dict[str, Any] = {key: entry[0] for key, entry in table.items()}
    values |= {flag: bool(values[flag]) for flag in FLAGS if flag in values}
    return System(
        path.stem,
        description=description,
        attach=attach,
        evidence={key: entry[1] for key, entry in table.items()},
        source={key: entry[2] for key, entry in table.items()},
        **values,
    )


def _wrong_texts(
    where: str, description: object, attach: object, table: Mapping[str, Any]
) -> list[Mistake]:
    """Texts that are none, and texts where a number should be."""
    texts = {"description": description, "attach": attach}
    absent = [
        Mistake(where, key, "nothing", "a text")
        for key, text in texts.items()
        if not isinstance(text, str)
    ]
    return absent + [
        Mistake(where, key, repr(entry), SOURCED)
        for key, entry in table.items()
        if isinstance(entry, str)
    ]


def _wrong_keys(where: str, table: Mapping[str, Any]) -> list[Mistake]:
    """Numbers that a system does not have, and those that every system needs."""
    fields = set(System.__dataclass_fields__) - NO_NUMBERS
    superfluous = [
        unknown(where, key, key, fields) for key in table if key not in fields
    ]
    return superfluous + [
        Mistake(where, key, "nothing", "a number with its source")
        for key in ("latency", "metadata", "thread")
        if key not in table
    ]


def read_table(path: Path) -> dict[str, Any]:
    """A file of numbers with sources: key -> (value in SI units, grade, source); texts stay.

    Raises
    ------
    InputError
        With every mistake.
    """
    try:
        document = files.toml(files.written_text(path))
    except (OSError, ValueError) as error:
        raise InputError(Mistake(path.name, "", str(error), "a TOML file")) from None
    table: dict[str, Any] = {}
    mistakes: list[Mistake] = []
    for key, entry in document.items():
        try:
            table[key] = _entry(path.name, key, entry)
        except InputError as error:
            mistakes.extend(error.mistakes)
    if mistakes:
        raise InputError(mistakes)
    return table


def _entry(where: str, key: str, entry: Any) -> str | tuple[Any, str, str]:
    """A text, or a number in SI units with its grade and source."""
    if isinstance(entry, str):
        return entry
    if not isinstance(entry, dict):
        raise InputError(Mistake(where, key, repr(entry), SOURCED))
    if mistakes := [*ENTRY.mistakes(where, key, entry)]:
        raise InputError(mistakes)
    written = entry["value"]
    value = _PARSE[key](written, where, key) if key in _PARSE else written
    if not _fits(key, value):
        raise InputError(Mistake(where, key, repr(written), "a positive number"))
    return value, entry["evidence"], entry["source"]


def _fits(key: str, value: object) -> bool:
    """Whether a number is positive and finite; flags may be 0, threads are whole."""
    if not isinstance(value, int | float) or not 0 <= value < math.inf:
        return False
    if value == 0 and key not in FLAGS:
        return False
    return key != "threads" or int(value) == value
