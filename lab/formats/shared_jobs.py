"""Rows of jobs that ran together: each on some hosts of a cluster, which its label says.

`alone-n0n2-nic16-spine16` had hosts 0 and 2 and no other job beside it; `shared-n0n2-nic16-spine16` and
`shared-n1n3-nic16-spine16` were at work at the same time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prestep.sim.errors import InputError
from prestep.sim.spec.load import parse_scenario
from prestep.sim.spec.sections import Scenario
from prestep.validation.formats.harness import beyond_scenarios
from prestep.validation.formats.rows import Row
from prestep.validation.formats.scenarios import cluster_of, sections_of

ALONE = "alone"
JOB_LABEL = re.compile(
    r"(?P<how>[a-z]+)-(?P<hosts>(?:n\d+)+)-(?P<cluster>(?:\d+x\d+-)?nic\d.*)"
)


@dataclass(frozen=True)
class JobRow(Row):
    """A measured step. `beside`: what ran on the rest of the cluster at the same time, rows of the same file."""

    beside: tuple[Row, ...] = ()


def paired(rows: Sequence[Row]) -> list[JobRow]:
    """Rows of jobs that ran together know of each other.

    Of several such runs in a file the first rows of all hosts belong together, then the second ones, and so on.
    """
    runs: dict[tuple[str, str], dict[str, list[Row]]] = {}
    for row in rows:
        match = JOB_LABEL.fullmatch(row.label)
        if match and match["how"] != ALONE and not row.error:
            run = runs.setdefault((match["how"], match["cluster"]), {})
            run.setdefault(match["hosts"], []).append(row)
    beside = {key: others for run in runs.values() for key, others in _beside(run)}
    return [JobRow(**{**vars(row), "beside": beside.get(id(row), ())}) for row in rows]


def _beside(run: Mapping[str, list[Row]]) -> Iterator[tuple[int, tuple[Row, ...]]]:
    """What ran beside each row of a run (by `id`), on other hosts than its own."""
    for hosts, mine in run.items():
        own = set(hosts_of(hosts))
        others = [rows for name, rows in run.items() if not own & set(hosts_of(name))]
        for at, row in enumerate(mine):
            yield id(row), tuple(rows[min(at, len(rows) - 1)] for rows in others)


def hosts_of(text: str) -> list[int]:
    """`n0n2` -> 0, 2."""
    return [int(number) for number in re.findall(r"n(\d+)", text)]


def scenario_of(row: JobRow) -> Scenario:
    """The scenario of a row, with the jobs that were beside it.

    Raises
    ------
    InputError
        If a job ran something that a scenario cannot say, or its partners are missing: it is never predicted as
        something else.
    """
    jobs = (row, *row.beside)
    InputError.check([mistake for job in jobs for mistake in beyond_scenarios(job)])
    job = JOB_LABEL.fullmatch(row.label)
    if job and job["how"] != ALONE and not row.beside:
        expected = "rows of the jobs on the other hosts too, in the same file"
        hint = f'or "{ALONE}-..." if there was no other'
        raise InputError.of(row.where, "label", row.label, expected, hint)
    cluster = {"cluster": cluster_of(row)}
    if not row.beside:
        return parse_scenario(cluster | _placed(row), row.where)
    tables = [_placed(job) | {"name": f"{job.name}, line {job.where}"} for job in jobs]
    return parse_scenario(cluster | {"jobs": tables}, row.where)


def _placed(row: Row) -> dict[str, Any]:
    """The sections of a row, and the hosts of a job that had not all of them."""
    job, tables = JOB_LABEL.fullmatch(row.label), sections_of(row)
    if job is None:
        return tables
    hosts = [f"host{number}" for number in hosts_of(job["hosts"])]
    return tables | {"placement": {"hosts": hosts}}
