"""The section [inference] of a scenario: prefill and decode on GPUs of their own, and the KV cache between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sim.strict import key


@dataclass(frozen=True)
class Inference:
    """Disaggregated serving: prefill on the first GPUs, decoding on the next; `prestep run` predicts it."""

    prefill_gpus: int | None = key(
        None, "GPUs of the prefill pool: the first of the cluster", low=1
    )
    decode_gpus: int | None = key(
        None, "GPUs of the decode pool: those after them", low=1
    )
    prefill_tp: int = key(1, "GPUs of one prefill worker", low=1)
    decode_tp: int = key(1, "GPUs of one decode worker", low=1)
    prompt: int = key(4096, "tokens of a prompt", low=1)
    output: int = key(256, "tokens that are made for it", low=1)
    requests: int = key(32, "requests to simulate", low=1)
    rate: float = key(1.0, "requests that arrive per second, evenly spaced", above=0)
    path: Literal["auto", "nvlink", "rdma", "host", "nvme"] = key(
        "auto",
        "way of the KV cache: NVLink where there is one, else RDMA; host: through both hosts' memory",
    )
    overlap: bool = key(
        True,
        "a layer's keys and values are sent while later layers run; else after the prefill",
    )
    decode_batch: int = key(16, "requests that a decode worker takes at once", low=1)
    kv_dtype: Literal["bf16", "fp8"] = key("bf16", "number format of the KV cache")
    tier: Literal["hbm", "cpu", "nvme"] = key(
        "hbm",
        "where the KV cache of a decode worker lies: read from there for every token",
    )
