"""The ranking of a search, for people and for programs."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from prestep.sim.analysis.cost import cost_of
from prestep.sim.analysis.json_text import finite
from prestep.sim.exporters._words import share_name
from prestep.sim.studies.ranking import FASTEST, Objective
from prestep.sim.studies.search.axes import KEYS
from prestep.sim.studies.search.exploration import Ranked
from prestep.sim.studies.search.explore import Ranking
from prestep.sim.studies.search.space import Candidate
from prestep.sim.tables import Sheet
from prestep.sim.units import aligned, count, format_bytes, format_duration, percent

WIDEST = 80  # columns of a line of text
ALIKE = 0.002  # of a step time: layouts closer than that are as good as equal


def layout_of(candidate: Candidate) -> str:
    """`dp 8 tp 4 pp 2 zero1 sp mb 2 full`: what was chosen, without what is 1 or off."""
    chosen = dict(candidate.chosen)
    others = [f"{key}={value}" for key, value in candidate.chosen if key not in KEYS]
    words = [*_sizes(chosen), *_stages(chosen), *_ways(chosen), *others]
    return " ".join(words)


def _sizes(chosen: Mapping[str, Any]) -> Iterator[str]:
    for axis in ("dp", "tp", "cp", "ep", "pp"):
        if chosen[f"parallel.{axis}"] > 1:
            yield f"{axis} {chosen[f'parallel.{axis}']}"
    if chosen["parallel.etp"] is not None:
        yield f"etp {chosen['parallel.etp']}"


def _stages(chosen: Mapping[str, Any]) -> Iterator[str]:
    schedule = chosen["parallel.schedule"]
    if chosen["parallel.vpp"] > 1:
        yield f"vpp {chosen['parallel.vpp']}"
    if chosen["parallel.pp"] > 1 and schedule not in ("1f1b", "interleaved"):
        yield str(schedule)


def _ways(chosen: Mapping[str, Any]) -> Iterator[str]:
    """How replicas share, what is kept, and how much a microbatch has."""
    if chosen["parallel.data_parallel"] != "none":
        yield chosen["parallel.data_parallel"]
    if not chosen["parallel.reshard_after_forward"]:
        yield "no-reshard"
    if chosen["parallel.sequence_parallel"]:
        yield "sp"
    yield f"mb {chosen['training.micro_batch']}"
    if chosen["training.recompute"] != "none":
        yield f"recompute {chosen['training.recompute']}"


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
    if gained < -ALIKE * a.step_time:
        return f"the next is {percent(-gained / a.step_time)} faster"
    if gained <= ALIKE * a.step_time:
        return "the next is as fast"
    keys = {**a.breakdown, **b.breakdown}
    lost = {key: b.breakdown.get(key, 0.0) - a.breakdown.get(key, 0.0) for key in keys}
    key = max(lost, key=lambda k: lost[k])
    return f"the next is {percent(gained / a.step_time)} slower: {format_duration(lost[key])} more {share_name(key)}"


def table(ranking: Ranking, objective: Objective = FASTEST) -> str:
    """The ranked layouts, each with why, and what became of the others."""
    lines = [_answer(ranking, objective)]
    if ranking.ranked:
        heads, rows = _ranked(ranking, objective)
        heading, *texts = aligned([heads, *rows], left=(1,))
        lines += ["", heading]
        indent = len(str(len(rows))) + 4
        for text, (one, following) in zip(texts, _pairs(ranking), strict=True):
            lines += [text, _indented(reason(one, following), indent)]
    return "\n".join([*lines, "", *_rest(ranking)])


def sheets(ranking: Ranking, objective: Objective) -> tuple[str, list[Sheet]]:
    """The answer and the tables of a report."""
    (place, layout, *heads), rows = _ranked(ranking, objective)
    why = [reason(one, following) for one, following in _pairs(ranking)]
    cells = [(*row[:2], text, *row[2:]) for row, text in zip(rows, why, strict=True)]
    title, columns = "Layouts, the best first", (place, layout, "why", *heads)
    looked = Sheet("What was looked at", (), (), notes=_rest(ranking))
    return _answer(ranking, objective), [Sheet(title, columns, cells, 3), looked]


def _pairs(ranking: Ranking) -> list[tuple[Ranked, Ranked | None]]:
    """Every ranked layout with the next one."""
    return list(zip(ranking.ranked, [*ranking.ranked[1:], None], strict=False))


def _ranked(
    ranking: Ranking, objective: Objective
) -> tuple[list[str], list[list[str]]]:
    """Heads and rows of the ranked layouts."""
    scenarios = (one.result.scenario for one in ranking.ranked)
    unit = next(scenarios, {}).get("sample", "tokens")
    heads = ["", "layout", "step time", "MFU", f"{unit}/s/GPU", "memory"]
    heads += ["energy"] if objective.needs_watts else []
    heads += ["per 1M"] if objective.priced else []
    rows = [_row(at, one, objective) for at, one in enumerate(ranking.ranked, 1)]
    return heads, rows


def _answer(ranking: Ranking, objective: Objective) -> str:
    """The layout that was looked for."""
    if not ranking.ranked:
        return "no layout fits" if ranking.valid else "no layout is possible"
    best = ranking.ranked[0]
    step = format_duration(best.result.step_time)
    which = "fastest" if objective.by == FASTEST.by else f"best by {objective.by}"
    return f"The {which} layout that fits: {layout_of(best.candidate)}, {step} a step."


def _indented(text: str, columns: int) -> str:
    """Text under a row, in lines that a terminal shows whole; no number is parted from its unit."""
    space = " " * columns
    joined = re.sub(r"(?<=\d) ", "\N{NO-BREAK SPACE}", text)
    lines = textwrap.fill(joined, WIDEST, initial_indent=space, subsequent_indent=space)
    return lines.replace("\N{NO-BREAK SPACE}", " ")


def _row(at: int, one: Ranked, objective: Objective) -> list[str]:
    r = one.result
    verdict = r.out_of_memory
    cells = [
        str(at),
        layout_of(one.candidate),
        format_duration(r.step_time),
        percent(r.mfu),
        count(r.tokens_per_second_per_gpu),
        format_bytes(verdict.needed) if verdict is not None else "-",
    ]
    if objective.needs_watts:
        cells.append("-" if r.energy is None else f"{r.energy.step_energy:.4g} J")
    if objective.priced:
        cells.append(f"{cost_of(r, objective.prices).million_tokens:.4g}")
    return cells


def _rest(ranking: Ranking) -> list[str]:
    """What became of the layouts that are not ranked."""
    lines = [*_counts(ranking), *_nearest(ranking)]
    if ranking.refused:
        why = ", ".join(f"{key} {n}" for key, n in ranking.refused.items())
        refused = sum(ranking.refused.values())
        lines.append(f"{refused} more combinations are refused ({why})")
    if not ranking.valid:
        lines += [f"  {mistake}" for mistake in ranking.examples.values()]
    return lines


def _counts(ranking: Ranking) -> Iterator[str]:
    sampled = ""
    if ranking.sampled < ranking.valid:
        sampled = f", {ranking.sampled} of them looked at"
    yield f"{ranking.valid} valid layouts of {ranking.batch} samples a step{sampled}:"
    if ranking.too_large:
        owners = ", ".join(f"{owner} {n}" for owner, n in ranking.largest.items())
        yield f"  {ranking.too_large} do not fit (largest owner: {owners})"
    if ranking.stopped:
        left = f"{ranking.too_slow} were left when the search was stopped"
        yield f"  {left}: better ones may be among them"
    elif ranking.too_slow:
        slow = "cannot be among the best: their kernels alone take longer"
        yield f"  {ranking.too_slow} {slow}"
    if ranking.simulated:
        yield f"  {ranking.simulated} simulated"


def _nearest(ranking: Ranking) -> Iterator[str]:
    """The layout that lacks least memory, where none fits."""
    if ranking.ranked or ranking.least is None or ranking.nearest is None:
        return
    needed, owner, capacity = ranking.least
    memory = f"{format_bytes(needed)} of {format_bytes(capacity)}"
    layout = layout_of(ranking.nearest)
    yield f"  nearest: {layout} needs {memory}, most of it {owner}"


def to_dict(ranking: Ranking, objective: Objective = FASTEST) -> dict[str, Any]:
    """The same for programs, in SI units."""
    ranked = [_entry(one, after, objective) for one, after in _pairs(ranking)]
    nearest = None
    if ranking.least is not None and ranking.nearest is not None:
        needed, owner, capacity = ranking.least
        nearest = {
            "changes": dict(ranking.nearest.chosen),
            "layout": layout_of(ranking.nearest),
            "needed": needed,
            "capacity": capacity,
            "largest_owner": owner,
        }
    counted = "valid", "sampled", "simulated", "too_large", "too_slow", "stopped"
    plain: Mapping[str, Any] = {
        "ranked": ranked,
        "ranked_by": objective.by,
        "global_batch": ranking.batch,
        **{name: getattr(ranking, name) for name in counted},
        "largest_owner": dict(ranking.largest),
        "refused": dict(ranking.refused),
        "nearest_that_does_not_fit": nearest,
    }
    made: dict[str, Any] = finite(plain)
    return made


def _entry(
    one: Ranked, following: Ranked | None, objective: Objective
) -> dict[str, Any]:
    r, verdict = one.result, one.result.out_of_memory
    entry: dict[str, Any] = {
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
        "energy": None if r.energy is None else r.energy.to_dict(),
    }
    if not objective.priced:
        return entry
    cost = cost_of(r, objective.prices)
    return {
        **entry,
        "cost_per_million_tokens": cost.million_tokens,
        "cost": cost.to_dict(),
    }
