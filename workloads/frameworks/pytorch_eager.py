"""PyTorch, operator by operator: plain modules under DDP, FSDP, tensor and pipeline parallelism."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import TYPE_CHECKING

from prestep.sim.errors import Mistake
from prestep.workloads.frameworks import (
    Framework,
    _pytorch_model,
    _pytorch_trainer,
    foreign,
)
from prestep.workloads.frameworks._pytorch_trainer import FSDP
from prestep.workloads.job import JobSpec
from prestep.workloads.job.layout import splits_backward
from prestep.workloads.models import hybrid

if TYPE_CHECKING:
    from prestep.workloads.lowered import Lowered, Site
    from prestep.workloads.models.model import ModelSpec
    from prestep.workloads.torch.run_block import RunBlock


def lower(
    scenario: JobSpec, model: ModelSpec, site: Site, run_block: RunBlock | None = None
) -> Lowered:
    """Every simulated rank's step, recorded; `run_block` runs a block where its own operators do not."""
    from prestep.workloads.torch import lower  # it is what takes long to import

    factor, speeds = site.host_factor, site.speeds
    return lower.lower(scenario, model, factor, speeds, run_block, site.workspace)


def marks(site: Site) -> Sequence[Hashable]:
    """What cuBLAS takes of the GPUs' memory, and GPUs of several kinds."""
    return (site.workspace, *site.speeds)


def refusals(s: JobSpec) -> Iterator[Mistake]:
    """FSDP1 with experts of its own or split backward passes, and copies that would lack experts."""
    p = s.parallel
    way, sharded = f'"{p.data_parallel}"', p.data_parallel in FSDP
    if p.pp > 1 and sharded and s.pytorch.fsdp == "1" and splits_backward(s):
        hint = "FSDP1 reduces in its backward hooks, which split backward passes do not call"
        yield Mistake(s.where, "pytorch.fsdp", '"1"', '"2" with this schedule', hint)
    if p.fsdp_shards == 1 and sharded and s.pytorch.fsdp == "1":
        hint = 'one shard is NO_SHARD: parallel.data_parallel = "ddp"'
        yield Mistake(s.where, "parallel.fsdp_shards", "1", "at least 2", hint)
    if p.ep > 1 and p.data_parallel == "zero1":
        hint = "its optimizer takes all parameters for the same on every rank"
        expected = "ddp, ddp-no-overlap or fsdp"
        yield Mistake(s.where, "parallel.data_parallel", way, expected, hint)
    if p.ep > 1 and sharded and s.pytorch.fsdp == "1":
        hint = "experts with shards of their own are FSDP2's"
        yield Mistake(s.where, "pytorch.fsdp", '"1"', '"2" with ep > 1', hint)
    # With whole experts each of a shard's tensor-parallel ranks has some.
    among = p.tp if p.etp == 1 else 1
    if sharded and (p.fsdp_shards or p.ep) * among % p.ep:
        hint = "a copy of the parameters has all experts"
        found, expected = str(p.fsdp_shards), f"a multiple of ep = {p.ep}"
        yield Mistake(s.where, "parallel.fsdp_shards", found, expected, hint)


def caveats(s: JobSpec, model: ModelSpec) -> Iterator[str]:
    """What rests on no measurement, and what a pipeline leaves out."""
    p = s.parallel
    if s.adapter.on and p.dp * p.pp * p.cp * p.tp > 1:
        yield "adapters beside weights of several GPUs follow PEFT's source: steps with them were measured on one"
    if set(model.layer_pattern) & set(hybrid.SCANS):
        yield "hybrids: layers follow the source of transformers; measured on one GPU, with the gated delta rule"
    if model.mtp_layers and s.parallel.pp > 1:
        yield "multi-token prediction: the last stage has a copy of the embedding; its look-up is left out"
    if model.tied_embeddings and s.parallel.pp > 1:
        yield "tied embeddings: the last stage has a copy; adding its gradient to the first stage's is left out"


FRAMEWORK = Framework(
    lower,
    marks,
    precisions=("quantized", "scaled loss", "wide"),
    updates=("adam", "orthogonal", "sgd", "lion", "adafactor", "quantized"),
    gathers_matrices=True,
    context_parallel=True,
    recompute=("none", "products", "alternate", "full"),
    data_parallel=("none", "ddp", "ddp-no-overlap", "zero1", *FSDP),
    sharded=FSDP,
    family="pytorch",
    rules=(
        (
            "pytorch training parallel parallel.pp parallel.data_parallel",
            _pytorch_trainer.trainer,
        ),
        (
            "parallel parallel.fsdp_shards parallel.dp parallel.cp",
            _pytorch_trainer.shards,
        ),
        (
            "parallel.cp parallel.ring_degree parallel.ep parallel.data_parallel pytorch training training.seq_len",
            _pytorch_trainer.context,
        ),
        ("parallel parallel.data_parallel", _pytorch_trainer.zero2),
        ("parallel parallel.data_parallel pytorch.fsdp", _pytorch_trainer.root),
        ("parallel pytorch training", _pytorch_trainer.offload),
        ("pytorch training parallel.data_parallel", _pytorch_trainer.formats),
        ("pytorch training", foreign),
        ("pytorch parallel.tp", _pytorch_trainer.vocabulary),
        ("pytorch training adapter", _pytorch_trainer.asynchronous),
        ("pytorch parallel training", _pytorch_trainer.liger),
        ("adapter training.optimizer", _pytorch_trainer.adapters),
        (
            "training.packed pytorch.attention parallel.cp parallel.ring_degree",
            _pytorch_trainer.packed,
        ),
        ("pytorch training parallel.pp", _pytorch_trainer.scaled),
        (
            "pytorch training parallel.tp parallel.data_parallel",
            _pytorch_trainer.optimizer_rule,
        ),
        (
            "parallel parallel.tp parallel.etp parallel.ep parallel.sequence_parallel parallel.imbalance "
            "adapter.targets",
            _pytorch_trainer.experts,
        ),
        ("parallel parallel.order parallel.ep", _pytorch_trainer.order),
    ),
    model_rules=(
        ("model", _pytorch_model.parts),
        ("training model.compress_ratios model.streams", _pytorch_model.megatrons_own),
        (
            "parallel.tp parallel.cp training.precision model.layer_pattern model.moe_latent",
            _pytorch_model.hybrids,
        ),
        (
            "adapter adapter.targets pytorch.experts model.kind model.layer_pattern",
            _pytorch_model.adapted_model,
        ),
        ("training pytorch model", _pytorch_model.wide),
        ("pytorch.vocabulary model.positions", _pytorch_model.positions),
        ("parallel.root_groups model.mtp_layers", _pytorch_model.root_groups),
        ("pytorch.modules model.kind model.mtp_layers", _pytorch_model.modules),
        ("pytorch model.kind", _pytorch_model.latent),
        (
            "pytorch training parallel.cp parallel.ring_degree training.seq_len model",
            _pytorch_model.window,
        ),
        (
            "pytorch.experts training.framework parallel.ep model.experts",
            _pytorch_model.grouped,
        ),
    ),
    refusals=refusals,
    adapters=True,
    fp32_adapters=True,
    packs=True,
    tries={
        "parallel.data_parallel": ("ddp", "fsdp"),
        "training.recompute": ("none", "full"),
    },
    caveats=caveats,
)
