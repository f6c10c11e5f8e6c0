"""DeepSpeed around Megatron's layers (Megatron-DeepSpeed): its engine calls them and reduces gradients, ZeRO 0 to 3."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from prestep.sim.errors import Mistake
from prestep.sim.extras import lazily
from prestep.workloads.frameworks import megatron, rule
from prestep.workloads.job import JobSpec

with lazily():
    from prestep.workloads.megatron import engine, lower


@rule("parallel.data_parallel parallel.pp parallel.ep megatron.fp32_shards")
def zero3(s: JobSpec) -> Iterator[Mistake]:
    """What DeepSpeed's stage 3 has not: stages, experts spread over ranks, Megatron's shards."""
    if s.parallel.data_parallel not in ("zero3", "fsdp"):
        return
    hint = "DeepSpeed refuses stage 3 in a pipeline and with its own experts"
    yield from s.refused(("parallel.pp", "parallel.ep"), "1 with ZeRO-3", hint)
    hint = "a switch of Megatron's engine"
    yield from s.refused(["megatron.fp32_shards"], "false", hint)


FRAMEWORK = replace(
    megatron.FRAMEWORK,
    lower=lambda s, m, site: lower.lower(s, m, site, engine=engine.DEEPSPEED),
    rules=(*megatron.FRAMEWORK.rules, zero3),
)
