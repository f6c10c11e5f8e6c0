"""What befalls a job, from options: failures by component, the hosts that they take, times of detection and restart."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from prestep.sim import schema
from prestep.sim.collectives.nccl import creation
from prestep.sim.errors import InputError, Mistake, unknown
from prestep.sim.reliability.job import Job, young_daly
from prestep.sim.reliability.slow_hosts import HOUR, NONE, Slow, slow_of
from prestep.sim.units import format_duration, parse_duration
from prestep.workloads.operation import words

WHERE = "command line"
TIMES = words("step_time save lag load interval detect swap start repair notice")
SHORTEST = 1.0  # failures per second of a job that is worth simulating
Number = TypeVar("Number", int, float)


FILE = Path(__file__).parents[1] / "costs" / "reliability.toml"
_OF_A_HOST = ("gpu", "hbm", "nvlink", "nic", "host", "storage", "rack")
_COUNT = schema.Number(whole=True)
_TAKES = dict.fromkeys(_OF_A_HOST, _COUNT)
_TIMES = ("detect", "swap", "start", "repair", "notice")
_LEVEL = {
    "time": schema.sourced(schema.Written(parse_duration)),
    "finds": schema.sourced(schema.Number(low=0, high=1.0)),
}
LEVELS = ("r1", "r2", "r3", "r4")
_KEYS: dict[str, schema.Schema] = {
    "source": schema.Text(),
    "gpu_hours": schema.Number(above=True),
    "counts": schema.all_of((*_OF_A_HOST, "switch", "software"), _COUNT),
    "takes": schema.Table({**_TAKES, "evidence": schema.Text(schema.GRADES)}, _TAKES),
    "preflight": schema.all_of(LEVELS, schema.Table(_LEVEL, _LEVEL)),
    "times": schema.all_of(_TIMES, schema.sourced(schema.Written(parse_duration))),
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
    defaults = table()
    mistakes: list[Mistake] = []
    rates = {
        name: count / defaults["gpu_hours"] * 1e6 * scale
        for name, count in defaults["counts"].items()
    }
    if not (math.isfinite(scale) and scale >= 0):
        expected = "a number that is not negative"
        mistakes.append(Mistake(WHERE, "--rate-scale", f"{scale:g}", expected))
    for item in given:
        name, _, value = item.partition("=")
        if name not in rates:
            mistakes.append(unknown(where, key, name, rates))
            continue
        with InputError.collected(mistakes):
            rates[name] = _rate(item, value, where, key)
    InputError.check(mistakes)
    return {name: rate / 1e6 / HOUR * gpus for name, rate in rates.items()}


def _rate(item: str, value: str, where: str, key: str) -> float:
    """The rate that an option `item` says."""
    expected = "NAME=failures per million GPU-hours, such as gpu=9"
    try:
        rate = float(value)
    except ValueError:
        raise InputError.of(where, key, f'"{item}"', expected) from None
    if not (math.isfinite(rate) and rate >= 0):
        expected = f"{expected}, not negative"
        raise InputError.of(where, key, f'"{item}"', expected)
    return rate


def job_of(options: Mapping[str, Any]) -> Job:
    """A job from options: texts with units, or None for the default.

    Raises
    ------
    InputError
        With everything that is wrong.
    """
    mistakes: list[Mistake] = []
    times = _times(options, mistakes)
    gpus, days = options["gpus"], options["days"]
    rates, takes = _components(options, mistakes)
    total = math.fsum(rates.values())
    times["interval"] = _interval(times, total)
    mistakes += _implausible(days, times["step_time"], total)
    mistakes += _wrong_interval(times)
    slow = _slow(options, times["notice"], mistakes)
    InputError.check(mistakes)
    starting = times["start"] + creation.seconds(gpus)
    return Job(
        times["step_time"],
        days,
        times["interval"],
        times["save"],
        times["lag"],
        rates,
        takes,
        times["detect"],
        starting,
        times["load"],
        options["spares"],
        times["repair"],
        times["swap"],
        tuple(options.get("speeds", (1.0,))),
        slow,
    )


def _components(
    options: Mapping[str, Any], mistakes: list[Mistake]
) -> tuple[dict[str, float], dict[str, int]]:
    """Failures per second of each component, and the hosts that each takes out."""
    gpus, scale = options["gpus"], options.get("rate_scale", 1.0)
    rates = _or_none(rates_of, mistakes, gpus, options.get("rates", ()), scale)
    return rates, _or_none(takes_of, mistakes, options.get("takes", ()), gpus)


def _slow(options: Mapping[str, Any], notice: float, mistakes: list[Mistake]) -> Slow:
    """The slow hosts that options say; none, and their mistakes, where they are wrong."""
    try:
        return slow_of(options, notice, table()["preflight"])
    except InputError as error:
        mistakes += error.mistakes
        return NONE


def _or_none(
    read: Callable[..., dict[str, Number]], mistakes: list[Mistake], *options: Any
) -> dict[str, Number]:
    """What `read` makes of some options; nothing, and its mistakes, where they are wrong."""
    try:
        return read(*options)
    except InputError as error:
        mistakes += error.mistakes
        return {}


def _times(options: Mapping[str, Any], mistakes: list[Mistake]) -> dict[str, float]:
    """Seconds by option; those that cannot be read are 1 s and a mistake, one without a default is nan."""
    defaults = {name: entry["value"] for name, entry in table()["times"].items()}
    times: dict[str, float] = {}
    for name in TIMES:
        value = options.get(name)
        value = defaults.get(name) if value is None else value
        if value is None or isinstance(value, float):
            times[name] = math.nan if value is None else value
            continue
        try:
            times[name] = parse_duration(value, WHERE, f"--{name.replace('_', '-')}")
        except InputError as error:
            mistakes += error.mistakes
            times[name] = 1.0
    return times


def _interval(times: Mapping[str, float], rate: float) -> float:
    """The interval that is asked for; else Young and Daly's for so many failures a second, but a step at least."""
    if not math.isnan(times["interval"]):
        return times["interval"]
    save = times["save"]
    best = young_daly(save, 1 / rate) if rate and save > 0 else HOUR
    return max(times["step_time"], best)


# Of a run: centuries of any machine, and half a minute of simulating them.
MOST_FAILURES = 1_000_000


def _implausible(days: float, step: float, rate: float) -> Iterator[Mistake]:
    """Lengths that are none, and failures that leave no time to work."""
    if not (math.isfinite(days) and days > 0):
        yield Mistake(WHERE, "--days", f"{days:g}", "more than 0")
    elif (failures := days * 24 * HOUR * rate) > MOST_FAILURES:
        found = f"{days:g} days, in which {failures:g} parts fail"
        yield Mistake(WHERE, "--days", found, f"at most {MOST_FAILURES:,} failures")
    if step <= 0:
        yield Mistake(WHERE, "--step-time", format_duration(step), "more than 0")
    if rate > SHORTEST:
        found = f"a failure every {format_duration(1 / rate)}"
        expected = "a second between failures of the job at least"
        yield Mistake(WHERE, "--rate", found, expected)


def _wrong_interval(times: Mapping[str, float]) -> Iterator[Mistake]:
    """An interval in which a save does not end, or no step does."""
    interval, least = times["interval"], max(times["save"], times["lag"])
    found = format_duration(interval)
    if interval < least or interval <= 0:
        expected = f"longer than a save ({format_duration(least)})"
        yield Mistake(WHERE, "--interval", found, expected, "save less often")
    elif interval < times["step_time"]:
        yield Mistake(WHERE, "--interval", found, "at least a step")


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
    InputError.check(mistakes)
    return takes
