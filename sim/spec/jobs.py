"""Several jobs on one cluster: the [[jobs]] of a scenario, each a scenario of its own on the same fabric.

A job has the sections of a scenario except [cluster], and `name`, `start` and `scenario`: a file whose sections are
the job's where it says nothing itself. What the scenario says outside of [[jobs]] holds for every job that does not
say otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from prestep.sim import files, strict
from prestep.sim.errors import InputError, Mistake
from prestep.sim.spec.sections import SECTIONS, Cluster, Scenario
from prestep.sim.strict import key

Tables = dict[str, Any]
Collect = Callable[[Tables, str], tuple[Scenario, list[Mistake]]]
KEYS = ("jobs", "job")
JOB_KEYS = ("name", "scenario", "start")


@dataclass(frozen=True)
class Job:
    """What a job says of itself; its other keys are sections, without [cluster]."""

    name: str | None = key(None, "what to call it; default job0, job1, ...")
    scenario: str | None = key(
        None,
        "file with the job's sections, relative to this one; its [cluster] is left out",
    )
    start: float | None = key(
        None,
        "when its first step begins; default: apart from the others, or equal jobs would stay in step",
        unit="duration",
        low=0,
    )


def own_sections() -> tuple[str, ...]:
    """Sections that a job can have."""
    return tuple(name for name in SECTIONS if name not in ("cluster", "measured"))


def split(tables: Tables, where: str) -> tuple[list[Tables] | None, list[Mistake]]:
    """Takes [[jobs]] out of the tables of a scenario; None when there are none."""
    said = [name for name in KEYS if name in tables]
    if not said:
        return None, []
    jobs = tables.pop(said[0])
    if len(said) > 1:
        tables.pop(said[1])
        return [], [Mistake(where, "jobs", "[[jobs]] and [[job]]", "one of them")]
    if (
        not isinstance(jobs, list)
        or not jobs
        or not all(isinstance(job, Mapping) for job in jobs)
    ):
        return [], [
            Mistake(
                where,
                said[0],
                repr(jobs)[:60],
                f"[[{said[0]}]] tables, one for each job",
            )
        ]
    return [dict(job) for job in jobs], []


def build(
    jobs: list[Tables], shared: Tables, cluster: Cluster, where: str, collect: Collect
) -> tuple[tuple[Scenario, ...], list[Mistake]]:
    """Every job as a scenario on the shared cluster, and every mistake in them.

    `shared` are the tables outside of [[jobs]]; `collect` makes a scenario of tables.
    """
    # Which GPUs a job uses its placement says, not the first so many.
    cluster = replace(cluster, gpus=None, hostfile=None)
    around = _Around(_without_cluster(shared), cluster, where, collect)
    built = [around.built(table, number) for number, table in enumerate(jobs)]
    scenarios = tuple(scenario for scenario, _ in built)
    mistakes = [mistake for _, wrong in built for mistake in wrong]
    return scenarios, mistakes + _same_names(scenarios, where)


@dataclass(frozen=True)
class _Around:
    """What the jobs of a scenario have in common: sections that they leave to it, their cluster, and its file."""

    sections: Tables
    cluster: Cluster
    where: str
    collect: Collect

    def built(self, table: Tables, number: int) -> tuple[Scenario, list[Mistake]]:
        """A job as a scenario, and every mistake in it."""
        job, wrong = _job_of(table, self.where, number)
        name = job.name or f"job{number}"
        place = f"{self.where}, {name}"
        base, unread = _file(self.where, job.scenario, place)
        wrong += _own_cluster(table, place)
        tables = _laid(_laid(self.sections, base), table)
        # Read and checked with every job's own sections; the cluster is put in afterwards.
        named = {"cluster": {"name": self.cluster.name or "of the scenario"}}
        checked, found = self.collect(tables | named, place)
        scenario = replace(checked, cluster=self.cluster, name=name, start=job.start)
        # Without its file everything would be missing.
        return scenario, wrong + (unread or found)


def _job_of(table: Tables, where: str, number: int) -> tuple[Job, list[Mistake]]:
    """What a job says of itself, taken out of its table."""
    own = {name: table.pop(name) for name in list(table) if name in JOB_KEYS}
    return strict.build(Job, own, where, f"jobs[{number}]", {})


def _without_cluster(tables: Mapping[str, Any]) -> Tables:
    """Sections that a job can have."""
    return {
        name: table
        for name, table in tables.items()
        if name not in ("cluster", "measured")
    }


def _own_cluster(table: Tables, place: str) -> list[Mistake]:
    """A mistake where a job has a cluster of its own."""
    if "cluster" not in table:
        return []
    expected = "nothing: all jobs share the scenario's [cluster]"
    return [Mistake(place, "cluster", "a section", expected)]


def _same_names(jobs: Sequence[Scenario], where: str) -> list[Mistake]:
    names = [job.name for job in jobs]
    return [
        Mistake(where, "jobs", f'two jobs named "{name}"', "names that differ")
        for name in dict.fromkeys(names)
        if names.count(name) > 1
    ]


def _file(where: str, file: str | None, place: str) -> tuple[Tables, list[Mistake]]:
    """Sections of a job's scenario file, with its own relative paths made good; or why it cannot be read."""
    if file is None:
        return {}, []
    found, expected = f'"{file}" with jobs of its own', "a scenario of one job"
    tables: Tables = {}
    try:
        tables = files.toml(files.written_text(Path(where).parent / file))
    except FileNotFoundError:
        found = f'"{file}": no such file'
        expected = "a scenario file beside this one"
    except OSError as error:
        found = f'"{file}": {str(error.strerror).lower()}'
        expected = "a scenario file beside this one"
    except ValueError as error:
        found, expected = f'"{file}": {error}', "a scenario file (TOML)"
    else:
        if not any(name in tables for name in KEYS):
            return _without_cluster(_from_here(tables, file)), []
    return {}, [Mistake(place, "scenario", found, expected)]


