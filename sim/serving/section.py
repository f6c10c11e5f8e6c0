"""The section [inference] of a scenario: prefill and decode on GPUs of their own, and the KV cache between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from prestep.sim.spec.sections import OtherRun
from prestep.sim.strict import key
from prestep.workloads.job import limits


@dataclass(frozen=True)
class Inference(OtherRun):
    """Disaggregated serving: prefill on the first GPUs, decoding on the next; `prestep run` predicts it."""

    COMMANDS: ClassVar[str] = "prestep run predicts serving"
    PART_OF_CLUSTER: ClassVar[bool] = True

    prefill_gpus: int | None = key(
        None, "GPUs of the prefill pool: the first of the cluster", low=1
    )
    decode_gpus: int | None = key(
        None, "GPUs of the decode pool: those after them", low=1
    )
    prefill_tp: int = key(1, "GPUs of one prefill worker", low=1)
    decode_tp: int = key(1, "GPUs of one decode worker", low=1)
    prompt: int = key(4096, "tokens of a prompt", low=1, most=limits.TOKENS)
    output: int = key(256, "tokens that are made for it", low=1, most=limits.TOKENS)
    requests: int = key(32, "requests to simulate", low=1, most=limits.SAMPLES)
    rate: float = key(1.0, "requests that arrive per second, evenly spaced", above=0)
    path: str = key(
        "auto",
        "way of the KV cache: NVLink where there is one, else RDMA; nvlink, rdma, host (through both hosts' memory), "
        "nvme, or a storage system (`prestep list storage`) that it is written to and read from",
    )
    copies: int = key(
        1, "decode workers that a KV cache is sent to; all must have it", low=1
    )
    reuse: float = key(
        0.0,
        "share of a prompt (0 to 1) whose KV cache is there already: it is loaded, not prefilled",
        low=0,
    )
    reuse_from: str = key(
        "cpu", "where that lies: cpu (the host's memory), or a storage system"
    )
    overlap: bool = key(
        True,
        "a layer's keys and values are sent while later layers run; else after the prefill",
    )
    decode_batch: int = key(
        16, "requests that a decode worker takes at once", low=1, most=limits.SAMPLES
    )
    kv_dtype: Literal["bf16", "fp8"] = key("bf16", "number format of the KV cache")
    tier: Literal["hbm", "cpu", "nvme"] = key(
        "hbm",
        "where the KV cache of a decode worker lies: read from there for every token",
    )
