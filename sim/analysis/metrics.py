"""What a timeline means: where the time of a step goes, how busy the links are, how well the GPUs are used.

Every moment of a step on a rank belongs to exactly one share; where several things happen at once the first of this
list has it, so that the shares add up to the step:

========== =====================================================================================================
compute    a kernel runs, on any stream
exposed_A  bytes of axis A (tp, cp, ep, pp, dp, then others) move, and no kernel runs
bubble     a pipeline transfer waits for its peer, or a reduction over all stages for the last, and nothing else happens
straggler  a collective within a stage waits for its last rank: one is slower, or has more to do
io         a copy between host and device runs, or the host reads data or writes a checkpoint
host       the GPU has nothing to do because the host has not launched it yet
idle       the rest: gaps between kernels that were launched in time, waiting at the end of the step
========== =====================================================================================================

The order of axes is from the innermost, on which the next kernel most likely waits, to the outermost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from prestep.sim.analysis.link_use import Link
from prestep.sim.analysis.timeline import COMMUNICATION, SAVE, WRITER, Timeline
from prestep.sim.errors import PrestepError

AXES = ("tp", "cp", "ep", "pp", "dp")
# Axes of transfers between the stages of a pipeline, as a layout and as a recorded program name them.
PIPELINE = ("pp", "p2p")
# Axes whose ranks share a stage: who waits for the others waits for no pipeline.
WITHIN = ("tp", "cp", "ep", "dp")
IO_PHASES = ("io", "checkpoint")
Intervals = tuple[np.ndarray, np.ndarray]


def sweep(layers: Sequence[Intervals], start: float, end: float) -> np.ndarray:
    """Seconds of [start, end) that belong to each layer: those it covers and no earlier layer does.

    Parameters
    ----------
    layers : sequence of (starts, ends)
        Intervals in seconds, unsorted, overlapping as they like; the first layer has priority.

    Returns
    -------
    np.ndarray, shape (layers + 1,)
        The last entry is the time that no layer covers. The sum is end - start.
    """
    clipped = [(np.clip(s, start, end), np.clip(e, start, end)) for s, e in layers]
    edges = np.unique(
        np.concatenate([[start, end], *(side for layer in clipped for side in layer)])
    )
    owner = np.full(len(edges) - 1, len(layers))
    for k in reversed(range(len(layers))):
        first, last = (np.searchsorted(edges, side) for side in clipped[k])
        change = np.bincount(first, minlength=len(edges)) - np.bincount(
            last, minlength=len(edges)
        )
        owner[np.cumsum(change)[:-1] > 0] = k
    return np.bincount(owner, weights=np.diff(edges), minlength=len(layers) + 1)


def breakdown(
    timeline: Timeline, rank: int, start: float, end: float
) -> dict[str, float]:
    """Where the time of `rank` between `start` and `end` goes (seconds by share; they sum to end - start).

    Give the whole timeline, not only the window: what follows the window tells what a gap waits for.

    Raises
    ------
    PrestepError
        If the window is not at least 0 seconds long.
    """
    if not end >= start:
        raise PrestepError(
            f"breakdown: window from {start} s to {end} s: expected end >= start"
        )
    layers = _layers(timeline.of_rank(rank))
    if start == end:
        return dict.fromkeys([*layers, "idle"], 0.0)
    seconds = sweep(list(layers.values()), start, end)[:-1]
    shares = dict(zip(layers, seconds.tolist(), strict=True))
    # Rounding of a thousand differences goes to the last share, so that the sum is the step.
    idle = max(0.0, (end - start) - sum(shares.values()))
    return {**shares, "idle": idle}


def mean_breakdown(
    timeline: Timeline,
    windows: Mapping[int, tuple[float, float]],
    weights: Mapping[int, float] | None = None,
) -> dict[str, float]:
    """Mean of the ranks' breakdowns, each over its own window; `weights` are ranks that a rank stands for."""
    total: dict[str, float] = {}
    weight = {rank: 1.0 if weights is None else weights[rank] for rank in windows}
    for rank, (start, end) in windows.items():
        for name, seconds in breakdown(timeline, rank, start, end).items():
            total[name] = total.get(name, 0.0) + seconds * weight[rank]
    return {name: total[name] / sum(weight.values()) for name in sort_shares(total)}


