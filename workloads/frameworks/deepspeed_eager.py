"""DeepSpeed's engine around PyTorch's modules, operator by operator (Hugging Face's trainers): ZeRO 1 and 2."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from sim.errors import Mistake
from workloads.frameworks import pytorch_eager
from workloads.frameworks._megatron_optimizer import offloaded, offloaded_caveat
from workloads.frameworks._pytorch_trainer import offload, zero2
from workloads.job import Job
from workloads.models.model import ModelSpec

EAGER = pytorch_eager.FRAMEWORK


def _layout(s: Job) -> Iterator[Mistake]:
    """What this engine does not split."""
    for axis in ("tp", "pp", "cp", "ep"):
        count = getattr(s.parallel, axis)
        if count > 1:
            hint = 'framework = "deepspeed" has it, around Megatron\'s layers'
            yield Mistake(s.where, f"parallel.{axis}", str(count), "1", hint)


def _optimizer(s: Job) -> Iterator[Mistake]:
    """Its partition is updated by Adam in fp32."""
    if s.training.optimizer not in ("adam", "adamw"):
        found = f'"{s.training.optimizer}"'
        yield Mistake(s.where, "training.optimizer", found, '"adam" or "adamw"')


def _engine(s: Job) -> Iterator[Mistake]:
    """What the engine does itself."""
    for key in ("clip_gradients", "master_weights"):
        if getattr(s.pytorch, key):
            hint = "DeepSpeed's optimizer has norms and fp32 weights anyway"
            yield Mistake(s.where, f"pytorch.{key}", "true", "false", hint)


def caveats(s: Job, model: ModelSpec) -> Iterator[str]:
    """What rests on no measurement."""
    yield from EAGER.caveats(s, model)
    yield from offloaded_caveat(s)


FRAMEWORK = replace(
    EAGER,
    precisions=(),
    updates=("adam",),
    context_parallel=False,
    data_parallel=("none", "zero1", "zero2"),
    sharded=(),
    rules=(
        *(rule for rule in EAGER.rules if rule[1] not in (zero2, offload)),
        (
            "parallel parallel.tp parallel.pp parallel.cp parallel.ep",
            _layout,
        ),
        ("parallel parallel.offload parallel.data_parallel", offloaded),
        ("training training.optimizer", _optimizer),
        ("pytorch", _engine),
    ),
    caveats=caveats,
    adapters=False,
    fp32_adapters=False,
    tries={"parallel.data_parallel": ("zero1", "zero2")},
)
