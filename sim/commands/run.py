"""Predict one training step of SCENARIO: a file, a bundled one (`prestep list scenarios`), or a trainer's recipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import click

from prestep.sim.commands import _shared as shared
from prestep.sim.commands._trace_options import Most, trace_part
from prestep.sim.errors import InputError
from prestep.sim.extras import lazily

with lazily():
    from prestep.sim import exporters, sheets
    from prestep.sim import predict as steps
    from prestep.sim.analysis import cost, json_text, prediction
    from prestep.sim.exporters import _run_files, terminal
    from prestep.sim.planning import planned as plans
    from prestep.sim.spec import jobs, load, openers, sections
    from prestep.sim.studies import host_effect, room
    from prestep.sim.studies import replicas as spreads
    from prestep.sim.tools import catalog
    from prestep.workloads.models import model as models

GROUP = "Predict"


class Kind(NamedTuple):
    """What a scenario may predict beside a training step of one job.

    Attributes
    ----------
    name
        As mistakes call it, with the number of `jobs`.
    predict, render
        What predicts it, and what makes a page of the result: "module:function"; "": `str`.
    takes
        Options that it takes.
    """

    name: str
    predict: str
    render: str = ""
    takes: frozenset[str] = frozenset()


LARGEST = Kind("--max-micro-batch", "prestep.sim.studies.largest:largest_micro_batch")
JOBS = Kind(
    "{jobs} jobs",
    "prestep.sim.studies.shared_cluster:predict",
    "prestep.sim.exporters.terminal:render_jobs",
    frozenset({"--strict", "--fail-oom"}),
)


@dataclass(frozen=True)
class Outcome:
    """What a run shows: the text of `--json`, the page for people, and why the command fails, with words or without."""

    json: str
    page: Callable[[], str]
    failures: Sequence[str] = ()


#: Files that are written, and what is in them.
_FILES = shared.together(
    click.option(
        "--trace",
        metavar="FILE|DIR/",
        type=click.Path(path_type=Path),
        help="Write a Chrome trace (.json or .json.gz) for Perfetto; into a folder, one file per rank (for HTA).",
    ),
    shared.file_option("--timeline", text="Write the timeline as Parquet."),
    shared.file_option(
        "--report",
        text="Write the report: one page (.html) that works offline, or .md.",
    ),
    click.option(
        "--each",
        multiple=True,
        metavar="WHAT",
        help="What-ifs for the report: as `whatif --each`.",
    ),
    click.option(
        "--trace-window",
        default="",
        metavar="FROM:TO",
        help="Only this time in the trace: 0.1s:200ms.",
    ),
    click.option(
        "--trace-ranks",
        default="",
        metavar="LIST",
        help="Only these ranks in the trace: 0-7,16.",
    ),
    click.option(
        "--trace-kernels",
        type=Most(),
        metavar="N",
        help="Open layers that are simulated as one into at most so many kernels; `all`, or 0 for none.  [default: "
        "100000]",
    ),
)
#: Runs with noise.
_NOISE = shared.together(
    click.option(
        "--replicas",
        type=click.IntRange(1, shared.MOST_REPLICAS),
        help="Runs with noise ([faults] jitter): their distribution.",
    ),
    click.option(
        "--seed",
        type=click.IntRange(0),
        help="Of the noise; default 0. The same seed gives the same runs.",
    ),
)


@click.command(
    help=__doc__,
    epilog="\b\n"
    "Examples:\n"
    "  prestep run llama1b-ddp4 --set training.micro_batch=2 --json\n"
    "  prestep run llama1b-ddp4 --report step.html --trace step.json.gz\n"
    "  prestep run llama3_8b.toml --cluster dgx-h100 --hosts 64\n",
)
@click.argument("scenario", required=False)
@shared.changes
@shared.as_json
@_FILES
@click.option(
    "--strict", is_flag=True, help="Fail when the prediction rests on a fallback."
)
@click.option(
    "--fail-oom", is_flag=True, help="Fail (exit 1) when the step does not fit."
)
@_NOISE
@click.option(
    "--max-micro-batch",
    is_flag=True,
    help="Find the largest micro batch that fits; exit 1 if none does.",
)
@click.option(
    "--energy", is_flag=True, help="Show watts and joules: GPUs, hosts, switches."
)
@shared.priced
@shared.of_scenario
@shared.explained
def command(
    scenario: str | None,
    overrides: tuple[str, ...],
    json_: bool,
    max_micro_batch: bool,
    trace: Path | None,
    trace_window: str,
    trace_ranks: str,
    trace_kernels: float | None,
    timeline: Path | None,
    report: Path | None,
    each: tuple[str, ...],
    **asked: Any,
) -> None:
    if report is not None:
        sheets.check_suffix(report)
    files = {"trace": trace, "timeline": timeline, "report": report, "each": each}
    part = trace_part(files, trace_window, trace_ranks, trace_kernels)
    path = catalog.find_scenario(scenario)
    loaded = load.scenario_of(openers.tables_of(path), path, overrides)
    asked = files | {"part": part} | asked
    kind = _kind(loaded, max_micro_batch)
    _check_options(kind, asked, loaded.jobs)
    if kind is LARGEST:
        _check_size(loaded, path)
    if kind is None:
        outcome = _step(loaded, json_, **asked)
    else:
        outcome = _other(loaded, kind, asked)
    click.echo(outcome.json if json_ else outcome.page())
    if outcome.failures:
        shared.talk("\n".join(filter(None, outcome.failures)))
        sys.exit(shared.EXIT_OUTSIDE)


def _kind(loaded: sections.Scenario, largest: bool) -> Kind | None:
    """Which kind of run is asked for; None: a training step of one job, which takes all options."""
    if largest:
        return LARGEST
    if loaded.other_run is not None:
        name, _ = loaded.other_run
        module = sections.run_of(name).__name__
        return Kind(f"[{name}]", f"{module}:predict", f"{module}:render")
    return JOBS if loaded.jobs else None


def _check_options(
    kind: Kind | None, asked: Mapping[str, Any], jobs: Sequence[Any]
) -> None:
    """Refuses options that the kind of run does not take, all of them at once."""
    stated = {
        f"--{name.replace('_', '-')}": value
        for name, value in asked.items()
        if value not in (None, False, (), {}) and (name, value) != ("pue", 1.0)
    }
    wrong = [
        shared.misused(
            option,
            f"{option} with {kind.name.format(jobs=len(jobs))}",
            "a training step of one job",
        )
        for option in stated
        if kind is not None and option not in kind.takes
    ]
    if "--seed" in stated and "--replicas" not in stated and not wrong:
        expected, hint = "--replicas N beside it", "a single run has no noise"
        wrong.append(shared.misused("--seed", str(asked["seed"]), expected, hint))
    if wrong:
        raise InputError([mistake for error in wrong for mistake in error.mistakes])


def _check_size(loaded: sections.Scenario, path: Path) -> None:
    """Refuses to look for the largest micro batch of several jobs, and of a recorded program, which has its batch."""
    jobs.refuse(loaded, "--max-micro-batch")
    if models.is_program(path):
        hint = "change it in the program and capture it again"
        expected = "a scenario's model: a program decides its micro batch"
        raise shared.misused("--max-micro-batch", str(path), expected, hint)


def _other(loaded: sections.Scenario, kind: Kind, asked: Mapping[str, Any]) -> Outcome:
    """A run that is no training step of one job."""
    result = _function(kind.predict)(loaded)
    render = _function(kind.render) if kind.render else str
    values = result if isinstance(result, dict) else result.to_dict()
    failures = _failures(getattr(result, "results", {}).values(), asked)
    if getattr(result, "fails", False):
        failures.append("")
    return Outcome(
        json_text.text_of(values),
        lambda: shared.fitting(render(result), sys.stdout),
        failures,
    )


def _function(name: str) -> Callable[..., Any]:
    """A function by module and name."""
    module, _, function = name.partition(":")
    return getattr(import_module(module), function)  # type: ignore[no-any-return]


def _failures(
    results: Iterable[prediction.Prediction], asked: Mapping[str, Any]
) -> list[str]:
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
    loaded: sections.Scenario,
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
    planned = steps.plan(loaded)
    result = _predicted(loaded, planned, replicas, seed)
    if prices := shared.prices_of(**asked):
        result = replace(result, cost=cost.cost_of(result, prices).to_dict())
    if _asks_for_room(result, planned):
        again = room.recomputed(loaded, planned, result.outside)
        result = replace(result, recomputed=again)
    remedies = () if json_ and report is None else _remedies(loaded, result, planned)
    # Files first: a reader of stdout that has seen enough (`| head`) ends the command.
    _write(result, trace, part, timeline)
    _write_report(result, report, loaded, each, planned, remedies)
    page = partial(terminal.render, result, colour=shared.coloured(), remedies=remedies)
    return Outcome(result.to_json(), page, _failures([result], asked))


def _remedies(
    loaded: sections.Scenario, result: prediction.Prediction, planned: plans.Planned
) -> Sequence[str]:
    """Changes with which a step that does not fit would."""
    asks = _asks_for_room(result, planned)
    return room.remedies(loaded, planned, result.outside) if asks else ()


def _asks_for_room(result: prediction.Prediction, planned: plans.Planned) -> bool:
    """Whether a step does not fit on its GPUs, whose layout the program does not decide for itself."""
    verdict = result.out_of_memory
    on_gpu = verdict is not None and not verdict.fits and verdict.host is None
    return on_gpu and planned.model.kind != models.PROGRAM


def _predicted(
    loaded: sections.Scenario,
    planned: plans.Planned,
    replicas: int | None,
    seed: int | None,
) -> prediction.Prediction:
    """The step, with as many runs with noise as are asked for."""
    executed = steps.execute(planned)
    told = steps.reported(planned, executed, prices=True)
    result = host_effect.completed(loaded, planned, told)
    if replicas is None:
        return result
    step = result.step_time
    spread = spreads.replicas_of(planned, executed.steps, step, replicas, seed or 0)
    return replace(result, replicas=spread)


def _write(
    result: prediction.Prediction,
    trace: Path | None,
    part: dict[str, Any],
    timeline: Path | None,
) -> None:
    """The files of `--trace` and `--timeline`."""
    if trace is not None:
        shared.talk(exporters.export(result, trace, "chrome_trace", **part))
    if timeline is not None:
        opened = {key: value for key, value in part.items() if key == "kernels"}
        shared.talk(exporters.export(result, timeline, "parquet", **opened))


def _write_report(
    result: prediction.Prediction,
    report: Path | None,
    loaded: sections.Scenario,
    each: tuple[str, ...],
    planned: plans.Planned,
    remedies: Sequence[str],
) -> None:
    """The file of `--report`, where there is one to write."""
    if report is None:
        return
    page = _run_files.write_report(result, report, loaded, each, planned, remedies)
    shared.talk(f"wrote {page}")
