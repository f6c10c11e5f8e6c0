"""A GPU's table from one machine's traces and microbenchmarks, over the tables of a GPU that prestep knows."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from prestep.sim.costs.corrected import CorrectedGpu, name_of
from prestep.sim.costs.gpu import Gpu
from prestep.sim.costs.measured import FORMAT
from prestep.sim.costs.tables import Row
from prestep.sim.costs.terms import group
from prestep.validation.fit.bootstrap import Estimate, estimate, of_ratios
from prestep.validation.fit.machine_rows import rows_of
from prestep.validation.fit.measurement import Measured

HELD_OUT = 3  # every third shape of a table is held out of the trial fit
LAYOUTS = ("nt", "nn", "tn")
LEAST = 4  # rows below which a table has no factor of its own
SAME = ("4096x4096x4096", "8192x8192x8192")  # products that every GPU of a host ran
PARTS = ("base, held out", "fitted", "held out")
Errors = dict[tuple[str, str], list[float]]


@dataclass(frozen=True)
class Table:
    """A GPU as measured.

    Attributes
    ----------
    base : str
        The GPU under it.
    rows : sequence of Row
        Measured kernels.
    factors : mapping
        Time here over the base's, by table.
    facts : mapping
        Facts of the device: number of SMs, memory, cache; standard deviation between its GPUs.
    errors : Errors
        Signed errors of the trial fit and of the base alone, by (kind, "fitted" | "held out" | "base, held out").
    notes : tuple of str
        Lines of the report about how rows were scaled.
    """

    base: str
    rows: Sequence[Row]
    factors: Mapping[str, Estimate]
    facts: Mapping[str, float]
    errors: Errors
    notes: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """Mean absolute and signed errors by kind, of the fit and of the base."""
        kinds = sorted(
            {kind for kind, _ in self.errors},
            key=lambda kind: (-len(self.errors.get((kind, "fitted"), ())), kind),
        )
        lines = [
            f"{'kernels':24} {'rows':>5} {'base, held out':>16} {'fitted':>16} {'held out':>16}"
        ]
        for kind in ["all", *kinds]:
            parts = [self.of(part, kind) for part in PARTS]
            base, fitted, held = map(_cell, parts)
            count = len(parts[1]) + len(parts[2])
            lines.append(f"{kind:24} {count:5} {base:>16} {fitted:>16} {held:>16}")
        return "\n".join(lines)

    def of(self, part: str, kind: str = "all") -> np.ndarray:
        """Signed errors of a part, of one kind or of all."""
        pairs = self.errors.items()
        chosen = [v for (k, p), v in pairs if p == part and kind in ("all", k)]
        return np.array([error for errors in chosen for error in errors])

    def figure(self, part: str) -> float:
        """Mean absolute error of a part."""
        errors = self.of(part)
        return float(np.abs(errors).mean()) if len(errors) else math.nan


def _cell(errors: np.ndarray) -> str:
    if not len(errors):
        return "-"
    return f"{np.abs(errors).mean():.1%} ({errors.mean():+.1%})"


def fit(
    measured: Measured, base: str, base_gpu: Gpu, level: float | None = None
) -> Table | None:
    """The GPU's table; None if nothing of kernels was measured.

    Parameters
    ----------
    base, base_gpu
        The GPU under it: its name or file, and what is known of it.
    level
        Time of kernels here over the base's, by steps that nobody traced; None: not known.

    Raises
    ------
    InputError
        If the base is unknown, or a row is wrong.
    """
    rows, notes = rows_of(measured, base_gpu, level)
    if not rows:
        return None
    held = held_out(rows)
    trial_rows = [row for row, out in zip(rows, held, strict=True) if not out]
    factors = {k: v.value for k, v in factors_of(trial_rows, base_gpu).items()}
    trial = CorrectedGpu(base_gpu, trial_rows, factors)
    errors: Errors = defaultdict(list)
    for row, out in zip(rows, held, strict=True):
        kind = group(row.kernel)[0]
        errors[kind, "held out" if out else "fitted"].append(
            trial.duration(row.kernel) / row.duration - 1
        )
        if out:
            errors[kind, "base, held out"].append(
                base_gpu.duration(row.kernel) / row.duration - 1
            )
    return Table(
        base,
        rows,
        factors_of(rows, base_gpu),
        _facts(measured, level is not None),
        dict(errors),
        tuple(notes),
    )


def held_out(rows: Sequence[Row]) -> list[bool]:
    """Which rows are held out: every third shape of a table, the smallest never."""
    counts: dict[str, int] = {}
    found = []
    for row in rows:
        at = counts[name_of(row.kernel)] = counts.get(name_of(row.kernel), -1) + 1
        found.append(at % HELD_OUT == HELD_OUT - 1)
    return found


def factors_of(rows: Sequence[Row], gpu: Gpu) -> dict[str, Estimate]:
    """Time here over the base's by table, where enough rows say so: those of traces, if there are any traces at all.

    Microbenchmarks scatter by a tenth about times in a step, as the base's traces have them.
    """
    grouped, pooled = (
        defaultdict[str, list[float]](list),
        defaultdict[str, list[float]](list),
    )
    in_steps = [row for row in rows if row.source != "micro"]
    for row in in_steps or rows:
        ratio = row.duration / gpu.duration(row.kernel)
        grouped[name_of(row.kernel)].append(ratio)
        # Products of all layouts run on the same units at the same clock: one without rows is as the others.
        if row.kernel.is_product:
            for layout in LAYOUTS:
                pooled[name_of(replace(row.kernel, layout=layout))].append(ratio)
    for name, ratios in pooled.items():
        if len(grouped[name]) < LEAST:
            grouped[name] = ratios
    return {
        name: of_ratios(ratios)
        for name, ratios in sorted(grouped.items())
        if len(ratios) >= LEAST
    }


def _facts(measured: Measured, levelled: bool) -> dict[str, float]:
    """What the device says of itself, how equal its GPUs are, and that they worked together."""
    gpus = measured.about.get("gpus") or [{}]
    names = ("sms", "memory", "l2")
    found = {
        name: gpus[0][name]
        for name in names
        if isinstance(gpus[0].get(name), int) and gpus[0][name] > 0
    }
    ratios: list[float] = []
    for shape in SAME:
        times = [
            float(row["s"])
            for row in measured.rows("micro", "gemm")
            if row.get("src") == "every GPU"
            and f"{row['m']}x{row['n']}x{row['k']}" == shape
        ]
        if len(times) > 2:
            ratios.append(float(np.std(times, ddof=1) / np.mean(times)))
    found |= {"spread": round(float(np.mean(ratios)), 5)} if ratios else {}
    # All GPUs were at work while these rows were measured: the base's factor for that is in them already, unless they
    # were brought to what steps leave when it is taken out.
    crowded = measured.world > 1 and not levelled
    return found | ({"crowded": 1.0} if crowded else {})


def render(table: Table, measured: Measured, parquet: str) -> str:
    """The file of the GPU."""
    e = estimate(np.abs(table.of("held out")).tolist() or [0.0])
    lines = [
        f"# {measured.model}: kernels measured {measured.when}. Written by `prestep calibrate` from {measured.name}.",
        f"# Mean |error|: fitted {table.figure('fitted'):.1%}, held out {table.figure('held out'):.1%} (every third "
        f"shape; median {e.value:.1%}, 90 % interval {e.low:.1%} to {e.high:.1%}),",
        f"# the {table.base}'s own tables on the held-out rows {table.figure('base, held out'):.1%}. "
        "The table has all rows. Evidence: measured (rows), fitted (factors).",
        f"format = {FORMAT}",
        f'base = "{table.base}"  # facts, and tables of what was not measured',
        f'table = "{parquet}"',
        *(f"{name} = {value}  # measured" for name, value in table.facts.items()),
        "",
        "[factor]  # time here over the base's, by kind-layout-dtype; low and high: 90 % of bootstrap draws",
        *(f'"{name}" = {factor.to_toml()}' for name, factor in table.factors.items()),
    ]
    return "\n".join(lines) + "\n"
