"""Published nccl-tests measurements of other machines, as CSV.

Columns: `COLUMNS`; further ones are left alone. `cases/published-collectives/machines.toml` says which cluster a
hardware text stands for.
"""

from __future__ import annotations

import csv
import io
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from sim.collectives.plan import OPS
from sim.collectives.table import bus_factor
from sim.errors import InputError, Mistake, unknown
from sim.spec.sections import Nccl
from validation.formats.collective_rows import CASES, Row
from validation.formats.nccl_env import Unpredictable, settings_of
from validation.formats.records import text_of

MACHINES = CASES.parent / "published-collectives" / "machines.toml"
COLUMNS = (
    "id",
    "source",
    "hardware",
    "nodes",
    "gpus",
    "op",
    "size_bytes",
    "in_place",
    "algo",
    "proto",
    "time_us",
    "algbw_GBs",
    "busbw_GBs",
    "settings",
    "notes",
)
NAMES = {"alltoall": "all_to_all"}
BEYOND = 1e15  # bytes, microseconds or GB/s: so much is a slip of the pen
PRECISE = 1.0  # GB/s; below, a printed bandwidth of two decimals is rounding


@dataclass(frozen=True)
class Machine:
    """What a hardware text stands for.

    Attributes
    ----------
    name : str
        Group to report its rows in.
    hardware : str
        Regular expression that matches the whole text.
    source : str
        Part of the source's name, where texts of two sources are alike.
    settings : str
        Regular expression that matches the whole text of the settings.
    cluster : str
        Name or file of the cluster; "": none yet, and `reason` says so.
    one_host : str
        The cluster for rows of one host, where it is another.
    per_host : int
        GPUs of a host.
    nccl : str
        Version where the row says none.
    fitted_nodes : tuple of int
        Node counts that constants were fitted to.
    env : mapping
        Variables that the source says in words.
    """

    name: str
    hardware: str
    per_host: int
    source: str = ""
    settings: str = ".*"
    cluster: str = ""
    one_host: str = ""
    reason: str = ""
    nccl: str = ""
    fitted_nodes: tuple[int, ...] = ()
    env: Mapping[str, str] | None = None
    note: str = ""


@lru_cache(maxsize=1)
def machines() -> tuple[Machine, ...]:
    """The table of machines, in the order of the file: the first that fits is taken.

    Raises
    ------
    InputError
        For a key that does not exist, or none that is needed.
    """
    known = Machine.__dataclass_fields__
    found: list[Machine] = []
    mistakes: list[Mistake] = []
    for name, entry in tomllib.loads(MACHINES.read_text(encoding="utf-8")).items():
        mistakes += [
            unknown(MACHINES.name, f"{name}.{key}", key, known)
            for key in entry
            if key not in known
        ]
        needed = [key for key in ("hardware", "per_host") if key not in entry]
        mistakes += [
            Mistake(MACHINES.name, f"{name}.{key}", "nothing", "a value")
            for key in needed
        ]
        if not mistakes:
            entry["fitted_nodes"] = tuple(entry.get("fitted_nodes", ()))
            found.append(Machine(name=name, **entry))
    if mistakes:
        raise InputError(mistakes)
    return tuple(found)


def read_csv(path: str | Path) -> list[Row]:
    """Rows of a CSV file; those that cannot be compared say why in `skip`.

    Raises
    ------
    InputError
        With line and column of everything that is wrong.
    """
    path = Path(path)
    machines()  # its mistakes are told once, not for every row
    reader = csv.DictReader(io.StringIO(text_of(path)))
    missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
    if missing:
        found = ", ".join(reader.fieldnames or ()) or "nothing"
        raise InputError(
            [
                Mistake(f"{path.name}:1", name, found[:80], "a column of that name")
                for name in missing
            ]
        )
    rows: list[Row] = []
    mistakes: list[Mistake] = []
    for record in reader:
        where = f"{path.name}:{reader.line_num}"
        try:
            rows.append(
                _row(
                    {
                        key: (value or "").strip()
                        for key, value in record.items()
                        if key
                    },
                    where,
                )
            )
        except InputError as error:
            mistakes.extend(error.mistakes)
    if mistakes:
        raise InputError(mistakes)
    return rows


def to_fit(path: str | Path, cluster: str) -> list[Row]:
    """Rows that ran on `cluster` with a node count that the table of machines gives to fits.

    Every second size of a series is held out.

    Raises
    ------
    InputError
        If a row is wrong, or none is to be fitted to.
    """
    found: list[Row] = []
    sizes: dict[tuple[object, ...], list[int]] = {}
    for row in read_csv(path):
        if row.skip or not row.known or row.cluster != cluster:
            continue
        series = sizes.setdefault((row.machine, row.op, row.ranks, row.wanted), [])
        if row.size not in series:
            series.append(row.size)
        found.append(replace(row, held_out=series.index(row.size) % 2 == 1))
    if not found:
        expected = (
            f"rows of a machine with fitted_nodes in {MACHINES.name} and that cluster"
        )
        raise InputError(
            Mistake(
                str(path),
                "--cluster",
                f"no row to fit to of {cluster or 'no cluster'}",
                expected,
            )
        )
    return found


