"""PyTorch from C++: eager PyTorch's kernels, launched without Python."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from prestep.sim.errors import Mistake
from prestep.workloads.frameworks import pytorch_eager, rule
from prestep.workloads.job import JobSpec

EAGER = pytorch_eager.FRAMEWORK


@rule("parallel parallel.pp")
def one_stage(job: JobSpec) -> Iterator[Mistake]:
    """`torch::distributed` has no pipelines."""
    yield from job.refused(["parallel.pp"], "1", "no pipelines in C++")


FRAMEWORK = replace(
    EAGER,
    precisions=(),  # bf16 alone
    data_parallel=("none", "ddp"),
    rules=(*EAGER.rules, one_stage),
)
