"""Step times of rows that print something else: tokens or samples per second, TFLOP/s, MFU."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


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
    the layers' forward pass twice. For gated and grouped-query layers the same count of their own matrices."""
    m, s = scenario["model"], float(scenario["training"]["seq_len"])
    h, layers = float(m["hidden"]), float(m["layers"])
    shared = float(m.get("kv_heads", m["heads"])) / float(m["heads"])
    width = float(m.get("head_dim", h / m["heads"])) * m["heads"]
    attention = 2 * h * width * (2 + 2 * shared) + 4 * s * width
    matrices = 3 if m.get("gated") else 2
    active = float(m.get("experts_per_token", 1) or 1)
    feed = 2 * matrices * h * float(m["ffn"]) * active
    layer = attention + feed
    return (4 if recomputed else 3) * layers * layer + 3 * 2 * h * float(m["vocab"])
