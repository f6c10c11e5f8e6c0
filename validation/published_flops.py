"""Step times of rows that print something else: tokens or samples per second, TFLOP/s, MFU."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from sim.sections import Model
from workloads import counts
from workloads.model import load_model


def step_time_of(row: Mapping[str, str], scenario: Mapping[str, Any]) -> float:
    """Seconds of the step that a row measured; nan for a metric that says none."""
    value, metric, gpus = float(row["metric_value"]), row["metric_name"], float(row["gpus"])
    samples, tokens = float(row["global_batch"]), float(row["global_batch"]) * float(row["seq_len"])
    if metric == "step_time":
        return value * (1e-3 if row["unit"] == "ms" else 1.0)
    if metric == "tokens_per_s_per_gpu":
        return tokens / (value * gpus)
    if metric == "samples_per_s":
        return samples / value
    if metric in ("model_tflops_per_gpu", "achieved_tflops_per_gpu"):
        again = metric.startswith("achieved") and "recompute" in row["notes"].lower()
        return tokens * flops_per_token(scenario, again) / (value * 1e12 * gpus)
    return math.nan


def flops_per_token(scenario: Mapping[str, Any], recomputed: bool) -> float:
    """Narayanan et al. 2021, equation (3): forward and backward, attention not halved for the mask; with recomputation
    the layers' forward pass twice. For gated, grouped-query, latent and expert layers the same count of their own
    matrices, those of the experts that a token sees."""
    return counts.flops_per_token(
        load_model(Model(**scenario["model"])), scenario["training"]["seq_len"], False, recomputed
    )
