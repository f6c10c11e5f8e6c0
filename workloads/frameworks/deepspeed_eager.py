"""DeepSpeed's engine around PyTorch's modules, operator by operator (Hugging Face's trainers): ZeRO 1, 2 and 3."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from prestep.sim.errors import Mistake
from prestep.sim.strict import keys_of
from prestep.workloads.frameworks import pytorch_eager
from prestep.workloads.frameworks._megatron_optimizer import offloaded, offloaded_caveat
from prestep.workloads.frameworks._pytorch_trainer import (
    no_root,
    offload,
    root,
    stated,
    zero2,
)
from prestep.workloads.job import JobSpec
from prestep.workloads.job.pytorch import PyTorch
from prestep.workloads.models.model import ModelSpec

EAGER = pytorch_eager.FRAMEWORK
FUSED_LOSS = "fused_linear_cross_entropy"


def _layout(s: JobSpec) -> Iterator[Mistake]:
    """What this engine does not split."""
    for axis in ("tp", "pp", "cp", "ep"):
        count = getattr(s.parallel, axis)
        if count > 1:
            hint = 'framework = "deepspeed" has it, around Megatron\'s layers'
            yield Mistake(s.where, f"parallel.{axis}", str(count), "1", hint)


def _optimizer(s: JobSpec) -> Iterator[Mistake]:
    """Its partition is updated by Adam in fp32."""
    if s.training.optimizer not in ("adam", "adamw"):
        found = f'"{s.training.optimizer}"'
        yield Mistake(s.where, "training.optimizer", found, '"adam" or "adamw"')


def _engine(s: JobSpec) -> Iterator[Mistake]:
    """What the engine does itself."""
    for key in ("clip_gradients", "master_weights"):
        if getattr(s.pytorch, key):
            hint = "DeepSpeed's optimizer has norms and fp32 weights anyway"
            yield Mistake(s.where, f"pytorch.{key}", "true", "false", hint)
    hint = "DeepSpeed's optimizer is one kernel of its own, with moments in fp32"
    for key, value in stated(s, ("fused_optimizer", "wide_moments")):
        yield Mistake(s.where, key, value, "nothing", hint)


def _stage3(s: JobSpec) -> Iterator[Mistake]:
    """FSDP's choices, which ZeRO 3 does not have: it decides itself what it keeps, and every rank has one part."""
    if s.parallel.data_parallel != "zero3":
        return
    hint = 'FSDP is training.framework = "pytorch-eager"'
    for key, value in stated(s, keys_of(PyTorch, "fsdp")):
        yield Mistake(s.where, key, f'"{value}"', "nothing with zero3", hint)
    shards = s.parallel.fsdp_shards
    if shards is not None:
        yield Mistake(s.where, "parallel.fsdp_shards", str(shards), "nothing", hint)
    if s.parallel.reshard_after_forward is False:
        key = "parallel.reshard_after_forward"
        yield Mistake(s.where, key, "false", "nothing", hint)
    if FUSED_LOSS in s.pytorch.liger:
        told = "the head's weight is used where no hook gathers it"
        expected = f"nothing, or kernels but {FUSED_LOSS}, with zero3"
        found = str(list(s.pytorch.liger))
        yield Mistake(s.where, "pytorch.liger", found, expected, told)


def _modules(s: JobSpec, model: ModelSpec) -> Iterator[Mistake]:
    """Models whose modules use parameters of others, or which hooks were not hung on."""
    if s.parallel.data_parallel != "zero3":
        return
    hint = "prestep capture takes the program itself"
    if model.kind != "transformer":
        expected = "a transformer with zero3"
        yield Mistake(s.where, "model.kind", f'"{model.kind}"', expected, hint)
        return
    for key, found in without_hooks(model).items():
        yield Mistake(s.where, f"model.{key}", str(found), "none with zero3", hint)


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
        *(rule for rule in EAGER.rules if rule[1] not in (zero2, offload, root)),
        ("parallel parallel.tp parallel.pp parallel.cp parallel.ep", _layout),
        ("parallel parallel.offload parallel.data_parallel", offloaded),
        ("training training.optimizer", _optimizer),
        ("pytorch", _engine),
        ("parallel", no_root),
        ("parallel parallel.data_parallel pytorch", _stage3),
    ),
    model_rules=(*EAGER.model_rules, ("parallel.data_parallel model.kind", _modules)),
    caveats=caveats,
    adapters=False,
    fp32_adapters=False,
    tries={"parallel.data_parallel": ("zero1", "zero2", "zero3")},
)
