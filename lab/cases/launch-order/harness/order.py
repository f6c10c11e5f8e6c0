"""Which comes first on two GPUs: a communication that waits for a kernel, or the kernel launched after it.

``TAG=c1 CUDA_DEVICE_MAX_CONNECTIONS=1 OUT=. torchrun --nproc-per-node 2 order.py`` writes a JSON line a repetition:
microseconds from the end of the kernel that both wait for. ``HIGH=1``: NCCL's stream has a high priority.
"""

import json
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile

RANK = int(os.environ["LOCAL_RANK"])
TAG = os.environ["TAG"]
REPETITIONS, DISCARDED = 12, 2
MEBIBYTE = 2**19  # elements of bf16


def values(*shape):
    return torch.randn(*shape, device=f"cuda:{RANK}", dtype=torch.bfloat16)


def product(m, n, k):
    a, b = values(m, k), values(k, n)
    return lambda: a @ b


def attention(tokens, backend):
    q, k, v = (values(1, 32, tokens, 128) for _ in range(3))

    def run():
        with sdpa_kernel(backend):
            F.scaled_dot_product_attention(q, k, v, is_causal=True)

    return run


def elementwise(elements):
    x = values(elements)
    return lambda: x * 2.0


def all_reduce(size):
    x = values(size * MEBIBYTE)
    return lambda: [dist.all_reduce(x, async_op=True)]


def all_gather(size):
    part, whole = values(size * MEBIBYTE // 2), values(size * MEBIBYTE)
    return lambda: [dist.all_gather_into_tensor(whole, part, async_op=True)]


def send_receive(size):
    sent, received, peer = values(size * MEBIBYTE), values(size * MEBIBYTE), 1 - RANK
    ops = [
        dist.P2POp(dist.isend, sent, peer),
        dist.P2POp(dist.irecv, received, peer),
    ]
    return lambda: dist.batch_isend_irecv(ops)


def repeat(first, communicate, following):
    for _ in range(REPETITIONS):
        torch.cuda._sleep(4_000_000)  # the host runs ahead
        first()
        works = communicate()
        following()
        for work in works:
            work.wait()
        first()
    torch.cuda.synchronize()


def measured(events):
    """Times of each repetition from the profiler's (start, end, name), in order."""
    groups = []
    for start, end, name in events:
        if "spin" in name:
            groups.append([])
        elif groups and "emset" not in name:
            groups[-1].append((start, end, "nccl" in name))
    for group in groups[DISCARDED:]:
        sent = next(e for e in group if e[2])
        before, following, *_ = (e for e in group if not e[2])
        yield {
            "communication_start_us": sent[0] - before[1],
            "communication_us": sent[1] - sent[0],
            "next_start_us": following[0] - before[1],
            "next_us": following[1] - following[0],
        }


def main():
    torch.cuda.set_device(RANK)
    high = os.environ.get("HIGH") == "1"
    options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=high)
    dist.init_process_group(
        "nccl", pg_options=options, device_id=torch.device("cuda", RANK)
    )
    cudnn, flash = SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION
    attentions = {
        "attn_1_32_8192": attention(8192, cudnn),
        "attn_1_32_4096": attention(4096, cudnn),
        "fa2_1_32_8192": attention(8192, flash),
    }
    sizes = (8192,) * 3, (4096, 4096, 8192), (2048, 2048, 8192), (16384, 4096, 4096)
    others = {"_".join(map(str, ("mm", *size))): product(*size) for size in sizes}
    others["ew_256M"] = elementwise(2**28)
    communications = {
        ("all_reduce", 16): all_reduce(16),
        ("all_reduce", 64): all_reduce(64),
        ("send_receive", 8): send_receive(8),
        ("send_receive", 32): send_receive(32),
        ("all_gather", 64): all_gather(64),
    }
    firsts = {
        "mm": (product(8192, 4096, 4096), attentions | others),
        "attn": (attentions["attn_1_32_4096"], attentions),
    }
    with open(os.path.join(os.environ["OUT"], f"{TAG}-{RANK}.jsonl"), "w") as out:
        for before, (first, followers) in firsts.items():
            for (op, size), communicate in communications.items():
                for name, following in followers.items():
                    repeat(first, communicate, following)
                    dist.barrier()
                    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
                        repeat(first, communicate, following)
                    spans = sorted(
                        (e.time_range.start, e.time_range.end, e.name)
                        for e in profiler.events()
                        if e.device_type == torch.autograd.DeviceType.CUDA
                    )
                    key = {"tag": TAG, "before": before, "communication": op}
                    key |= {"mebibytes": size, "next": name}
                    for row in measured(spans):
                        print(json.dumps(key | row), file=out)
    dist.destroy_process_group()


main()
