"""The sentence that a page begins with: the answer, before the tables that it rests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from prestep.sim.analysis.memory import MemoryVerdict, Recomputed
from prestep.sim.analysis.prediction import Prediction
from prestep.sim.exporters._words import shares
from prestep.sim.extras import lazily
from prestep.sim.units import format_bytes, format_duration, percent

with lazily():  # of two steps
    from prestep.sim.analysis import beside

# Shares of a step that nobody would act on.
NOTHING = 0.001
# What takes less or more by itself, where communication is waited for more or less: by the part of the step.
WAITED_BESIDE = {"compute": "Kernels take", "host": "The host takes"}
ALONE = "Communication by itself takes"
# How much faster a kind of links is taken to be, where the sentence says what that saves.
FASTER = 0.1


def of_run(result: Prediction, remedies: Sequence[str] = ()) -> str:
    """How long the step takes, what takes most of it, and whether links matter; or that it does not fit.

    ``remedies``: changes with which it would fit, as `--set` takes them.
    """
    verdict = result.out_of_memory
    if verdict is not None and not verdict.fits:
        return _too_much(verdict, remedies)
    step = format_duration(result.step_time)
    largest = max(shares(result), key=lambda row: row[1], default=None)
    if largest is None:
        return f"A step takes {step}."
    name, _, share = largest
    return f"A step takes {step}, {_rounded(share)} of it {name}{_links(result)}."


def _too_much(verdict: MemoryVerdict, remedies: Sequence[str]) -> str:
    over = format_bytes(verdict.needed - (verdict.capacity or 0.0))
    owner = verdict.largest_owner
    without = " without recomputation" if verdict.recomputed is not None else ""
    lead = f"Does not fit{without}: {over} too much {verdict.where}, most of it {owner}"
    if verdict.recomputed is not None:
        lead += f"; {_if_recomputed(verdict.recomputed)}"
    if not remedies:
        return f"{lead}."
    return f"{lead}. It would fit with {', or with '.join(remedies)}."


def _if_recomputed(other: Recomputed) -> str:
    """What it would need with each way of recomputation, and whether that is little enough.

    Examples
    --------
    >>> _if_recomputed(Recomputed("full", 2.0**36, True, {"full": 2.0**36}))
    'recomputation decides that: with training.recompute=full it needs 64 GiB and fits'
    """
    ways = [
        (way, format_bytes(need), other.fits and way == other.way)
        for way, need in other.ways.items()
    ]
    fits = ("does not fit", "fits")
    (first, need, enough), *further = ways
    text = f"with training.recompute={first} it needs {need} and {fits[enough]}"
    text += "".join(f", with {way} {need} and {fits[e]}" for way, need, e in further)
    return f"recomputation decides that: {text}" if other.fits else f"even so, {text}"


def _links(result: Prediction) -> str:
    """What faster links would save; empty where their prices were not asked for."""
    prices = {
        kind.kind: kind.shadow_price
        for kind in result.link_kinds
        if kind.shadow_price is not None
    }
    if not prices:
        return ""
    best = max(prices, key=prices.__getitem__)
    saved = FASTER * prices[best] / result.step_time
    if saved < NOTHING:
        return "; faster links would save next to nothing"
    return f"; {_rounded(FASTER)} faster {best} saves about {percent(saved)}"


def of_comparison(comparison: Mapping[str, Any]) -> str:
    """Whether the change makes the step faster, and by how much; why not, where what it changes does not matter."""
    before = float(comparison["base"]["step_time"])
    after = float(comparison["changed"]["step_time"])
    gain = (before - after) / before if before else 0.0
    step, was = format_duration(after), format_duration(before)
    why = f" {comparison['because']}" if comparison.get("because") else ""
    times = f"{step} a step " + ("as before" if step == was else f"instead of {was}")
    if abs(gain) < NOTHING:
        still = " No figure of the step moves." if comparison.get("unchanged") else ""
        if comparison.get("same_places"):
            still = " Every rank runs on the GPU that it had."
        return f"The change saves nothing{_idle(comparison)}: {times}.{still}{why}"
    word = "less" if gain > 0 else "more"
    speed = f"{comparison['speedup']:.3f} times as fast"
    reason = _beside(comparison)
    said = f"With the change {times}, {percent(abs(gain))} {word}: {speed}."
    return f"{said}{reason}{why}"


def _beside(comparison: Mapping[str, Any]) -> str:
    """Why the step went against its hardware, where communication runs beside other kernels than before."""
    if comparison.get("choices"):
        return ""
    one, other = (comparison[side]["breakdown"] for side in ("base", "changed"))
    if comparison.get("changed_kinds"):
        alone = comparison["communication_alone"]
        growth = alone["changed"] - alone["base"]
        longer = beside.waiting_instead(one, other, growth)
        return _kernels(beside.kernels_instead(one, other)) or _waiting(ALONE, longer)
    if not comparison.get("same_operations"):
        return ""
    for part, takes in WAITED_BESIDE.items():
        longer = beside.waiting_instead(one, other, beside.grown(one, other, part))
        if longer:
            return _waiting(takes, longer)
    return ""


def _kernels(longer: float) -> str:
    """Links that are faster made the step longer, or slower ones shorter: kernels take so many seconds more."""
    if not longer:
        return ""
    less, more = ("less", "more") if longer > 0 else ("more", "less")
    return (
        f" Communication is waited for {less}, but kernels take {format_duration(abs(longer))} {more}:"
        " others run beside it than before."
    )


def _waiting(takes: str, longer: float) -> str:
    """What became faster made the step longer, or what became slower shorter: so many seconds more are waited."""
    if not longer:
        return ""
    less, more = ("less", "more") if longer > 0 else ("more", "less")
    waited = "it is waited for" if takes == ALONE else "communication is waited for"
    others = "other kernels than before, for whose SMs it waits"
    if takes == WAITED_BESIDE["host"]:
        others = "other kernels and other communication than before"
    length = format_duration(abs(longer))
    return f" {takes} {less}, but {waited} {length} {more}: it meets {others}."


def _idle(comparison: Mapping[str, Any]) -> str:
    """Why changed links do not matter, where links alone were changed: nothing crosses them, or they are never full."""
    changed = list(dict.fromkeys(comparison.get("changed_kinds") or ()))
    if not changed:
        return ""
    kinds = {kind["kind"]: kind for kind in comparison["base"]["link_kinds"]}
    crossed = [kinds[name] for name in changed if kinds.get(name, {}).get("bytes")]
    if not crossed:
        return f", because nothing crosses {' and '.join(changed)}"
    if any(kind["held"] > 0 for kind in crossed):
        return ""
    busiest = max(crossed, key=lambda kind: float(kind["utilisation"]))
    used = percent(busiest["utilisation"])
    return f", because {busiest['kind']} never holds a transfer back ({used} used)"


def _rounded(share: float) -> str:
    return f"{100 * share:.0f} %"
