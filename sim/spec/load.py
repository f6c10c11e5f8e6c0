"""What a run is: the scenario file (TOML; `prestep schema` prints its grammar), read strictly.

The sections are in sim/spec/sections.py and workloads/job; rules on several keys in sim/spec/rules/layout.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from prestep.sim import files, strict
from prestep.sim.errors import InputError, Mistake, did_you_mean
from prestep.sim.extras import lazily
from prestep.sim.spec import jobs, lookup, openers
from prestep.sim.spec.openers import tables_of
from prestep.sim.spec.overrides import overridden
from prestep.sim.spec.rules.layout import check_layout, check_scenario, too_many_gpus
from prestep.sim.spec.sections import CORE, SECTIONS, Measured, Scenario
from prestep.workloads.job.layout import grad_accumulation_of, microbatches_of
from prestep.workloads.models.model import ARGUMENTS

with lazily():
    from prestep.workloads import histogram
    from prestep.workloads.arguments import megatron  # few models are such files

__all__ = [
    "Scenario",
    "check_layout",
    "grad_accumulation_of",
    "load_scenario",
    "microbatches_of",
    "parse_scenario",
]


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
    completed = openers.completed(tables, Path(path), overrides)
    overrides = completed.overrides
    tables = _with_arguments(completed.tables, folder, overrides)
    scenario, mistakes = _collect(tables, where, overrides)
    scenario = openers.settled(_located(scenario, folder, overrides))
    notes = (*completed.notes, *_towers(scenario), *scenario.notes)
    scenario = replace(scenario, notes=notes)
    fabric = lookup.cluster_of(scenario, mistakes)
    unreadable = lookup.wrong_keys(mistakes) & {*jobs.KEYS, "scenario"}
    for job in () if unreadable else scenario.jobs or (scenario,):
        mistakes += lookup.job_mistakes(job, fabric, mistakes)
    mistakes += lookup.place_mistakes(scenario, fabric, lookup.wrong_keys(mistakes))
    return _checked(scenario, mistakes)


def _towers(scenario: Scenario) -> tuple[str, ...]:
    """What a model's file has beside its text model, which is all that is simulated."""
    file = Path(scenario.model.file or "")
    if file.suffix != ".json" or not file.is_file():
        return ()
    from prestep.workloads.models.hugging_face import left_out  # slow to import

    parts = ", ".join(left_out(file))
    return (f"{file.name}: {parts} left out: the text model alone",) if parts else ()


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
    completed = openers.completed(tables_of(Path(path)), Path(path), overrides)
    overrides = completed.overrides
    tables = _with_arguments(completed.tables, folder, overrides)
    batch = _samples(_collect(tables, where, overrides)[0])
    fixed = [o for o in overrides if o.partition("=")[0].strip() not in free]
    scenario, mistakes = _collect(_without(tables, free), where, fixed, free)
    _refuse_jobs(scenario, where)
    scenario = _located(scenario, folder, overrides)
    fabric = lookup.cluster_of(scenario, mistakes)
    lookup.model_of(scenario, mistakes)
    mistakes += lookup.nccl_mistakes(scenario, lookup.wrong_keys(mistakes))
    if fabric is not None:
        mistakes += _too_many_gpus(scenario, len(fabric.gpus))
    scenario = replace(scenario, notes=(*completed.notes, *scenario.notes))
    return _checked(scenario, mistakes), batch


def _too_many_gpus(scenario: Scenario, most: int) -> list[Mistake]:
    gpus = scenario.cluster.gpus or 1
    return [too_many_gpus(scenario, gpus, most)] if gpus > most else []


def _refuse_jobs(scenario: Scenario, where: str) -> None:
    if scenario.jobs:
        found, hint = f"{len(scenario.jobs)} jobs", "layouts are of one job"
        raise InputError.of(where, "jobs", found, "one", hint)


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
        parallel=replace(
            scenario.parallel, imbalance=_recorded(folder, scenario.parallel.imbalance)
        ),
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
        *_collect(_with_arguments(mapping, Path(), overrides), where, overrides)
    )


