"""DeepSpeed's engine around PyTorch's modules, operator by operator (Hugging Face's trainers): ZeRO 1, 2 and 3."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from prestep.sim.errors import Mistake
from prestep.workloads.frameworks import pytorch_eager, rule
from prestep.workloads.frameworks._megatron_optimizer import offloaded, offloaded_caveat
from prestep.workloads.frameworks._pytorch_trainer import (
    choices,
    no_root,
    offload,
    root,
    zero2,
)
from prestep.workloads.job import JobSpec
from prestep.workloads.models.model import ModelSpec

EAGER = pytorch_eager.FRAMEWORK
FUSED_LOSS = "fused_linear_cross_entropy"


@rule("parallel parallel.tp parallel.pp parallel.cp parallel.ep")
def _layout(s: JobSpec) -> Iterator[Mistake]:
    """What this engine does not split."""
    axes = ("parallel.tp", "parallel.pp", "parallel.cp", "parallel.ep")
    hint = 'framework = "deepspeed" has it, around Megatron\'s layers'
    yield from s.refused(axes, "1", hint)


@rule("training training.optimizer")
def _optimizer(s: JobSpec) -> Iterator[Mistake]:
    """Its partition is updated by Adam in fp32."""
    if s.training.optimizer not in ("adam", "adamw"):
        yield s.mistake("training.optimizer", '"adam" or "adamw"')


@rule("pytorch")
def _engine(s: JobSpec) -> Iterator[Mistake]:
    """What the engine does itself."""
    hint = "DeepSpeed's optimizer has norms and fp32 weights anyway"
    keys = ("pytorch.clip_gradients", "pytorch.master_weights")
    yield from s.refused(keys, "false", hint)
    hint = "DeepSpeed's optimizer is one kernel of its own, with moments in fp32"
    keys = ("pytorch.fused_optimizer", "pytorch.wide_moments")
    yield from s.refused(keys, "nothing", hint)


@rule("parallel parallel.data_parallel pytorch")
def _stage3(s: JobSpec) -> Iterator[Mistake]:
    """FSDP's choices, which ZeRO 3 does not have: it decides itself what it keeps, and every rank has one part."""
    if s.parallel.data_parallel != "zero3":
        return
    hint = 'FSDP is training.framework = "pytorch-eager"'
    keys = (*choices("fsdp"), "parallel.fsdp_shards")
    yield from s.refused(keys, "nothing with zero3", hint)
    if s.parallel.reshard_after_forward is False:
        yield s.mistake("parallel.reshard_after_forward", "nothing", hint)
    if FUSED_LOSS in s.pytorch.liger:
        expected = f"nothing, or kernels but {FUSED_LOSS}, with zero3"
        hint = "the head's weight is used where no hook gathers it"
        yield s.mistake("pytorch.liger", expected, hint)


@rule("parallel.data_parallel model.kind")
def _modules(s: JobSpec, model: ModelSpec) -> Iterator[Mistake]:
    """Models whose modules use parameters of others, or which hooks were not hung on."""
    if s.parallel.data_parallel != "zero3":
        return
    hint = "prestep capture takes the program itself"
    if model.kind != "transformer":
        found = f'"{model.kind}"'
        yield s.mistake("model.kind", "a transformer with zero3", hint, found)
        return
    for key, value in without_hooks(model).items():
        yield s.mistake(f"model.{key}", "none with zero3", hint, str(value))


def without_hooks(model: object) -> dict[str, object]:
    """What a model has whose modules ZeRO 3's hooks are not simulated on: keys of a model, with their values."""
    keys = ("experts", "mtp_layers", "kv_lora_rank", "layer_pattern")
    found = {key: getattr(model, key, None) for key in keys}
    return {key: value for key, value in found.items() if value}


def caveats(s: JobSpec, model: ModelSpec) -> Iterator[str]:
    """What rests on no measurement."""
    yield from EAGER.caveats(s, model)
    yield from offloaded_caveat(s)
    if s.parallel.data_parallel == "zero3":
        yield (
            "ZeRO-3: the host bounded measured steps of up to 8,192 tokens a GPU, and hosts differ by a factor of two: "
            "measure one step, and set cluster.host_factor"
        )


FRAMEWORK = replace(
    EAGER,
    precisions=(),
    updates=("adam",),
    context_parallel=False,
    data_parallel=("none", "zero1", "zero2", "zero3"),
    sharded=("zero3",),
    rules=(
        *(each for each in EAGER.rules if each not in (zero2, offload, root)),
        _layout,
        offloaded,
        _optimizer,
        _engine,
        no_root,
        _stage3,
    ),
    model_rules=(*EAGER.model_rules, _modules),
    caveats=caveats,
    adapters=False,
    fp32_adapters=False,
    tries={"parallel.data_parallel": ("zero1", "zero2", "zero3")},
)
