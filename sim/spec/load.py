"""What a run is: the scenario file (TOML; `prestep schema` prints its grammar), read strictly.

The sections are in sim/spec/sections.py and workloads/job; rules on several keys in sim/spec/rules/layout.py.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sim import strict
from sim.errors import InputError, Mistake, did_you_mean
from sim.spec import jobs
from sim.spec.arguments import with_arguments
from sim.spec.lookup import (
    cluster_of,
    job_mistakes,
    layout_mistakes,
    model_of,
    nccl_mistakes,
    place_mistakes,
    wrong_keys,
)
from sim.spec.rules.layout import check_layout, check_scenario
from sim.spec.scenario_file import tables_of
from sim.spec.sections import (
    SECTIONS,
    Cluster,
    Dataload,
    Measured,
    Nccl,
    Placement,
    Scenario,
)
from workloads.job.checkpoint import Checkpoint
from workloads.job.faults import Faults
from workloads.job.layout import grad_accumulation_of, microbatches_of
from workloads.job.megatron import Megatron
from workloads.job.model import Model
from workloads.job.parallel import Parallel
from workloads.job.pytorch import PyTorch
from workloads.job.training import Training

__all__ = [
    "Checkpoint",
    "Cluster",
    "Dataload",
    "Faults",
    "Measured",
    "Megatron",
    "Model",
    "Nccl",
    "Parallel",
    "Placement",
    "PyTorch",
    "Scenario",
    "Training",
    "check_layout",
    "grad_accumulation_of",
    "layout_mistakes",
    "load_scenario",
    "microbatches_of",
    "parse_scenario",
    "sections_in_use",
]

_JOB = re.compile(r"jobs?\[([^\]]+)\]\.(.+)")


def load_scenario(path: str | Path, overrides: Sequence[str] = ()) -> Scenario:
    """Read and check a scenario file, with `section.key=value` overrides; other keys change links of the cluster.

    Model and cluster are looked up too, so that one report names everything that is wrong.

    Raises
    ------
    InputError
        With every mistake in the file and the overrides.
    """
    return scenario_of(tables_of(Path(path)), path, overrides)


def scenario_of(
    tables: Mapping[str, Any], path: str | Path, overrides: Sequence[str] = ()
) -> Scenario:
    """The scenario of a file's tables; see `load_scenario`."""
    where, folder = str(path), Path(path).parent
    scenario, mistakes = _collect(
        with_arguments(tables, folder, overrides), where, overrides
    )
    scenario = _located(scenario, folder, overrides)
    fabric = cluster_of(scenario, mistakes)
    unreadable = wrong_keys(mistakes) & {*jobs.KEYS, "scenario"}
    for job in () if unreadable else scenario.jobs or (scenario,):
        mistakes += job_mistakes(job, fabric, mistakes)
    mistakes += place_mistakes(scenario, fabric, wrong_keys(mistakes))
    return _checked(scenario, mistakes)


def load_open(
    path: str | Path, overrides: Sequence[str], free: Collection[str]
) -> tuple[Scenario, int]:
    """A scenario whose keys in `free` (dotted) are still to be chosen: they are left out, with the rules that tie them.

    Returns the scenario without them and the samples of a step as the file has them.

    Raises
    ------
    InputError
        With every mistake in what is left, and for several jobs.
    """
    where, folder = str(path), Path(path).parent
    tables = with_arguments(tables_of(Path(path)), folder, overrides)
    batch = _samples(_collect(tables, where, overrides)[0])
    fixed = [o for o in overrides if o.partition("=")[0].strip() not in free]
    scenario, mistakes = _collect(_without(tables, free), where, fixed)
    _refuse_jobs(scenario, where)
    scenario = _located(scenario, folder, overrides)
    fabric = cluster_of(scenario, mistakes)
    model_of(scenario, mistakes)
    mistakes += nccl_mistakes(scenario, wrong_keys(mistakes))
    if fabric is not None:
        mistakes += _too_many_gpus(scenario, len(fabric.gpus))
    return _checked(scenario, mistakes), batch


