"""What a replay prints, writes as JSON and draws."""

from __future__ import annotations

from math import isnan
from statistics import mean
from typing import Any

import numpy as np

from sim.exporters._words import path_part, percent
from sim.replay.answers import overlap, path, recorded_ops
from sim.replay.outcome import Outcome, StepTime, last_step
from sim.units import format_duration
from workloads.traces.work import GPU, Op

SHARES = ("compute", "exposed communication", "host", "idle")
# Pauses of a GPU that are shorter than this are its own, not the host's, s.
PAUSE = 10e-6


def as_json(outcome: Outcome) -> dict[str, Any]:
    """Seconds by rank and step, and what they rest on."""
    clocks = ("host", "gpu")
    return {
        "measured_step_time": _by_rank(outcome, 0, outcome.clock),
        "simulated_step_time": _by_rank(outcome, 1, outcome.clock),
        "step_time": outcome.step_time,
        "mean_error": _mean(outcome),
        "worst_error": None if outcome.changes else outcome.worst,
        "clock": outcome.clock,
        "clocks": {
            c: {
                "measured": _by_rank(outcome, 0, c),
                "simulated": _by_rank(outcome, 1, c),
            }
            for c in clocks
        },
        "comm": outcome.mode,
        "cluster": outcome.cluster or None,
        "changes": list(outcome.changes),
        "breakdown": dict(
            zip(("measured", "simulated"), breakdown(outcome), strict=True)
        ),
        "families": families(outcome),
        "overlap": overlap(outcome),
        "residual": residual(outcome),
        "critical_path": path(outcome).to_dict(),
        "free": list(outcome.free),
        "reports": dict(sorted(outcome.notes.items())),
        "dropped": list(outcome.dropped),
        "operations": outcome.replay.graph.operations,
    }


def _by_rank(
    outcome: Outcome, side: int, clock: str
) -> dict[str, dict[str, float | None]]:
    found: dict[str, dict[str, float | None]] = {}
    for step in outcome.steps:
        value = step.on(clock)[side]
        found.setdefault(str(step.rank), {})[step.step] = (
            None if isnan(value) else value
        )
    return found


def _error(step: StepTime, clock: str) -> float:
    measured, simulated = step.on(clock)
    return simulated / measured - 1.0 if measured > 0 else 0.0


def _mean(outcome: Outcome) -> float | None:
    errors = [
        abs(_error(s, outcome.clock))
        for s in outcome.steps
        if s.on(outcome.clock)[0] > 0
    ]
    return None if outcome.changes or not errors else mean(errors)


def as_text(outcome: Outcome) -> str:
    """The page for people."""
    job = outcome.replay.job
    on = f"on {outcome.cluster}" if outcome.cluster else "as recorded"
    head = f"{len(job.works)} of {job.world} ranks recorded on {job.device or 'an unknown GPU'}; communication {on}"
    lines = [head, *(f"changed: {change}" for change in outcome.changes), ""]
    lines.append(
        f"{'rank':>4}  {'step':<18} {'measured':>12} {'simulated':>12} {'difference':>10}"
    )
    for step in outcome.steps:
        measured, simulated = step.on(outcome.clock)
        recorded = "not recorded" if isnan(measured) else format_duration(measured)
        error = "" if isnan(measured) else f"{100 * _error(step, outcome.clock):+.2f} %"
        lines.append(
            f"{step.rank:>4}  {step.step:<18} {recorded:>12} {format_duration(simulated):>12} {error:>10}"
        )
    clock = (
        "ends of its GPU work"
        if outcome.clock == "gpu"
        else "the profiler's annotation on the host"
    )
    lines += ["", f"a step is counted between {clock} (--clock)"]
    if not outcome.changes and (average := _mean(outcome)) is not None:
        lines.append(
            f"mean error {100 * average:.2f} %, worst {100 * outcome.worst:.2f} %"
        )
    measured_shares, simulated_shares = breakdown(outcome)
    lines += ["", f"{'share of the last step':<24} {'measured':>12} {'simulated':>12}"]
    for name in SHARES:
        a, b = measured_shares.get(name, 0.0), simulated_shares[name]
        lines.append(f"  {name:<22} {format_duration(a):>12} {format_duration(b):>12}")
    lines += _overlap_lines(outcome) + _path_lines(outcome)
    if outcome.free:
        lines += ["", f"{'if this took no time':<24} {'step':>12} {'saved':>12}"]
        lines += [
            f"  {row['free']:<22} {format_duration(row['step_time']):>12} {_signed(row['saved']):>12}"
            for row in outcome.free
        ]
    if outcome.notes:
        lines += ["", "What the traces did not say"]
        lines += [
            f"  {count:>6} x {what}" for what, count in sorted(outcome.notes.items())
        ]
    return "\n".join(lines)


