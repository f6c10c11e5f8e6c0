"""PyTorch with `torch.compile` on every block: Inductor's kernels, fewer and larger, and its Python between them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from prestep.sim.errors import Mistake
from prestep.workloads.frameworks import _pytorch_trainer, pytorch_eager
from prestep.workloads.job import JobSpec
from prestep.workloads.models.model import ModelSpec
from prestep.workloads.precision import precision

if TYPE_CHECKING:
    from prestep.workloads.lowered import Lowered, Site
    from prestep.workloads.models.model import ModelSpec


def lower(scenario: JobSpec, model: ModelSpec, site: Site) -> Lowered:
    """As eager PyTorch, with compiled blocks."""
    from prestep.workloads.torch.compiled import (
        compiled_block,  # it is what takes long to import
    )

    return pytorch_eager.lower(scenario, model, site, compiled_block)


def _kernels(s: JobSpec) -> Iterator[Mistake]:
    hint = "compiled blocks have projections of their own, and no kernels in Triton"
    for key, value in _pytorch_trainer.stated(s, ("joined_qkv",)):
        yield Mistake(s.where, key, value, "nothing", hint)
    for key, value in _pytorch_trainer.stated(s, ("modules",)):
        fuses = "compiled blocks fuse what modules write out"
        yield Mistake(s.where, key, value, "nothing", fuses)
    for key, value in _pytorch_trainer.stated(s, ("async_tensor_parallel",)):
        waits = 'compiled blocks wait for exchanges: "pytorch-eager", or "megatron" with tp_comm_overlap'
        yield Mistake(s.where, key, value, "nothing", waits)
    if s.pytorch.attention == "triton":
        key, expected = "pytorch.attention", "cudnn or flash2"
        yield Mistake(s.where, key, '"triton"', expected, hint)


def _heads(s: JobSpec) -> Iterator[Mistake]:
    """Exchanges of heads, which compiled blocks have none of."""
    if s.parallel.rings < s.parallel.cp:
        hint = 'compiled blocks go around a ring alone: training.framework = "pytorch-eager"'
        key, found = "parallel.ring_degree", str(s.parallel.ring_degree)
        yield Mistake(s.where, key, found, f"cp = {s.parallel.cp}", hint)


def _blocks(s: JobSpec, model: ModelSpec) -> Iterator[Mistake]:
    """Blocks that are not compiled."""
    if model.kind == "transformer":
        return
    hint = "only transformer blocks are compiled"
    stated = f'"{s.training.framework}" with kind {model.kind}'
    yield Mistake(
        s.where, "training.framework", stated, "pytorch-eager or cuda-graph", hint
    )


def _quantized(s: JobSpec, model: ModelSpec) -> Iterator[Mistake]:
    """Casts of split products, which torchao does in another way."""
    number = s.training.precision
    if not precision(number).quantized or s.parallel.tp == 1:
        return
    what = "split products are gathered after their cast"
    hint = f'{what}: simulated with training.framework = "megatron"'
    expected = "bf16 or fp16 with compiled tp"
    yield Mistake(s.where, "training.precision", f'"{number}"', expected, hint)


def _buckets(s: JobSpec) -> Iterator[Mistake]:
    """DDP cuts graphs where its buckets fill, which it refuses to do with split parameters."""
    way = s.parallel.data_parallel
    if s.parallel.tp == 1 or way not in ("ddp", "zero1"):
        return
    if s.parallel.dp * s.parallel.cp == 1:
        return
    hint = "DDP does not take parameters that are split over ranks"
    key, expected = "parallel.data_parallel", "fsdp with compiled tp"
    yield Mistake(s.where, key, f'"{way}"', expected, hint)


def _adapters(s: JobSpec) -> Iterator[Mistake]:
    """Beside layers that are split, quantized or in four bits."""
    where, adapter = s.where, s.adapter
    if not adapter.on:
        return
    plain = 'training.framework = "pytorch-eager"'
    if s.parallel.tp > 1:
        hint = f"exchanges of thin values in compiled blocks are not simulated: {plain}"
        expected = "1 with [adapter]"
        yield Mistake(where, "parallel.tp", str(s.parallel.tp), expected, hint)
    number = s.training.precision
    if precision(number).quantized:
        hint = "torchao's layers beside adapters are not simulated"
        yield Mistake(where, "training.precision", f'"{number}"', "bf16", hint)
    if adapter.base != "bf16":
        hint = f"bitsandbytes' kernels are outside compiled graphs: {plain}"
        yield Mistake(where, "adapter.base", f'"{adapter.base}"', '"bf16"', hint)


def _latent(s: JobSpec, model: ModelSpec) -> Iterator[Mistake]:
    """Adapters beside latent attention's projections."""
    if not s.adapter.on or model.kind != "transformer" or not model.latent:
        return
    hint = 'compiled blocks with adapters have plain attention: training.framework = "pytorch-eager"'
    expected = '"none" with kv_lora_rank'
    yield Mistake(s.where, "adapter.kind", f'"{s.adapter.kind}"', expected, hint)


EAGER = pytorch_eager.FRAMEWORK
FRAMEWORK = replace(
    EAGER,
    lower=lower,
    precisions=("quantized", "scaled loss"),
    rules=(
        ("pytorch training", _kernels),
        ("parallel.cp parallel.ring_degree", _heads),
        ("parallel parallel.tp parallel.data_parallel", _buckets),
        ("adapter adapter.base parallel.tp training.precision", _adapters),
        *EAGER.rules,
    ),
    model_rules=(
        *EAGER.model_rules,
        ("training model.kind", _blocks),
        ("training parallel.tp model.experts", _quantized),
        ("adapter model.kind", _latent),
    ),
)