def _too_many_gpus(scenario: Scenario, most: int) -> list[Mistake]:
    gpus = scenario.cluster.gpus or 1
    if gpus <= most:
        return []
    expected = f"at most {most}, the GPUs of the cluster"
    return [Mistake(scenario.where, "cluster.gpus", str(gpus), expected)]


def _refuse_jobs(scenario: Scenario, where: str) -> None:
    if scenario.jobs:
        found, hint = f"{len(scenario.jobs)} jobs", "layouts are of one job"
        raise InputError(Mistake(where, "jobs", found, "one", hint))


def _samples(scenario: Scenario) -> int:
    """Samples of a step."""
    training = scenario.training
    if training.global_batch:
        return training.global_batch
    return training.micro_batch * scenario.parallel.dp * microbatches_of(scenario)


def _without(tables: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
    """Tables without some of their keys (dotted)."""
    return {
        name: {key: v for key, v in table.items() if f"{name}.{key}" not in keys}
        if isinstance(table, dict)
        else table
        for name, table in tables.items()
    }


def _located(scenario: Scenario, folder: Path, overrides: Sequence[str]) -> Scenario:
    """Files relative to the scenario, from here."""
    return replace(
        scenario,
        cluster=replace(
            scenario.cluster,
            file=_beside(folder, scenario.cluster.file),
            hostfile=_beside(folder, scenario.cluster.hostfile),
        ),
        model=replace(scenario.model, file=_beside(folder, scenario.model.file)),
        placement=replace(
            scenario.placement, hostfile=_beside(folder, scenario.placement.hostfile)
        ),
        measured=Measured() if overrides else scenario.measured,
        jobs=tuple(_located(job, folder, overrides) for job in scenario.jobs),
    )


def parse_scenario(
    mapping: Mapping[str, Any], where: str, overrides: Sequence[str] = ()
) -> Scenario:
    """A scenario from tables already read; neither model nor cluster is looked up (see `check_layout`)."""
    return _checked(
        *_collect(with_arguments(mapping, Path(), overrides), where, overrides)
    )


def sections_in_use(scenario: Scenario) -> tuple[str, ...]:
    """Sections that say anything but their defaults."""
    plain = _defaults(Scenario())
    return tuple(
        name for name in SECTIONS if getattr(scenario, name) != getattr(plain, name)
    )


def _collect(
    mapping: Mapping[str, Any], where: str, overrides: Sequence[str]
) -> tuple[Scenario, list[Mistake]]:
    tables: dict[str, Any] = {
        name: dict(v) if isinstance(v, Mapping) else v for name, v in mapping.items()
    }
    stated_jobs, mistakes = jobs.split(tables, where)
    origins, wrong = _override(tables, overrides, stated_jobs)
    mistakes += wrong + _unknown_sections(tables, where)
    scenario, wrong = _sections(tables, where, origins)
    mistakes += wrong
    if stated_jobs is None:
        return scenario, mistakes + check_scenario(scenario, skip=wrong_keys(mistakes))
    rules = {"model", "training", "parallel"}  # the jobs' own
    mistakes += check_scenario(scenario, skip=wrong_keys(mistakes) | rules)
    shared = _right_sections(tables, mistakes)
    built, wrong = jobs.build(
        stated_jobs,
        shared,
        scenario.cluster,
        where,
        lambda table, place: _collect(table, place, ()),
    )
    return replace(scenario, jobs=built), mistakes + wrong


def _sections(
    tables: Mapping[str, Any], where: str, origins: Mapping[str, str]
) -> tuple[Scenario, list[Mistake]]:
    """A scenario of all sections, and the mistakes in each of them."""
    sections: dict[str, Any] = {}
    mistakes: list[Mistake] = []
    for name, cls in SECTIONS.items():
        table = tables.get(name, {})
        sections[name], wrong = strict.build(cls, table, where, name, origins)
        mistakes += wrong
    return _defaults(Scenario(**sections, where=where)), mistakes


def _unknown_sections(tables: Mapping[str, Any], where: str) -> list[Mistake]:
    expected, sections = "a section of a scenario", ", ".join([*SECTIONS, "jobs"])
    return [
        Mistake(
            where,
            name,
            "unknown section",
            expected,
            did_you_mean(name, SECTIONS) or f"sections: {sections}",
        )
        for name in tables
        if name not in SECTIONS
    ]


def _right_sections(
    tables: Mapping[str, Any], mistakes: Sequence[Mistake]
) -> dict[str, Any]:
    """Sections in which no mistake was found."""
    wrong = {mistake.key.partition(".")[0] for mistake in mistakes}
    return {
        name: table
        for name, table in tables.items()
        if name in SECTIONS and name not in wrong
    }


def _defaults(scenario: Scenario) -> Scenario:
    parallel = scenario.parallel
    if parallel.data_parallel is None:
        parallel = replace(parallel, data_parallel="ddp" if parallel.dp > 1 else "none")
    return replace(scenario, parallel=parallel)


def _override(
    tables: dict[str, Any],
    overrides: Sequence[str],
    stated_jobs: list[dict[str, Any]] | None,
) -> tuple[dict[str, str], list[Mistake]]:
    """Writes `--set` items into the tables, and those of the jobs; returns where each key came from, and mistakes."""
    origins: dict[str, str] = {}
    mistakes: list[Mistake] = []
    of_jobs: list[tuple[str, str, object]] = []
    for item in overrides:
        try:
            name, value = strict.split_override(
                f"cluster.{item}" if item.startswith("routing=") else item
            )
            job, name = _job_and_key(name) if stated_jobs is not None else ("", name)
            section, _, key = name.partition(".")
            if _written_inside(tables, name, value):
                continue
            read = strict.read_override(SECTIONS[section], key, value)
            if stated_jobs is not None and section in jobs.OWN_SECTIONS:
                of_jobs.append((job, name, read))
            elif isinstance(outer := tables.setdefault(section, {}), dict):
                outer[key] = read
                origins[f"{section}.{key}"] = "--set"
        except InputError as error:
            mistakes.extend(error.mistakes)
    return origins, mistakes + jobs.overridden(stated_jobs or [], of_jobs)


def _job_and_key(name: str) -> tuple[str, str]:
    """The job that a key names, or "" for all, and the rest of the key."""
    match = _JOB.fullmatch(name)
    return (match[1], match[2]) if match else ("", name)


def _written_inside(tables: dict[str, Any], name: str, value: str) -> bool:
    """Writes a change of a link, or a key of a table in a section (faults.rates.gpu); whether it was one of these."""
    section, _, key = name.partition(".")
    if section not in SECTIONS or name.startswith("cluster.set."):
        _change_link(tables, strict.link_key(name, SECTIONS), value)
        return True
    head, _, inner = key.partition(".")
    if not inner or not strict.holds_table(SECTIONS[section], head):
        return False
    outer = tables.setdefault(section, {})
    table = outer.setdefault(head, {}) if isinstance(outer, dict) else None
    if isinstance(table, dict):  # else it is a mistake that is reported later
        table[inner] = value
    return True


def _change_link(tables: dict[str, Any], link: str, value: str) -> None:
    table = tables.setdefault("cluster", {})
    changes = table.get("set", {}) if isinstance(table, dict) else None
    if isinstance(changes, Mapping):  # else the file is wrong here, and reported
        table["set"] = {**dict(strict.flatten(changes)), link: value}


def _beside(folder: Path, file: str | None) -> str | None:
    return None if file is None else str(folder / file)


def _checked(scenario: Scenario, mistakes: list[Mistake]) -> Scenario:
    if mistakes:
        raise InputError(mistakes)
    return scenario
