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

    prefill_gpus: int | None = key(None, "GPUs of the prefill pool, the first", low=1)
    decode_gpus: int | None = key(None, "GPUs of the decode pool, the next", low=1)
    prefill_tp: int = key(1, "GPUs of one prefill worker", low=1)
    decode_tp: int = key(1, "GPUs of one decode worker", low=1)
    prompt: int = key(4096, "tokens of a prompt", limits.TOKENS)
    output: int = key(256, "tokens that are made for it", limits.TOKENS)
    requests: int = key(32, "requests to simulate", limits.SAMPLES)
    rate: float = key(1.0, "requests that arrive per second, evenly spaced", above=0)
    path: str = key(
        "auto",
        "of the KV cache: nvlink, rdma, host, nvme or a storage system; default NVLink, else RDMA",
    )
    copies: int = key(1, "decode workers that get a KV cache", low=1)
    reuse: float = key(0.0, "share of a prompt already cached", low=0)
    reuse_from: str = key("cpu", "where: cpu, or a storage system")
    overlap: bool = key(True, "send a layer's cache while later layers run")
    decode_batch: int = key(16, "requests of a decode worker at once", limits.SAMPLES)
    kv_dtype: Literal["bf16", "fp8"] = key("bf16", "number format of the KV cache")
    tier: Literal["hbm", "cpu", "nvme"] = key("hbm", "where decode reads its KV cache")
