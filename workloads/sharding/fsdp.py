"""Policies of PyTorch's FSDP: a flat parameter for each module (FSDP1), or tensors that stay what they are (FSDP2).

Sources: torch/distributed/fsdp/_runtime_utils.py and flat_param.py (FSDP1 of PyTorch 1.13 and 2.0), where shards are
cast before they are gathered, autograd concatenates gradients of views, one communicator gathers and reduces, and the
host waits for the module before the last to be freed; torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py and
_fsdp_param_group.py (FSDP2), where copy-in and all-gather have streams of their own, parameters are copied out on the
computing stream, and one reduction at a time has a buffer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.operators import copies, foreach
from prestep.workloads.sharding.policy import Part, Policy, Streams

if TYPE_CHECKING:
    from prestep.workloads.job.pytorch import PyTorch

COPY_IN, GATHER, REDUCE = "fsdp copy-in", "nccl all-gather", "nccl reduce-scatter"
FSDP2 = Streams(COPY_IN, GATHER, REDUCE, "nccl hybrid")
FSDP1 = Streams("fsdp unshard", "nccl fsdp", "nccl fsdp", "nccl hybrid")
IN_FLIGHT = 2  # gathers that the rate limiter allows (_FreeEventQueue, max_num_inflight_all_gathers)


def policy(choices: PyTorch | None) -> Policy:
    """The policy that a trainer chose."""
    wide = 4 if choices is not None and choices.reduce_dtype == "fp32" else 0
    if choices is None or choices.fsdp == "2":
        return Policy(
            FSDP2,
            reduced=(wide, wide),
            copy_in=_copy_in,
            copy_out=_copy_out,
            pack=_pack,
            store=_store,
        )
    return Policy(
        FSDP1,
        host="unit",
        flat=True,
        prefetch=choices.prefetch,
        in_flight=IN_FLIGHT if choices.limit_all_gathers else 0,
        one_buffer=False,
        reduced=(wide, wide),
        staged=False,
        copy_in=_cast_flat if choices.master_weights else Policy.copy_in,
        pack=_scale_flat,
        store=_store_flat,
    )


def _copy_in(part: Part) -> Iterable[Kernel]:
    """Weights of quantized layers to fp8 (torchao's fsdp_pre_all_gather); all shards into the gather's buffer."""
    if part.cast:
        n, read = part.cast // part.ranks, part.stored / part.full * part.narrow
        yield Kernel("fused_pointwise", (n,), bytes=(read + 1.0) * n)
    shard = part.sent / part.ranks
    elements = int(shard / part.narrow)
    if part.stored != part.full and not part.cast:
        # Shards in fp32 are cast first, all at once (_get_param_all_gather_inputs).
        yield foreach.cast(part.tensors, elements, shard / part.full * part.stored)
    yield from copies.put_in(elements, 2 * shard)


def _copy_out(part: Part) -> Iterable[Kernel]:
    yield from copies.copied_out(int(part.sent / part.narrow), 2 * part.sent)


def _pack(part: Part, summed: bool) -> Iterable[Kernel]:
    """Gradients, or their sums, into the buffer that is reduced, in its type."""
    moved = (part.reduced if summed else part.gradient) + part.reduced
    yield from copies.put_together(int(part.gradient / part.narrow), moved)


def _store(part: Part, earlier: bool) -> Iterable[Kernel]:
    """The reduced shard in the type of the parameters."""
    if part.kept != part.reduced:
        n = int(part.gradient / part.narrow / part.ranks)
        moved = (part.kept + part.reduced) / part.ranks
        yield Kernel("aten copy", (n,), bytes=moved)


def _cast_flat(part: Part) -> Iterable[Kernel]:
    n = part.elements // part.ranks
    yield Kernel("fused", (n,), bytes=6.0 * n)


def _scale_flat(part: Part, summed: bool) -> Iterable[Kernel]:
    """The gradient in the reduction's type, divided by the number of ranks."""
    n = part.elements
    if part.reduced != part.gradient:
        yield Kernel("fused", (n,), bytes=6.0 * n)
    yield Kernel("aten div", (n,), bytes=2.0 * part.reduced)


def _store_flat(part: Part, earlier: bool) -> Iterable[Kernel]:
    """The reduced shard becomes the gradient, or is added to that of the microbatches before."""
    n = part.elements // part.ranks
    if earlier or part.kept != part.reduced:
        each = (part.reduced + part.kept * (2 if earlier else 1)) / part.elements
        yield Kernel("fused", (n,), bytes=float(round(each) * n))
