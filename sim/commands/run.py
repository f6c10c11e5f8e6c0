"""The command `prestep run`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sim.commands._shared import (
    EXIT_OUTSIDE,
    as_json,
    changes,
    echo_json,
    explained,
    file_option,
    talk,
)
from sim.exporters import _run_files

if TYPE_CHECKING:
    from sim.analysis.prediction import Result
    from sim.spec.sections import Scenario


@click.command(
    epilog="\b\n"
    "Examples:\n"
    "  prestep run llama1b-ddp4 --set training.micro_batch=2 --json\n"
    "  prestep run llama1b-ddp4 --report step.html --trace step.json.gz\n"
)
@click.argument("scenario", required=False)
@changes
@as_json
@click.option(
    "--trace",
    metavar="FILE|DIR/",
    type=click.Path(path_type=Path),
    help="Write a Chrome trace (.json or .json.gz) for Perfetto; into a folder, one file per rank (for HTA).",
)
@file_option("--timeline", text="Write the timeline as Parquet.")
@_run_files.options
@click.option(
    "--strict", is_flag=True, help="Fail when the prediction rests on a fallback."
)
@click.option(
    "--replicas",
    type=click.IntRange(1),
    help="Runs with noise ([faults] jitter): their distribution.",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    help="Of the noise; default 0. The same seed gives the same runs.",
)
@click.option(
    "--max-micro-batch",
    is_flag=True,
    help="Find the largest micro batch that fits; exit 1 if none does.",
)
@explained
def command(
    scenario: str | None,
    overrides: tuple[str, ...],
    json_: bool,
    trace: Path | None,
    timeline: Path | None,
    strict: bool,
    replicas: int | None,
    seed: int | None,
    max_micro_batch: bool,
    report: Path | None,
    each: tuple[str, ...],
    trace_window: str,
    trace_ranks: str,
) -> None:
    """Predict one training step of SCENARIO: a file, or a bundled one (`prestep list scenarios`)."""
    from sim import exporters
    from sim.spec.load import load_scenario
    from sim.spec.sections import Inference
    from sim.tools.catalog import find_scenario

    part = _run_files.check(trace, report, each, trace_window, trace_ranks)
    loaded = load_scenario(find_scenario(scenario), overrides)
    _check_replicas(replicas, seed, loaded, max_micro_batch)
    if max_micro_batch:
        _largest(loaded, json_, trace or timeline or report)
        return
    if loaded.inference != Inference():
        _serve(loaded, json_, trace or timeline or report or replicas)
        return
    if loaded.jobs:
        _run_jobs(loaded, json_, trace or timeline or report, strict)
        return
    from sim.predict import (
        predict,  # after the scenario is known to be good: its imports are the slow ones
    )

    result = predict(loaded, prices=True)
    if replicas is not None:
        result = _repeated(result, replicas, seed or 0)
    if json_:
        click.echo(result.to_json())
    else:
        from sim.exporters import terminal

        click.echo(terminal.render(result))
    for exporter, path, options in (
        ("chrome_trace", trace, part),
        ("parquet", timeline, {}),
    ):
        if path is not None:
            talk(f"wrote {exporters.write(result, path, exporter, **options)}")
    if report is not None:
        from validation.index.measured import lookup

        known = lookup(loaded, result.step_time)
        talk(f"wrote {_run_files.write_report(result, report, loaded, each, known)}")
    if strict and result.fallbacks:
        talk(result.refusal)
        sys.exit(EXIT_OUTSIDE)


def _check_replicas(
    replicas: int | None, seed: int | None, loaded: Scenario, largest: bool
) -> None:
    from sim.errors import InputError, Mistake
    from sim.spec.jobs import refuse

    if replicas is None:
        if seed is not None:
            hint = "a single run has no noise"
            raise InputError(
                Mistake(
                    "command line", "--seed", str(seed), "--replicas N beside it", hint
                )
            )
        return
    if largest:
        raise InputError(
            Mistake(
                "command line",
                "--replicas",
                str(replicas),
                "nothing beside --max-micro-batch",
            )
        )
    refuse(loaded, "--replicas")


def _repeated(result: Result, replicas: int, seed: int) -> Result:
    """The result with the distribution of its step over runs with noise."""
    from sim.studies.replicas import replicas_of

    if result.source is None:
        raise RuntimeError("a prediction comes with its simulation")
    return replace(
        result, replicas=replicas_of(result.source, result.step_time, replicas, seed)
    )


def _largest(scenario: Scenario, json_: bool, file: Path | None) -> None:
    """`run --max-micro-batch`."""
    from sim.errors import InputError, Mistake
    from sim.spec.jobs import refuse
    from sim.studies.largest import largest_micro_batch

    refuse(scenario, "--max-micro-batch")
    if file is not None:
        raise InputError(
            Mistake(
                "command line",
                str(file),
                "a file",
                "none: --max-micro-batch predicts no step",
            )
        )
    found = largest_micro_batch(scenario)
    if json_:
        echo_json(found.to_dict())
    else:
        click.echo(str(found))
    if not found.micro_batch:
        sys.exit(EXIT_OUTSIDE)


def _serve(scenario: Scenario, json_: bool, other: Path | int | None) -> None:
    """`run` of a scenario with [inference]."""
    from sim.errors import InputError, Mistake
    from sim.serving import serving

    if other is not None:
        raise InputError(
            Mistake(
                "command line",
                str(other),
                "[inference]",
                "a training step for traces and replicas",
            )
        )
    made = serving.predict(scenario)
    if json_:
        echo_json(made)
    else:
        click.echo(serving.render(made))


def _run_jobs(scenario: Scenario, json_: bool, file: Path | None, strict: bool) -> None:
    """`run` of several jobs on one cluster."""
    from sim.errors import InputError, Mistake
    from sim.exporters import terminal
    from sim.studies.shared_cluster import predict

    if file is not None:
        raise InputError(
            Mistake(
                "command line",
                str(file),
                f"{len(scenario.jobs)} jobs",
                "one job for a trace",
            )
        )
    together = predict(scenario)
    click.echo(together.to_json() if json_ else terminal.render_jobs(together))
    refused = [
        result.refusal for result in together.results.values() if result.fallbacks
    ]
    if strict and refused:
        talk("\n".join(refused))
        sys.exit(EXIT_OUTSIDE)


def predicted(scenario: str | None, overrides: tuple[str, ...]) -> Result:
    """What `run` prints, for programs that print it elsewhere."""
    from sim.spec.jobs import refuse
    from sim.spec.load import load_scenario
    from sim.tools.catalog import find_scenario

    loaded = load_scenario(find_scenario(scenario), overrides)
    refuse(loaded, "this; `prestep run` predicts several")
    from sim.predict import (
        predict,  # after the scenario is known to be good: its imports are the slow ones
    )

    return predict(loaded, prices=True)
