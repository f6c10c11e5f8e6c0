"""What befalls a job, from options: failures by component, the hosts that they take, times of detection and restart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from sim.collectives.nccl import creation
from sim.costs import schema
from sim.engine.job import HOUR, Job, young_daly
from sim.errors import InputError, Mistake, unknown
from sim.units import format_duration, parse_duration

WHERE = "command line"
SHORTEST = 1.0  # failures per second of a job that is worth simulating


FILE = Path(schema.__file__).with_name("reliability.toml")
_OF_A_HOST = ("gpu", "hbm", "nvlink", "nic", "host", "storage", "rack")
_COUNT = schema.Number(whole=True)
_TAKES = dict.fromkeys(_OF_A_HOST, _COUNT)
_TIMES = ("detect", "swap", "start", "repair")
_KEYS: dict[str, schema.Schema] = {
    "source": schema.Text(),
    "gpu_hours": schema.Number(above=True),
    "counts": schema.all_of((*_OF_A_HOST, "switch", "software"), _COUNT),
    "takes": schema.Table({**_TAKES, "evidence": schema.Text(schema.GRADES)}, _TAKES),
    "times": schema.all_of(_TIMES, schema.sourced(schema.Duration())),
}
SCHEMA = schema.Table(_KEYS, _KEYS)


@cache
def table() -> dict[str, Any]:
    """The defaults, as their file has them."""
    return schema.read(FILE, SCHEMA)


def rates_of(
    gpus: int,
    given: Sequence[str] = (),
    scale: float = 1.0,
    where: str = WHERE,
    key: str = "--rate",
) -> dict[str, float]:
    """Failures per second of a job by component: the defaults times `scale`, or NAME=failures per million GPU-hours.

    Raises
    ------
    InputError
        With every rate that is none.
    """
    told, mistakes = table(), list[Mistake]()
    rates = {
        name: count / told["gpu_hours"] * 1e6 * scale
        for name, count in told["counts"].items()
    }
    if not (math.isfinite(scale) and scale >= 0):
        mistakes.append(
            Mistake(
                WHERE, "--rate-scale", f"{scale:g}", "a number that is not negative"
            )
        )
    for item in given:
        name, _, value = item.partition("=")
        expected = "NAME=failures per million GPU-hours, such as gpu=9"
        if name not in rates:
            mistakes.append(unknown(where, key, name, rates))
            continue
        try:
            rates[name] = float(value)
        except ValueError:
            mistakes.append(Mistake(where, key, f'"{item}"', expected))
            continue
        if not (math.isfinite(rates[name]) and rates[name] >= 0):
            mistakes.append(
                Mistake(where, key, f'"{item}"', f"{expected}, not negative")
            )
    if mistakes:
        raise InputError(mistakes)
    return {name: rate / 1e6 / HOUR * gpus for name, rate in rates.items()}


def job_of(asked: Mapping[str, Any]) -> Job:
    """A job from options: texts with units, or None for the default.

    Raises
    ------
    InputError
        With everything that is wrong.
    """
    told, mistakes, s = table(), list[Mistake](), dict[str, float]()
    defaults = {name: one["value"] for name, one in told["times"].items()}
    for name in (
        "step_time",
        "save",
        "lag",
        "load",
        "interval",
        "detect",
        "swap",
        "start",
        "repair",
    ):
        text = asked.get(name) if asked.get(name) is not None else defaults.get(name)
        if isinstance(text, float) or text is None:
            s[name] = text if text is not None else math.nan
            continue
        try:
            s[name] = parse_duration(text, WHERE, f"--{name.replace('_', '-')}")
        except InputError as error:
            mistakes += error.mistakes
            s[name] = 1.0
    rates, takes = dict[str, float](), dict[str, int]()
    try:
        rates = rates_of(
            asked["gpus"], asked.get("rates", ()), asked.get("rate_scale", 1.0)
        )
    except InputError as error:
        mistakes += error.mistakes
    try:
        takes = takes_of(asked.get("takes", ()), asked["gpus"])
    except InputError as error:
        mistakes += error.mistakes
    if not (math.isfinite(asked["days"]) and asked["days"] > 0):
        mistakes.append(Mistake(WHERE, "--days", f"{asked['days']:g}", "more than 0"))
    if s["step_time"] <= 0:
        mistakes.append(
            Mistake(
                WHERE, "--step-time", format_duration(s["step_time"]), "more than 0"
            )
        )
    total = math.fsum(rates.values())
    if total > SHORTEST:
        found = f"a failure every {format_duration(1 / total)}"
        mistakes.append(
            Mistake(
                WHERE, "--rate", found, "a second between failures of the job at least"
            )
        )
    if math.isnan(s["interval"]):
        s["interval"] = max(
            s["step_time"],
            young_daly(s["save"], 1 / total) if total and s["save"] > 0 else HOUR,
        )
    if s["interval"] < max(s["save"], s["lag"]) or s["interval"] <= 0:
        found, least = (
            format_duration(s["interval"]),
            format_duration(max(s["save"], s["lag"])),
        )
        mistakes.append(
            Mistake(
                WHERE,
                "--interval",
                found,
                f"longer than a save ({least})",
                "save less often",
            )
        )
    elif s["interval"] < s["step_time"]:
        mistakes.append(
            Mistake(
                WHERE, "--interval", format_duration(s["interval"]), "at least a step"
            )
        )
    if mistakes:
        raise InputError(mistakes)
    made = s["start"] + creation.seconds(asked["gpus"])
    return Job(
        s["step_time"],
        asked["days"],
        s["interval"],
        s["save"],
        s["lag"],
        rates,
        takes,
        s["detect"],
        made,
        s["load"],
        asked["spares"],
        s["repair"],
        s["swap"],
        tuple(asked.get("speeds", (1.0,))),
    )


def evidence() -> dict[str, str]:
    """Grade of each default: rates are Llama 3's own counts; what is said on the command line has none."""
    told = table()
    return {"rates": "measured", "takes": str(told["takes"]["evidence"])} | {
        name: str(one["evidence"]) for name, one in told["times"].items()
    }


def takes_of(
    given: Sequence[str] = (),
    gpus: int | None = None,
    where: str = WHERE,
    key: str = "--takes",
) -> dict[str, int]:
    """Hosts that a failure takes out by component: the defaults, or NAME=hosts.

    Raises
    ------
    InputError
        With everything that is no number of hosts.
    """
    told, mistakes = table(), list[Mistake]()
    takes = {name: int(told["takes"].get(name, 0)) for name in told["counts"]}
    for item in given:
        name, _, value = item.partition("=")
        if name not in takes:
            mistakes.append(unknown(where, key, name, takes))
        elif not value.strip().isdecimal():
            mistakes.append(
                Mistake(where, key, f'"{item}"', "NAME=hosts, such as rack=8")
            )
        elif gpus is not None and int(value) > gpus:
            mistakes.append(
                Mistake(
                    where, key, f'"{item}"', f"no more hosts than the job's {gpus} GPUs"
                )
            )
        else:
            takes[name] = int(value)
    if mistakes:
        raise InputError(mistakes)
    return takes
