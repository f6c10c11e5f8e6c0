"""What `prestep run` predicts: a step, the steps of several jobs, the largest micro batch, serving, or an RL step.

Each kind of run has a row in `KINDS`: the options that it takes, and where it is; a run imports its own alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import click

from prestep.sim import exporters
from prestep.sim.analysis.cost import Prices, cost_of
from prestep.sim.analysis.json_text import text_of
from prestep.sim.analysis.prediction import Prediction
from prestep.sim.analysis.summary import CAPTURED
from prestep.sim.commands._pages import fitting
from prestep.sim.commands._shared import EXIT_OUTSIDE, coloured, misused, talk
from prestep.sim.errors import InputError
from prestep.sim.exporters import terminal
from prestep.sim.planning.planned import Planned
from prestep.sim.predict import execute, plan, reported
from prestep.sim.record.expected_error import expected_error
from prestep.sim.spec.inference import Inference
from prestep.sim.spec.jobs import refuse
from prestep.sim.spec.scenario_file import is_capture
from prestep.sim.spec.sections import Scenario
from prestep.sim.studies import room
from prestep.sim.studies.host_effect import with_host
from prestep.workloads.job.rl import Rl


class Kind(NamedTuple):
    """What a scenario may predict beside a training step of one job.

    Attributes
    ----------
    name
        As mistakes call it, with the number of `jobs`.
    predict, render
        What predicts it, and what makes a page of the result: module in `sim` and function; "": `str`.
    takes
        Options that it takes.
    """

    name: str
    predict: str
    render: str = ""
    takes: frozenset[str] = frozenset()


#: By what asks for it; a step of one job, which nothing asks for, takes all options.
KINDS = {
    "largest": Kind("--max-micro-batch", "studies.largest:largest_micro_batch"),
    "inference": Kind(
        "[inference]", "serving.serving:predict", "serving.serving:render"
    ),
    "rl": Kind("[rl]", "rl.result:predict", "rl.result:render"),
    "jobs": Kind(
        "{jobs} jobs",
        "studies.shared_cluster:predict",
        "exporters.terminal:render_jobs",
        frozenset({"--strict", "--fail-oom"}),
    ),
}


@dataclass(frozen=True)
class Outcome:
    """What a run shows: the text of `--json`, the page for people, and why the command fails, with words or without."""

    json: str
    page: Callable[[], str]
    failures: Sequence[str] = ()


def run_scenario(
    loaded: Scenario, path: Path, json_: bool, max_micro_batch: bool, **asked: Any
) -> None:
    """The run of a scenario with the options that are `asked` for."""
    kind = _kind(loaded, max_micro_batch)
    _check_options(kind, asked, len(loaded.jobs))
    if max_micro_batch:
        _refuse_capture(path)
        refuse(loaded, "--max-micro-batch")
    if kind is None:
        outcome = _step(loaded, json_, **asked)
    else:
        outcome = _other(loaded, kind, asked)
    if json_:
        click.echo(outcome.json)
    else:
        click.echo(outcome.page())
    if outcome.failures:
        talk("\n".join(filter(None, outcome.failures)))
        sys.exit(EXIT_OUTSIDE)


def _kind(loaded: Scenario, largest: bool) -> Kind | None:
    """Which kind of run is asked for; None: a training step of one job."""
    asks = {
        "largest": largest,
        "inference": loaded.inference != Inference(),
        "rl": loaded.rl != Rl(),
        "jobs": loaded.jobs,
    }
    return next((KINDS[name] for name, asked in asks.items() if asked), None)


def _check_options(kind: Kind | None, asked: Mapping[str, Any], jobs: int) -> None:
    """Refuses options that the kind of run does not take, all of them at once."""
    stated = {
        f"--{name.replace('_', '-')}": value
        for name, value in asked.items()
        if value not in (None, False, (), {}) and (name, value) != ("pue", 1.0)
    }
    wrong = [
        misused(
            option,
            f"{option} with {kind.name.format(jobs=jobs)}",
            "a training step of one job",
        )
        for option in stated
        if kind is not None and option not in kind.takes
    ]
    if "--seed" in stated and "--replicas" not in stated and not wrong:
        expected, hint = "--replicas N beside it", "a single run has no noise"
        wrong.append(misused("--seed", str(asked["seed"]), expected, hint))
    if wrong:
        raise InputError([mistake for error in wrong for mistake in error.mistakes])


def _refuse_capture(path: Path) -> None:
    """A recorded program has its batch."""
    if is_capture(path):
        hint = "change it in the program and capture it again"
        expected = "a scenario's model: a program decides its micro batch"
        raise misused("--max-micro-batch", str(path), expected, hint)


def _other(loaded: Scenario, kind: Kind, asked: Mapping[str, Any]) -> Outcome:
    """A run that is no training step of one job."""
    result = _function(kind.predict)(loaded)
    render = _function(kind.render) if kind.render else str
    values = result if isinstance(result, dict) else result.to_dict()
    failures = _failures(getattr(result, "results", {}).values(), asked)
    if getattr(result, "fails", False):
        failures.append("")
    return Outcome(
        text_of(values), lambda: fitting(render(result), sys.stdout), failures
    )


def _function(name: str) -> Callable[..., Any]:
    """A function of a room of `sim`, by module and name."""
    module, _, function = name.partition(":")
    made: Callable[..., Any] = getattr(
        import_module(f"...{module}", __package__), function
    )
    return made


def _failures(results: Iterable[Prediction], asked: Mapping[str, Any]) -> list[str]:
    """Why predictions are not what `--strict` and `--fail-oom` ask for."""
    failures = []
    for result in results:
        if asked["strict"] and result.fallbacks:
            failures.append(result.refusal)
        verdict = result.out_of_memory
        if asked["fail_oom"] and verdict is not None and not verdict.fits:
            failures.append("")
    return failures


def _step(
    loaded: Scenario,
    json_: bool,
    trace: Path | None,
    part: dict[str, Any],
    timeline: Path | None,
    report: Path | None,
    each: tuple[str, ...],
    replicas: int | None,
    seed: int | None,
    **asked: Any,
) -> Outcome:
    """A training step of one job; `part` says which part of it the trace shows."""
    planned = plan(loaded)
    result = _predicted(loaded, planned, replicas, seed)
    if prices := _prices(**asked):
        result = replace(result, cost=cost_of(result, prices).to_dict())
    if _asks_for_room(result, planned):
        again = room.recomputed(loaded, planned, result.outside)
        result = replace(result, recomputed=again)
    remedies = () if json_ and report is None else _remedies(loaded, result, planned)
    # Files first: a reader of stdout that has seen enough (`| head`) ends the command.
    _write(result, trace, part, timeline)
    _write_report(result, report, loaded, each, planned, remedies)
    page = partial(terminal.render, result, colour=coloured(), remedies=remedies)
    return Outcome(result.to_json(), page, _failures([result], asked))


def _prices(
    energy: bool,
    price_per_gpu_hour: float | None,
    price_per_kwh: float | None,
    pue: float,
    **_: Any,
) -> Prices | None:
    """The prices of the command line; None where nothing of the kind was asked for."""
    prices = Prices(price_per_gpu_hour, price_per_kwh, pue)
    return prices if energy or prices != Prices() else None


def _remedies(loaded: Scenario, result: Prediction, planned: Planned) -> Sequence[str]:
    """Changes with which a step that does not fit would."""
    asks = _asks_for_room(result, planned)
    return room.remedies(loaded, planned, result.outside) if asks else ()


def _asks_for_room(result: Prediction, planned: Planned) -> bool:
    """Whether a step does not fit on its GPUs, whose layout the program does not decide for itself."""
    verdict = result.out_of_memory
    on_gpu = verdict is not None and not verdict.fits and verdict.host is None
    return on_gpu and planned.model.kind != CAPTURED


def _predicted(
    loaded: Scenario, planned: Planned, replicas: int | None, seed: int | None
) -> Prediction:
    """The step, with as many runs with noise as are asked for."""
    executed = execute(planned)
    result = with_host(loaded, planned, reported(planned, executed, prices=True))
    if planned.model.kind != CAPTURED:
        near = expected_error(loaded, planned.fabric.gpu_model)
        result = replace(result, expected_error=near)
    if replicas is None:
        return result
    from prestep.sim.studies.replicas import replicas_of

    step = result.step_time
    spread = replicas_of(planned, executed.steps, step, replicas, seed or 0)
    return replace(result, replicas=spread)


def _write(
    result: Prediction, trace: Path | None, part: dict[str, Any], timeline: Path | None
) -> None:
    """The files of `--trace` and `--timeline`."""
    if trace is not None:
        talk(f"wrote {exporters.write(result, trace, 'chrome_trace', **part)}")
    if timeline is not None:
        talk(f"wrote {exporters.write(result, timeline, 'parquet')}")


def _write_report(
    result: Prediction,
    report: Path | None,
    loaded: Scenario,
    each: tuple[str, ...],
    planned: Planned,
    remedies: Sequence[str],
) -> None:
    """The file of `--report`, where there is one to write."""
    if report is None:
        return
    # what-ifs and measured runs are slow to import
    from prestep.sim.exporters._run_files import write_report

    page = write_report(result, report, loaded, each, planned, remedies)
    talk(f"wrote {page}")