def sort_shares(names: Iterable[str]) -> list[str]:
    """Names of shares in the order of the table above."""
    given = set(names)
    known = ["compute", *(f"exposed_{axis}" for axis in AXES)]
    tail = ["bubble", "straggler", "io", "host", "idle"]
    others = sorted(given - set(known) - set(tail))
    return [name for name in (*known, *others, *tail) if name in given]


def step_window(timeline: Timeline, rank: int, step: int) -> tuple[float, float]:
    """From the end of the rank's GPU work of the previous step (or its first span) to the end of its work of `step`.

    Raises
    ------
    PrestepError
        If the rank has no GPU work in that step.
    """
    mine = (timeline["rank"] == rank) & ~timeline.matches("kind", "host")
    mine &= ~timeline.matches("stream", SAVE, WRITER)  # a save comes after the step
    now = mine & (timeline["step"] == step)
    before = mine & (timeline["step"] == step - 1)
    if not now.any():
        raise PrestepError(f"timeline: rank {rank} has no GPU work in step {step}")
    start = (
        timeline["end"][before].max() if before.any() else timeline["start"][now].min()
    )
    return float(start), float(timeline["end"][now].max())


def link_utilisation(
    carried: np.ndarray, bandwidth: np.ndarray, duration: float
) -> np.ndarray:
    """Share of what each link could have carried: bytes / (bytes per second * seconds)."""
    capacity = bandwidth * duration
    used: np.ndarray = np.divide(
        carried, capacity, out=np.zeros(len(carried)), where=capacity > 0
    )
    return used


def busiest_links(
    names: Sequence[str],
    carried: np.ndarray,
    bandwidth: np.ndarray,
    duration: float,
    shadow_price: np.ndarray | None = None,
    most: int = 8,
) -> tuple[Link, ...]:
    """The `most` busiest links that carried anything; `carried` in bytes over `duration` seconds.

    `shadow_price` is seconds of step time per relative gain of a link's bandwidth (None if not known).
    """
    used = link_utilisation(carried, bandwidth, duration)
    order = busiest(names, used, carried, shadow_price, most)
    prices = [None if shadow_price is None else float(shadow_price[i]) for i in order]
    return tuple(
        Link(names[i], float(used[i]), float(carried[i]), p)
        for i, p in zip(order, prices, strict=True)
    )


def busiest(
    names: Sequence[str] | Callable[[int], str],
    used: np.ndarray,
    carried: np.ndarray,
    price: np.ndarray | None = None,
    most: int | None = None,
) -> list[int]:
    """Links that carried anything: the busiest first, of equal ones the highest shadow price, then by name.

    `names` by row; with `most` those of links that cannot be among so many are not asked for.
    """
    name = names if callable(names) else names.__getitem__
    worth = np.zeros(len(used)) if price is None else price
    # Equal to nine digits is equal: sums in another order differ in the last.
    level = np.round(used, 9)
    rows = np.flatnonzero(carried > 0)
    if most is not None and len(rows) > most:
        rows = _among_the_first(rows, level, worth, most)
    order = sorted(rows.tolist(), key=lambda row: (-level[row], -worth[row], name(row)))
    return order[:most]


def _among_the_first(
    rows: np.ndarray, level: np.ndarray, worth: np.ndarray, most: int
) -> np.ndarray:
    """Rows that are not behind the `most`-th by level and worth."""
    level_of_row, worth_of_row = level[rows], worth[rows]
    last = np.lexsort((-worth_of_row, -level_of_row))[most - 1]
    higher = level_of_row > level_of_row[last]
    level_with = level_of_row == level_of_row[last]
    worthy = level_with & (worth_of_row >= worth_of_row[last])
    among: np.ndarray = rows[higher | worthy]
    return among


def tokens_per_second(tokens: float, step_time: float, gpus: int) -> float:
    """Tokens (or samples) of a whole step per second and GPU."""
    return tokens / step_time / gpus


