"""Measures what an optimizer in the host's memory costs: copies, Adam on the CPU, and steps of FSDP2 with CPUOffloadPolicy.

`torchrun --nproc-per-node 1 measure_offload.py OUT.jsonl`: one row a line, times in seconds, medians.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)

OUT = Path(sys.argv[1])
MIB = 2**20
STARTED = time.time()


def row(**cells) -> None:
    with OUT.open("a") as file:
        file.write(json.dumps(cells) + "\n")
    print(cells, flush=True)


def median_of(run, times: int = 5) -> float:
    found = []
    for _ in range(times):
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        found.append(time.perf_counter() - start)
    return statistics.median(found)


def copies() -> None:
    for size in (MIB // 16, MIB, 16 * MIB, 256 * MIB, 1024 * MIB):
        gpu, other = (torch.empty(size, dtype=torch.uint8, device="cuda") for _ in "ab")
        for pinned in (True, False):
            host, back = (torch.ones(size, dtype=torch.uint8) for _ in "ab")
            if pinned:
                host, back = host.pin_memory(), back.pin_memory()
            kind = "pinned" if pinned else "pageable"
            ways = {
                "to_gpu": lambda: gpu.copy_(host, non_blocking=True),
                "to_host": lambda: back.copy_(other, non_blocking=True),
            }
            for way, run in ways.items():
                run()
                repeats = max(1, 64 * MIB // size)
                time_of = median_of(lambda: [run() for _ in range(repeats)])
                row(
                    what="copy",
                    way=way,
                    memory=kind,
                    bytes=size,
                    time=time_of / repeats,
                )
        if size < 256 * MIB:
            continue
        one, two = torch.cuda.Stream(), torch.cuda.Stream()

        def both() -> None:
            with torch.cuda.stream(one):
                gpu.copy_(host_pinned, non_blocking=True)
            with torch.cuda.stream(two):
                back_pinned.copy_(other, non_blocking=True)

        host_pinned = torch.ones(size, dtype=torch.uint8).pin_memory()
        back_pinned = torch.ones(size, dtype=torch.uint8).pin_memory()
        both()
        row(what="copy", way="both", memory="pinned", bytes=size, time=median_of(both))


def adam() -> None:
    most = torch.get_num_threads()
    row(what="threads", default=most, cpus=os.cpu_count(), cpu=cpu_name())
    for threads in sorted({1, 2, 4, 8, most}):
        torch.set_num_threads(threads)
        a, b = torch.ones(2**28), torch.ones(2**28)
        a.copy_(b)
        row(
            what="stream",
            threads=threads,
            bytes=2 * a.nbytes,
            time=median_of(lambda: a.copy_(b), 3),
        )
        for elements in (10**6, 10**7, 2 * 10**8):
            for fused in (True, False):
                if not fused and (threads not in (1, most) or elements > 10**8):
                    continue
                for dtype in (torch.float32, torch.bfloat16):
                    if dtype is torch.bfloat16 and (threads != most or not fused):
                        continue
                    p = torch.ones(elements, dtype=dtype, requires_grad=True)
                    p.grad = torch.ones_like(p)
                    optimizer = torch.optim.AdamW([p], lr=1e-4, fused=fused)
                    optimizer.step()
                    found = median_of(optimizer.step, 3)
                    row(
                        what="adam",
                        threads=threads,
                        elements=elements,
                        fused=fused,
                        dtype=str(dtype).removeprefix("torch."),
                        time=found,
                    )
        p = torch.ones(2 * 10**8, requires_grad=True)
        p.grad = torch.ones_like(p)
        found = median_of(lambda: torch.nn.utils.clip_grad_norm_([p], 1.0), 3)
        row(what="clip", threads=threads, elements=2 * 10**8, time=found)
    torch.set_num_threads(most)


class Block(nn.Module):
    def __init__(self, hidden: int, heads: int, ffn: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
        self.wq, self.wk, self.wv, self.wo = (
            nn.Linear(hidden, hidden, bias=False) for _ in range(4)
        )
        self.w1, self.w3 = (nn.Linear(hidden, ffn, bias=False) for _ in range(2))
        self.w2 = nn.Linear(ffn, hidden, bias=False)

    def forward(self, x):
        b, s, h = x.shape
        y = self.norm1(x)
        q, k, v = (
            w(y).view(b, s, self.heads, -1).transpose(1, 2)
            for w in (self.wq, self.wk, self.wv)
        )
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.wo(o.transpose(1, 2).reshape(b, s, h))
        y = self.norm2(x)
        return x + self.w2(F.silu(self.w1(y)) * self.w3(y))


class Model(nn.Module):
    def __init__(
        self, layers: int, hidden: int, heads: int, ffn: int, vocab: int
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, hidden)
        self.blocks = nn.ModuleList(Block(hidden, heads, ffn) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(hidden), nn.Linear(hidden, vocab, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


SHAPES = {  # layers, hidden, heads, ffn, vocab
    "300m": (16, 1024, 16, 4096, 32000),
    "1b": (16, 2048, 16, 8192, 32000),
    "3b": (26, 3072, 24, 8192, 32000),
}


def step(
    name: str,
    micro_batch: int,
    seq: int,
    offload: bool,
    rounds: int = 1,
    clip: bool = False,
    fused: bool = True,
) -> None:
    shape = SHAPES[name]
    with torch.device("cuda" if not offload else "cpu"):
        model = Model(*shape)
    numbers = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32
    )
    policy = CPUOffloadPolicy() if offload else OffloadPolicy()
    for block in model.blocks:
        fully_shard(block, mp_policy=numbers, offload_policy=policy)
    fully_shard(model, mp_policy=numbers, offload_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=fused)
    tokens = torch.randint(shape[-1], (micro_batch, seq), device="cuda")
    parts: dict[str, list[float]] = {"step": [], "passes": [], "optimizer": []}
    torch.cuda.reset_peak_memory_stats()
    for number in range(6):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for r in range(rounds):
            model.set_requires_gradient_sync(r == rounds - 1)
            logits = model(tokens)
            F.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten()).backward()
            del logits
        torch.cuda.synchronize()
        middle = time.perf_counter()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        end = time.perf_counter()
        if number > 1:
            for key, value in zip(parts, (end - start, middle - start, end - middle)):
                parts[key].append(value)
    cells = {key: statistics.median(values) for key, values in parts.items()}
    row(
        what="step",
        model=name,
        shape=shape,
        micro_batch=micro_batch,
        seq_len=seq,
        offload=offload,
        rounds=rounds,
        clip=clip,
        fused=fused,
        parameters=sum(p.numel() for p in model.parameters()),
        peak=torch.cuda.max_memory_allocated(),
        **cells,
    )
    del model, optimizer
    torch.cuda.empty_cache()


def cpu_name() -> str:
    for line in open("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.split(":")[1].strip()
    return platform.processor()


def main() -> None:
    dist.init_process_group("cpu:gloo,cuda:nccl")
    torch.cuda.set_device(0)
    row(what="machine", gpu=torch.cuda.get_device_name(), torch=torch.__version__)
    torch.set_num_threads(
        len(os.sched_getaffinity(0))
    )  # torchrun says one, DeepSpeed and torchtitan do not
    copies()
    adam()
    for threads in (len(os.sched_getaffinity(0)), 1):
        torch.set_num_threads(threads)
        row(what="threads of steps", threads=threads)
        plans = [
            ("300m", 8, 2048, False),
            ("300m", 8, 2048, True),
            ("1b", 8, 2048, False),
            ("1b", 8, 2048, True),
            ("1b", 1, 2048, True),
            ("1b", 8, 2048, True, 4),
            ("1b", 8, 2048, True, 1, True),
            ("3b", 4, 2048, False),
            ("3b", 4, 2048, True),
            ("3b", 2, 4096, True),
        ]
        if threads == 1:
            plans = [
                ("300m", 8, 2048, True),
                ("1b", 8, 2048, True),
                ("1b", 8, 2048, True, 1, False, False),
            ]
        for plan in plans:
            if time.time() - STARTED > 420:
                row(what="stopped", plan=plan)
                break
            try:
                step(*plan)
            except Exception as error:
                row(what="failed", plan=plan, error=repr(error)[:300])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
