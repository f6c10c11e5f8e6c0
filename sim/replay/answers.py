"""Answers of a replay beside its steps: its critical path, and overlap by axis."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from sim.analysis.critical_path import CriticalPath
from sim.analysis.path_walk import critical_path
from sim.replay.outcome import Outcome, last_step
from workloads.traces.work import GPU, MARK, Op


def path(outcome: Outcome) -> CriticalPath:
    """The critical path of the last step, through all ranks that were played."""
    programs, run = outcome.replay.programs, outcome.run
    name = outcome.steps[-1].step
    begins, ends, before, work = [], [], [0.0], [0.0]
    for index, nodes in enumerate(programs):
        end = run.end[index][0]
        marks = {node.op.name: i for i, node in enumerate(nodes) if node.kind == MARK}
        begins.append(float(end[marks[f"begin {name}"]]))
        ends.append(float(end[marks[f"end {name}"]]))
        last = nodes[marks[f"end {name}"]].op.step
        gpu = [
            (node.op.step, float(end[i]))
            for i, node in enumerate(nodes)
            if node.kind == GPU
        ]
        before += [time for step, time in gpu if step < last]
        work += [time for step, time in gpu if step <= last]
    window = (
        (max(before), max(work)) if outcome.clock == "gpu" else (min(begins), max(ends))
    )
    if outcome.clock == "gpu" and len(before) == len(programs):
        window = min(begins), window[1]
    return critical_path(
        outcome.replay.graph, run, *window, family=lambda r, i: programs[r][i].family
    )


def recorded_ops(outcome: Outcome, rank: int) -> list[Op]:
    """What a rank recorded on its GPU in the last step that is reported; nothing of a rank that was not recorded."""
    name = outcome.steps[-1].step
    for work in outcome.replay.job.works:
        if work.rank == rank:
            last = next(
                i for i, (known, _, _) in enumerate(work.steps) if known == name
            )
            return [op for op in work.ops if op.kind == GPU and op.step == last]
    return []


def overlap(outcome: Outcome) -> dict[str, dict[str, dict[str, float]]]:
    """Seconds of communication of the last step by axis: in all, hidden by kernels and exposed; mean over ranks.

    Measured and simulated. Where two axes are exposed at the same moment, both count it.
    """
    found: dict[str, dict[str, dict[str, list[float]]]] = {
        "measured": {},
        "simulated": {},
    }
    meetings = outcome.replay.job.meetings
    for index, nodes in enumerate(outcome.replay.programs):
        last = last_step(outcome, nodes)
        gpu = [
            i
            for i, node in enumerate(nodes)
            if node.kind == GPU and node.op.step == last
        ]
        run = outcome.run
        spans = [
            (float(run.start[index][0][i]), float(run.end[index][0][i])) for i in gpu
        ]
        axes = [
            (nodes[i].comms[0].axis or "all") if nodes[i].comms else "" for i in gpu
        ]
        sides = {"simulated": (spans, axes)}
        if ops := recorded_ops(outcome, outcome.replay.graph.programs[index].rank):
            was = [
                (meetings[op.comms[0]].axis or "all") if op.comms else "" for op in ops
            ]
            sides["measured"] = [(op.start, op.finish) for op in ops], was
        for side, (spans, axes) in sides.items():
            kernels = _merged(
                [s for s, axis in zip(spans, axes, strict=True) if not axis]
            )
            for axis in sorted(set(axes) - {""}):
                own = _merged(
                    [s for s, a in zip(spans, axes, strict=True) if a == axis]
                )
                hidden = _shared(own, kernels)
                total = sum(end - start for start, end in own)
                row = found[side].setdefault(
                    axis, {"total": [], "hidden": [], "exposed": []}
                )
                for key, value in (
                    ("total", total),
                    ("hidden", hidden),
                    ("exposed", total - hidden),
                ):
                    row[key].append(value)
    return {
        side: {axis: {k: mean(v) for k, v in row.items()} for axis, row in rows.items()}
        for side, rows in found.items()
    }


def _merged(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    made: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if made and start <= made[-1][1]:
            made[-1] = made[-1][0], max(made[-1][1], end)
        else:
            made.append((start, end))
    return made


def _shared(
    one: Sequence[tuple[float, float]], other: Sequence[tuple[float, float]]
) -> float:
    """Seconds in both of two lists of disjoint spans in order."""
    total, i, j = 0.0, 0, 0
    while i < len(one) and j < len(other):
        total += max(0.0, min(one[i][1], other[j][1]) - max(one[i][0], other[j][0]))
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return total
