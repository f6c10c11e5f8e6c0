"""How results are worded for people; shared by the exporters that print."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from prestep.sim import __version__
from prestep.sim.analysis.critical_path import HOST
from prestep.sim.analysis.energy import Energy
from prestep.sim.analysis.link_use import Link
from prestep.sim.analysis.memory import MemoryVerdict
from prestep.sim.analysis.prediction import Prediction
from prestep.sim.analysis.uncertainty import (
    GUESS,
    Uncertainty,
)
from prestep.sim.units import count, format_bytes, format_duration, percent

INLINE = "inline"  # the name of a model whose sizes the scenario gives
HALF = 0.5  # a step that rests on guesses to more than this has the main one named
SHARES = {
    "compute": "compute",
    "bubble": "pipeline bubble",
    "straggler": "waiting for slower ranks",
    "io": "input and output",
    "host": "waiting for the host",
    "idle": "idle",
}


def share_name(key: str) -> str:
    """`exposed_dp` -> `exposed dp communication`."""
    if key.startswith("exposed_"):
        return f"exposed {key.removeprefix('exposed_')} communication"
    return SHARES.get(key, key)


def headline(result: Prediction) -> Iterator[tuple[str, str]]:
    """Rows (what, how much) of the first table."""
    yield "step time", format_duration(result.step_time)
    if result.uncertainty is not None:
        yield nominal(result.uncertainty), interval(result.uncertainty)
    if result.expected_error is not None:
        yield "expected error", expected(result.expected_error)
        yield "nearest steps", nearest(result.expected_error)
    if result.measured is not None and result.signed_error is not None:
        measured = format_duration(result.measured)
        error = percent(result.signed_error, True)
        yield "measured", f"{measured}  (prediction off by {error}{fitted(result)})"
    if extremes := _extremes(result):
        (fast, fastest), (slow, slowest) = extremes
        yield "ranks", f"fastest {fast}: {fastest}, slowest {slow}: {slowest}"
    throughput, unit = _throughput(result)
    yield "throughput", f"{throughput} {unit}"
    if math.isfinite(result.mfu):
        speed = f"{result.tflops_per_gpu:.4g} TFLOP/s per GPU"
        yield "model flops", f"{speed}, MFU {percent(result.mfu)}{_peak(result)}"


def fitted(result: Prediction) -> str:
    """What to add where the measured run is one that constants were taken from; else ""."""
    return "; constants were fitted to this run" if result.measured_fitted else ""


def _peak(result: Prediction) -> str:
    """` of the peak of fp8 92 %, bf16 8 %`: formats of the products."""
    peak = result.scenario.get("peak", "")
    return f" of the peak of {peak}" if peak else ""


def _extremes(result: Prediction) -> tuple[tuple[int, str], tuple[int, str]] | None:
    """(rank, step time) of the fastest and of the slowest; None where all take as long, to a thousandth."""
    times = result.step_time_by_rank
    if not times or max(times.values()) <= 1.001 * min(times.values()):
        return None
    fast, slow = min(times, key=times.__getitem__), max(times, key=times.__getitem__)
    return (fast, format_duration(times[fast])), (slow, format_duration(times[slow]))


def _throughput(result: Prediction) -> tuple[str, str]:
    """`97 412`, `tokens/s per GPU`."""
    sample = result.scenario.get("sample", "tokens")
    if not math.isfinite(result.tokens_per_second_per_gpu):  # a recorded program's
        return f"{1.0 / result.step_time:.4g}", "steps/s"
    return count(result.tokens_per_second_per_gpu), f"{sample}/s per GPU"


Tile = tuple[str, str, str]


def tiles(result: Prediction) -> Iterator[Tile]:
    """(what, how much, what else is to be said) of the figures that come first."""
    yield from _time_tiles(result)
    throughput, unit = _throughput(result)
    yield "throughput", throughput, unit
    if math.isfinite(result.mfu):
        speed = f"{result.tflops_per_gpu:.4g} model TFLOP/s per GPU"
        yield "MFU", percent(result.mfu), speed + _peak(result)
    if result.out_of_memory is not None:
        yield _memory_tile(result.out_of_memory)
    if result.evidence:
        yield _trust_tile(result)


def _time_tiles(result: Prediction) -> Iterator[Tile]:
    """The step time, the one that was measured, and the slowest rank's."""
    spread = result.uncertainty
    width = f"{nominal(spread)} {_between(spread)}" if spread else ""
    yield "step time", format_duration(result.step_time), width
    if result.measured is not None and result.signed_error is not None:
        error = f"the prediction is off by {percent(result.signed_error, True)}{fitted(result)}"
        yield "measured", format_duration(result.measured), error
    if extremes := _extremes(result):
        (fast, fastest), (slow, slowest) = extremes
        yield "slowest rank", slowest, f"rank {slow}; fastest {fastest}, rank {fast}"


