"""`python -m lab.fit.draw`: what a GPU draws (`[draw]` of its file), from kernels and steps with watts.

Kernels run for seconds each (`kind: power` of `lab/cases/aten`); steps are those of `lab/cases/energy`.
The power limit hides what a kernel would draw beyond it; the clock, which was measured too, tells it: at a lower one a
flop takes less, by `exponent` of [draw]. No predicted time is used: a step takes what it was measured to take.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from lab.aten import cases
from prestep.sim.costs import Gpu, load_gpu
from prestep.sim.costs.clock import work_kind
from prestep.sim.costs.draw import ATTENTION
from prestep.sim.costs.kinds import work
from prestep.sim.graph.kernel import Kernel
from prestep.sim.predict import predict
from prestep.validation.formats.rows import read_rows
from prestep.validation.formats.scenarios import scenario_of
from prestep.validation.sets.sets import folder_of

#: What draws, in the order of the fit: seconds of any kernel, bytes, flops by kind.
KINDS = ("active", "byte", "bf16", "fp16", "fp8", "tf32", "fp32", ATTENTION)
#: Scale of the fit: W, pJ.
UNITS = np.array([1.0, *[1e12] * (len(KINDS) - 1)])
FIRST = np.array([300.0, 30.0, 0.6, 0.6, 0.7, 2.0, 4.0, 0.8])
ACTIVE, FLOPS = 0, slice(2, None)  # which of KINDS follow the clock
STEP_WEIGHT = 2.0  # a step is what is asked about
SHORTEST = 20e-6  # s: below it the host bounds calls back to back
BACKWARD = 2.5  # flops of attention's backward over forward's: five products for two
IDLE = "idle"  # a GPU with nothing to do
COPIES = "memcpy"  # copy engines: no kernel runs
FIELDS = ("family", "op", "way", "size", "set")
STEPS = folder_of("energy")


@dataclass(frozen=True)
class Sample:
    """Measured watts at a clock (over the highest), and what was done in a second: the amounts of `KINDS`."""

    name: str
    watts: float
    clock: float
    amounts: tuple[float, ...]
    weight: float = 1.0


def kernels(gpu: Gpu) -> Iterator[Sample]:
    """Kernels that ran for seconds."""
    with gzip.open(cases.FOLDER / f"{gpu.name}.jsonl.gz", "rt") as file:
        rows = [json.loads(line) for line in file]
    names = {row["id"]: row["name"] for row in rows if row["kind"] == "kernel"}
    operations = {_case_key(row): row for row in rows if row["kind"] == "op"}
    for row in rows:
        if row["kind"] != "power" or row.get("error") or row["op"] == IDLE:
            continue
        clock = row["clock_hz"] / _highest(gpu)
        if row["family"] == "attention":
            yield _attention(row, clock)
        elif row["family"] != COPIES and row["s"] >= SHORTEST:
            operation = operations.get(_case_key(row))
            yield from _operation(row, clock, operation, names)


def _highest(gpu: Gpu) -> float:
    assert gpu.facts.clock is not None
    return gpu.facts.clock


def _operation(
    row: Mapping[str, Any],
    clock: float,
    operation: dict[str, Any] | None,
    names: dict[int, str],
) -> Iterator[Sample]:
    """The first kernel of an operation that was also measured alone."""
    for case in () if operation is None else cases.cases_of(operation, names):
        uses = [(kernel, 1.0, row["s"]) for kernel in case.kernels[:1]]
        amounts = _amounts(uses, row["s"])
        yield Sample(f"{row['op']} {row['way']}", row["watts"], clock, amounts)


def _attention(row: Mapping[str, Any], clock: float) -> Sample:
    """Causal attention of (sequences, heads, heads of keys, length, head): half of its scores are computed."""
    sequences, heads, _, length, head = row["size"]
    forward = 4 * sequences * heads * length**2 * head / 2
    flops = forward * (BACKWARD if row["way"] == "bwd" else 1.0)
    amounts = dict.fromkeys(KINDS, 0.0) | {"active": 1.0, ATTENTION: flops / row["s"]}
    name = f"{row['set']['backend']} attention {row['way']}"
    return Sample(name, row["watts"], clock, tuple(amounts.values()))


def _case_key(row: Mapping[str, Any]) -> str:
    return json.dumps([row.get(field) for field in FIELDS])


def steps(gpu: Gpu, cluster: str) -> Iterator[Sample]:
    """Steps with watts, each in the time that it was measured to take."""
    path = STEPS / f"train_{gpu.name}_power.jsonl"
    records = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    for row, record in zip(read_rows(path), records, strict=True):
        scenario = scenario_of(row)
        there = replace(scenario.cluster, name=cluster)
        details = predict(replace(scenario, cluster=there)).details
        if details is None:
            continue
        seconds = record["window_step_s"]
        uses = [(use.kernel, use.count, use.time) for use in details.kernels]
        amounts = _amounts(uses, seconds)
        clock = record["sm_clock_mhz"] * 1e6 / _highest(gpu)
        yield Sample(row.id, record["watts_mean"], clock, amounts, STEP_WEIGHT)


def _amounts(
    uses: Iterable[tuple[Kernel, float, float]], seconds: float
) -> tuple[float, ...]:
    """What kernels (each with how often and how long it runs) do in a second of so many."""
    total = dict.fromkeys(KINDS, 0.0)
    for kernel, count, time in uses:
        flops, size = work(kernel)
        total["active"] += time
        total["byte"] += count * size
        kind = work_kind(kernel)
        if kind in total:
            total[kind] += count * flops
    total["active"] = min(total["active"], seconds)
    return tuple(amount / seconds for amount in total.values())


def watts(constants: np.ndarray, samples: Sequence[Sample], gpu: Gpu) -> np.ndarray:
    """What the constants make of the samples, each at its clock."""
    amounts = np.array([sample.amounts for sample in samples]) / UNITS
    assert gpu.draw is not None
    clock = np.array([sample.clock for sample in samples])
    drawn = amounts * constants
    drawn[:, FLOPS] *= clock[:, None] ** (gpu.draw.exponent - 1)
    drawn[:, ACTIVE] *= clock**gpu.draw.exponent
    total: np.ndarray = gpu.draw.idle + drawn.sum(axis=1)
    return total


def fit(samples: Sequence[Sample], gpu: Gpu) -> np.ndarray:
    """The constants, in W and pJ, with the least squares of relative errors."""
    measured = np.array([sample.watts for sample in samples])
    weight = np.array([sample.weight for sample in samples])

    def errors(constants: np.ndarray) -> np.ndarray:
        relative: np.ndarray = watts(constants, samples, gpu) / measured - 1
        return np.asarray(weight * relative)

    return np.asarray(least_squares(errors, FIRST, bounds=(0, np.inf)).x)


def main() -> None:
    """Print the constants and what they make of every sample."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gpu", nargs="?", default="h200")
    parser.add_argument("--cluster", default="h200-host-4")
    options = parser.parse_args()
    gpu = load_gpu(options.gpu)
    samples = [*kernels(gpu), *steps(gpu, options.cluster)]
    constants = fit(samples, gpu)
    for kind, value in zip(KINDS, constants, strict=True):
        print(f"{kind:10} {value:.3g} {'W' if kind == 'active' else 'pJ'}")
    for sample, power in zip(samples, watts(constants, samples, gpu), strict=True):
        error = power / sample.watts - 1
        print(f"{sample.name:28} {sample.watts:5.0f} W {power:5.0f} W {error:+.1%}")


if __name__ == "__main__":
    main()
