"""PyTorch with `torch.compile` on every block: Inductor's kernels, fewer and larger, and its Python between them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from prestep.sim.errors import Mistake
from prestep.sim.extras import lazily
from prestep.workloads.frameworks import pytorch_eager, rule
from prestep.workloads.job import JobSpec
from prestep.workloads.models.model import ModelSpec
from prestep.workloads.precision import precision

with lazily():
    from prestep.workloads.torch import compiled, lower

PLAIN = 'training.framework = "pytorch-eager"'


@rule("pytorch training")
def _kernels(s: JobSpec) -> Iterator[Mistake]:
    """Kernels, modules and exchanges that compiled blocks do not have."""
    hint = "compiled blocks have projections of their own, and no kernels in Triton"
    yield from s.refused(["pytorch.joined_qkv"], "nothing", hint)
    fuses = "compiled blocks fuse what modules write out"
    yield from s.refused(["pytorch.modules"], "nothing", fuses)
    waits = 'compiled blocks wait for exchanges: "pytorch-eager", or "megatron" with tp_comm_overlap'
    yield from s.refused(["pytorch.async_tensor_parallel"], "nothing", waits)
    if s.pytorch.attention == "triton":
        yield s.mistake("pytorch.attention", "cudnn or flash2", hint)


@rule("parallel.cp parallel.ring_degree")
def _heads(s: JobSpec) -> Iterator[Mistake]:
    """Exchanges of heads, which compiled blocks have none of."""
    if s.parallel.rings < s.parallel.cp:
        hint = f"compiled blocks go around a ring alone: {PLAIN}"
        yield s.mistake("parallel.ring_degree", f"cp = {s.parallel.cp}", hint)


@rule("training model.kind")
def _blocks(s: JobSpec, model: ModelSpec) -> Iterator[Mistake]:
    """Blocks that are not compiled."""
    if model.kind != "transformer":
        hint = f"only transformer blocks are compiled, and this is a {model.kind}"
        yield s.mistake("training.framework", "pytorch-eager or cuda-graph", hint)


@rule("training parallel.tp model.experts")
def _quantized(s: JobSpec, model: ModelSpec) -> Iterator[Mistake]:
    """Casts of split products, which torchao does in another way."""
    if precision(s.training.precision).quantized and s.parallel.tp > 1:
        what = "split products are gathered after their cast"
        hint = f'{what}: simulated with training.framework = "megatron"'
        yield s.mistake("training.precision", "bf16 or fp16 with compiled tp", hint)


@rule("parallel parallel.tp parallel.data_parallel")
def _buckets(s: JobSpec) -> Iterator[Mistake]:
    """DDP cuts graphs where its buckets fill, which it refuses to do with split parameters."""
    p = s.parallel
    if p.tp > 1 and p.data_parallel in ("ddp", "zero1") and p.dp * p.cp > 1:
        hint = "DDP does not take parameters that are split over ranks"
        yield s.mistake("parallel.data_parallel", "fsdp with compiled tp", hint)


@rule("adapter adapter.base parallel.tp training.precision")
def _adapters(s: JobSpec) -> Iterator[Mistake]:
    """Beside layers that are split, quantized or in four bits."""
    if not s.adapter.on:
        return
    hint = f"exchanges of thin values in compiled blocks are not simulated: {PLAIN}"
    yield from s.refused(["parallel.tp"], "1 with [adapter]", hint)
    if precision(s.training.precision).quantized:
        hint = "torchao's layers beside adapters are not simulated"
        yield s.mistake("training.precision", "bf16", hint)
    hint = f"bitsandbytes' kernels are outside compiled graphs: {PLAIN}"
    yield from s.refused(["adapter.base"], '"bf16"', hint)


@rule("adapter model.kind")
def _latent(s: JobSpec, model: ModelSpec) -> Iterator[Mistake]:
    """Adapters beside latent attention's projections."""
    if s.adapter.on and model.kind == "transformer" and model.latent:
        hint = f"compiled blocks with adapters have plain attention: {PLAIN}"
        yield s.mistake("adapter.kind", '"none" with kv_lora_rank', hint)


EAGER = pytorch_eager.FRAMEWORK
FRAMEWORK = replace(
    EAGER,
    lower=lambda s, m, site: lower.lower(s, m, site, compiled.compiled_block),
    precisions=("quantized", "scaled loss"),
    rules=(_kernels, _heads, _buckets, _adapters, *EAGER.rules),
    model_rules=(*EAGER.model_rules, _blocks, _quantized, _latent),
)
