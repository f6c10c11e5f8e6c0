"""What a checkpoint holds, who writes which part of it, and who reads it back."""

from __future__ import annotations

from dataclasses import dataclass

from prestep.workloads.frameworks import framework_of
from prestep.workloads.job import Job
from prestep.workloads.job.layout import shards_parameters
from prestep.workloads.models.model import ModelSpec, load_model
from prestep.workloads.optimizer import SCALE, optimizer
from prestep.workloads.precision import precision

MASTER = 4  # bytes of a parameter, and of each of its moments, in fp32


@dataclass(frozen=True)
class Contents:
    """Bytes of a checkpoint and the ranks that write it, each an equal part."""

    size: float
    writers: tuple[int, ...]

    @property
    def share(self) -> float:
        """Bytes of one writer."""
        return self.size / len(self.writers)


def bytes_of(scenario: Job, parameters: int) -> float:
    """Bytes of a checkpoint of a model of `parameters` parameters.

    Parameters in the type they are trained in; with `content = "all"` the optimizer's state too: moments in the
    parameters' own type (torch.optim), or in fp32 beside a copy of the parameters (Megatron-LM).
    """
    each = precision(scenario.training.precision).parameter
    kept = optimizer(scenario.training.optimizer)
    if scenario.checkpoint.content != "all" or not kept.moments:
        return float(parameters * each)
    fp32 = framework_of(scenario).master
    moments = kept.moments * parameters
    if kept.iterations:  # tables of words go by AdamW, with a second moment
        moments += looked_up(load_model(scenario.model, scenario.where))
    copies = MASTER * parameters if fp32 else 0
    if kept.state:
        few = kept.state + SCALE / kept.block
        return float(parameters * each + copies + moments * few)
    wide = fp32 or scenario.pytorch.wide_moments
    return float(parameters * each + copies + moments * (MASTER if wide else each))


def looked_up(model: ModelSpec) -> int:
    """Parameters of the embedding, learned positions and the head."""
    words = model.vocab * (1 if model.tied_embeddings else 2)
    return model.hidden * (words + model.max_positions)


def contents(scenario: Job, parameters: int, world: int) -> Contents:
    """Who writes: rank 0 everything, or every rank its part.

    Parts of tensor- and pipeline-parallel ranks and of sharded replicas (FSDP, ZeRO-3) are theirs alone. What replicas
    share is dealt out over them (PyTorch's planner), or the first replica writes it.
    """
    size, made = bytes_of(scenario, parameters), scenario.checkpoint
    if (made.mode or "rank0") == "rank0":
        return Contents(size, (0,))
    replicated = not shards_parameters(scenario)
    if replicated and made.writers == "replica0":
        return Contents(size, tuple(range(max(1, world // scenario.parallel.dp))))
    return Contents(size, tuple(range(world)))


def pieces(wrote: int, reads: int) -> int:
    """Files that one reader opens when shards of `wrote` equal writers are dealt out to `reads` equal readers.

    >>> pieces(8, 8), pieces(8, 4), pieces(4, 8), pieces(6, 4)
    (1, 2, 1, 2)
    """
    return max(
        (reader + 1) * wrote // reads
        + ((reader + 1) * wrote % reads > 0)
        - reader * wrote // reads
        for reader in range(min(reads, 64))
    )
