"""Hostfiles: the allocation of a job as mpirun, DeepSpeed or Slurm write it.

===========================  ================================================================
line                         means
===========================  ================================================================
`node1 slots=8`              8 ranks there (Open MPI, DeepSpeed; `max_slots` may follow)
`node1:8`                    the same (MPICH, Hydra)
`node[01-04,07]`             several hosts (Slurm's SLURM_JOB_NODELIST), all their GPUs
`node1`                      all its GPUs; where hosts repeat, one rank a line, in that order
`# ...`                      a comment
===========================  ================================================================
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from prestep.sim import files
from prestep.sim.errors import InputError, Mistake

_LINE = re.compile(
    r"(?P<hosts>[^\s:\[]+(?:\[[^\]]*\][^\s:\[,]*)*(?:,\S+)?)(?::(?P<colon>\S+))?(?P<rest>(?:\s+\S+)*)\s*"
)
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_PART = re.compile(r"(?:[^,\[]|\[[^\]]*\])+")
MOST = 100_000  # hosts of one list: more is a slip of the pen


@dataclass(frozen=True)
class Line:
    """A host and how many ranks it takes (None: one for every GPU); `where` is the file and the line."""

    host: str
    slots: int | None
    where: str


def read(file: str | Path) -> list[Line]:
    """Lines of a hostfile, ranges spelled out; lines of one host with slots are added up.

    Raises
    ------
    InputError
        With every line that cannot be read, or if there is no host.
    """
    path = Path(file)
    try:
        text = files.written_text(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError.of(
            str(path), "", (reason or str(error)).lower(), "a file of hosts"
        ) from None
    lines: list[Line] = []
    mistakes: list[Mistake] = []
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.partition("#")[0].strip()
        with InputError.collected(mistakes):
            lines += list(_lines(bare, f"{path}:{number}")) if bare else []
    if not lines and not mistakes:
        mistakes.append(
            Mistake(
                str(path), "", "no host", "a line for every host, such as host0 slots=8"
            )
        )
    InputError.check(mistakes)
    return _added(lines)


def expand(text: str, where: str) -> list[str]:
    """Hosts of a list such as `node[01-03,7],login1`, in order.

    Raises
    ------
    InputError
        If a range is none, or runs backwards.
    """
    found: list[str] = []
    for part in _PART.findall(text.strip()):
        found += _ranges(part.strip(), where)
    if not found or text.count("[") != text.count("]"):
        raise InputError.of(where, "", f'"{text}"', "hosts such as node[01-04,7]")
    return found


def _lines(line: str, where: str) -> Iterator[Line]:
    match = _LINE.fullmatch(line)
    if match is None:
        raise InputError.of(
            where, "", f'"{line}"', "a host, with slots=N or :N where not all its GPUs"
        )
    slots = _count(match["colon"], where) if match["colon"] else None
    for word in match["rest"].split():
        key, equals, value = word.partition("=")
        if not equals or key not in ("slots", "max_slots", "max-slots"):
            raise InputError.of(where, "", f'"{word}"', "slots=N or max_slots=N")
        if key == "slots":
            slots = _count(value, where)
    for host in expand(match["hosts"], where):
        yield Line(host, slots, where)


def _count(text: str, where: str) -> int:
    if not text.isdecimal() or len(text) > 9 or not int(text):
        raise InputError.of(where, "slots", f'"{text[:60]}"', "a whole number above 0")
    return int(text)


def _ranges(part: str, where: str) -> list[str]:
    head, bracket, rest = part.partition("[")
    if not bracket:
        return [part] if part else []
    inner, _, tail = rest.partition("]")
    hosts = []
    for piece in inner.split(","):
        match = _RANGE.fullmatch(piece.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if match is None or last < first or last - first > MOST:
            raise InputError.of(
                where,
                "",
                f'"{piece[:60]}" in "{part[:60]}"',
                "a number or a rising range such as 01-04",
            )
        hosts += [
            f"{head}{number:0{len(match[1])}d}" for number in range(first, last + 1)
        ]
        if len(hosts) > MOST:
            _too_many(part, where)
    names: list[str] = []
    for host in hosts:
        names += _ranges(host + tail, where)
        if len(names) > MOST:
            _too_many(part, where)
    return names


def _too_many(part: str, where: str) -> NoReturn:
    found = f'more hosts than that in "{part[:60]}"'
    raise InputError.of(where, "", found, f"at most {MOST} hosts")


def _added(lines: list[Line]) -> list[Line]:
    if any(line.slots is None for line in lines):
        return lines
    total: dict[str, Line] = {}
    for line in lines:
        before = total.get(line.host)
        slots = (line.slots or 0) + ((before.slots or 0) if before else 0)
        total[line.host] = Line(
            line.host, slots, before.where if before else line.where
        )
    return list(total.values())