def _memory_tile(verdict: MemoryVerdict) -> Tile:
    room = "" if verdict.capacity is None else f"of {format_bytes(verdict.capacity)} "
    fits = "" if verdict.fits else ": OUT OF MEMORY"
    text = f"{room}{verdict.where}{fits}"
    return "memory", format_bytes(verdict.needed), text


def _trust_tile(result: Prediction) -> Tile:
    """How far to trust the step: the error on measured steps like it, and what of it rests on guesses."""
    guesses = _guessed(result.uncertainty)
    near = result.expected_error
    if near is None:
        return (
            "expected error",
            "not known",
            f"no measured steps like it were compared{guesses}",
        )
    text = f"on {near['n']} measured steps like it{guesses}"
    return "expected error", percent(near["error"]), text


def _guessed(interval: Uncertainty | None) -> str:
    # what would be printed as 0.0 % is not worth a word
    if interval is None or interval.guessed < 5e-4:
        return ""
    main = _main_guess(interval) if interval.guessed > HALF else ""
    return f"; {percent(interval.guessed)} of the step rests on guesses{main}"


def _main_guess(interval: Uncertainty) -> str:
    """What most of the guessed seconds are, where it is one thing."""
    guesses = {p.constant: p.seconds for p in interval.parts if p.grade == GUESS}
    largest = max(guesses, key=guesses.__getitem__, default="")
    if not largest or guesses[largest] <= HALF * sum(guesses.values()):
        return ""
    name = "the speed of the host" if largest == HOST else largest
    return f", most of them {name}"


def nominal(interval: Uncertainty) -> str:
    """`80 % interval`."""
    return f"{interval.nominal:.0%} interval".replace("%", " %")


def _between(interval: Uncertainty) -> str:
    return f"{format_duration(interval.low)} to {format_duration(interval.high)}"


def interval(uncertainty: Uncertainty) -> str:
    """`70.1 ms to 75.3 ms, 12 % of it on guesses`."""
    return f"{_between(uncertainty)}{_guessed(uncertainty)}"


def expected(error: Mapping[str, Any]) -> str:
    """`3.3 % on 9 measured steps, none of them fitted`."""
    return (
        f"{percent(error['error'])} on {error['n']} measured steps, none of them fitted"
    )


def nearest(error: Mapping[str, Any]) -> str:
    """What these steps share with the run: `32 to 512 H100, pytorch-eager, transformer, fsdp`."""
    few, many = error["gpus"]
    gpus = f"{few:,}" if few == many else f"{few:,} to {many:,}"
    shared = (error["framework"], error["model"], error["layout"])
    return ", ".join((f"{gpus} {error['gpu'].upper()}", *filter(None, shared)))


def shares(result: Prediction) -> Iterator[tuple[str, float, float]]:
    """Rows (name, seconds, share of the step), shares of nothing left out."""
    for key, seconds in result.breakdown.items():
        part = seconds / result.step_time if result.step_time else 0.0
        if part >= 5e-5:
            yield share_name(key), seconds, part


def price(seconds: float) -> str:
    """What 1 % more bandwidth saves, by the shadow price (costs: with a minus)."""
    return f"{'-' if seconds < 0 else ''}{format_duration(abs(seconds) / 100)}"


