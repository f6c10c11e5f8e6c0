"""Step times of rows that print something else: tokens or samples per second, TFLOP/s, MFU, GPU hours."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from lab.formats import model_flops
from lab.formats.published_columns import number
from prestep.sim.costs import load_gpu
from prestep.sim.errors import InputError, Mistake
from prestep.topologies import load_cluster
from prestep.workloads.job.model import Model
from prestep.workloads.models.model import load_model

SECONDS = {
    "s": 1.0,
    "sec": 1.0,
    "seconds": 1.0,
    "ms": 1e-3,
    "us": 1e-6,
    "min": 60.0,
    "minutes": 60.0,
    "h": 3600.0,
}
TERA = {
    "TFLOP/s": 1.0,
    "TFLOPS": 1.0,
    "TFLOP/S/GPU": 1.0,
    "TFLOPS/GPU": 1.0,
    "PFLOP/S/GPU": 1e3,
    "GFLOP/S/GPU": 1e-3,
}
FLOPS = ("model_tflops_per_gpu", "achieved_tflops_per_gpu", "mfu", "hfu")
# How many times a second the step's tokens (or samples) on so many GPUs pass: value -> step time, s.
RATES: dict[str, Callable[[float, float, float, float], float]] = {
    "tokens_per_s_per_gpu": lambda value, tokens, samples, gpus: (
        tokens / (value * gpus)
    ),
    "tokens_per_s": lambda value, tokens, samples, gpus: tokens / value,
    "samples_per_s": lambda value, tokens, samples, gpus: samples / value,
    "samples_per_s_per_gpu": lambda value, tokens, samples, gpus: (
        samples / (value * gpus)
    ),
    "steps_per_s": lambda value, tokens, samples, gpus: 1 / value,
    "gpu_hours_per_trillion_tokens": lambda value, tokens, samples, gpus: (
        value * 3600 * tokens / 1e12 / gpus
    ),
}
PER_SECOND = r"(?:(?:tokens|tok|samples|sequences|seqs?|steps|iterations|its?)/s(?:ec)?(?:/GPU|/device)?|GPU-?hours?)?"
METRICS = ("step_time", *RATES, *FLOPS)


def step_time_of(
    row: Mapping[str, str], scenario: Mapping[str, Any], recomputed: bool = False
) -> float:
    """Seconds of the step that a row measured. `recomputed`: the TFLOP/s it prints count recomputation.

    Raises
    ------
    InputError
        If the metric's value or unit says no time.
    """
    metric, unit = row["metric_name"], row.get("unit", "").strip()
    try:
        time = _time(row, metric, unit, scenario, recomputed)
    except (
        ValueError,
        ZeroDivisionError,
        OverflowError,
    ):  # no number, or none that says a time
        time = math.nan
    except KeyError:
        raise InputError(
            Mistake(
                row["id"],
                f"unit of {metric}",
                f'"{unit}"',
                "a unit of time, TFLOP/s/GPU, tokens/s/GPU",
            )
        ) from None
    if not (math.isfinite(time) and time > 0):
        raise InputError(
            Mistake(row["id"], metric, row["metric_value"], "a positive number")
        )
    return time


def _time(
    row: Mapping[str, str],
    metric: str,
    unit: str,
    scenario: Mapping[str, Any],
    recomputed: bool,
) -> float:
    value, gpus = number(row["metric_value"].rstrip("% ")), number(row["gpus"])
    if metric == "step_time":
        return value * SECONDS[unit.lower() or "s"]
    samples = number(row["global_batch"])
    tokens = samples * number(row["seq_len"])
    if rate := RATES.get(metric):
        if not re.fullmatch(PER_SECOND, unit, re.IGNORECASE):
            raise KeyError(unit)
        return rate(value, tokens, samples, gpus)
    again = metric == "hfu" or (
        metric.startswith("achieved")
        and (recomputed or "recompute" in row["notes"].lower())
    )
    return (
        tokens
        * flops_per_token(scenario, again)
        / (_flops(value, metric, unit, scenario) * gpus)
    )


def _flops(value: float, metric: str, unit: str, scenario: Mapping[str, Any]) -> float:
    """flop/s of a GPU; a utilisation is of the dense peak of the number format, fp8's counted against bf16's."""
    if metric not in ("mfu", "hfu"):
        return (
            value
            * 1e12
            * TERA[unit.upper() if unit.upper() in TERA else unit or "TFLOP/s"]
        )

    precision = scenario["training"].get("precision", "bf16")
    gpu = load_gpu(load_cluster(scenario["cluster"]["name"], hosts=1).gpu_model)
    share = value / 100 if unit == "%" or value > 1 else value
    return (
        share * gpu.peak[precision if precision in ("fp16", "fp32", "tf32") else "bf16"]
    )


def flops_per_token(scenario: Mapping[str, Any], recomputed: bool) -> float:
    """Narayanan et al. 2021, equation (3): forward and backward, attention not halved for the mask; with recomputation
    the layers' forward pass twice. For gated, grouped-query, latent and expert layers the same count of their own
    matrices, those of the experts that a token sees."""
    return model_flops.flops_per_token(
        load_model(Model(**scenario["model"])),
        scenario["training"]["seq_len"],
        False,
        recomputed,
    )
