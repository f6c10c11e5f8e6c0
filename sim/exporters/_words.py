"""How results are worded for people; shared by the exporters that print."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from sim.analysis.prediction import Link, Prediction
from sim.analysis.uncertainty import Uncertainty
from sim.units import format_bytes, format_duration

SHARES = {
    "compute": "compute",
    "bubble": "pipeline bubble",
    "io": "input and output",
    "host": "waiting for the host",
    "idle": "idle",
}


def share_name(key: str) -> str:
    """`exposed_dp` -> `exposed dp communication`."""
    if key.startswith("exposed_"):
        return f"exposed {key.removeprefix('exposed_')} communication"
    return SHARES.get(key, key)


def path_part(part: Mapping[str, Any]) -> str:
    """A part of the critical path: `gemm kernels`, `all_reduce dp (0-3)`, `host`, `waiting: gap`."""
    if part["kind"] == "kernel" and part["family"] == "chain":
        return "layers (kernels and exchanges)"
    if part["kind"] == "kernel":
        return f"{part['family']} kernels"
    if part["kind"] == "communication":
        return " ".join(
            word
            for word in (part["family"], part["axis"], f"({part['group']})")
            if word
        )
    if part["kind"] == "io":
        return str(part["family"])
    return (
        part["kind"]
        if part["kind"] == part["family"]
        else f"{part['kind']}: {part['family']}"
    )


def percent(share: float, signed: bool = False) -> str:
    """`0.0123` -> `1.2 %`; `-` for what is not known."""
    if not math.isfinite(share):
        return "-"
    return f"{100 * share:+.1f} %" if signed else f"{100 * share:.1f} %"


def count(number: float) -> str:
    """`97412.3` -> `97 412`."""
    return f"{number:,.0f}".replace(",", " ") if abs(number) >= 100 else f"{number:.3g}"


def headline(result: Prediction) -> Iterator[tuple[str, str]]:
    """Rows (what, how much) of the first table."""
    yield "step time", format_duration(result.step_time)
    if result.uncertainty is not None:
        yield (
            f"{result.uncertainty.nominal:.0%} interval".replace("%", " %"),
            interval(result.uncertainty),
        )
    if result.measured is not None and result.signed_error is not None:
        yield (
            "measured",
            f"{format_duration(result.measured)}  (prediction off by {percent(result.signed_error, True)})",
        )
    times = result.step_time_by_rank
    if times and max(times.values()) > 1.001 * min(times.values()):
        fast, slow = (
            min(times, key=times.__getitem__),
            max(times, key=times.__getitem__),
        )
        fastest, slowest = format_duration(times[fast]), format_duration(times[slow])
        yield "ranks", f"fastest {fast}: {fastest}, slowest {slow}: {slowest}"
    unit = result.scenario.get("sample", "tokens")
    yield "throughput", f"{count(result.tokens_per_second_per_gpu)} {unit}/s per GPU"
    if math.isfinite(result.mfu):
        yield (
            "model flops",
            f"{result.tflops_per_gpu:.4g} TFLOP/s per GPU, MFU {percent(result.mfu)}",
        )


def tiles(result: Prediction) -> Iterator[tuple[str, str, str]]:
    """(what, how much, what else is to be said) of the figures that come first."""
    sure, verdict = result.uncertainty, result.out_of_memory
    said = (
        ""
        if sure is None
        else f"{sure.nominal:.0%} interval ".replace("%", " %") + _between(sure)
    )
    yield "step time", format_duration(result.step_time), said
    if result.measured is not None and result.signed_error is not None:
        off = f"the prediction is off by {percent(result.signed_error, True)}"
        yield "measured", format_duration(result.measured), off
    times = result.step_time_by_rank
    if times and max(times.values()) > 1.001 * min(times.values()):
        fast, slow = (
            min(times, key=times.__getitem__),
            max(times, key=times.__getitem__),
        )
        least = f"rank {slow}; fastest {format_duration(times[fast])}, rank {fast}"
        yield "slowest rank", format_duration(times[slow]), least
    unit = result.scenario.get("sample", "tokens")
    yield "throughput", count(result.tokens_per_second_per_gpu), f"{unit}/s per GPU"
    if math.isfinite(result.mfu):
        yield (
            "MFU",
            percent(result.mfu),
            f"{result.tflops_per_gpu:.4g} model TFLOP/s per GPU",
        )
    if verdict is not None:
        of = "" if verdict.capacity is None else f"of {format_bytes(verdict.capacity)} "
        fits = "" if verdict.fits else ": OUT OF MEMORY"
        yield (
            "memory",
            format_bytes(verdict.needed),
            f"{of}on rank {verdict.rank}{fits}",
        )
    if result.evidence:
        grounded = sum(
            result.evidence.get(grade, 0.0) for grade in ("measured", "fitted")
        )
        guessed = (
            ""
            if sure is None
            else f"{percent(sure.guessed)} of the step rests on guesses"
        )
        yield "measured or fitted", percent(grounded), guessed


def _between(sure: Uncertainty) -> str:
    return f"{format_duration(sure.low)} to {format_duration(sure.high)}"


def interval(sure: Uncertainty) -> str:
    """`70.1 ms to 75.3 ms, 12 % of it on guesses`."""
    return f"{_between(sure)}; {percent(sure.guessed)} of the step rests on guesses"


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


def memory(result: Prediction) -> Iterator[tuple[str, float]]:
    """Rows (owner, bytes) of the fullest rank, largest first."""
    if result.fullest_rank is not None:
        owners = result.owners(result.fullest_rank)
        yield from sorted(
            ((o, size) for o, size in owners.items() if size > 0),
            key=lambda row: -row[1],
        )


def memory_verdict(result: Prediction) -> str:
    """One line: the peak, on which rank, and whether it fits."""
    verdict = result.out_of_memory
    if verdict is None:
        return ""
    peak = f"peak {format_bytes(verdict.needed)} on rank {verdict.rank}"
    if verdict.capacity is None:
        return f"{peak} (capacity not known)"
    of = f"{peak} of {format_bytes(verdict.capacity)}"
    if verdict.fits:
        tight = (
            ", less than PyTorch's allocator usually leaves unused"
            if verdict.tight
            else ""
        )
        return (
            f"{of}: fits, {format_bytes(verdict.capacity - verdict.needed)} free{tight}"
        )
    over = format_bytes(verdict.needed - verdict.capacity)
    return f"OUT OF MEMORY: {of}, {over} too much; the largest part is {verdict.largest_owner}"


def title(result: Prediction) -> str:
    """`llama3-1b on h200-host-4, dp 4, bf16`: the scenario's summary in one line."""
    said = {
        key: str(value)
        for key, value in result.scenario.items()
        if value not in (None, "")
    }
    what = said.get("model") or said.get("name") or "step"
    where = f" on {said['cluster']}" if "cluster" in said else ""
    rest = [said[key] for key in ("layout", "framework", "precision") if key in said]
    return ", ".join([what + where, *rest])