def flops_utilisation(
    model_flops: float, step_time: float, gpus: int, peak: float
) -> float:
    """MFU: model flops of a step (recomputation not counted) over what the GPUs could do; `peak` in flop/s per GPU."""
    return model_flops / (step_time * gpus * peak)


def evidence_shares(grades: Sequence[str], seconds: np.ndarray) -> dict[str, float]:
    """Share of the time that rests on each evidence grade, best grade first (grade and seconds per item)."""
    order = ("measured", "fitted", "datasheet", "guess")
    total: dict[str, float] = {}
    for grade, time in zip(grades, seconds.tolist(), strict=True):
        total[grade] = total.get(grade, 0.0) + time
    whole = sum(total.values())
    names = [*order, *sorted(set(total) - set(order))]
    return {
        name: total[name] / whole
        for name in names
        if whole > 0 and total.get(name, 0.0) > 0
    }


def _layers(spans: Timeline) -> dict[str, Intervals]:
    """Shares of one rank's spans with the intervals they cover, in order of priority."""
    start, end = spans["start"], spans["end"]
    on_host = spans.matches("kind", "host")
    io = spans.matches("kind", "copy") | (on_host & spans.matches("phase", *IO_PHASES))
    moves = spans.matches("kind", *COMMUNICATION)
    across = moves & _across_stages(spans)
    return {
        "compute": _at(start, end, spans.matches("kind", "kernel")),
        **_exposed(spans),
        "bubble": _at(start, spans["ready"], across),
        "straggler": _at(start, spans["ready"], moves & ~across),
        "io": _at(start, end, io),
        "host": _both(
            _at(start, end, on_host & ~io),
            host_gaps(start[~on_host], end[~on_host], spans["launch"][~on_host]),
        ),
    }


def _exposed(spans: Timeline) -> dict[str, Intervals]:
    """Communication by axis, from the moment when all of its ranks have come."""
    layers = {}
    for axis in _axes(spans):
        rows = _communicates(spans, axis)
        layers[f"exposed_{axis or 'other'}"] = _at(spans["ready"], spans["end"], rows)
    return layers


def _across_stages(spans: Timeline) -> np.ndarray:
    """Whose ranks lie in several stages: transfers of a pipeline, and beside them collectives of other axes."""
    transfers = spans.matches("axis", *PIPELINE)
    if not transfers.any():
        return transfers
    across: np.ndarray = ~spans.matches("axis", *WITHIN)
    return across


def _communicates(spans: Timeline, *axes: str) -> np.ndarray:
    moves = spans.matches("kind", *COMMUNICATION)
    rows: np.ndarray = moves & spans.matches("axis", *axes)
    return rows


def _both(one: Intervals, other: Intervals) -> Intervals:
    begin, end = (np.concatenate(sides) for sides in zip(one, other, strict=True))
    return begin, end


def _at(start: np.ndarray, end: np.ndarray, rows: np.ndarray) -> Intervals:
    return start[rows], end[rows]


def _axes(spans: Timeline) -> list[str]:
    """Axes whose communication is in the spans, innermost first."""
    coded = spans.words("axis")
    axes = {
        coded.words[i]
        for i in np.unique(coded.codes[spans.matches("kind", *COMMUNICATION)])
    }
    return [axis for axis in AXES if axis in axes] + sorted(axes - set(AXES))


def host_gaps(
    start: np.ndarray, end: np.ndarray, launch: np.ndarray, least: float = 0.0
) -> Intervals:
    """Gaps in a rank's GPU work after which something runs that was not yet launched when the gap began.

    ``least``: those of at most so many seconds are the GPU's own.
    """
    order = np.lexsort((launch, start))
    start, launch = start[order], launch[order]
    if len(order) == 0:
        return np.empty(0), np.empty(0)
    busy_until = np.concatenate([[-np.inf], np.maximum.accumulate(end[order])[:-1]])
    with np.errstate(invalid="ignore"):
        late = (start - busy_until > least) & (launch > busy_until)
    return busy_until[late], start[late]
