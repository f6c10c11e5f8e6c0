"""Logs of published machines, and the limits of `normal.toml` from half of them.

    python -m lab.fit.doctor collectives.csv

prints the file again. A machine belongs to the half that chooses if the checksum (CRC-32) of its name is even. Machines
of public threads that were not kept apart choose too, with the cause gone: no constant was fitted to them.
"""

from __future__ import annotations

import math
import statistics
import sys
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from lab.formats import doctor_threads, published_collectives
from prestep.sim import progress
from prestep.sim.errors import PrestepError
from prestep.validation.doctor.normal import FEWEST, parts_of
from prestep.validation.doctor.sweep import LARGE, Situation, Sweep
from prestep.validation.formats.collective_rows import Row
from prestep.validation.sets.predict_collective import cluster_of, loadable

HEAD = """\
# Standard deviations that a part of a good machine's sweep stays below, by where its bytes go and what bounds it; never
# less than 1.645 (nine in ten), but for `large`. From the half of the published machines whose names have an even
# checksum, and public threads: python -m lab.fit.doctor collectives.csv. The other half judges them
# (docs/how-to/is-my-nccl-normal.md). `shaped`, the emulated network, has no published machine.
"""


THREADS = Path(__file__).parents[1] / "cases" / "doctor" / "threads.toml"
#: Of good machines' logs, so many may be called abnormal.
FALSE_ALARMS = 0.015


def choosing(machine: str) -> bool:
    """Whether a machine's logs choose the limits; the others judge them."""
    return zlib.crc32(machine.encode()) % 2 == 0


def chosen(logs: Iterable[tuple[str, Sweep]]) -> dict[str, dict[str, float]]:
    """Limits from (machine, sweep) of good machines: logs of a further machine exceed them in `FALSE_ALARMS` of cases.

    Of each machine counts its worst log, as its logs are not independent. The tail of excess is taken as exponential,
    with the mean over the machines; a machine that is faster than predicted counts as 0.
    """
    worst: dict[tuple[str, str], dict[str, float]] = {}
    for machine, sweep in logs:
        for part in parts_of(sweep):
            if len(part.sizes) >= FEWEST or part.name == LARGE:
                of_part = worst.setdefault((part.place, part.name), {})
                of_part[machine] = max(of_part.get(machine, 0.0), part.excess)
    limits: dict[str, dict[str, float]] = {}
    for (place, name), machines in sorted(worst.items()):
        mean = statistics.fmean(machines.values())
        limits.setdefault(place, {})[name] = mean * math.log(1 / FALSE_ALARMS)
    return limits


def logs_of(path: str | Path) -> Iterator[list[Row]]:
    """The rows of every log of a CSV file: one machine, operation, number of ranks and settings.

    Raises
    ------
    InputError
        If the file cannot be read.
    """
    logs: dict[tuple[Any, ...], list[Row]] = {}
    for row in published_collectives.read_csv(path):
        if not row.skip:
            key = row.machine, row.op, row.ranks, row.hosts, row.per_host, row.wanted
            logs.setdefault(key, []).append(row)
    reasons: dict[tuple[Any, ...], str] = {}
    for key, rows in logs.items():
        place = rows[0].cluster, *key[2:5]
        if not reasons.setdefault(place, loadable(rows[0])):
            yield rows


def situation_of(rows: list[Row]) -> Situation:
    """Where a log was measured, with the settings it was measured with."""
    return Situation(cluster_of(rows[0]), rows[0].wanted, (tuple(rows),))


def main(path: str) -> None:
    """Prints `normal.toml`."""
    sweeps = [
        (rows[0].machine, sweep)
        for rows in progress.track(list(logs_of(path)), "logs")
        if choosing(rows[0].machine)
        for sweep in situation_of(rows).sweeps
    ]
    sweeps += [
        (thread.id, sweep)
        for thread in doctor_threads.read(THREADS)
        if thread.good and not thread.apart
        for sweep in thread.situation(good=True).sweeps
    ]
    tables = [
        "\n".join(
            [f'["{place}"]', *(f"{name} = {value:.2f}" for name, value in of.items())]
        )
        for place, of in chosen(sweeps).items()
    ]
    print(HEAD + "\n\n".join(tables))


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except PrestepError as error:
        sys.exit(str(error))