def saved(link: Link) -> str:
    """The same for one link: `12 us`; with others that are as tight, `12 us (32 links)`; `-` for nothing."""
    if link.shadow_price is None:
        return ""
    if not link.shadow_price:
        return "-"
    return price(link.shadow_price) + (f" ({link.tied} links)" if link.tied > 1 else "")


def energy(result: Prediction, cost: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Rows (what, how much) of watts, joules and prices."""
    samples = str(result.scenario.get("sample", "tokens"))
    if result.energy is None:
        yield "power", f"not known of {result.scenario.get('gpu', 'this GPU')}"
    else:
        yield from _watts(result.energy)
        joules = f"{result.energy.step_energy:.4g} J a step"
        if math.isfinite(result.energy.energy_per_token):
            joules += f", {result.energy.energy_per_token:.3g} J a {samples.removesuffix('s')}"
        yield "energy", joules
        yield "1,000 steps", f"{cost['kilowatt_hours']:.4g} kWh"
    if cost["step"]:
        yield "a step costs", f"{cost['step']:.4g}{_parts_of(cost)}"
        if math.isfinite(cost["million_tokens"]):
            yield f"a million {samples} cost", f"{cost['million_tokens']:.4g}"


def _clock(drawn: Energy) -> str:
    """`1,470 MHz, 74 % of the highest`; the share alone where nobody says how much the highest is."""
    share = f"{drawn.gpu_clock:.0%} of the highest"
    mhz = drawn.gpu_clock_hz / 1e6
    return f"{mhz:,.0f} MHz, {share}" if math.isfinite(mhz) else share


def _watts(drawn: Energy) -> Iterator[tuple[str, str]]:
    held = ", held by the limit" if drawn.limited else ""
    limit = f"of {drawn.gpu_limit:.0f} W ({drawn.evidence}){held}"
    yield "GPU", f"{drawn.gpu_power:.0f} W {limit}"
    yield "clock", _clock(drawn)
    if drawn.communication_power:
        yield "communication", f"{drawn.communication_power:.0f} W of a GPU (guess)"
    yield "host", f"{drawn.host_power / 1e3:.2f} kW at the wall"
    if drawn.network_power:
        yield "switches", f"{drawn.network_power / 1e3:.2f} kW"
    yield "all", f"{drawn.total_power / 1e3:.2f} kW"


def _parts_of(cost: Mapping[str, Any]) -> str:
    """` (GPUs 0.1, energy 0.01)`, where there are both."""
    if cost["gpus"] is None or cost["energy"] is None:
        return ""
    return f" (GPUs {cost['gpus']:.4g}, energy {cost['energy']:.4g})"


def memory(result: Prediction) -> Iterator[tuple[str, float]]:
    """Rows (owner, bytes) of the fullest rank, or of the host that is too small, largest first."""
    verdict = result.out_of_memory
    if verdict is not None:
        owners = (
            result.owners(verdict.rank)
            if verdict.host is None
            else result.kept_on_hosts[verdict.host]
        )
        yield from sorted(
            ((o, size) for o, size in owners.items() if size > 0),
            key=lambda row: -row[1],
        )


def allocator(result: Prediction, most: int = 5) -> Iterator[tuple[str, float]]:
    """What the allocator of the fullest rank holds, and what modules have at its peak; layers are joined."""
    rank = result.fullest_rank
    if rank is None or rank not in result.accounts:
        return
    if reserved := result.reserved_by(rank):
        yield "reserved by PyTorch", reserved
    joined: dict[str, float] = {}
    for path, size in result.accounts[rank].modules.items():
        name = re.sub(r"\b\d+\b", "*", path)
        joined[name] = joined.get(name, 0.0) + size
    largest = sorted(joined.items(), key=lambda item: -item[1])[:most]
    yield from ((f"in {name}", size) for name, size in largest)


def memory_verdict(result: Prediction) -> str:
    """One line: the peak, on which rank, and whether it fits."""
    verdict = result.out_of_memory
    if verdict is None:
        return ""
    peak = f"peak {format_bytes(verdict.needed)} {verdict.where}"
    if verdict.capacity is None:
        return f"{peak} (capacity not known){_on_host(result)}"
    of = f"{peak} of {format_bytes(verdict.capacity)}"
    if verdict.nominal is not None and verdict.nominal != verdict.capacity:
        of += f" usable ({format_bytes(verdict.nominal)} nominal)"
    if verdict.fits:
        tight = (
            ", less than PyTorch's allocator usually leaves unused"
            if verdict.tight
            else ""
        )
        return (
            f"{of}: fits, {format_bytes(verdict.capacity - verdict.needed)} free{tight}"
            f"{_on_host(result)}"
        )
    over = format_bytes(verdict.needed - verdict.capacity)
    return f"OUT OF MEMORY: {of}, {over} too much; the largest part is {verdict.largest_owner}"


def _on_host(result: Prediction) -> str:
    """What the fullest host keeps for its ranks, where they keep something there."""
    verdict = result.host_verdict
    if verdict is None:
        return ""
    kept = f"; {format_bytes(verdict.needed)} {verdict.where}"
    if verdict.capacity is None:
        return f"{kept} (cluster.host_memory says how much it has)"
    return f"{kept}, which has {format_bytes(verdict.capacity)}"


def chips(result: Prediction) -> Iterator[str]:
    """What was run, in short pieces: GPUs, model, batch, layout, settings and versions."""
    said = result.scenario
    gpus, hosts = said.get("gpus"), said.get("hosts")
    where = f" on {_counted(hosts, 'host')}" if hosts else ""
    yield f"{count(gpus)} {str(said.get('gpu', 'GPUs')).upper()}{where}" if gpus else ""
    yield str(said.get("cluster", ""))
    size = said.get("parameters")
    model = str(said.get("model", "")).replace(INLINE, "")
    yield ", ".join(filter(None, (model, size and f"{_size(int(size))} parameters")))
    if said.get("seq_len"):
        yield f"sequences of {count(said['seq_len'])} tokens"
    if said.get("global_batch"):
        yield f"global batch {count(said['global_batch'])}"
        yield f"{_counted(said['microbatches'], 'microbatch', 'es')} of {said['micro_batch']}"
    yield str(said.get("layout", ""))
    yield from _settings(result)
    yield str(said.get("peak") or said.get("precision") or "")
    yield str(said.get("framework", ""))
    yield f"NCCL {said['nccl']}" if "nccl" in said else ""
    yield f"prestep {__version__}"


def _counted(number: int, name: str, plural: str = "s") -> str:
    """`1 host`, `16 hosts`."""
    return f"{count(number)} {name}{plural if number != 1 else ''}"


#: Keys that decide a step and that its summary does not say, by section.
SETTINGS = {
    "parallel": ("schedule", "vpp", "sequence_parallel", "data_parallel"),
    "training": ("recompute", "optimizer"),
}


def _settings(result: Prediction) -> Iterator[str]:
    """Settings of the scenario that are not their defaults."""
    request = result.details.request if result.details else None
    for section, keys in SETTINGS.items() if request is not None else ():
        values = getattr(request, section)
        usual = type(values)()
        for key in keys:
            value = getattr(values, key)
            if value not in (None, "none", getattr(usual, key)):
                name = key.replace("_", " ")
                yield name if value is True else f"{name} {value}"


def _size(parameters: int) -> str:
    """`2.07B`, as models are called by their parameters."""
    scale, letter = (1e9, "B") if parameters >= 1e9 else (1e6, "M")
    return f"{parameters / scale:.3g}{letter}"


def title(result: Prediction) -> str:
    """`llama3-1b on h200-host-4, dp 4, bf16`: the scenario's summary in one line."""
    said = {
        key: str(value)
        for key, value in result.scenario.items()
        if value not in (None, "")
    }
    what = said.get("model") or said.get("name") or "step"
    if what == INLINE and "parameters" in said:
        what = f"{_size(int(said['parameters']))} model"
    where = f" on {said['cluster']}" if "cluster" in said else ""
    rest = [said[key] for key in ("layout", "framework", "precision") if key in said]
    return ", ".join([what + where, *rest])
