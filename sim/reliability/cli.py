"""Effective training time of a job over weeks, with failures, restarts and checkpoints."""

from __future__ import annotations

from typing import Any

import click

from prestep.sim.commands import _shared as shared
from prestep.sim.extras import lazily

with lazily():
    from prestep.sim.reliability import degraded, goodput
    from prestep.sim.reliability import scenario as scenarios
    from prestep.sim.spec import openers
    from prestep.sim.tools import catalog

GROUP = "Predict"
Options = dict[str, Any]

GPUS = 16384
GPUS_OF_HOST = GPUS_OF_REPLICA = 8

_TIMES = {
    "--interval": "Work between saves; default: the scenario's, else Young-Daly's.",
    "--save": "Training stands still for a save; default: the scenario's, else 2 s.",
    "--lag": "From there until it is durable; default: the scenario's, else 30 s.",
    "--load": "Load a checkpoint; default: the scenario's, else 1 min.",
    "--detect": "Until a failure is noticed.",
    "--swap": "Bring in a spare host.",
    "--start": "Start processes, without communicators and loading.",
    "--repair": "Until a broken host is a spare again.",
    "--notice": "Until a slow host is noticed.",
}
_REPLACED = {
    "--replica-gpus": "Without a scenario: GPUs of a replica; default 8.",
    "--host-gpus": "Without a scenario: GPUs of a host; default 8.",
}
#: Hosts that are slow and fail nothing.
_SLOW_HOSTS = {
    "--bad": "Share of GPUs that are slow from the start.",
    "--slow-rate": "Hosts that become slow, per million GPU-hours.",
    "--slowdown": "Factor on a step with a slow host; default 1.2.",
    "--finds": "Share of slow hosts that the tests find; default: the level's.",
}


#: What fails, how long that takes, and who stands in.
_FAILURES = shared.together(
    shared.options(_TIMES, metavar="TIME"),
    click.option(
        "--spares",
        type=click.IntRange(0),
        help="Spare hosts; default: the scenario's, else 32.",
    ),
    click.option(
        "--degraded",
        is_flag=True,
        help="Without spares the job goes on with fewer data-parallel replicas.",
    ),
    shared.options(_REPLACED, type=click.IntRange(1)),
    click.option(
        "--takes",
        multiple=True,
        metavar="NAME=HOSTS",
        help="Hosts that a failure of a component takes out.",
    ),
    click.option(
        "--rate",
        "rates",
        multiple=True,
        metavar="NAME=RATE",
        help="Failures per million GPU-hours.",
    ),
    click.option(
        "--rate-scale",
        type=float,
        default=1.0,
        show_default=True,
        help="Factor on all default rates.",
    ),
    shared.options(_SLOW_HOSTS, type=float),
    click.option(
        "--preflight",
        metavar="LEVEL|TIME",
        help="Tests before every start: r1 to r4 of NVIDIA DCGM, or a time.",
    ),
)


#: How often the weeks are simulated.
_SIMULATED = shared.together(
    click.option(
        "--replicas",
        type=click.IntRange(1, shared.MOST_REPLICAS),
        default=100,
        show_default=True,
        help="Runs to simulate.",
    ),
    click.option(
        "--seed",
        type=click.IntRange(0),
        default=0,
        show_default=True,
        help="Of the failures.",
    ),
    click.option(
        "--optimal", is_flag=True, help="Also find the interval of the highest goodput."
    ),
)


@click.command(
    help=__doc__,
    epilog="Example: prestep goodput --step-time '10 s' --gpus 16384 --days 54",
)
@click.argument("scenario", required=False)
@shared.changes
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
@_FAILURES
@_SIMULATED
@shared.as_json
@shared.explained
def command(
    scenario: str | None,
    overrides: tuple[str, ...],
    replicas: int,
    seed: int,
    optimal: bool,
    json_: bool,
    **stated: Any,
) -> None:
    given = {name: value for name, value in stated.items() if _is_given(value)}
    if scenario is None:
        settings = _without_scenario(given, overrides)
    else:
        # A wrong name is told before the simulator is imported.
        openers.tables_of(catalog.find_scenario(scenario))
        settings = scenarios.settings_of(scenario, overrides, given)
    job = goodput.job_of(settings)
    gpus = settings["gpus"]
    table = goodput.simulate(job, gpus, replicas, seed).to_json()
    if optimal:
        # every interval is simulated, each in fewer replicas
        few = max(2, replicas // 5)
        table |= goodput.optimal(job, gpus, few, seed).to_json()
    shared.show_result(json_, lambda: table, lambda: goodput.render(table))


def _is_given(value: object) -> bool:
    return value is not None and value is not False and value != ()


def _without_scenario(given: Options, overrides: tuple[str, ...]) -> Options:
    """The settings of a job of which only the step time is given."""
    if "step_time" not in given or overrides:
        found = "--set" if overrides else "neither a scenario nor --step-time"
        raise shared.misused("goodput", found, "a scenario, or --step-time such as 10s")
    given = dict(given)
    host = given.pop("host_gpus", GPUS_OF_HOST)
    replica = given.pop("replica_gpus", GPUS_OF_REPLICA)
    usual = {"gpus": GPUS, "spares": scenarios.SPARES} | scenarios.CHECKPOINT
    settings: Options = usual | given
    if given.get("degraded"):
        settings["speeds"] = degraded.plain_speeds(settings["gpus"], host, replica)
    return settings
