"""Variants of a run in words: the verdict, and the table that terminal, Markdown and report share."""

from __future__ import annotations

from collections.abc import Sequence

from prestep.sim.exporters import _answers as answers
from prestep.sim.exporters import _words as words
from prestep.sim.studies.variants import Variant, best_of, figures
from prestep.sim.units import aligned, count, format_bytes, format_duration, percent

NONE = "-"


def verdict(variants: Sequence[Variant]) -> str:
    """Which change helps most, and by how much; of a single one, what it does."""
    base, *others = variants
    best = best_of(variants)
    if len(others) == 1:
        return sentence(others[0])
    if best is None:
        step = format_duration(base.result.step_time)
        return f"None of {len(others)} changes makes it faster: {step} a step as it is."
    ratio = best.speed / base.speed
    step, was = (format_duration(one.result.step_time) for one in (best, base))
    lead = (
        f"Of {len(others)} changes, {best.name} helps most: {ratio:.3g} times as fast"
    )
    return f"{lead}, {step} a step instead of {was}."


def sentence(variant: Variant) -> str:
    """What a variant does to the step, or that it does not fit."""
    memory = variant.result.out_of_memory
    if memory is not None and not memory.fits:
        return answers.of_run(variant.result)
    return answers.of_comparison(variant.comparison or {})


def heads(variants: Sequence[Variant]) -> tuple[str, ...]:
    """Heads of the table's columns."""
    sample = str(variants[0].result.scenario.get("sample", "tokens"))
    cost = f"price of 1M {sample}" if _priced(variants) else f"GPU-h for 1B {sample}"
    interval = next(
        (words.nominal(v.result.uncertainty) for v in variants if v.result.uncertainty),
        "interval",
    )
    return (
        "",
        "step",
        "change",
        f"{sample}/s",
        cost,
        "energy a step",
        "memory",
        interval,
        "expected error",
    )


def lines(variants: Sequence[Variant]) -> list[str]:
    """The table for a terminal, in two parts: figures, and how sure they are."""
    head, cells = heads(variants), rows(variants)
    short = (
        "",
        *head[1:4],
        "price/1M" if _priced(variants) else "GPU-h/1B",
        "energy",
        "memory",
    )
    sure = ("", head[-2], head[-1])
    figures_of = [(row[0], *row[1 : len(short)]) for row in cells]
    trust = [(row[0], row[-2], row[-1]) for row in cells]
    return [
        *aligned([short, *figures_of], left=(0,)),
        "",
        *aligned([sure, *trust], left=(0,)),
    ]


def _priced(variants: Sequence[Variant]) -> bool:
    return any(figures(one.result)["cost_per_million"] is not None for one in variants)


def rows(variants: Sequence[Variant]) -> list[tuple[str, ...]]:
    """A row of the table for the base and for every variant."""
    priced, base = _priced(variants), variants[0].result.step_time
    return [_row(one, base, priced) for one in variants]


def _row(variant: Variant, base: float, priced: bool) -> tuple[str, ...]:
    table = figures(variant.result)
    cost = table["cost_per_million" if priced else "gpu_hours_per_billion"]
    speed, energy, memory = (
        table[key] for key in ("tokens_per_second", "energy", "memory")
    )
    between = NONE
    if table["low"] is not None:
        between = f"{format_duration(table['low'])} to {format_duration(table['high'])}"
    near = variant.result.expected_error
    room = "" if table["fits"] is not False else ", does not fit"
    return (
        variant.name,
        format_duration(table["step_time"]),
        NONE
        if variant.comparison is None
        else percent(table["step_time"] / base - 1, True),
        NONE if speed is None else count(speed),
        NONE if cost is None else f"{cost:.4g}",
        NONE if energy is None else _joules(energy),
        NONE if memory is None else f"{format_bytes(memory)}{room}",
        between,
        NONE if near is None else f"{percent(near['error'])} ({near['n']} steps)",
    )


def _joules(energy: float) -> str:
    return f"{energy:.4g} J" if energy < 1e3 else f"{energy / 1e3:.4g} kJ"


def verdicts(variants: Sequence[Variant]) -> list[tuple[str, str]]:
    """(name, sentence) of every variant where there are several: of a single one the verdict says it."""
    others = variants[1:]
    return [(one.name, sentence(one)) for one in others] if len(others) > 1 else []
