"""A result in plain words: what bounds the step, what would help most, and what that rests on."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from prestep.sim import files
from prestep.sim.analysis.evidence import of_others
from prestep.sim.errors import InputError, Mistake
from prestep.sim.units import format_duration

EXPECTED = "a result, as `prestep run --json` prints it"
GROUNDED = ("measured", "fitted")
MINOR = 0.02  # shares of the step below this are not worth a sentence
HELP = {
    "compute": "faster kernels or GPUs, a larger or better shaped batch, a compiled step",
    "bubble": "more microbatches, or a schedule with less waiting (interleaved, zero-bubble)",
    "straggler": "as much work for every rank, or another GPU for the slow one (`step_time_by_rank`); links would not",
    "host": "fewer launches: a compiled step, a CUDA graph, larger microbatches",
    "io": "faster storage, or reading and writing beside the step",
    "idle": "not one cause: waiting of streams for each other; look at the timeline (--trace)",
}


def read(path: Path) -> dict[str, Any]:
    """The result in a file.

    Raises
    ------
    InputError
        If it is none.
    """
    try:
        told = files.json_of(files.read_text(path, EXPECTED))
    except ValueError as error:
        raise InputError.of(str(path), "", f"no JSON ({error})", EXPECTED) from None
    if not isinstance(told, dict):
        raise InputError.of(str(path), "", type(told).__name__, EXPECTED)
    wrong = [key for key, good in _needed(told) if not good]
    if wrong:
        raise InputError(
            [
                Mistake(str(path), key, repr(told.get(key))[:60], EXPECTED)
                for key in wrong
            ]
        )
    return told


def _needed(told: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    yield "step_time", _number(told.get("step_time")) and told["step_time"] > 0
    for key in ("breakdown", "evidence"):
        table = told.get(key)
        yield key, isinstance(table, dict) and all(map(_number, table.values()))
    yield "uncertainty", _interval(told.get("uncertainty"))
    tables = told.get("tables", {})
    yield "tables", isinstance(tables, dict) and all(map(_number, tables.values()))
    yield "warnings", isinstance(told.get("warnings", []), list)
    for key, numbers in (("fallbacks", ("share",)), ("link_kinds", ())):
        rows = told.get(key, [])
        yield (
            key,
            isinstance(rows, list)
            and all(
                isinstance(r, dict) and all(_number(r.get(n)) for n in numbers)
                for r in rows
            ),
        )


def _interval(found: object) -> bool:
    """Whether it is none, or an interval with its parts."""
    if found is None:
        return True
    if not isinstance(found, dict) or not all(
        _number(found.get(key)) for key in ("low", "high", "nominal")
    ):
        return False
    parts = found.get("parts")
    return isinstance(parts, list) and all(
        isinstance(part, dict)
        and all(_number(part.get(key)) for key in ("seconds", "spread"))
        for part in parts
    )


def _number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= sys.float_info.max  # neither none, nor beyond all floats


def text(result: Mapping[str, Any]) -> str:
    """The explanation, a sentence a line."""
    return "\n".join(
        [*_bound(result), *_links(result), *_memory(result), *_sure(result)]
    )


def _bound(result: Mapping[str, Any]) -> Iterator[str]:
    step = result["step_time"]
    shares = sorted(
        ((value, name) for name, value in result["breakdown"].items()), reverse=True
    )
    yield f"The step takes {format_duration(step)}."
    for value, name in shares:
        if value > MINOR * step:
            help_ = HELP.get(
                name,
                f"faster links under {name.removeprefix('exposed_')}, or more of it hidden behind compute",
            )
            yield f"{format_duration(value)} ({value / step:.0%}) is {_named(name)}. What helps: {help_}."


def _named(name: str) -> str:
    if name == "straggler":
        return "waiting for slower ranks"
    axis = name.removeprefix("exposed_")
    return name if axis == name else f"communication of {axis} that no kernel hides"


def _links(result: Mapping[str, Any]) -> Iterator[str]:
    priced = [
        kind
        for kind in result.get("link_kinds", [])
        if _number(kind.get("shadow_price"))
    ]
    best = max(priced, key=lambda kind: kind["shadow_price"], default=None)
    if best is None:
        yield "Prices of links were not computed for this cluster."
    elif best["shadow_price"] <= 1e-3 * result["step_time"]:
        yield "Faster links would not help: no kind of link bounds the step."
    else:
        saved = best["shadow_price"] * 0.1
        yield (
            f"Of the links, {best.get('kind')} matters most: 10 % more bandwidth saves about {format_duration(saved)} "
            f"({saved / result['step_time']:.1%})."
        )


def _memory(result: Mapping[str, Any]) -> Iterator[str]:
    verdict = result.get("out_of_memory")
    if isinstance(verdict, dict) and verdict.get("fits") is False:
        owner = verdict.get("largest_owner")
        host, rank = verdict.get("host"), verdict.get("rank")
        who = f"rank {rank}" if host is None else f"host {host}"
        yield f"It does not fit: {who} runs out of memory, most of it {owner}."


def _sure(result: Mapping[str, Any]) -> Iterator[str]:
    good = sum(result["evidence"].get(grade, 0.0) for grade in GROUNDED)
    parts = ", ".join(
        f"{grade} {share:.0%}"
        for grade, share in result["evidence"].items()
        if share >= 0.005
    )
    sure = (
        "well founded"
        if good > 0.95
        else "fairly founded"
        if good > 0.7
        else "largely a guess"
    )
    if result.get("uncertainty"):
        yield from _doubt(result["uncertainty"])
    yield f"How sure: {sure}; the time of kernels and communication is {parts}."
    if others := of_others(result.get("tables", {})):
        yield f"Times of kernels: {others}."
    yield from _to_measure(result.get("fallbacks", [])[:3])
    for warning in result.get("warnings", []):
        yield f"Warning: {warning}"


def _to_measure(fallbacks: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What most of the time rests on that nobody measured, the largest share first."""
    first, *others = [
        f"{one.get('what')} ({one['share']:.0%}"
        for one in fallbacks
        if one["share"] > MINOR
    ] or [""]
    if first:
        rest = "".join(f", then {one})" for one in others)
        yield f"It would gain most from measuring {first} of the time){rest}."


def _doubt(interval: Mapping[str, Any]) -> Iterator[str]:
    """The interval, and what makes it as wide as it is."""
    low, high = format_duration(interval["low"]), format_duration(interval["high"])
    yield f"A measured step lies between {low} and {high} in {interval['nominal']:.0%} of the cases."
    found = sorted(
        interval["parts"], key=lambda part: -part["seconds"] * part["spread"]
    )[:3]
    told = [
        f"{part.get('constant')} ({part.get('grade')}: {part['spread']:.0%} of {format_duration(part['seconds'])})"
        for part in found
        if part["seconds"] > 0
    ]
    if told:
        yield f"Most of that width: {', '.join(told)}."
