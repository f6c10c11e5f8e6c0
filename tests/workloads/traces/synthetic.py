"""Small Kineto traces made by hand: a data-parallel step whose times are known."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

LAYERS, LAYER, GAP = 6, 1000.0, 5.0  # us
TRANSFER = 700.0  # us, of a bucket
SIZE = 16 * 2**20  # elements of a bucket, bf16


def call(
    name: str,
    start: float,
    duration: float,
    correlation: int = -1,
    category: str = "cuda_runtime",
    **args: Any,
) -> dict[str, Any]:
    if correlation >= 0:
        args["correlation"] = correlation
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 1,
        "tid": 1,
        "ts": start,
        "dur": duration,
        "args": args,
    }


def kernel(
    name: str,
    start: float,
    duration: float,
    correlation: int,
    stream: int = 7,
    **args: Any,
) -> dict[str, Any]:
    args |= {"device": 0, "stream": stream, "correlation": correlation}
    return {
        "ph": "X",
        "cat": "kernel",
        "name": name,
        "pid": 0,
        "tid": stream,
        "ts": start,
        "dur": duration,
        "args": args,
    }


def step(
    rank: int,
    number: int,
    start: float,
    world: int,
    late: float = 0.0,
    transfer: float = TRANSFER,
) -> tuple[list[dict[str, Any]], float]:
    """Events of one step, and its end: layers on one stream, a bucket after every second one, then the optimizer.

    Rank 0 is `late` us behind the others, which wait for it in the first bucket.
    """
    events, clock, host = [], start + (late if rank == 0 else 0.0), start
    correlation, free, slowest = number * 1000 + rank * 100_000, 0.0, start + late
    for layer in range(LAYERS):
        events.append(
            call(
                "cudaLaunchKernel",
                host,
                4.0,
                correlation,
                **{"External id": correlation},
            )
        )
        events.append(
            call(
                "aten::mm",
                host - 1,
                9.0,
                category="cpu_op",
                **{
                    "External id": correlation,
                    "Input Dims": [[2048, 2048], [2048, 2048]],
                    "Input type": ["c10::BFloat16", "c10::BFloat16"],
                },
            )
        )
        events.append(
            kernel(
                "nvjet_sm90_gemm",
                clock + GAP,
                LAYER,
                correlation,
                **{"External id": correlation},
            )
        )
        clock, host, correlation, slowest = (
            clock + GAP + LAYER,
            host + 20.0,
            correlation + 1,
            slowest + GAP + LAYER,
        )
        events.append(
            call(
                "torch::autograd::AccumulateGrad",
                host - 2,
                1.0,
                category="cpu_op",
                **{
                    "External id": 10**6 + correlation,
                    "Input Dims": [[SIZE // 2]],
                    "Input type": ["c10::BFloat16"],
                },
            )
        )
        if layer % 2 and world > 1:
            external = 10**7 + correlation
            events.append(
                call(
                    "record_param_comms",
                    host,
                    30.0,
                    category="cpu_op",
                    **collective(world, external),
                )
            )
            events.append(
                call(
                    "cudaEventRecordWithFlags",
                    host + 1,
                    1.0,
                    **{"External id": external},
                )
            )
            events.append(
                call("cudaStreamWaitEvent", host + 3, 1.0, **{"External id": external})
            )
            events.append(
                call(
                    "cudaLaunchKernelExC",
                    host + 6,
                    4.0,
                    correlation,
                    **{"External id": external},
                )
            )
            begin, own = max(slowest, free), max(clock, free)
            free = begin + transfer + GAP
            events.append(
                kernel(
                    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
                    own + GAP,
                    free - own - GAP,
                    correlation,
                    19,
                    **collective(world, external),
                )
            )
            host, correlation = host + 40.0, correlation + 1
    if world > 1:
        events.append(call("cudaStreamWaitEvent", host, 1.0))
    events.append(call("cudaLaunchKernel", host + 5, 4.0, correlation))
    end = max(clock, free) + GAP
    events.append(kernel("multi_tensor_apply_adam", end, 300.0, correlation))
    end += 300.0
    events.append(
        call("cudaDeviceSynchronize", host + 20, end - host - 15, number * 1000 + 999)
    )
    events.append(
        call(
            f"ProfilerStep#{number}",
            start - 10,
            end + 20 - start,
            category="user_annotation",
        )
    )
    return events, end + 20


def collective(world: int, external: int) -> dict[str, Any]:
    ranks = list(range(world))
    return {
        "External id": external,
        "Collective name": "allreduce",
        "dtype": "BFloat16",
        "In msg nelems": SIZE,
        "Out msg nelems": SIZE,
        "Group size": world,
        "Process Group Name": "0",
        "Process Group Ranks": str(ranks),
        "Process Group Description": "default_pg",
    }


def trace(
    rank: int, world: int = 4, steps: int = 2, late: float = 0.0, clock: float = 0.0
) -> dict[str, Any]:
    """A rank's trace; its clock is `clock` us ahead of the others'."""
    events, start = [], 1000.0
    for number in range(1, steps + 1):
        made, start = step(rank, number, start + 30, world, late)
        events += made
    for event in events:
        event["ts"] += clock
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H200", "numSms": 132}],
        "distributedInfo": {
            "backend": "nccl",
            "rank": rank,
            "world_size": world,
            "pg_config": [{"pg_name": "0", "ranks": list(range(world))}],
            "nccl_version": "2.28.9",
        },
        "baseTimeNanoseconds": 1_700_000_000_000_000_000,
        "traceEvents": events,
    }


def save(
    folder: Path, world: int = 4, only: tuple[int, ...] | None = None, **options: Any
) -> list[Path]:
    """Writes the traces of a job, compressed; `only` some ranks of it."""
    paths = []
    for rank in only if only is not None else range(world):
        path = folder / f"rank{rank}.pt.trace.json.gz"
        path.write_bytes(
            gzip.compress(json.dumps(trace(rank, world, **options)).encode())
        )
        paths.append(path)
    return paths
