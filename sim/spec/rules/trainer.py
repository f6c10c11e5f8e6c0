"""Rules on what a PyTorch trainer chooses, and on fully sharded data parallelism."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sim.errors import Mistake

if TYPE_CHECKING:
    from sim.spec.rules.layout import ModelShape
    from sim.spec.sections import Scenario

ANY_FRAMEWORK = ("version", "cuda")  # keys that say what PyTorch and CUDA are


def trainer(s: Scenario) -> Iterator[Mistake]:
    """Keys of [pytorch] where the framework, or the way of data parallelism, does not have what they choose."""
    from sim.spec.sections import PyTorch

    c, plain, p = s.pytorch, PyTorch(), s.parallel
    said = [
        name
        for name in PyTorch.__dataclass_fields__
        if getattr(c, name) != getattr(plain, name)
    ]
    if s.training.megatron:
        for name in (name for name in said if name not in ANY_FRAMEWORK):
            hint = '[megatron] has the switches of framework = "megatron"'
            yield Mistake(
                s.where, f"pytorch.{name}", str(getattr(c, name)), "nothing", hint
            )
        return
    if s.training.framework == "pytorch-compiled":
        for name in ("joined_qkv", "attention"):
            if name in said:
                hint = (
                    "compiled blocks have cuDNN's kernel and projections of their own"
                )
                yield Mistake(
                    s.where, f"pytorch.{name}", str(getattr(c, name)), "nothing", hint
                )
    if p.pp > 1:
        for name in ("loss", "metrics"):
            if name in said:
                yield Mistake(
                    s.where,
                    f"pytorch.{name}",
                    str(getattr(c, name)),
                    "nothing",
                    "not simulated with pp",
                )
    if p.data_parallel not in ("fsdp", "zero3"):
        for name in (
            "fsdp",
            "reduce_dtype",
            "reduce_every_microbatch",
            "prefetch",
            "limit_all_gathers",
        ):
            if name in said:
                expected, hint = (
                    'parallel.data_parallel = "fsdp"',
                    "it is a choice of FSDP's",
                )
                yield Mistake(
                    s.where, f"pytorch.{name}", str(getattr(c, name)), expected, hint
                )
    elif c.fsdp == "2":
        for name in ("reduce_every_microbatch", "prefetch", "limit_all_gathers"):
            if name in said:
                yield Mistake(
                    s.where,
                    f"pytorch.{name}",
                    str(getattr(c, name)),
                    'pytorch.fsdp = "1"',
                )


def shards(s: Scenario) -> Iterator[Mistake]:
    count, ranks = s.parallel.fsdp_shards, s.parallel.dp * s.parallel.cp
    if count is None:
        return
    if not s.training.megatron or s.parallel.data_parallel not in ("fsdp", "zero3"):
        hint = (
            'framework = "megatron" with data_parallel = "fsdp" has shards of its own'
        )
        yield Mistake(s.where, "parallel.fsdp_shards", str(count), "nothing", hint)
    elif ranks % count:
        yield Mistake(
            s.where,
            "parallel.fsdp_shards",
            str(count),
            f"a divisor of dp * cp = {ranks}",
        )


def zero2(s: Scenario) -> Iterator[Mistake]:
    if (
        s.training.megatron
        and s.parallel.data_parallel == "zero2"
        and s.parallel.pp > 1
    ):
        hint = "ZeRO-2 reduces gradients in every microbatch, which DeepSpeed refuses in a pipeline"
        yield Mistake(
            s.where, "parallel.data_parallel", '"zero2"', '"zero1" with pp > 1', hint
        )


def sharded(s: Scenario, model: ModelShape) -> Iterator[Mistake]:
    if (
        s.training.megatron
        and s.parallel.data_parallel in ("fsdp", "zero3")
        and model.experts
    ):
        found = f'"{s.parallel.data_parallel}"'
        hint = "sharding a model with experts fully is not simulated yet"
        yield Mistake(s.where, "parallel.data_parallel", found, "zero1 or ddp", hint)
