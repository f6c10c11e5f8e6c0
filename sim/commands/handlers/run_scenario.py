"""What `prestep run` predicts: a step, the steps of several jobs, the largest micro batch, serving, or an RL step.

What only some runs need is imported by them: it is slow to import.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from prestep.sim import exporters
from prestep.sim.analysis.cost import Prices, cost_of
from prestep.sim.analysis.prediction import Prediction
from prestep.sim.analysis.summary import CAPTURED
from prestep.sim.commands._pages import show_page
from prestep.sim.commands._shared import (
    EXIT_OUTSIDE,
    coloured,
    echo_json,
    misused,
    talk,
)
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
from prestep.sim.studies.largest import largest_micro_batch
from prestep.workloads.job.rl import Rl


def run_scenario(
    loaded: Scenario,
    path: Path,
    json_: bool,
    trace: Path | None,
    part: dict[str, Any],
    timeline: Path | None,
    strict: bool,
    fail_oom: bool,
    replicas: int | None,
    seed: int | None,
    max_micro_batch: bool,
    report: Path | None,
    each: tuple[str, ...],
    **asked: Any,
) -> None:
    """The run of a scenario; `part` says which part of it the trace shows, `asked` prices (`_prices`)."""
    _check_replicas(replicas, seed, loaded, max_micro_batch)
    prices = _prices(loaded, max_micro_batch, **asked)
    file = trace or timeline or report
    if max_micro_batch:
        _largest(loaded, path, json_, file)
    elif _is_no_step(loaded):
        _run_others(loaded, json_, file, replicas, strict)
    else:
        planned = plan(loaded)
        result = _priced(planned, replicas, seed, prices)
        if _asks_for_room(result, planned):
            again = room.recomputed(planned, result.outside)
            result = replace(result, recomputed=again)
        remedies = () if json_ and report is None else _remedies(result, planned)
        # Files first: a reader of stdout that has seen enough (`| head`) ends the command.
        _write(result, trace, part, timeline)
        _write_report(result, report, each, planned, remedies)
        _show(result, json_, remedies)
        _refuse(result, strict, fail_oom)


def _is_no_step(loaded: Scenario) -> bool:
    """Whether it is anything but a training step of one job."""
    return bool(_serves(loaded) or _learns(loaded) or loaded.jobs)


def _serves(loaded: Scenario) -> bool:
    return loaded.inference != Inference()


def _learns(loaded: Scenario) -> bool:
    """Whether it is a step of reinforcement learning."""
    return loaded.rl != Rl()


def _prices(
    loaded: Scenario,
    largest: bool,
    energy: bool,
    price_per_gpu_hour: float | None,
    price_per_kwh: float | None,
    pue: float,
) -> Prices | None:
    """The prices of the command line; None where nothing of the kind was asked for.

    Raises
    ------
    InputError
        If what is predicted is no training step of one job.
    """
    prices = Prices(price_per_gpu_hour, price_per_kwh, pue)
    if not energy and prices == Prices():
        return None
    for found, asked in {
        "--max-micro-batch": largest,
        "[inference]": _serves(loaded),
        "[rl]": _learns(loaded),
    }.items():
        if asked:
            raise misused("--energy and prices", found, "a training step")
    refuse(loaded, "--energy and prices")
    return prices


def _priced(
    planned: Planned, replicas: int | None, seed: int | None, prices: Prices | None
) -> Prediction:
    """The prediction, with what it costs where there are prices."""
    result = _predicted(planned, replicas, seed)
    if prices is None:
        return result
    return replace(result, cost=cost_of(result, prices).to_dict())


def _show(result: Prediction, json_: bool, remedies: Sequence[str]) -> None:
    """Prints the prediction; of a step that does not fit, the page says what would."""
    if json_:
        click.echo(result.to_json())
    else:
        click.echo(terminal.render(result, colour=coloured(), remedies=remedies))


def _remedies(result: Prediction, planned: Planned) -> Sequence[str]:
    """Changes with which a step that does not fit would."""
    asks = _asks_for_room(result, planned)
    return room.remedies(planned, result.outside) if asks else ()


def _asks_for_room(result: Prediction, planned: Planned) -> bool:
    """Whether a step does not fit on its GPUs, whose layout the program does not decide for itself."""
    verdict = result.out_of_memory
    on_gpu = verdict is not None and not verdict.fits and verdict.host is None
    return on_gpu and planned.model.kind != CAPTURED


def _lacks_memory(result: Prediction) -> bool:
    return result.out_of_memory is not None and not result.out_of_memory.fits


def _refuse(result: Prediction, strict: bool, fail_oom: bool) -> None:
    """Ends the command where a prediction is not what `--strict` or `--fail-oom` asks for."""
    _refuse_fallbacks([result], strict)
    if fail_oom and _lacks_memory(result):
        sys.exit(EXIT_OUTSIDE)


def _predicted(planned: Planned, replicas: int | None, seed: int | None) -> Prediction:
    """The step, with as many runs with noise as are asked for."""
    executed = execute(planned)
    result = with_host(planned, reported(planned, executed, prices=True))
    if planned.model.kind != CAPTURED:
        near = expected_error(planned.scenario, planned.fabric.gpu_model)
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
    each: tuple[str, ...],
    planned: Planned,
    remedies: Sequence[str],
) -> None:
    """The file of `--report`, where there is one to write."""
    if report is None:
        return
    # what-ifs and measured runs are slow to import
    from prestep.sim.exporters._run_files import write_report

    page = write_report(result, report, planned.scenario, each, planned, remedies)
    talk(f"wrote {page}")


def _refuse_fallbacks(results: Iterable[Prediction], strict: bool) -> None:
    """With `--strict`, ends the command where a prediction rests on a fallback."""
    refusals = [result.refusal for result in results if result.fallbacks]
    if strict and refusals:
        talk("\n".join(refusals))
        sys.exit(EXIT_OUTSIDE)


def _check_replicas(
    replicas: int | None, seed: int | None, loaded: Scenario, largest: bool
) -> None:
    if replicas is None:
        if seed is not None:
            expected, hint = "--replicas N beside it", "a single run has no noise"
            raise misused("--seed", str(seed), expected, hint)
        return
    if largest:
        expected = "nothing beside --max-micro-batch"
        raise misused("--replicas", str(replicas), expected)
    refuse(loaded, "--replicas")


def _refuse_capture(path: Path) -> None:
    """A recorded program has its batch."""
    if is_capture(path):
        hint = "change it in the program and capture it again"
        expected = "a scenario's model: a program decides its micro batch"
        raise misused("--max-micro-batch", str(path), expected, hint)


def _largest(scenario: Scenario, path: Path, json_: bool, file: Path | None) -> None:
    """`run --max-micro-batch`."""
    _refuse_capture(path)
    refuse(scenario, "--max-micro-batch")
    if file is not None:
        expected = "none: --max-micro-batch predicts no step"
        raise misused(str(file), "a file", expected)
    limit = largest_micro_batch(scenario)
    if json_:
        echo_json(limit.to_dict())
    else:
        click.echo(str(limit))
    if not limit.micro_batch:
        sys.exit(EXIT_OUTSIDE)


# What traces, reports and replicas are of.
_ONE_STEP = (
    "a training step of one job, for --trace, --timeline, --report and --replicas"
)


def _serve(scenario: Scenario, json_: bool, other: Path | int | None) -> None:
    """`run` of a scenario with [inference]."""
    if other is not None:
        raise misused(str(other), "[inference]", _ONE_STEP)
    from prestep.sim.serving import serving

    prediction = serving.predict(scenario)
    if json_:
        echo_json(prediction)
    else:
        show_page(serving.render(prediction))


def _learn(scenario: Scenario, json_: bool, other: Path | int | None) -> None:
    """`run` of a scenario with [rl]."""
    if other is not None:
        raise misused(str(other), "[rl]", _ONE_STEP)
    from prestep.sim.rl import result

    step = result.predict(scenario)
    if json_:
        echo_json(step)
    else:
        show_page(result.render(step))


def _run_others(
    scenario: Scenario,
    json_: bool,
    file: Path | None,
    replicas: int | None,
    strict: bool,
) -> None:
    """`run` of a scenario that is no step of one job."""
    if _serves(scenario):
        _serve(scenario, json_, file or replicas)
    elif _learns(scenario):
        _learn(scenario, json_, file or replicas)
    else:
        _run_jobs(scenario, json_, file, strict)


def _run_jobs(scenario: Scenario, json_: bool, file: Path | None, strict: bool) -> None:
    """`run` of several jobs on one cluster."""
    if file is not None:
        raise misused(str(file), f"{len(scenario.jobs)} jobs", _ONE_STEP)
    from prestep.sim.studies import shared_cluster

    jobs = shared_cluster.predict(scenario)
    click.echo(jobs.to_json() if json_ else terminal.render_jobs(jobs))
    _refuse_fallbacks(jobs.results.values(), strict)
