"""Keys that are stated and have no part in a step: another framework's, or without what they are about. They are told.

What they say would hold of another step: a recipe may carry them, so they are no mistakes. But a what-if of such a key
moves nothing, and its reader should know that it was not tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from typing import Any

from prestep.sim.spec.sections import SECTIONS, Scenario
from prestep.workloads.frameworks import framework_of
from prestep.workloads.job.layout import microbatches_of
from prestep.workloads.models.shape import ModelShape
from prestep.workloads.precision import precision

Met = Callable[[Scenario, ModelShape], bool]
SHARDED = ("fsdp", "zero2", "zero3")


@dataclass(frozen=True)
class Needs:
    """Keys, as patterns of `section.key`, what has to be so that they have a part, and the words for it."""

    keys: str
    met: Met
    words: str

    def about(self, key: str) -> bool:
        """Whether a key is one of these."""
        return any(fnmatchcase(key, pattern) for pattern in self.keys.split())


def _ways(*ways: str) -> Met:
    """Whether gradients are combined in one of these ways."""
    return lambda s, _: s.parallel.data_parallel in ways


def _of_megatron(s: Scenario, _: ModelShape) -> bool:
    return framework_of(s).read_keys("megatron") != ()


def _changed_with_releases(s: Scenario, m: ModelShape) -> bool:
    """Whether a step has anything that an older PyTorch does otherwise."""
    p = s.parallel
    stages = p.pp > 1 and p.schedule == "interleaved" and p.vpp > 1
    rowwise = s.pytorch.fp8_scaling == "rowwise"
    plain = s.pytorch.attention == "auto" and not _of_megatron(s, m)
    chosen = plain or s.megatron.attention == "sdpa"
    return (
        s.training.recompute != "none" or m.norm == "layer" or p.cp > 1 or stages
    ) or (rowwise or (chosen and m.kind == "transformer"))


def _buckets_of_ddp(s: Scenario, m: ModelShape) -> bool:
    return not _of_megatron(s, m) and _ways("ddp", "ddp-no-overlap", "zero1")(s, m)


def _interleaved(s: Scenario, _: ModelShape) -> bool:
    p = s.parallel
    return p.pp > 1 and p.vpp > 1 and p.schedule == "interleaved"


def _gathers_beside(s: Scenario, _: ModelShape) -> bool:
    """Whether Megatron gathers what its distributed optimizer updated beside the forward pass."""
    p = s.parallel
    sharded = p.data_parallel == "zero1" and p.dp * p.cp > 1
    return sharded and s.megatron.overlap_param_gather


def _quantized(s: Scenario, _: ModelShape) -> bool:
    return precision(s.training.precision).quantized


#: The first that is not met says why a key has no part.
NEEDS = (
    Needs("megatron.*", _of_megatron, "a framework with Megatron's layers"),
    Needs(
        "parallel.bucket_cap parallel.gradient_as_bucket_view",
        lambda s, m: not _of_megatron(s, m),
        "PyTorch's own DDP",
    ),
    Needs(
        "parallel.bucket_cap parallel.gradient_as_bucket_view",
        _ways("ddp", "ddp-no-overlap", "zero1"),
        "a DDP in data_parallel",
    ),
    Needs(
        "parallel.reshard_after_forward parallel.root_groups parallel.reshard_root parallel.fsdp_shards",
        _ways(*SHARDED),
        "data_parallel = fsdp, zero2 or zero3",
    ),
    Needs(
        "parallel.offload_threads parallel.offload_pinned",
        lambda s, _: s.parallel.offload != "none",
        "parallel.offload",
    ),
    Needs(
        "parallel.offload_fraction megatron.overlap_cpu_optimizer_d2h_h2d",
        lambda s, _: s.parallel.offload == "optimizer",
        "parallel.offload = optimizer",
    ),
    Needs(
        "megatron.fused_softmax_check",
        lambda s, _: s.megatron.attention == "unfused",
        "attention = unfused",
    ),
    Needs(
        "megatron.moe_* megatron.overlap_moe_* parallel.routing parallel.natural_routing parallel.etp",
        lambda _, m: m.experts > 0,
        "a model with experts",
    ),
    Needs(
        "megatron.moe_flex_* megatron.moe_deepep_* parallel.routing",
        lambda s, _: s.megatron.moe_token_dispatcher == "flex",
        "moe_token_dispatcher = flex",
    ),
    Needs(
        "megatron.moe_pad_to_capacity",
        lambda s, _: s.megatron.moe_capacity is not None,
        "moe_capacity",
    ),
    Needs(
        "megatron.moe_shared_expert_overlap",
        lambda _, m: m.shared_experts > 0,
        "shared experts",
    ),
    Needs(
        "megatron.fp8_* megatron.num_layers_at_* megatron.kept_in_* megatron.moe_fused_mlp adapter.fp8_weights",
        _quantized,
        "a precision of 8 or 4 bits",
    ),
    Needs(
        "megatron.nvfp4_rht megatron.kept_in_mxfp8",
        lambda s, _: s.training.precision == "nvfp4",
        "precision = nvfp4",
    ),
    Needs(
        "megatron.keep_fp8_weight_transpose_cache",
        lambda s, _: s.training.precision == "fp8",
        "precision = fp8",
    ),
    Needs(
        "megatron.use_transformer_engine_op_fuser",
        lambda s, m: s.adapter.on or _quantized(s, m),
        "adapters, or a precision of 8 or 4 bits",
    ),
    Needs(
        "parallel.sequence_parallel megatron.tp_comm_overlap* "
        "megatron.async_tensor_model_parallel_allreduce "
        "megatron.scatter_gather_tensors_in_pipeline",
        lambda s, _: s.parallel.tp > 1,
        "tp > 1",
    ),
    Needs(
        "megatron.tp_comm_overlap*",
        lambda s, _: s.parallel.sequence_parallel,
        "sequence_parallel",
    ),
    Needs(
        "megatron.tp_comm_overlap_rs_dgrad",
        lambda s, _: s.megatron.tp_comm_overlap,
        "tp_comm_overlap",
    ),
    Needs("megatron.cp_comm_type", lambda s, _: s.parallel.cp > 1, "cp > 1"),
    Needs(
        "parallel.schedule parallel.uneven_stages megatron.account_for_* "
        "megatron.pipeline_layout megatron.defer_embedding_wgrad_compute megatron.p2p_sync megatron.overlap_p2p_comm "
        "megatron.scatter_gather_tensors_in_pipeline",
        lambda s, _: s.parallel.pp > 1,
        "pp > 1",
    ),
    Needs(
        "megatron.overlap_p2p_comm megatron.align_*",
        _interleaved,
        "schedule = interleaved with vpp > 1",
    ),
    Needs(
        "megatron.align_param_gather megatron.param_gather_from_start "
        "megatron.overlap_param_gather_with_optim_step",
        _gathers_beside,
        "overlap_param_gather with data_parallel = zero1",
    ),
    Needs(
        "megatron.param_gather_from_start",
        lambda s, m: not (_interleaved(s, m) and s.megatron.align_param_gather),
        "gathers that are not aligned",
    ),
    Needs(
        "megatron.overlap_param_gather_with_optim_step",
        lambda s, _: s.parallel.vpp > 1,
        "vpp > 1",
    ),
    Needs(
        "megatron.align_grad_reduce",
        lambda s, _: (
            s.megatron.overlap_grad_reduce and s.parallel.dp * s.parallel.cp > 1
        ),
        "overlap_grad_reduce",
    ),
    Needs(
        "megatron.attention_dropout",
        lambda s, _: s.megatron.attention == "unfused",
        "attention = unfused (fused kernels drop scores in passing)",
    ),
    Needs(
        "megatron.bias_fusion",
        lambda s, m: m.bias or s.megatron.hidden_dropout > 0,
        "a model with biases, or hidden_dropout",
    ),
    Needs("megatron.use_fused_mhc", lambda _, m: m.streams > 1, "residual streams"),
    Needs(
        "megatron.dsa_indexer_loss_coeff model.hash_layers",
        lambda _, m: bool(m.compress_ratios),
        "compressed attention",
    ),
    Needs("model.mtp_shared", lambda _, m: m.mtp_layers > 1, "mtp_layers > 1"),
    Needs(
        "model.ffn",
        lambda s, m: (
            s.model.moe_ffn is None
            or not all(m.has_experts(layer) for layer in range(m.layers))
        ),
        "a layer without experts",
    ),
    Needs(
        "parallel.data_parallel megatron.overlap_grad_reduce megatron.overlap_param_gather",
        lambda s, m: (
            s.parallel.dp * s.parallel.cp > 1
            or not _of_megatron(s, m)
            or s.parallel.data_parallel == "none"
        ),
        "dp x cp > 1",
    ),
    Needs("model.clamped", lambda _, m: m.experts > 0, "a model with experts"),
    Needs(
        "training.warmup",
        _buckets_of_ddp,
        "PyTorch's DDP, which rebuilds its first buckets after some steps",
    ),
    Needs(
        "training.set_to_none",
        lambda s, m: not _of_megatron(s, m),
        "gradients that PyTorch keeps",
    ),
    Needs(
        "megatron.fp32_shards",
        lambda s, _: s.parallel.data_parallel in ("fsdp", "zero3"),
        'parallel.data_parallel = "fsdp" or "zero3"',
    ),
    Needs(
        "megatron.exp_avg_* megatron.main_params_dtype",
        lambda s, _: s.megatron.use_precision_aware_optimizer,
        "use_precision_aware_optimizer",
    ),
    Needs(
        "megatron.wgrad_deferral_limit",
        lambda s, _: s.megatron.defer_embedding_wgrad_compute,
        "defer_embedding_wgrad_compute",
    ),
    Needs(
        "pytorch.version",
        _changed_with_releases,
        "recomputation, LayerNorm, cp, interleaved stages, rowwise FP8 or attention's kernel left to PyTorch, which "
        "changed with its releases",
    ),
    Needs(
        "pytorch.reduce_every_microbatch",
        lambda s, _: microbatches_of(s) > 1,
        "more than one microbatch",
    ),
    Needs(
        "pytorch.recompute_attention",
        lambda s, _: s.training.recompute == "products",
        "recompute = products",
    ),
    Needs(
        "megatron.recompute_num_layers megatron.recompute_early_stop",
        lambda s, _: s.training.recompute == "full",
        "recompute = full",
    ),
    Needs(
        "adapter.*",
        lambda s, _: s.adapter.on,
        "adapter.kind = lora",
    ),
    Needs(
        "cluster.routing_seed cluster.routing_flows",
        lambda s, _: s.cluster.routing == "ecmp",
        "routing = ecmp",
    ),
    Needs(
        "nccl.*",
        lambda s, _: _ranks(s) > 1,
        "more than one rank",
    ),
    Needs(
        "nccl.transport",
        lambda s, _: s.nccl.backend == "nvshmem",
        "backend = nvshmem",
    ),
    Needs("nccl.tensors", lambda s, _: s.nccl.backend == "gloo", "backend = gloo"),
    Needs(
        "faults.rates faults.takes faults.spares faults.degraded faults.detect faults.repair",
        lambda *_: False,
        "`prestep goodput`",
    ),
    Needs("faults.jitter_*", lambda s, _: s.faults.jitter > 0, "faults.jitter above 0"),
)
#: What counts between hosts alone.
BETWEEN_HOSTS = (
    "cluster.routing*",
    *("nccl.net", "nccl.net_speed", "nccl.cross_nic", "nccl.pxn_disable"),
    *("nccl.nchannels_per_net_peer", "nccl.socket_nthreads", "nccl.nsocks_perthread"),
    "nccl.hostid",
    "placement.by",
)
#: Sections, and a key, that say by themselves that they are not in use.
SAID_KEYS = ("nccl.collnet",)
SAID = ("measured", "inference", "rl", "costs", "model")
#: Keys of a model that may be about nothing in it.
OF_MODELS = ("mtp_shared", "clamped", "ffn", "hash_layers")


def idle(s: Scenario, model: ModelShape, hosts: int) -> Iterator[str]:
    """A line for each reason, with the keys that have no part in the step for it; its ranks are on so many hosts."""
    told: dict[str, list[str]] = {}
    for key in stated(s):
        for needs in (*NEEDS, _between(s, hosts)):
            if needs.about(key) and not needs.met(s, model):
                told.setdefault(needs.words, []).append(key)
                break
    for words, keys in told.items():
        have = "has" if len(keys) == 1 else "have"
        yield f"{', '.join(keys)} {have} no part in this step: that wants {words}"


def _between(s: Scenario, hosts: int) -> Needs:
    """Keys of the network, which one host has a use for where its GPUs are kept from each other."""
    apart = hosts > 1 or s.nccl.shm_disable or s.nccl.hostid is not None
    return Needs(" ".join(BETWEEN_HOSTS), lambda *_: apart, "more than one host")


def stated(s: Scenario) -> Iterator[str]:
    """Keys of the scenario that are not as they are where nothing is said."""
    yield from (f"model.{name}" for name in OF_MODELS if getattr(s.model, name))
    for section, cls in SECTIONS.items():
        if section in SAID:
            continue
        made: Any = getattr(s, section)
        for entry in fields(cls):
            key = f"{section}.{entry.name}"
            changed = getattr(made, entry.name) != getattr(cls(), entry.name)
            if changed and key not in SAID_KEYS:
                yield key


def _ranks(s: Scenario) -> int:
    p = s.parallel
    return p.dp * p.tp * p.pp * p.cp
