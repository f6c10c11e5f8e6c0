"""PyTorch, operator by operator: plain modules under DDP, FSDP, tensor and pipeline parallelism."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import TYPE_CHECKING

from prestep.sim.errors import Mistake
from prestep.sim.extras import lazily
from prestep.workloads.frameworks import Framework, foreign
from prestep.workloads.frameworks import _pytorch_model as models
from prestep.workloads.frameworks import _pytorch_trainer as trainer
from prestep.workloads.frameworks._pytorch_trainer import FSDP
from prestep.workloads.job import JobSpec
from prestep.workloads.job.layout import splits_backward
from prestep.workloads.models import hybrid

with lazily():  # it is what takes long to import
    from prestep.workloads.torch import lower

if TYPE_CHECKING:
    from prestep.workloads.lowered import Site
    from prestep.workloads.models.model import ModelSpec


def marks(site: Site) -> Sequence[Hashable]:
    """What cuBLAS takes of the GPUs' memory, and GPUs of several kinds."""
    return (site.workspace, *site.speeds)


def refusals(s: JobSpec) -> Iterator[Mistake]:
    """FSDP1 with experts of its own or split backward passes, and copies that would lack experts."""
    p = s.parallel
    sharded = p.data_parallel in FSDP
    flat = sharded and s.pytorch.fsdp == "1"
    if p.pp > 1 and flat and splits_backward(s):
        hint = "FSDP1 reduces in its backward hooks, which split backward passes do not call"
        yield s.mistake("pytorch.fsdp", '"2" with this schedule', hint)
    if p.fsdp_shards == 1 and flat:
        hint = 'one shard is NO_SHARD: parallel.data_parallel = "ddp"'
        yield s.mistake("parallel.fsdp_shards", "at least 2", hint)
    if p.ep > 1 and p.data_parallel == "zero1":
        hint = "its optimizer takes all parameters for the same on every rank"
        expected = "ddp, ddp-no-overlap or fsdp"
        yield s.mistake("parallel.data_parallel", expected, hint)
    if p.ep > 1 and flat:
        hint = "experts with shards of their own are FSDP2's"
        yield s.mistake("pytorch.fsdp", '"2" with ep > 1', hint)
    # With whole experts each of a shard's tensor-parallel ranks has some.
    among = p.tp if p.etp == 1 else 1
    if sharded and (p.fsdp_shards or p.ep) * among % p.ep:
        hint = "a copy of the parameters has all experts"
        expected = f"a multiple of ep = {p.ep}"
        yield s.mistake("parallel.fsdp_shards", expected, hint)


def caveats(s: JobSpec, model: ModelSpec) -> Iterator[str]:
    """What rests on no measurement, and what a pipeline leaves out."""
    p = s.parallel
    if s.adapter.on and p.dp * p.pp * p.cp * p.tp > 1:
        yield "adapters beside weights of several GPUs follow PEFT's source: steps with them were measured on one"
    if set(model.layer_pattern) & set(hybrid.MIXERS):
        yield "hybrids: layers follow the source of transformers; measured on one GPU, with the gated delta rule"
    if model.capped_scores:
        yield "capped scores: FlashAttention 2 is taken to need no time for their tanh"
    if model.mtp_layers and s.parallel.pp > 1:
        yield "multi-token prediction: the last stage has a copy of the embedding; its look-up is left out"
    if model.tied_embeddings and s.parallel.pp > 1:
        yield "tied embeddings: the last stage has a copy; adding its gradient to the first stage's is left out"


FRAMEWORK = Framework(
    lambda *step: lower.lower(*step),
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
        *(
            trainer.trainer,
            trainer.shards,
            trainer.context,
            trainer.zero2,
            trainer.root,
        ),
        *(trainer.offload, trainer.formats, foreign, trainer.vocabulary),
        *(trainer.asynchronous, trainer.liger, trainer.adapters, trainer.packed),
        *(trainer.scaled, trainer.optimizer_rule, trainer.experts, trainer.order),
    ),
    model_rules=(
        *(models.parts, models.megatrons_own, models.hybrids, models.adapted_model),
        *(models.wide, models.positions, models.root_groups, models.modules),
        *(models.latent, models.window, models.grouped),
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
