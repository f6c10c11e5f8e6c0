"""PyTorch with `torch.compile` on every block: Inductor's kernels, fewer and larger, and its Python between them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from sim.errors import Mistake
from workloads.frameworks import pytorch_eager
from workloads.job import Job
from workloads.models.shape import ModelShape

if TYPE_CHECKING:
    from workloads.lowered import Lowered, Site
    from workloads.models.model import ModelSpec


def lower(scenario: Job, model: ModelSpec, site: Site) -> Lowered:
    """As eager PyTorch, with compiled blocks."""
    from workloads.torch.compiled import (
        compiled_block,  # it is what takes long to import
    )

    return pytorch_eager.lower(scenario, model, site, compiled_block)


def _kernels(s: Job) -> Iterator[Mistake]:
    hint = "compiled blocks have projections of their own, and no kernels in Triton"
    for key, value in pytorch_eager.stated(s, ("joined_qkv",)):
        yield Mistake(s.where, key, value, "nothing", hint)
    if s.pytorch.attention == "triton":
        key, expected = "pytorch.attention", "cudnn or flash2"
        yield Mistake(s.where, key, '"triton"', expected, hint)


def _dense(s: Job, model: ModelShape) -> Iterator[Mistake]:
    split = s.parallel.tp > 1 or s.parallel.ep > 1
    if model.kind == "transformer" and not (split or model.experts or model.bias):
        return
    what = (
        "tp, ep, experts or biases"
        if model.kind == "transformer"
        else f"kind {model.kind}"
    )
    hint = "only dense transformer blocks without biases, tp or ep are compiled"
    stated = f'"{s.training.framework}" with {what}'
    yield Mistake(
        s.where, "training.framework", stated, "pytorch-eager or cuda-graph", hint
    )


EAGER = pytorch_eager.FRAMEWORK
FRAMEWORK = replace(
    EAGER,
    lower=lower,
    precisions=("quantized", "scaled loss"),
    rules=(("pytorch training", _kernels), *EAGER.rules),
    model_rules=(
        *EAGER.model_rules,
        (
            "training parallel.tp parallel.ep model.bias model.experts model.kind",
            _dense,
        ),
    ),
)
