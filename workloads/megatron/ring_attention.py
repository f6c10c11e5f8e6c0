"""Attention in a ring: keys and values of the next step travel beside the current one (context parallelism)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.megatron.elementwise import pass_over
from prestep.workloads.megatron.gemm import UNTRANSPOSED
from prestep.workloads.megatron.shard import Heads, Shard
from prestep.workloads.parallel.group import Group
from prestep.workloads.torch.tape import Tape

STREAM = "nccl cp"
# Passes over the queries that a step of a ring needs beside its kernel: halves made contiguous and the output rescaled
# and added up; backward halves of queries, outputs and gradients, and the sum of their gradients (those of keys and
# values are added to what travels). Transformer Engine, context_parallel.py; half of them for half a block.
CORRECTED = {"fwd": 3.0, "bwd": 5.0}
# Kernels that make them (the same file): forward the copy of a half (another stream runs more of them beside attention)
# and the sum of outputs after all steps; backward copies of two or three halves, one sum for the queries' gradient and
# two for those of keys and values, in one stream.
KERNELS = {"fwd": 2, "bwd": 6}
# Tensors as large as the keys that travel: keys and values, backward their gradients too.
TRAVELLING = {"fwd": 2, "bwd": 4}

Way = Literal["fwd", "bwd"]


def attend_ring(t: Tape, way: Way, heads: Heads, s: Shard) -> None:
    """Attention of this rank's queries to all keys: with context parallelism in as many steps as ranks.

    Keys and values of the next step travel along a ring beside the current one (and in backward their gradients too).
    A rank holds two parts of the sequence, one from each end, so that every step of every rank is the same half of its
    block (Transformer Engine, attn_forward_func_with_cp; Liu et al. 2023). One step costs what a causal kernel over
    the rank's own tokens does; the first is that, the others are whole blocks of half the keys: the same work.
    """
    if s.context is None or s.context.size == 1:
        t.launch(_block(way, heads, s))
        return
    if s.options.cp_comm_type == "a2a":
        _attend_spread(t, way, heads, s)
        return
    block = _block(way, heads, s)
    correction = _correction(way, heads, s)
    last = s.context.size - 1
    for step in range(s.context.size):
        if step < last:
            size = _travelling(way, heads, s)
            s.context.collective(t, "sendrecv", size, STREAM, "p2p_batch")
        t.launch(block)
        for _ in range(KERNELS[way]):
            t.launch(correction)
        if step < last:
            t.wait(t.record(STREAM))


def _attend_spread(t: Tape, way: Way, heads: Heads, s: Shard) -> None:
    """Attention over the whole sequence of this rank's part of its heads.

    Queries, keys and values go from parts of the sequence to parts of the heads by an all-to-all each, and the result
    back; backward the result and its gradient come in, and three gradients go out. Each is put in order before or after
    it travels (Transformer Engine, AttnFuncWithCPAndQKVOA2A; DeepSpeed-Ulysses, arXiv 2309.14509).
    """
    assert s.context is not None
    ranks = s.context.size
    keys = max(1, heads.keys // ranks)
    spread = replace(heads, queries=heads.queries // ranks, keys=keys)
    row = 2.0 * s.batch * s.tokens * heads.dim
    sent, shared = row * heads.queries, row * max(heads.keys, ranks)
    inwards = (sent, shared, shared) if way == "fwd" else (sent, sent)
    outwards = (sent,) if way == "fwd" else (sent, shared, shared)
    _exchange(t, inwards, s.context)
    t.launch(_block(way, spread, replace(s, tokens=s.tokens * ranks)))
    _exchange(t, outwards, s.context)


def _exchange(t: Tape, sizes: Sequence[float], group: Group) -> None:
    """Tensors of so many bytes, each by an all-to-all of its own and a pass that puts it in order."""
    for size in sizes:
        group.collective(t, "all_to_all", size, STREAM, "p2p_batch")
    t.wait(t.record(STREAM))
    for size in sizes:
        t.launch(Kernel("copy", (int(size) // 2,), bytes=2 * size))


def _block(way: Way, heads: Heads, s: Shard) -> Kernel:
    """The kernel of one step."""
    generation = "flash2_" if s.options.attention == "flash2" else ""
    shape = (s.batch, heads.queries, heads.keys, s.tokens, heads.dim)
    dtype = "fp8" if s.options.fp8_dot_product_attention else "bf16"
    layout = "latent" if heads.latent and not generation else ""
    return Kernel(f"{generation}attention_{way}", shape, dtype, layout)


def quantize_operands(t: Tape, way: Way, heads: Heads, s: Shard) -> None:
    """Casts queries, keys and values to fp8 before attention in fp8; backward the output's gradient.

    Results are in 16 bits (Transformer Engine, FusedAttnFunc; what travels in a ring is counted in 16 bits, too).
    """
    if not s.options.fp8_dot_product_attention:
        return
    count = heads.queries + 2 * heads.keys if way == "fwd" else heads.queries
    elements = s.batch * s.tokens * count * heads.dim
    t.cpu("quantize")
    pass_over(t, elements, UNTRANSPOSED[s.numbers.scaling] * elements)


def _correction(way: Way, heads: Heads, s: Shard) -> Kernel:
    """One of the kernels that put a step's part into the whole."""
    elements = s.batch * s.tokens * heads.queries * heads.dim
    moved = CORRECTED[way] * 2.0 * elements
    if way == "bwd":
        moved += 3.0 * _travelling(way, heads, s)
    return Kernel("fused", (elements,), bytes=moved / KERNELS[way])


def _travelling(way: Way, heads: Heads, s: Shard) -> float:
    """Bytes that a rank sends to the next in one step."""
    keys = s.batch * s.tokens * heads.keys * heads.dim
    return 2.0 * keys * TRAVELLING[way]