def _from_here(tables: Tables, file: str) -> Tables:
    """Tables of a file whose relative paths lead from this scenario's folder."""
    folder, led = Path(file).parent, dict(tables)
    for section, name in (("model", "file"), ("placement", "hostfile")):
        table = led.get(section)
        if isinstance(table, dict) and isinstance(table.get(name), str):
            led[section] = table | {name: str(folder / table[name])}
    return led


def _laid(below: Mapping[str, Any], above: Mapping[str, Any]) -> Tables:
    """Sections laid over sections, key by key; a model is taken whole."""
    both = {**below, **above}
    for name, table in above.items():
        under = below.get(name)
        if (
            name != "model"
            and isinstance(table, Mapping)
            and isinstance(under, Mapping)
        ):
            both[name] = {**under, **table}
    return both


def overridden(
    jobs: list[Tables], overrides: list[tuple[str, str, object]]
) -> list[Mistake]:
    """Writes `--set` items into the jobs: (which job, or "" for all; section.key; value)."""
    mistakes = []
    names = [str(job.get("name", f"job{number}")) for number, job in enumerate(jobs)]
    for which, name, value in overrides:
        section, _, last = name.partition(".")
        chosen = [
            job for at, job in enumerate(jobs) if which in ("", names[at], str(at))
        ]
        if not chosen:
            mistakes.append(
                Mistake(
                    "--set",
                    f"jobs[{which}]",
                    f'"{which}"',
                    f"a job: {', '.join(names)}",
                )
            )
        for job in chosen:
            table = job.get(section)
            job[section] = {
                **(table if isinstance(table, Mapping) else {}),
                last: value,
            }
    return mistakes


def refuse(scenario: Scenario, what: str) -> None:
    """Raises InputError where only one job can be handled."""
    if scenario.jobs:
        raise InputError.of(
            scenario.where,
            "jobs",
            f"{len(scenario.jobs)} jobs",
            f"one job for {what}",
        )
