"""The command `prestep goodput`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from sim.commands._shared import as_json, changes, explained

if TYPE_CHECKING:
    from sim.analysis.prediction import Result
    from sim.spec.sections import Scenario


@click.command(
    epilog="Example: prestep goodput --step-time '10 s' --gpus 16384 --days 54"
)
@click.argument("scenario", required=False)
@changes
@click.option(
    "--step-time", metavar="TIME", help="Without a scenario: how long a step takes."
)
@click.option(
    "--gpus",
    type=click.IntRange(1),
    help="GPUs of the job; default: the scenario's, else 16384.",
)
@click.option(
    "--days", type=float, default=54.0, show_default=True, help="Length of the run."
)
@click.option(
    "--interval",
    metavar="TIME",
    help="Work between saves; default: the scenario's, else Young-Daly's.",
)
@click.option(
    "--save",
    metavar="TIME",
    help="Training stands still for a save; default: the scenario's, else 2 s.",
)
@click.option(
    "--lag",
    metavar="TIME",
    help="From there until it is durable; default: the scenario's, else 30 s.",
)
@click.option(
    "--load",
    metavar="TIME",
    help="Load a checkpoint; default: the scenario's, else 1 min.",
)
@click.option("--detect", metavar="TIME", help="Until a failure is noticed.")
@click.option("--swap", metavar="TIME", help="Bring in a spare host.")
@click.option(
    "--start",
    metavar="TIME",
    help="Start processes, without communicators and loading.",
)
@click.option("--repair", metavar="TIME", help="Until a broken host is a spare again.")
@click.option(
    "--spares",
    type=click.IntRange(0),
    help="Spare hosts; default: the scenario's, else 32.",
)
@click.option(
    "--degraded",
    is_flag=True,
    help="Without spares the job goes on with fewer data-parallel replicas.",
)
@click.option(
    "--replica-gpus",
    type=click.IntRange(1),
    help="Without a scenario: GPUs of a replica; default 8.",
)
@click.option(
    "--host-gpus",
    type=click.IntRange(1),
    help="Without a scenario: GPUs of a host; default 8.",
)
@click.option(
    "--takes",
    multiple=True,
    metavar="NAME=HOSTS",
    help="Hosts that a failure of a component takes out.",
)
@click.option(
    "--rate",
    "rates",
    multiple=True,
    metavar="NAME=RATE",
    help="Failures per million GPU-hours.",
)
@click.option(
    "--rate-scale",
    type=float,
    default=1.0,
    show_default=True,
    help="Factor on all default rates.",
)
@click.option(
    "--replicas",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="Runs to simulate.",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Of the failures.",
)
@click.option(
    "--optimal", is_flag=True, help="Also find the interval of the highest goodput."
)
@as_json
@explained
def command(
    scenario: str | None,
    overrides: tuple[str, ...],
    replicas: int,
    seed: int,
    optimal: bool,
    json_: bool,
    **asked: Any,
) -> None:
    """Effective training time of a job over weeks, with failures, restarts and checkpoints."""
    from sim.analysis.prediction import finite
    from sim.reliability import goodput as made

    told = _asked(scenario, overrides, asked)
    job = made.job_of(told)
    table = made.simulate(job, told["gpus"], replicas, seed).to_json()
    if optimal:
        table |= made.optimal(job, told["gpus"], max(2, replicas // 5), seed).to_json()
    click.echo(json.dumps(finite(table), indent=2) if json_ else made.render(table))


def _asked(
    scenario: str | None, overrides: tuple[str, ...], asked: dict[str, Any]
) -> dict[str, Any]:
    """Options, with what the scenario's step and its [checkpoint] say where nothing was given."""
    from sim.errors import InputError, Mistake

    given = {
        key: value
        for key, value in asked.items()
        if value is not None and value is not False and value != ()
    }
    pieces = {
        key: given.pop(key) for key in ("replica_gpus", "host_gpus") if key in given
    }
    if scenario is None:
        if "step_time" not in given or overrides:
            found = "--set" if overrides else "neither a scenario nor --step-time"
            raise InputError(
                Mistake(
                    "command line",
                    "goodput",
                    found,
                    "a scenario, or --step-time such as 10s",
                )
            )
        from sim.reliability.degraded import plain_speeds

        told: dict[str, Any] = {
            "gpus": 16384,
            "save": "2 s",
            "lag": "30 s",
            "load": "1 min",
            "spares": 32,
        } | given
        if given.get("degraded"):
            told["speeds"] = plain_speeds(
                told["gpus"], pieces.get("host_gpus", 8), pieces.get("replica_gpus", 8)
            )
        return told
    if pieces:
        raise InputError(
            Mistake(
                "command line",
                "--replica-gpus, --host-gpus",
                "a scenario too",
                "one of them",
            )
        )
    if "step_time" in given:
        raise InputError(
            Mistake("command line", "--step-time", "a scenario too", "one of them")
        )
    from sim.predict import predict
    from sim.spec.jobs import refuse
    from sim.spec.load import load_scenario
    from sim.tools.catalog import find_scenario

    loaded = load_scenario(find_scenario(scenario), overrides)
    refuse(loaded, "goodput")
    result = predict(loaded)
    told = {"gpus": int(result.scenario["gpus"]), "step_time": result.step_time}
    if (c := result.checkpoint) is None:
        told |= {"save": "2 s", "lag": "30 s", "load": "1 min"}
    else:
        told |= {
            "save": c["save_stall"],
            "lag": c["time_until_durable"] - c["save_stall"],
            "load": c["load_time"],
        }
        told |= {"interval": c["every"] * result.step_time} if "every" in c else {}
    told |= _befalls(loaded, result, bool(given.get("degraded")))
    both = {
        key: (*told.get(key, ()), *given.get(key, ())) for key in ("rates", "takes")
    }
    return told | given | both


def _befalls(loaded: Scenario, result: Result, degraded: bool) -> dict[str, Any]:
    """What the scenario's [faults] says of failures; options come after it."""
    from sim.reliability.degraded import simulated_speeds
    from sim.reliability.failures import rates_of, takes_of

    f = loaded.faults
    told: dict[str, Any] = {
        name: getattr(f, name)
        for name in ("detect", "repair")
        if getattr(f, name) is not None
    }
    told |= {
        name: tuple(f"{key}={value}" for key, value in getattr(f, name).items())
        for name in ("rates", "takes")
    }
    rates_of(
        1, told["rates"], 1.0, loaded.where, "faults.rates"
    )  # so that mistakes have their place
    takes_of(told["takes"], None, loaded.where, "faults.takes")
    told["spares"] = 32 if f.spares is None else f.spares
    if (degraded or f.degraded) and result.source is not None:
        fabric, gpus = result.source.fabric, result.source.gpus
        hosts = [fabric.host_of(gpu) for gpu in gpus or fabric.gpus]
        told["speeds"] = simulated_speeds(
            loaded, result.step_time, hosts.count(hosts[0])
        )
    return told
