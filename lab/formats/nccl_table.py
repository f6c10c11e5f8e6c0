"""NCCL_DEBUG=INFO logs (subsystems TUNING and GRAPH) with the table from which NCCL chooses.

Lines: `NCCL version 2.28.9+cuda13.0`; `comm ... nRanks 4 nNodes 1 ...`; the table of microseconds and GB/s by
algorithm (columns of three protocols) and operation; what it chose (`prestep.validation.formats.nccl_log`). Source:
src/graph/tuning.cc.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

from prestep.sim.errors import InputError, Mistake
from prestep.validation.formats.nccl_env import ALGOS, FUNCTIONS, PROTOS, plain
from prestep.validation.formats.nccl_log import Choice, choice_of


@dataclass
class Log:
    """One communicator's log.

    Attributes
    ----------
    cluster : str
        Name or file of the cluster; a line `# cluster: NAME` says it.
    table : dict
        Operation -> "ring LL" -> (microseconds, GB/s) as printed; without rows of no bandwidth.
    choices : dict
        (operation, bytes) -> (algorithm, protocol, channels or None).
    """

    cluster: str = ""
    version: str = ""
    ranks: int = 0
    nodes: int = 1
    nccl: dict[str, Any] = field(default_factory=dict)
    table: dict[str, dict[str, tuple[float, float]]] = field(default_factory=dict)
    choices: dict[tuple[str, int], Choice] = field(default_factory=dict)


def read(text: str, where: str = "log") -> Log:
    """The log's table and choices; lines of several ranks say the same.

    Raises
    ------
    InputError
        With every line of the table or of a choice that is damaged.
    """
    log = Log()
    columns: list[str] = []
    mistakes: list[Mistake] = []
    for at, line in enumerate(text.splitlines(), 1):
        try:
            columns = _line(log, line, columns)
        except (ValueError, IndexError) as error:
            mistakes.append(
                Mistake(
                    f"{where}:{at}", "", str(error)[:100], "a line as NCCL writes it"
                )
            )
    InputError.check(mistakes)
    return log


def _line(log: Log, line: str, columns: list[str]) -> list[str]:
    """Takes up one line; the columns of the table from there on."""
    body = line.partition("NCCL INFO")[2].strip() or line.strip()
    if _is_of_the_run(log, line, body):
        return columns
    if body.startswith("Algorithm"):
        return [ALGOS.get(plain(cell), "") for cell in _table_cells(body)]
    name = body.split("|")[0].strip()
    if name.lower() in FUNCTIONS and body.count("|") > 2:
        _row(log, FUNCTIONS[name.lower()], columns, _table_cells(body))
    elif (made := choice_of(body)) and made[0][0]:
        log.choices[made[0]] = made[1]
    return columns


def _table_cells(body: str) -> list[str]:
    """The cells of a line of the table, without its first and empty ones."""
    cells = [cell.strip() for cell in body.split("|")[1:]]
    return [cell for cell in cells if cell]


def _is_of_the_run(log: Log, line: str, body: str) -> bool:
    """Takes up a line that tells of the whole run; whether it was one."""
    if match := re.match(r"#\s*cluster:\s*(\S+)", line):
        log.cluster = match[1]
    elif match := re.match(r"NCCL version (2\.\d+\.\d+)", body):
        log.version = match[1]
    elif match := re.search(r"nRanks (\d{1,7}) nNodes (\d{1,7})\b", body):
        log.ranks, log.nodes = int(match[1]), int(match[2])
    elif match := re.match(r"NCCL_NVLS_ENABLE set by environment to (\d)", body):
        log.nccl["nvls"] = match[1] != "0"
    return match is not None


def _row(log: Log, op: str, columns: list[str], cells: list[str]) -> None:
    for at, cell in enumerate(cells):
        algo = columns[at // 3] if at // 3 < len(columns) else ""
        latency, _, bandwidth = cell.partition("/")
        if algo and (rate := number(bandwidth)) > 0:
            log.table.setdefault(op, {})[f"{algo} {[*PROTOS.values()][at % 3]}"] = (
                number(latency),
                rate,
            )


def number(text: str | float) -> float:
    """A number of the table.

    Raises
    ------
    ValueError
        If it is none, or not finite.
    """
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{value} in the table")
    return value