def residual(outcome: Outcome) -> dict[str, float]:
    """Simulated less measured seconds of the last step by phase, and of exposed communication by axis."""
    measured, simulated = breakdown(outcome)
    found = {name: simulated[name] - measured[name] for name in SHARES}
    sides = overlap(outcome)
    for axis, row in sides["simulated"].items():
        before = sides["measured"].get(axis, {}).get("exposed", 0.0)
        found[f"exposed communication {axis}"] = row["exposed"] - before
    return found


def _signed(seconds: float) -> str:
    return f"-{format_duration(-seconds)}" if seconds < 0 else format_duration(seconds)


def _overlap_lines(outcome: Outcome) -> list[str]:
    sides = overlap(outcome)
    lines = (
        ["", f"{'communication by axis':<24} {'measured':>12} {'simulated':>12}"]
        if sides["simulated"]
        else []
    )
    for axis, row in sides["simulated"].items():
        for part in ("hidden", "exposed"):
            a, b = sides["measured"].get(axis, {}).get(part, 0.0), row[part]
            lines.append(
                f"  {f'{axis}, {part}':<22} {format_duration(a):>12} {format_duration(b):>12}"
            )
    return lines


def _path_lines(outcome: Outcome, most: int = 6) -> list[str]:
    found = path(outcome)
    lines = [
        "",
        f"critical path of the last step, {format_duration(found.length)} through all ranks",
    ]
    parts = found.parts()
    for part in parts[:most]:
        lines.append(
            f"  {path_part(part):<35} {format_duration(part['seconds']):>12} {percent(part['share']):>7}"
        )
    if rest := parts[most:]:
        seconds = sum(part["seconds"] for part in rest)
        lines.append(f"  {f'{len(rest)} more':<35} {format_duration(seconds):>12}")
    return lines


def breakdown(outcome: Outcome) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds of the last step by what the GPU did, mean over ranks: (measured, simulated).

    Compute hides communication beside it; what is left of communication is exposed. Pauses in which the next operation
    had not been launched are the host's, others idle.
    """
    sides: tuple[list[dict[str, float]], list[dict[str, float]]] = ([], [])
    for index, nodes in enumerate(outcome.replay.programs):
        last = last_step(outcome, nodes)
        gpu = [
            i
            for i, node in enumerate(nodes)
            if node.kind == GPU and node.op.step == last
        ]
        if not gpu:
            continue
        run = outcome.run
        spans = [
            (run.start[index][0][i], run.end[index][0][i], run.launch[index][0][i])
            for i in gpu
        ]
        sides[1].append(_shares(spans, [nodes[i].op for i in gpu]))
        if ops := recorded_ops(outcome, outcome.replay.graph.programs[index].rank):
            sides[0].append(
                _shares([(op.start, op.finish, op.issue) for op in ops], ops)
            )
    return _average(sides[0]), _average(sides[1])


def _average(found: list[dict[str, float]]) -> dict[str, float]:
    return {
        name: mean([shares[name] for shares in found]) if found else 0.0
        for name in SHARES
    }


def _shares(spans: list[tuple[float, float, float]], ops: list[Op]) -> dict[str, float]:
    talks = np.array([bool(op.collective) for op in ops])
    times = np.array([(start, end) for start, end, _ in spans])
    both, compute = _union(times), _union(times[~talks])
    gaps = _gaps(times)
    launches = np.sort([launch for _, _, launch in spans])
    host = 0.0
    for start, end in gaps:
        # The operation that ends the pause was launched during it, and the host is what the GPU waited for.
        at = np.searchsorted(launches, start)
        if end - start > PAUSE and at < len(launches) and launches[at] < end:
            host += end - start
    return {
        "compute": compute,
        "exposed communication": both - compute,
        "host": host,
        "idle": float(sum(end - start for start, end in gaps)) - host,
    }


def _union(times: np.ndarray) -> float:
    if not len(times):
        return 0.0
    return float(
        times[:, 1].max()
        - times[:, 0].min()
        - sum(end - start for start, end in _gaps(times))
    )


def _gaps(times: np.ndarray) -> list[tuple[float, float]]:
    """Pauses in which none of the spans runs."""
    if not len(times):
        return []
    ordered = times[np.argsort(times[:, 0])]
    reach = np.maximum.accumulate(ordered[:, 1])
    pauses = np.flatnonzero(ordered[1:, 0] > reach[:-1])
    return [(float(reach[i]), float(ordered[i + 1, 0])) for i in pauses]


def families(outcome: Outcome) -> dict[str, float]:
    """Seconds of GPU work by kernel family in the last step, mean over ranks."""
    total: dict[str, float] = {}
    for index, nodes in enumerate(outcome.replay.programs):
        last = last_step(outcome, nodes)
        start, end = outcome.run.start[index][0], outcome.run.end[index][0]
        for i, node in enumerate(nodes):
            if node.kind == GPU and node.op.step == last:
                total[node.family] = total.get(node.family, 0.0) + float(
                    end[i] - start[i]
                )
    ranks = len(outcome.replay.programs)
    return {
        name: seconds / ranks
        for name, seconds in sorted(total.items(), key=lambda item: -item[1])
    }
