"""Published nccl-tests measurements of other machines, as CSV.

Columns: `COLUMNS`; further ones are left alone. `published_machines` says which cluster a hardware text stands for.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lab.formats.published_machines import (
    MACHINES,
    Machine,
    machine_of,
    machines,
)
from prestep.sim.collectives.plan import OPS, nccl_of
from prestep.sim.collectives.settings import Nccl
from prestep.sim.errors import InputError, Mistake
from prestep.sim.exchanges.table import bus_factor
from prestep.validation.formats.collective_rows import Row
from prestep.validation.formats.nccl_env import Unpredictable, settings_of
from prestep.validation.formats.records import text_of
from prestep.workloads.operation import words

COLUMNS = words(
    "id source hardware nodes gpus op size_bytes in_place algo proto time_us algbw_GBs busbw_GBs settings "
    "notes"
)
NAMES = {"alltoall": "all_to_all"}
BEYOND = 1e15  # bytes, microseconds or GB/s: so much is a slip of the pen
MOST = 1_000_000  # GPUs or hosts: more than any machine has
PRECISE = 1.0  # GB/s; below, a printed bandwidth of two decimals is rounding


def read_csv(path: str | Path) -> list[Row]:
    """Rows of a CSV file; those that cannot be compared say why in `skip`.

    Raises
    ------
    InputError
        With line and column of everything that is wrong.
    """
    path = Path(path)
    machines()  # its mistakes are reported once, not for every row
    reader = csv.DictReader(io.StringIO(text_of(path), newline=None))
    _check_columns(reader.fieldnames or (), f"{path.name}:1")
    rows: list[Row] = []
    mistakes: list[Mistake] = []
    for record in reader:
        cells = {key: (value or "").strip() for key, value in record.items() if key}
        with InputError.collected(mistakes):
            rows.append(_row(cells, f"{path.name}:{reader.line_num}"))
    InputError.check(mistakes)
    return rows


def _check_columns(names: Sequence[str], where: str) -> None:
    """Refuses a header without all `COLUMNS`."""
    missing = [name for name in COLUMNS if name not in names]
    if missing:
        found = (", ".join(names) or "nothing")[:80]
        raise InputError(
            [Mistake(where, name, found, "a column of that name") for name in missing]
        )


def to_fit(path: str | Path, cluster: str) -> list[Row]:
    """Rows that ran on `cluster` with a node count that the table of machines gives to fits.

    Every second size of a series is held out.

    Raises
    ------
    InputError
        If a row is wrong, or none is to be fitted to.
    """
    rows: list[Row] = []
    sizes: dict[tuple[object, ...], list[int]] = {}
    for row in read_csv(path):
        if row.skip or not row.fitted or row.cluster != cluster:
            continue
        series = sizes.setdefault((row.machine, row.op, row.ranks, row.wanted), [])
        if row.size not in series:
            series.append(row.size)
        rows.append(replace(row, held_out=series.index(row.size) % 2 == 1))
    if not rows:
        found = f"no row to fit to of {cluster or 'no cluster'}"
        expected = (
            f"rows of a machine with fitted_nodes in {MACHINES.name} and that cluster"
        )
        raise InputError.of(str(path), "--cluster", found, expected)
    return rows


@dataclass(frozen=True)
class _Extent:
    """How large a measured operation was; None where the source gives no single number."""

    size: float | None
    gpus: float | None
    nodes: float | None


def _row(record: Mapping[str, str], where: str) -> Row:
    """The row of a record: comparable, or with the reason why it is not."""
    op = NAMES.get(record["op"], record["op"])
    extent = _Extent(
        *(_number(record[key], key, where) for key in ("size_bytes", "gpus", "nodes"))
    )
    name = record["id"] or where
    ranks, size = int(extent.gpus or 0), int(extent.size or 0)
    row = Row("published", op, ranks, size, 1.0, 1.0, where=where, id=name)
    if op not in OPS:
        return replace(row, skip=f"{op}: not an operation of NCCL")
    machine = machine_of(record)
    if machine is None:
        hardware = record["hardware"]
        return replace(row, skip=f'no machine in {MACHINES.name} for "{hardware}"')
    return _on_machine(replace(row, machine=machine.name), record, machine, extent)


def _on_machine(
    row: Row, record: Mapping[str, str], machine: Machine, extent: _Extent
) -> Row:
    """The row with its time, its hosts and NCCL's settings."""
    if not machine.cluster:
        reason = machine.reason or machine.name
        return replace(row, skip=f"no cluster file: {reason}")
    hosts = _hosts(extent, machine, row.where)
    if hosts is None:
        return replace(row, skip="size, GPUs or nodes are not single numbers")
    timed = _measured(row, record, row.where)
    if timed.skip:
        return timed
    placed = _placed(timed, machine, hosts)
    return _with_settings(placed, record, machine, row.where)


def _hosts(extent: _Extent, machine: Machine, where: str) -> int | None:
    """Hosts that ran; None where a number is missing.

    Raises
    ------
    InputError
        For fewer than two GPUs, none of something, or more than any machine has.
    """
    size, gpus, nodes = extent.size, extent.gpus, extent.nodes
    if size is None or gpus is None or (nodes is None and machine.per_host < 1):
        return None
    few = gpus < 2 or size < 1 or (nodes is not None and nodes < 1)
    if few or max(gpus, nodes or 1) > MOST:
        found = f"{gpus:g}, {nodes}, {size:g}"
        expected = f"2 to {MOST} GPUs"
        raise InputError.of(where, "gpus, nodes, size_bytes", found, expected)
    return int(nodes) if nodes is not None else -(-int(gpus) // machine.per_host)


def _placed(row: Row, machine: Machine, hosts: int) -> Row:
    """The row on so many hosts of the machine's cluster."""
    single = hosts == 1 and machine.one_host
    return replace(
        row,
        cluster=machine.one_host if single else machine.cluster,
        hosts=None if single else hosts,
        per_host=-(-row.ranks // hosts),
        fitted=hosts in machine.fitted_nodes,
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
        expected = f"a number above 0 and below {BEYOND:g}, or nothing"
        raise InputError.of(where, key, repr(text), expected)
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
    """The row with NCCL's settings, or why they cannot be predicted."""
    printed = re.search(r"NCCL (2\.\d+(\.\d+)?)", record["settings"])
    version = machine.version or (printed[1] if printed else machine.nccl)
    version = version or Nccl().version
    try:
        variables = _variables(record, machine)
        wanted, ignored = settings_of(variables, row.op, version, where)
    except Unpredictable as error:
        return replace(row, skip=str(error))
    said = re.search(r"-g (\d+)", record["settings"])
    launches = min(row.ranks, int(said[1]) if said else machine.launches)
    return replace(
        row,
        wanted=nccl_of(vars(wanted) | {"tuner": machine.tuner or None}, where),
        ignored=ignored,
        alone=machine.alone,
        launches=launches,
    )


def _variables(record: Mapping[str, str], machine: Machine) -> dict[str, str]:
    """NCCL's variables: the source's own words, the row's settings, and its columns."""
    settings = re.findall(r"(NCCL_[A-Z0-9_]+)=(\S+?)(?=[;,\s]|$)", record["settings"])
    env = dict(machine.env or {}) | dict(settings)
    for key, name in (("algo", "NCCL_ALGO"), ("proto", "NCCL_PROTO")):
        if record[key]:
            env[name] = record[key]
    algo = record["algo"].lower()
    if re.match("collnet|sharp", algo) or (algo == "nvls" and record["nodes"] != "1"):
        env["NCCL_COLLNET_ENABLE"] = "1"  # NCCL runs it only then
    return env
