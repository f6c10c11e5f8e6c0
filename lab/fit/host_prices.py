"""Fits prices of what a host does (`host_us` of pytorch-eager.toml) to steps that nothing else bounds.

    python -m lab.fit.host_prices lab/cases/h200/host_4gpu.jsonl LEAST.json [-o pytorch-eager.toml]

Steps of tiny models give host factor 1; captured programs, whose least times `lab.report.host_least --json` writes,
have a factor of their machine. Every second program by name is left to judge. Prices stay near `CHAINS`, which decide
what steps cannot tell apart: a factor of 1.28 from there costs as much as 8 % on a tiny model or 10 % on a program.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import numpy as np
from scipy.optimize import least_squares

from prestep.sim.costs import load_gpu
from prestep.sim.planning.planned import with_launches
from prestep.validation.formats.rows import Row, read_rows
from prestep.validation.formats.scenarios import scenario_of
from prestep.workloads.host_costs import prices_and_counts
from prestep.workloads.host_work import THREAD
from prestep.workloads.models.model import load_model
from prestep.workloads.torch.lower import lower

#: Microseconds that chains of single operators take (h200_least.jsonl.gz of lab/cases/frameworks/hosts: `micro`), less
#: launches; of what has no chain, traces of three programs or an earlier fit.
CHAINS = {
    "launch": 4.5,
    "python_call": 1.0,
    "view": 1.85,
    "view_backward": 2.8,
    "aten_elementwise": 3.9,
    "aten_elementwise_backward": 12,
    "aten_product": 8,
    "aten_product_backward": 13,
    "aten_attention": 16,
    "aten_norm": 10,
    "aten_attention_backward": 45,
    "aten_norm_backward": 18,
    "event": 3.5,
    "aten_convolution": 18,
    "aten_convolution_backward": 35,
    "aten_list": 12,
    "aten_list_tensor": 0.378,
    "collective": 40,
    "fsdp_copy": 45,
    "autograd_engine": 35,
    "checkpoint": 130,
    "checkpoint_backward": 284,
    "saved_tensor": 4.54,
    "saved_tensor_again": 6.17,
    "ddp_forward": 359,
    "ranks_meet": 359,
    "p2p_batch": 150,
    "p2p_op": 24.5,
    "blocking_collective": 20.7,
}
#: Logarithms of factors by which prices may well be apart from `CHAINS`: of some nobody knows much.
FREE = {
    "python_call": 0.5,
    "autograd_engine": 1.0,
    "ddp_forward": 0.7,
    "p2p_batch": 0.5,
}
WIDTH, OF_TINY, OF_PROGRAM = 0.25, 0.08, 0.10
#: Steps with what no price here is about: mixtures of experts.
APART = ("moe",)


@dataclass(frozen=True)
class Step:
    """Seconds of a step, and how often its host does what has a price; ``own``: on the machine of captured programs."""

    name: str
    seconds: float
    counts: Mapping[str, float]
    own: bool = False

    def off(self, prices: Mapping[str, float], factor: float = 1.0) -> float:
        """Logarithm of the predicted time over the measured one."""
        spent = sum(prices[name] * count for name, count in self.counts.items())
        return float(np.log(spent * (factor if self.own else 1.0) / self.seconds))


def counts_of(row: Row, gpu: str = "h200") -> dict[str, float]:
    """What has a price in the step of the rank that has most to do; an operation's further kernels are launches."""
    scenario = scenario_of(row)
    prices, counted = prices_and_counts(scenario.training.framework)
    lowered = lower(scenario, load_model(scenario.model, scenario.where))
    graph = with_launches(lowered.graph, load_gpu(gpu), 1.0)
    ranks = []
    for before, after in zip(lowered.graph.programs, graph.programs, strict=True):
        further = float((after.host - before.host).sum())
        counts = defaultdict[str, float](float, launch=further)
        for name, count in lowered.host_operations[before.rank].items():
            for part, times in counted.get(name, {name: 1.0}).items():
                counts[part] += count * times
        ranks.append(dict(counts))
    return max(ranks, key=lambda each: sum(prices[k] * n for k, n in each.items()))


def tiny_steps(rows: Sequence[Row]) -> list[Step]:
    """Steps of tiny models that are not compiled."""
    used = [r for r in rows if not r.error and not r.case.get("compile")]
    return [
        Step(r.name, r.measured, counts_of(r))
        for r in used
        if not r.name.startswith(APART)
    ]


def programs(path: Path) -> list[Step]:
    """Captured programs by name."""
    table = json.loads(path.read_text(encoding="utf-8"))
    return [
        Step(name, min(runs), counts, True)
        for name, (runs, counts) in sorted(table.items())
    ]


def fit(
    steps: Sequence[Step], prior: Mapping[str, float]
) -> tuple[dict[str, float], float]:
    """Prices, s, with those before of what has no chain, and the factor of the captured programs' machine."""
    names = sorted({name for step in steps for name in step.counts} & CHAINS.keys())
    widths = np.array([FREE.get(name, WIDTH) for name in names])
    begin = np.array([CHAINS[name] * 1e-6 for name in names])

    def prices(x: np.ndarray) -> dict[str, float]:
        moved = (begin * np.exp(x[:-1])).tolist()
        return {**prior, **dict(zip(names, moved, strict=True))}

    def residuals(x: np.ndarray) -> np.ndarray:
        now, factor = prices(x), float(np.exp(x[-1]))
        off = [s.off(now, factor) / (OF_PROGRAM if s.own else OF_TINY) for s in steps]
        return np.array([*off, *(x[:-1] / widths), x[-1]])

    best = least_squares(residuals, np.zeros(len(names) + 1), loss="soft_l1").x
    return prices(best), float(np.exp(best[-1]))


def rewrite(path: Path, prices: Mapping[str, float]) -> None:
    """Puts prices (microseconds) into a framework's file, keeping everything else."""
    before, counted, after = path.read_text(encoding="utf-8").partition("[counted]")
    for name in CHAINS:
        line = rf"(?m)^{name} = [\d.]+"
        before = re.sub(line, f"{name} = {prices[name] * 1e6:.3g}", before)
    path.write_text(before + counted + after, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", type=Path)
    parser.add_argument("least", type=Path)
    parser.add_argument("-o", type=Path, dest="out")
    options = parser.parse_args()
    tiny, captured = tiny_steps(read_rows(options.rows)), programs(options.least)
    prior = prices_and_counts("captured")[0] | {"host_byte": 1 / THREAD}
    prices, factor = fit([*tiny, *captured[::2]], prior)
    print(f"factor of the programs' machine {factor:.3f}")
    parts = {"tiny models": tiny, "fitted": captured[::2], "judged": captured[1::2]}
    for title, steps in parts.items():
        off = [np.expm1(step.off(prices, factor)) for step in steps]
        for step, error in zip(steps, off, strict=True):
            print(f"  {step.name:28s} {error:+6.1%}")
        print(f"{title}: {len(off)}, mean |error| {mean(map(abs, off)):.1%}")
    if options.out:
        rewrite(options.out, prices)


if __name__ == "__main__":
    main()
