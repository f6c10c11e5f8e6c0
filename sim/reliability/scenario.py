"""What `prestep goodput` reads from a scenario: its step, [checkpoint] and [faults]."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from prestep.sim.analysis.prediction import Prediction
from prestep.sim.commands._shared import misused
from prestep.sim.errors import InputError
from prestep.sim.predict import predict, step_time
from prestep.sim.reliability.degraded import largest_loss, progress_by_hosts
from prestep.sim.reliability.failures import rates_of, takes_of
from prestep.sim.reliability.section import Faults
from prestep.sim.spec.jobs import refuse
from prestep.sim.spec.load import load_scenario
from prestep.sim.spec.sections import Measured, Scenario
from prestep.sim.tools.catalog import find_scenario


def simulated_speeds(
    scenario: Scenario, step: float, per_host: int
) -> tuple[float, ...]:
    """Progress with 0, 1, 2, ... hosts missing, from the step simulator; `step` is that of the whole job (s).

    Raises
    ------
    InputError
        If there is no replica to lose, or ranks have places of their own.
    """
    p = scenario.parallel
    if p.dp < 2 or p.ep > 1:
        found = (
            "one data-parallel replica" if p.dp < 2 else f"experts over {p.ep} replicas"
        )
        raise InputError.of(
            scenario.where, "faults.degraded", found, "two whole replicas or more"
        )
    if (
        scenario.placement.gpus
        or scenario.placement.hosts
        or scenario.placement.hostfile
    ):
        raise InputError.of(
            scenario.where, "faults.degraded", "a placement by name", "ranks in order"
        )
    most = largest_loss(p.dp)
    points = sorted({1, most, round(math.sqrt(most))})
    ratios = [step / step_time(fewer(scenario, lost)) for lost in points]
    return progress_by_hosts(
        p.dp,
        per_host,
        p.tp * p.pp * p.cp,
        np.interp(np.arange(1, most + 1), points, ratios),
    )


def fewer(scenario: Scenario, lost: int) -> Scenario:
    """The same job with `lost` data-parallel replicas fewer, on as many GPUs fewer."""
    p, t = scenario.parallel, scenario.training
    dp = p.dp - lost
    if t.global_batch is not None:
        t = replace(t, global_batch=t.global_batch // p.dp * dp)
    return replace(
        scenario,
        parallel=replace(p, dp=dp, data_parallel=p.data_parallel if dp > 1 else None),
        training=t,
        cluster=replace(scenario.cluster, gpus=dp * p.tp * p.pp * p.cp),
        measured=Measured(),
        extensions={},
    )


Options = dict[str, Any]

#: Training stands still for a save, which is durable later; loading one.
CHECKPOINT: Options = {"save": "2 s", "lag": "30 s", "load": "1 min"}
SPARES = 32


def settings_of(scenario: str, overrides: tuple[str, ...], given: Options) -> Options:
    """Options, with what the scenario's step, [checkpoint] and [faults] say where nothing was given."""
    if "replica_gpus" in given or "host_gpus" in given:
        found = "a scenario too"
        raise misused("--replica-gpus, --host-gpus", found, "one of them")
    if "step_time" in given:
        raise misused("--step-time", "a scenario too", "one of them")
    loaded = load_scenario(find_scenario(scenario), overrides)
    refuse(loaded, "goodput")
    result = predict(loaded)
    failures = _failures(loaded)
    speeds = _speeds(loaded, result, bool(given.get("degraded")))
    settings: Options = (
        {"gpus": int(result.scenario["gpus"]), "step_time": result.step_time}
        | _checkpoint(result)
        | failures
        | speeds
    )
    # options come after what the scenario says of the same component
    both = {
        name: (*settings[name], *given.get(name, ())) for name in ("rates", "takes")
    }
    return settings | given | both


def _checkpoint(result: Prediction) -> Options:
    """Times of saving and loading (s), as the step's prediction has them: of the saves after the first."""
    checkpoint = result.effects.get("checkpoint")
    if checkpoint is None:
        return CHECKPOINT
    later = checkpoint["later"]
    stall = later["save_stall"]
    settings = {
        "save": stall,
        "lag": later["time_until_durable"] - stall,
        "load": checkpoint["load_time"],
    }
    if "every" in checkpoint:
        settings["interval"] = checkpoint["every"] * result.step_time
    return settings


def _of_weeks(loaded: Scenario) -> Faults:
    """The scenario's [faults] with our keys; a scenario without that section has the core's class."""
    return loaded.faults if isinstance(loaded.faults, Faults) else Faults()


def _failures(loaded: Scenario) -> Options:
    """What the scenario's [faults] says of failures."""
    faults = _of_weeks(loaded)
    times = {"detect": faults.detect, "repair": faults.repair}
    rates = tuple(f"{name}={rate}" for name, rate in faults.rates.items())
    takes = tuple(f"{name}={hosts}" for name, hosts in faults.takes.items())
    # read here too, so that mistakes name the scenario and not the command line
    rates_of(1, rates, 1.0, loaded.where, "faults.rates")
    takes_of(takes, None, loaded.where, "faults.takes")
    return {
        **{name: value for name, value in times.items() if value is not None},
        "rates": rates,
        "takes": takes,
        "spares": SPARES if faults.spares is None else faults.spares,
    }


def _speeds(loaded: Scenario, result: Prediction, degraded: bool) -> Options:
    """The job's progress with hosts missing, where it goes on without them."""
    details = result.details
    if details is None or not (degraded or _of_weeks(loaded).degraded):
        return {}
    hosts = [details.fabric.host_of(gpu) for gpu in details.gpus]
    of_first_host = hosts.count(hosts[0])
    return {"speeds": simulated_speeds(loaded, result.step_time, of_first_host)}
