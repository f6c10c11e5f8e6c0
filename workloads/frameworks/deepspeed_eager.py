"""DeepSpeed's engine around PyTorch's modules, operator by operator (Hugging Face's trainers): ZeRO 1 and 2."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from sim.errors import Mistake
from workloads.frameworks import pytorch_eager
from workloads.frameworks._pytorch_trainer import zero2
from workloads.job import Job

EAGER = pytorch_eager.FRAMEWORK


def _layout(s: Job) -> Iterator[Mistake]:
    """What this engine does not split."""
    for axis in ("tp", "pp", "cp", "ep"):
        count = getattr(s.parallel, axis)
        if count > 1:
            hint = 'framework = "deepspeed" has it, around Megatron\'s layers'
            yield Mistake(s.where, f"parallel.{axis}", str(count), "1", hint)
    if s.parallel.offload != "none":
        found = f'"{s.parallel.offload}"'
        yield Mistake(s.where, "parallel.offload", found, '"none" with this engine')


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


FRAMEWORK = replace(
    EAGER,
    precisions=(),
    updates=("adam",),
    context_parallel=False,
    data_parallel=("none", "zero1", "zero2"),
    sharded=(),
    rules=(
        *(rule for rule in EAGER.rules if rule[1] is not zero2),
        (
            "parallel parallel.tp parallel.pp parallel.cp parallel.ep parallel.offload",
            _layout,
        ),
        ("training training.optimizer", _optimizer),
        ("pytorch", _engine),
    ),
    adapters=False,
    fp32_adapters=False,
    tries={"parallel.data_parallel": ("zero1", "zero2")},
)