MOST = 1_000_000  # GPUs or hosts: more than any machine has


def _row(record: Mapping[str, str], where: str) -> Row:
    op = NAMES.get(record["op"], record["op"])
    size, gpus, nodes = (
        _number(record[key], key, where) for key in ("size_bytes", "gpus", "nodes")
    )
    name = record["id"] or where
    ranks = int(gpus or 0)
    row = Row("published", op, ranks, int(size or 0), 1.0, 1.0, where=where, id=name)
    machine = next((one for one in machines() if _fits(one, record)), None)
    if op not in OPS:
        return replace(row, skip=f"{op}: not an operation of NCCL")
    if machine is None:
        hardware = record["hardware"]
        return replace(row, skip=f'no machine in {MACHINES.name} for "{hardware}"')
    row = replace(row, machine=machine.name)
    if not machine.cluster:
        reason = machine.reason or machine.name
        return replace(row, skip=f"no cluster file: {reason}")
    if size is None or gpus is None or (nodes is None and machine.per_host < 1):
        return replace(row, skip="size, GPUs or nodes are not single numbers")
    few = gpus < 2 or size < 1 or (nodes is not None and nodes < 1)
    if few or max(gpus, nodes or 1) > MOST:
        found = f"{gpus:g}, {nodes}, {size:g}"
        expected = f"2 to {MOST} GPUs"
        raise InputError(Mistake(where, "gpus, nodes, size_bytes", found, expected))
    row = _measured(row, record, where)
    if row.skip:
        return row
    count = int(nodes) if nodes is not None else -(-ranks // machine.per_host)
    row = _placed(row, machine, count)
    return _with_settings(row, record, machine, where)


def _placed(row: Row, machine: Machine, hosts: int) -> Row:
    """The row on so many hosts of the machine's cluster."""
    single = hosts == 1 and machine.one_host
    return replace(
        row,
        cluster=machine.one_host if single else machine.cluster,
        hosts=None if single else hosts,
        per_host=-(-row.ranks // hosts),
        known=hosts in machine.fitted_nodes,
    )


def _fits(machine: Machine, record: Mapping[str, str]) -> bool:
    texts = (
        (machine.hardware, record["hardware"]),
        (machine.settings, record["settings"]),
    )
    return (
        all(re.fullmatch(wanted, text) for wanted, text in texts)
        and machine.source in record["source"]
    )


def _number(text: str, key: str, where: str) -> float | None:
    """A number above 0; None where the source prints nothing or a range."""
    if not text or re.fullmatch(r"[\d.]+\s*-\s*[\d.]+", text):
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < BEYOND:
        raise InputError(
            Mistake(
                where,
                key,
                repr(text),
                f"a number above 0 and below {BEYOND:g}, or nothing",
            )
        )
    return value


def _measured(row: Row, record: Mapping[str, str], where: str) -> Row:
    """The row with its time: as printed, else from a bandwidth that is printed well enough."""
    if time := _number(record["time_us"], "time_us", where):
        return replace(row, time=time * 1e-6, eager=time * 1e-6)
    for key, factor in (
        ("busbw_GBs", bus_factor(row.op, row.ranks)),
        ("algbw_GBs", 1.0),
    ):
        bandwidth = _bandwidth(record[key], key, where)
        if bandwidth is not None and bandwidth >= PRECISE:
            time = row.size * factor / (bandwidth * 1e9)
            return replace(row, time=time, eager=time)
    return replace(row, skip="no time, and no bandwidth that is more than rounding")


def _bandwidth(text: str, key: str, where: str) -> float | None:
    """GB/s; the middle of a range; 0.00 is rounding."""
    if match := re.fullmatch(r"([\d.]+)\s*-\s*([\d.]+)", text):
        return (float(match[1]) + float(match[2])) / 2
    return None if re.fullmatch(r"0*\.?0*", text) else _number(text, key, where)


def _with_settings(
    row: Row, record: Mapping[str, str], machine: Machine, where: str
) -> Row:
    text = record["settings"]
    env = dict(machine.env or {}) | dict(
        re.findall(r"(NCCL_[A-Z0-9_]+)=(\S+?)(?=[;,\s]|$)", text)
    )
    for key, name in (("algo", "NCCL_ALGO"), ("proto", "NCCL_PROTO")):
        if record[key]:
            env[name] = record[key]
    if re.match("collnet|sharp", record["algo"].lower()):
        env["NCCL_COLLNET_ENABLE"] = "1"  # NCCL runs it only then
    if record["algo"].upper() == "NVLS" and (row.hosts or 1) > 1:
        return replace(
            row,
            skip="NVLink SHARP across hosts, with SHARP in the network, is not modelled",
        )
    version = re.search(r"NCCL (2\.\d+(\.\d+)?)", text)
    try:
        said = version[1] if version else machine.nccl or Nccl().version
        wanted, ignored = settings_of(env, row.op, said, where)
    except Unpredictable as error:
        return replace(row, skip=str(error))
    return replace(row, wanted=wanted, ignored=ignored)
