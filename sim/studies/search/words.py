"""What a search found, for people and for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

from sim.analysis.prediction import finite
from sim.exporters._words import count, percent, share_name
from sim.studies.search.axes import KEYS
from sim.studies.search.explore import Found, Ranked
from sim.studies.search.space import Candidate
from sim.units import format_bytes, format_duration

ALIKE = 0.002  # of a step time: layouts closer than that are as good as equal
SHORT = {"training.micro_batch": "mb"}


def layout_of(candidate: Candidate) -> str:
    """`dp 8 tp 4 pp 2 zero1 sp mb 2 full`: what was chosen, without what is 1 or off."""
    chosen = dict(candidate.chosen)
    said = [
        f"{axis} {chosen[f'parallel.{axis}']}"
        for axis in ("dp", "tp", "cp", "ep", "pp")
        if chosen[f"parallel.{axis}"] > 1
    ]
    if chosen["parallel.etp"] is not None:
        said.append(f"etp {chosen['parallel.etp']}")
    if chosen["parallel.vpp"] > 1:
        said.append(f"vpp {chosen['parallel.vpp']}")
    if (
        chosen["parallel.schedule"] not in ("1f1b", "interleaved")
        and chosen["parallel.pp"] > 1
    ):
        said.append(str(chosen["parallel.schedule"]))
    way = chosen["parallel.data_parallel"]
    said += [way] if way != "none" else []
    said += ["no-reshard"] if not chosen["parallel.reshard_after_forward"] else []
    said += ["sp"] if chosen["parallel.sequence_parallel"] else []
    said.append(f"mb {chosen['training.micro_batch']}")
    recompute = chosen["training.recompute"]
    said += [f"recompute {recompute}"] if recompute != "none" else []
    said += [f"{key}={value}" for key, value in candidate.chosen if key not in KEYS]
    return " ".join(said)


def reason(this: Ranked, following: Ranked | None) -> str:
    """What bounds a layout, and what the next one loses."""
    r = this.result
    parts = sorted(r.breakdown.items(), key=lambda item: -item[1])
    bound = [
        f"{share_name(key)} {percent(s / r.step_time)}"
        for key, s in parts[:3]
        if s >= 0.01 * r.step_time
    ]
    text = ", ".join(bound)
    return text if following is None else f"{text}; {_beats(this, following)}"


def _beats(this: Ranked, following: Ranked) -> str:
    a, b = this.result, following.result
    gained = b.step_time - a.step_time
    if gained <= ALIKE * a.step_time:
        return "the next is as fast"
    keys = {**a.breakdown, **b.breakdown}
    lost = {key: b.breakdown.get(key, 0.0) - a.breakdown.get(key, 0.0) for key in keys}
    key = max(lost, key=lambda k: lost[k])
    return f"the next is {percent(gained / a.step_time)} slower: {format_duration(lost[key])} more {share_name(key)}"


def cost(tokens_per_second: float, price: float) -> float:
    """Of a million tokens, in the price's currency: `price` is that of a GPU for an hour."""
    return price / 3600 / tokens_per_second * 1e6


def table(found: Found, price: float | None = None) -> str:
    """The ranked layouts, each with why, and what became of the others."""
    lines = []
    if found.ranked:
        head = ["", "layout", "step time", "MFU", "per GPU", "memory"] + (
            ["per 1M"] if price else []
        )
        rows = [_row(at, one, price) for at, one in enumerate(found.ranked, 1)]
        wide = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
        lines.append(_line(head, wide))
        for row, (one, following) in zip(
            rows, pairwise([*found.ranked, None]), strict=True
        ):
            lines += [
                _line(row, wide),
                f"{'':{wide[0]}}    {reason(one, following)}"
                if one is not None
                else "",
            ]
    else:
        lines.append("no layout fits" if found.valid else "no layout is possible")
    return "\n".join([*lines, "", *_rest(found)])