def _collect(
    mapping: Mapping[str, Any],
    where: str,
    overrides: Sequence[str],
    free: Collection[str] = (),
) -> tuple[Scenario, list[Mistake]]:
    """A scenario, and what is wrong with it; rules on keys that are `free` are left out."""
    tables = _copied(mapping)
    stated_jobs, mistakes = jobs.split(tables, where)
    origins, wrong = overridden(tables, overrides, stated_jobs)
    mistakes += wrong + _unknown_sections(tables, where)
    scenario, wrong = _sections(tables, where, origins)
    mistakes += wrong
    if stated_jobs is None:
        skip = lookup.wrong_keys(mistakes) | set(free)
        return scenario, mistakes + check_scenario(scenario, skip=skip)
    rules = {"model", "training", "parallel"}  # the jobs' own
    mistakes += check_scenario(scenario, skip=lookup.wrong_keys(mistakes) | rules)
    shared = _right_sections(tables, mistakes)
    built, wrong = jobs.build(
        stated_jobs,
        shared,
        scenario.cluster,
        where,
        lambda table, place: _collect(table, place, ()),
    )
    return replace(scenario, jobs=built), mistakes + wrong


def _copied(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """The tables, to be written into."""
    return {
        name: dict(v) if isinstance(v, Mapping) else v for name, v in mapping.items()
    }


def _sections(
    tables: Mapping[str, Any], where: str, origins: Mapping[str, str]
) -> tuple[Scenario, list[Mistake]]:
    """A scenario of all sections, and the mistakes in each of them; classes of extensions' are imported if stated."""
    core: dict[str, Any] = {}
    extensions: dict[str, Any] = {}
    mistakes: list[Mistake] = []
    for name in SECTIONS:
        if name not in tables:
            continue
        cls: type[Any] = SECTIONS[name]
        section, wrong = strict.build(cls, tables[name], where, name, origins)
        mistakes += wrong
        if name in CORE:
            core[name] = section
        elif section != cls():
            extensions[name] = section
    scenario = Scenario(**core, extensions=extensions, where=where)
    return _defaults(scenario), mistakes


def _unknown_sections(tables: Mapping[str, Any], where: str) -> list[Mistake]:
    expected, sections = "a section of a scenario", ", ".join([*SECTIONS, "jobs"])
    hint = f"sections: {sections}; no installed extension has others"
    return [
        Mistake(
            where,
            name,
            "unknown section",
            expected,
            did_you_mean(name, SECTIONS) or hint,
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
        copies = parallel.dp * parallel.cp
        parallel = replace(parallel, data_parallel="ddp" if copies > 1 else "none")
    return replace(scenario, parallel=parallel)


def _beside(folder: Path, file: str | None) -> str | None:
    return None if file is None else str(folder / file)


def _recorded(
    folder: Path, routing: str | tuple[float, ...]
) -> str | tuple[float, ...]:
    """Routing that is a file, from here."""
    is_file = isinstance(routing, str) and "." in routing and histogram.is_file(routing)
    return str(folder / routing) if is_file else routing  # type: ignore[operator]


def _checked(scenario: Scenario, mistakes: list[Mistake]) -> Scenario:
    InputError.check(mistakes)
    return scenario


def _with_arguments(
    mapping: Mapping[str, Any], folder: Path, overrides: Sequence[str]
) -> dict[str, Any]:
    """The tables, over those of a file of Megatron's arguments that [model] file may name (the model's stay in it)."""
    model = mapping.get("model")
    named = [
        item.partition("=")[2].strip().strip("\"'")
        for item in overrides
        if item.startswith("model.file=")
    ]
    own_file = model.get("file") if isinstance(model, Mapping) else None
    file = named[-1] if named else own_file
    known = isinstance(file, str) and Path(file).suffix in ARGUMENTS
    if not known or not (folder / str(file)).is_file():
        return dict(mapping)
    tables = dict(mapping)
    text = files.read_text(folder / str(file))
    for section, keys in megatron.sections_of(text, str(folder / str(file))).items():
        own = mapping.get(section, {})
        if section != "model" and isinstance(own, Mapping):
            tables[section] = {**keys, **own}
    return tables
