"""What a checkpoint holds, who writes which part of it, and who reads it back."""

from __future__ import annotations

from dataclasses import dataclass

from prestep.sim.planning.job import Job
from prestep.sim.storage.sections import Checkpoint
from prestep.workloads.models.model import ModelSpec
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


def bytes_of(job: Job, saves: Checkpoint, model: ModelSpec, parameters: int) -> float:
    """Bytes of a checkpoint of a model of `parameters` parameters.

    Parameters in the type they are trained in; with `content = "all"` the optimizer's state too: moments in the
    parameters' own type (torch.optim), or in fp32 beside a copy of the parameters (Megatron-LM).
    """
    each = precision(job.precision).parameter
    rule = optimizer(job.optimizer)
    if saves.content != "all" or not rule.moments:
        return float(parameters * each)
    moments = rule.moments * parameters
    if rule.iterations:  # tables of words go by AdamW, with a second moment
        moments += looked_up(model)
    copies = MASTER * parameters if job.master else 0
    if rule.state:
        few = rule.state + SCALE / rule.block
        return float(parameters * each + copies + moments * few)
    moment = MASTER if job.wide_moments else each
    return float(parameters * each + copies + moments * moment)


def looked_up(model: ModelSpec) -> int:
    """Parameters of the embedding, learned positions and the head."""
    words = model.vocab * (1 if model.tied_embeddings else 2)
    return model.hidden * (words + model.max_positions)


def contents(
    job: Job, saves: Checkpoint, model: ModelSpec, parameters: int
) -> Contents:
    """Who writes: rank 0 everything, or every rank its part.

    Parts of tensor- and pipeline-parallel ranks and of sharded replicas (FSDP, ZeRO-3) are theirs alone. What replicas
    share is dealt out over them (PyTorch's planner), or the first replica writes it.
    """
    size, world = bytes_of(job, saves, model, parameters), job.layout.world
    if (saves.mode or "rank0") == "rank0":
        return Contents(size, (0,))
    if saves.writers == "replica0" and not job.sharded:
        return Contents(size, tuple(range(max(1, world // job.degrees.dp))))
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
