"""What `prestep goodput` does."""

from __future__ import annotations

from typing import Any

from prestep.sim.analysis.json_text import finite
from prestep.sim.commands._pages import show_page
from prestep.sim.commands._shared import echo_json, misused
from prestep.sim.reliability import goodput as simulation
from prestep.sim.reliability.degraded import plain_speeds

Options = dict[str, Any]

#: Training stands still for a save, which is durable later; loading one.
CHECKPOINT: Options = {"save": "2 s", "lag": "30 s", "load": "1 min"}
GPUS, SPARES = 16384, 32
GPUS_OF_HOST = GPUS_OF_REPLICA = 8


def goodput(
    scenario: str | None,
    overrides: tuple[str, ...],
    replicas: int,
    seed: int,
    optimal: bool,
    json_: bool,
    **options: Any,
) -> None:
    given = {name: value for name, value in options.items() if _is_given(value)}
    if scenario is None:
        settings = _without_scenario(given, overrides)
    else:
        # the simulator is slow to import
        from prestep.sim.reliability.scenario import settings_of

        settings = settings_of(scenario, overrides, given)
    job = simulation.job_of(settings)
    gpus = settings["gpus"]
    table = simulation.simulate(job, gpus, replicas, seed).to_json()
    if optimal:
        # every interval is simulated, each in fewer replicas
        few = max(2, replicas // 5)
        table |= simulation.optimal(job, gpus, few, seed).to_json()
    if json_:
        echo_json(finite(table))
    else:
        show_page(simulation.render(table))


def _is_given(value: object) -> bool:
    return value is not None and value is not False and value != ()


def _without_scenario(given: Options, overrides: tuple[str, ...]) -> Options:
    """The settings of a job of which only the step time is given."""
    if "step_time" not in given or overrides:
        found = "--set" if overrides else "neither a scenario nor --step-time"
        raise misused("goodput", found, "a scenario, or --step-time such as 10s")
    given = dict(given)
    host = given.pop("host_gpus", GPUS_OF_HOST)
    replica = given.pop("replica_gpus", GPUS_OF_REPLICA)
    settings: Options = {"gpus": GPUS, "spares": SPARES} | CHECKPOINT | given
    if given.get("degraded"):
        settings["speeds"] = plain_speeds(settings["gpus"], host, replica)
    return settings
