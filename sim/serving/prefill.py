"""Prefill: the forward pass of a model's blocks over a prompt, as training lowers and times it.

A prefill worker runs the kernels of a compiled forward pass one after the other, in a CUDA graph: products by the
tables, attention of every token to all before it, and what hours of load cost. Neither the lookup of words nor the
head is in it: one token's logits are a part of the first step of decoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from prestep.sim.costs import Gpu
from prestep.sim.graph.kernel import Kernel
from prestep.sim.graph.opgraph import KERNEL
from prestep.sim.predict import execute, plan
from prestep.sim.serving.pools import Pools
from prestep.sim.serving.section import Inference
from prestep.sim.spec.sections import Scenario
from prestep.workloads.host_costs import kernel_gap
from prestep.workloads.job.parallel import Parallel

#: Tokens to which a short prompt may be padded: powers of two up to the largest size that vLLM captures, 512 by default
#: (guess: engines differ).
PADDED = tuple(2**power for power in range(10))
#: Prompts of so many sizes are kept; a sweep asks for the same one again and again.
KEPT = 16
#: Whose forward pass it is, and who launches it.
COMPILED, GRAPH = "pytorch-compiled", "cuda-graph"


def compute_time(p: Pools) -> float:
    """Seconds of a prompt's blocks on one GPU of a worker, without what its GPUs exchange.

    Engines pad short prompts to a captured size, so no prompt takes longer than a longer one.
    """
    tokens = new_tokens(p.inference)
    sizes = [tokens, *(size for size in PADDED if size > tokens)]
    return min(_of_tokens(p, size) for size in sizes)


def new_tokens(i: Inference) -> int:
    """Tokens of a prompt that are not reused: one or more."""
    return i.prompt - min(i.prompt - 1, round(i.prompt * i.reuse))


def _of_tokens(p: Pools, tokens: int) -> float:
    """Seconds of so many tokens behind those that are reused."""
    prompt = max(p.inference.prompt, tokens)
    gpu, kernels, seconds = _forward(_as_training(p, tokens), p.prefill[0])
    shares = [_of_prompt(gpu, kernel, tokens, prompt) for kernel in kernels]
    return float(np.dot(seconds, shares)) + len(kernels) * (kernel_gap(GRAPH) or 0.0)


def _of_prompt(gpu: Gpu, kernel: object, tokens: int, prompt: int) -> float:
    """Time of a kernel over that among its own tokens alone: of attention, which sees the reused ones too."""
    if not isinstance(kernel, Kernel) or tokens == prompt:
        return 1.0
    if not kernel.is_attention:
        return 1.0
    *before, _, _, dim = kernel.shape
    # Causal attention of a whole prompt, less that of the part whose keys and values are there.
    whole, there, own = (
        gpu.in_step(
            replace(kernel, shape=(*before, seq, seq, dim), bytes=0.0, flops=0.0)
        )
        for seq in (prompt, prompt - tokens, tokens)
    )
    return max(own, whole - there) / own


def _as_training(p: Pools, tokens: int) -> Scenario:
    """A step of training on one prefill worker, whose forward pass is that of the prompt."""
    s = p.scenario
    tp = p.inference.prefill_tp
    training = replace(s.training, seq_len=tokens, micro_batch=1, global_batch=1)
    return replace(
        s,
        extensions={},
        training=replace(training, framework=COMPILED, precision="bf16"),
        parallel=Parallel(tp=tp, imbalance=s.parallel.imbalance),
        pytorch=replace(s.pytorch, experts="grouped" if p.model.experts else "loop"),
        cluster=replace(s.cluster, gpus=tp),
    )


@lru_cache(maxsize=KEPT)
def _forward(
    scenario: Scenario, gpus: tuple[str, ...]
) -> tuple[Gpu, Sequence[object], np.ndarray]:
    """The GPU, the kernels of the blocks' forward pass in their order, and the seconds that each took in a step."""
    step = plan(scenario, gpus=gpus)
    graph, run = step.graph, execute(step)
    program = graph.programs[0]
    mine = (program.kind == KERNEL) & (program.layer >= 0)
    rows = np.flatnonzero(mine & (program.phase == graph.phases.index("forward")))
    seconds = (run.end[0][-1] - run.start[0][-1])[rows]
    kernels = [graph.kernels[at] for at in program.payload[rows].tolist()]
    return step.gpu, kernels, seconds