def _line(cells: Sequence[str], wide: Sequence[int]) -> str:
    left = [
        f"{cell:<{w}}" if at == 1 else f"{cell:>{w}}"
        for at, (cell, w) in enumerate(zip(cells, wide, strict=True))
    ]
    return "  ".join(left).rstrip()


def _row(at: int, one: Ranked, price: float | None) -> list[str]:
    r = one.result
    verdict = r.out_of_memory
    unit = r.scenario.get("sample", "tokens")
    cells = [
        str(at),
        layout_of(one.candidate),
        format_duration(r.step_time),
        percent(r.mfu),
        f"{count(r.tokens_per_second_per_gpu)} {unit}/s",
        format_bytes(verdict.needed) if verdict is not None else "-",
    ]
    return cells + (
        [f"{cost(r.tokens_per_second_per_gpu, price):.4g}"] if price else []
    )


def _rest(found: Found) -> list[str]:
    """What became of the layouts that are not ranked."""
    looked = (
        f", {found.sampled} of them looked at" if found.sampled < found.valid else ""
    )
    lines = [f"{found.valid} valid layouts of {found.batch} samples a step{looked}:"]
    owners = ", ".join(f"{owner} {n}" for owner, n in found.largest.items())
    for n, text in (
        (found.too_large, f"do not fit (largest owner: {owners})"),
        (found.too_slow, "cannot be among the best: their kernels alone take longer"),
        (found.simulated, "simulated"),
    ):
        if n:
            lines.append(f"  {n} {text}")
    if not found.ranked and found.least is not None and found.nearest is not None:
        needed, owner, capacity = found.least
        lines.append(
            f"  nearest: {layout_of(found.nearest)} needs {format_bytes(needed)} of {format_bytes(capacity)}, "
            f"most of it {owner}"
        )
    if found.refused:
        why = ", ".join(f"{key} {n}" for key, n in found.refused.items())
        lines.append(
            f"{sum(found.refused.values())} more combinations are refused ({why})"
        )
    if not found.valid:
        lines += [f"  {mistake}" for mistake in found.examples.values()]
    return lines


def to_dict(found: Found, price: float | None = None) -> dict[str, Any]:
    """The same for programs, in SI units."""
    ranked = [
        _entry(one, following, price)
        for one, following in pairwise([*found.ranked, None])
        if one is not None
    ]
    nearest = None
    if found.least is not None and found.nearest is not None:
        needed, owner, capacity = found.least
        nearest = {
            "changes": dict(found.nearest.chosen),
            "layout": layout_of(found.nearest),
            "needed": needed,
            "capacity": capacity,
            "largest_owner": owner,
        }
    counts = {
        name: getattr(found, name)
        for name in ("valid", "sampled", "simulated", "too_large", "too_slow")
    }
    plain: Mapping[str, Any] = {
        "ranked": ranked,
        "global_batch": found.batch,
        **counts,
        "largest_owner": dict(found.largest),
        "refused": dict(found.refused),
        "nearest_that_does_not_fit": nearest,
    }
    made: dict[str, Any] = finite(plain)
    return made


def _entry(
    one: Ranked, following: Ranked | None, price: float | None
) -> dict[str, Any]:
    r, verdict = one.result, one.result.out_of_memory
    said: dict[str, Any] = {
        "layout": layout_of(one.candidate),
        "changes": dict(one.candidate.chosen),
        "step_time": r.step_time,
        "mfu": r.mfu,
        "tokens_per_second_per_gpu": r.tokens_per_second_per_gpu,
        "tflops_per_gpu": r.tflops_per_gpu,
        "peak_memory": None if verdict is None else verdict.needed,
        "out_of_memory": None if verdict is None else asdict(verdict),
        "breakdown": dict(r.breakdown),
        "why": reason(one, following),
        "evidence": dict(r.evidence),
    }
    return said | (
        {"cost_per_million_tokens": cost(r.tokens_per_second_per_gpu, price)}
        if price
        else {}
    )
