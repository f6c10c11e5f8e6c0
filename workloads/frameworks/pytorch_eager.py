"""PyTorch, operator by operator: plain modules under DDP, FSDP, tensor and pipeline parallelism."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import TYPE_CHECKING

from sim.errors import Mistake
from workloads.frameworks import ALL, Framework
from workloads.job import Job
from workloads.job.adapter import Adapter
from workloads.job.layout import axis_order, splits_backward
from workloads.job.pytorch import PyTorch
from workloads.models.shape import ModelShape
from workloads.optimizer import optimizer
from workloads.precision import precision

if TYPE_CHECKING:
    from workloads.lowered import Lowered, Site
    from workloads.models.model import ModelSpec
    from workloads.torch.run_block import RunBlock

FSDP = ("fsdp", "zero2", "zero3")
#: Updates that a CPU has as well (torch.optim on tensors of the host).
ON_CPU = ("adam", "sgd", "lion")
MEGATRON = 'training.framework = "megatron"'
# Parts of a transformer that the plain modules of workloads/torch/transformer.py do not have.
NO_SUCH_PARTS = (
    "mtp_layers",
    "layer_pattern",
    "attention_gate",
    "moe_latent",
)
OF_FSDP = (
    "fsdp",
    "reduce_dtype",
    "reduce_every_microbatch",
    "prefetch",
    "limit_all_gathers",
)
OF_FP8 = ("fp8_scaling", "fp8_param_gather")
OF_FORMATS = (*OF_FP8, "bf16_layers")
OF_AUTOMODEL = (
    "experts_reduce_dtype",
    "eager_operators",
    "attention_waits",
    "timed_rounds",
    "compiled_layers",
)
WHOLE_VECTOR = (
    4  # fp32 numbers that memory-efficient attention reads at once (sdp_utils.cpp)
)
OF_FLAT_PARAMETERS = ("prefetch", "limit_all_gathers")


def lower(
    scenario: Job, model: ModelSpec, site: Site, run_block: RunBlock | None = None
) -> Lowered:
    """Every simulated rank's step, recorded; `run_block` runs a block where its own operators do not."""
    from workloads.torch import lower  # it is what takes long to import

    return lower.lower(scenario, model, site.host_factor, site.speeds, run_block)


def marks(site: Site) -> Sequence[Hashable]:
    """GPUs of several kinds."""
    return site.speeds


def stated(s: Job, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Those keys of [pytorch] that are not the default, with their values."""
    for name in names:
        value = getattr(s.pytorch, name)
        if value != getattr(PyTorch(), name):
            yield f"pytorch.{name}", str(value)


def _trainer(s: Job) -> Iterator[Mistake]:
    """Keys of [pytorch] that the way of parallelism does not have."""
    if s.parallel.pp > 1:
        for key, value in stated(s, ("loss", "metrics", "modules")):
            yield Mistake(s.where, key, value, "nothing", "not simulated with pp")
    if s.parallel.data_parallel not in FSDP:
        for key, value in stated(s, OF_FSDP):
            yield Mistake(
                s.where,
                key,
                value,
                'parallel.data_parallel = "fsdp"',
                "it is a choice of FSDP's",
            )
    elif s.pytorch.fsdp == "2":
        for key, value in stated(s, OF_FLAT_PARAMETERS):
            yield Mistake(s.where, key, value, 'pytorch.fsdp = "1"')


def _automodel(s: Job) -> Iterator[Mistake]:
    """Keys of NeMo Automodel's engine."""
    for key, value in stated(s, OF_AUTOMODEL):
        hint = 'a switch of training.framework = "automodel"'
        yield Mistake(s.where, key, value, "nothing", hint)


def _formats(s: Job) -> Iterator[Mistake]:
    """Keys of quantized layers where there are none, or where they are not compiled."""
    number = precision(s.training.precision)
    if not number.quantized:
        for key, value in stated(s, OF_FORMATS):
            hint = 'training.precision = "fp8" or "nvfp4" quantizes layers'
            yield Mistake(s.where, key, value, "nothing", hint)
        return
    if number.name != "fp8" or s.training.framework != "pytorch-compiled":
        for key, value in stated(s, OF_FP8):
            hint = 'for precision = "fp8" with framework = "pytorch-compiled"'
            yield Mistake(s.where, key, value, "nothing", hint)
        return
    if s.pytorch.fp8_param_gather and (
        s.pytorch.fp8_scaling != "dynamic"
        or s.pytorch.fsdp != "2"
        or s.parallel.data_parallel not in FSDP
    ):
        expected = 'fp8_scaling = "dynamic" under FSDP2'
        key = "pytorch.fp8_param_gather"
        yield Mistake(s.where, key, "true", expected, "one scale for each weight")


def _optimizer(s: Job) -> Iterator[Mistake]:
    """Ways of an update, and updates of whole tensors."""
    rule, where, key = optimizer(s.training.optimizer), s.where, "training.optimizer"
    if s.pytorch.foreach_optimizer and (
        s.pytorch.fused_optimizer or rule.update not in ("adam", "orthogonal")
    ):
        expected = "nothing, or Adam with pytorch.fused_optimizer = false"
        yield Mistake(where, "pytorch.foreach_optimizer", "true", expected)
    if rule.update != "adafactor":
        return
    stated = f'"{rule.name}"'
    if s.parallel.data_parallel in FSDP or s.parallel.tp > 1:
        hint = "sums over rows and columns of a matrix that lies on several ranks are not simulated"
        expected = "adamw8bit or lion with FSDP or tp"
        yield Mistake(where, key, stated, expected, hint)


def _scaled(s: Job) -> Iterator[Mistake]:
    """A scaled loss needs parameters in 32 bits, and is not scaled in a pipeline."""
    if not precision(s.training.precision).scaled_loss:
        return
    if not s.pytorch.master_weights:
        hint = "torch.amp.GradScaler refuses gradients in fp16: parameters are in fp32"
        yield Mistake(s.where, "pytorch.master_weights", "false", "true", hint)
    if s.parallel.pp > 1:
        expected = '1 with training.precision = "fp16"'
        yield Mistake(s.where, "parallel.pp", str(s.parallel.pp), expected)


def _shards(s: Job) -> Iterator[Mistake]:
    count, ranks = s.parallel.fsdp_shards, s.parallel.dp * s.parallel.cp
    if count is None:
        return
    if s.parallel.data_parallel not in FSDP:
        expected = f"nothing, or parallel.data_parallel {' or '.join(FSDP)}"
        yield Mistake(s.where, "parallel.fsdp_shards", str(count), expected)
    elif ranks % count:
        expected = f"a divisor of dp * cp = {ranks}"
        yield Mistake(s.where, "parallel.fsdp_shards", str(count), expected)


def _context(s: Job) -> Iterator[Mistake]:
    """What attention in parts needs, or would have."""
    where, ranks = s.where, s.parallel.cp
    if ranks == 1:
        for key, value in stated(s, ("rotate_method",)):
            yield Mistake(where, key, f'"{value}"', "parallel.cp > 1 beside it")
        return
    if not s.pytorch.since(2, 7):
        hint = "its context_parallel gives ranks parts from both ends of a sequence"
        found = f'"{s.pytorch.version}"'
        yield Mistake(where, "pytorch.version", found, "2.7 or later with cp", hint)
    if s.pytorch.attention == "triton":
        hint = "context_parallel knows PyTorch's own kernels"
        expected = "cudnn or flash2 with cp"
        yield Mistake(where, "pytorch.attention", '"triton"', expected, hint)
    if s.training.seq_len % (2 * ranks):
        hint = "every rank has a part from each end"
        expected = f"a multiple of 2 * cp = {2 * ranks}"
        found = str(s.training.seq_len)
        yield Mistake(where, "training.seq_len", found, expected, hint)
    if s.parallel.ep > 1 and s.parallel.ep % ranks:
        hint = "experts are spread over whole groups of cp, as torchtitan has it"
        found, expected = str(s.parallel.ep), f"a multiple of cp = {ranks}"
        yield Mistake(where, "parallel.ep", found, expected, hint)
    if s.parallel.data_parallel == "none":
        hint = "ranks that share samples have parts of each gradient"
        expected = "fsdp, zero1, zero2, zero3, ddp or ddp-no-overlap with cp"
        yield Mistake(where, "parallel.data_parallel", '"none"', expected, hint)


def _offload(s: Job) -> Iterator[Mistake]:
    """Parameters in the host's memory: FSDP2's, updated by kernels that the CPU has."""
    p, where = s.parallel, s.where
    if p.offload == "none":
        return
    key, found = "parallel.offload", f'"{p.offload}"'
    if p.data_parallel not in FSDP or s.pytorch.fsdp != "2":
        expected = '"none", or parallel.data_parallel = "fsdp" with pytorch.fsdp = "2"'
        yield Mistake(where, key, found, expected, "CPUOffloadPolicy is FSDP2's")
    if optimizer(s.training.optimizer).update not in ON_CPU:
        hint = "its update by the CPU is not simulated"
        stated_as = f'"{s.training.optimizer}"'
        expected = "an optimizer of Adam's, SGD's or Lion's kind with parallel.offload"
        yield Mistake(where, "training.optimizer", stated_as, expected, hint)
    if s.pytorch.reduce_every_microbatch:
        hint = "sums of gradients in the host's memory are not simulated"
        key, expected = "pytorch.reduce_every_microbatch", "false with parallel.offload"
        yield Mistake(where, key, "true", expected, hint)
    if precision(s.training.precision).scaled_loss:
        hint = "unscaling in the host's memory is not simulated"
        key, stated_as = "training.precision", f'"{s.training.precision}"'
        yield Mistake(where, key, stated_as, "bf16 with parallel.offload", hint)


def _zero2(s: Job) -> Iterator[Mistake]:
    """FSDP that frees nothing after the forward pass (SHARD_GRAD_OP)."""
    if s.parallel.data_parallel == "zero2" and s.parallel.reshard_after_forward:
        hint = 'freeing them makes it "zero3"'
        key = "parallel.reshard_after_forward"
        yield Mistake(s.where, key, "true", 'false with "zero2"', hint)


def _experts(s: Job) -> Iterator[Mistake]:
    p = s.parallel
    if p.imbalance != "uniform":
        key, found = "parallel.imbalance", str(p.imbalance)
        yield Mistake(s.where, key, found, "nothing", f"for {MEGATRON} only")
    if p.etp == 1 and p.tp > 1:
        hint = (
            f"whole experts on tensor-parallel ranks are simulated with {MEGATRON} only"
        )
        yield Mistake(s.where, "parallel.etp", "1", f"tp = {p.tp}, or nothing", hint)


def _order(s: Job) -> Iterator[Mistake]:
    if s.parallel.order is None or s.parallel.ep == 1:
        return
    order = axis_order(s)
    if order.index("ep") > order.index("dp"):
        hint = "experts are spread over neighbours of the data-parallel axis"
        yield Mistake(
            s.where, "parallel.order", f'"{s.parallel.order}"', "ep before dp", hint
        )


def missing_parts(model: object) -> list[str]:
    """Keys of a model that make it one of other layers, with their values."""
    parts = [
        f"{key} = {str(getattr(model, key)).lower()}"
        for key in NO_SUCH_PARTS
        if getattr(model, key, None)
    ]
    if getattr(model, "positions", "") == "alibi":
        parts.append('positions = "alibi"')
    return parts


def _parts(s: Job, model: ModelShape) -> Iterator[Mistake]:
    parts = missing_parts(model) if model.kind == "transformer" else []
    if parts:
        yield Mistake(
            s.where,
            "model",
            ", ".join(parts),
            f'{MEGATRON}, or "automodel" under FSDP',
            "PyTorch's plain modules have no such layers",
        )


RECORDED = "a recording of the program (prestep capture) runs in any format"


def _wide(s: Job, model: ModelShape) -> Iterator[Mistake]:
    """32-bit numbers where a part of the model or the trainer has none."""
    number, where = s.training.precision, s.where
    if not precision(number).wide:
        return
    for key, value in stated(s, ("master_weights", "wide_moments", "modules")):
        yield Mistake(where, key, value, "nothing", f"{number} is in 32 bits itself")
    if optimizer(s.training.optimizer).iterations:
        hint = "its products are in bf16 beside products in 32 bits"
        found, expected = f'"{s.training.optimizer}"', "an elementwise optimizer"
        yield Mistake(where, "training.optimizer", found, expected, hint)
    if model.kind == "mlp":
        return
    stated_as, dense = f'"{number}"', "bf16, or a dense transformer or mlp"
    experts = getattr(model, "experts", 0)
    if model.kind != "transformer" or experts:
        yield Mistake(where, "training.precision", stated_as, dense, RECORDED)
        return
    for key, value in stated(s, ("attention",)):
        hint = "FlashAttention computes in 16 bits; fp32 goes by the memory-efficient kernel"
        yield Mistake(where, key, f'"{value}"', "nothing", hint)
    width = getattr(model, "head_dim", 0)
    if width % WHOLE_VECTOR:
        hint = "without it attention is not fused; " + RECORDED
        found, expected = str(width), f"a multiple of {WHOLE_VECTOR}"
        yield Mistake(where, "model.head_dim", found, expected, hint)


def _modules(s: Job, model: ModelShape) -> Iterator[Mistake]:
    """Modules of transformers where the model has none."""
    if s.pytorch.modules == "plain" or model.kind == "transformer":
        return
    found = f'"{s.pytorch.modules}"'
    expected = f"nothing with a model of kind {model.kind}"
    yield Mistake(s.where, "pytorch.modules", found, expected)


def _latent(s: Job, model: ModelShape) -> Iterator[Mistake]:
    """Attention's choices that latent attention does not have."""
    if model.kind != "transformer" or not model.latent:
        return
    hint = (
        "latent attention has compressing projections, and values narrower than queries"
    )
    for key, value in stated(s, ("joined_qkv",)):
        yield Mistake(s.where, key, value, "nothing", hint)
    if s.pytorch.attention == "triton":
        expected = "cudnn or flash2"
        yield Mistake(s.where, "pytorch.attention", '"triton"', expected, hint)


def _window(s: Job, model: ModelShape) -> Iterator[Mistake]:
    """Windows where the kernel has none, or where ranks of a ring would not need all keys."""
    window = getattr(model, "window", 0)
    if not window or window >= s.training.seq_len:
        return
    found = str(window)
    if s.parallel.cp > 1:
        hint = "ranks then need keys of their neighbours alone, which is not simulated"
        yield Mistake(s.where, "model.window", found, "nothing with cp", hint)
    if s.pytorch.attention == "triton" or precision(s.training.precision).wide:
        hint = "this attention's kernel has no window"
        expected = 'nothing, or 16 bits with pytorch.attention = "cudnn" or "flash2"'
        yield Mistake(s.where, "model.window", found, expected, hint)


def _grouped(s: Job, model: ModelShape) -> Iterator[Mistake]:
    """Grouped products where no layer has experts, or where a host that waits is not recorded."""
    if s.pytorch.experts == "loop":
        return
    found = f'"{s.pytorch.experts}"'
    if not (model.kind == "transformer" and model.experts):
        yield Mistake(s.where, "pytorch.experts", found, "nothing without experts")
    elif s.training.framework == "cuda-graph" and s.parallel.ep > 1:
        hint = "the host waits for numbers of rows, which a CUDA graph cannot hold"
        yield Mistake(s.where, "pytorch.experts", found, '"loop" with ep > 1', hint)


def _packed(s: Job) -> Iterator[Mistake]:
    """Documents of a sample apart: by the lengths that FlashAttention 2 takes, or a mask of FlexAttention's."""
    if s.training.packed is None:
        return
    key, found = "training.packed", str(s.training.packed)
    if s.pytorch.attention != "flash2":
        hint = "FlashAttention takes the lengths of documents (flash_attn_varlen), PyTorch's own attention none"
        yield Mistake(s.where, key, found, 'pytorch.attention = "flash2"', hint)
    if s.parallel.cp > 1:
        hint = "documents over several ranks' parts are not simulated"
        yield Mistake(s.where, "parallel.cp", str(s.parallel.cp), f"1 with {key}", hint)


def _adapters(s: Job) -> Iterator[Mistake]:
    """What is not simulated beside frozen weights, and keys of Megatron's adapters."""
    if not s.adapter.on:
        return
    for key in ("fp8_weights", "all_to_all"):
        value, usual = getattr(s.adapter, key), getattr(Adapter(), key)
        if value != usual:
            yield Mistake(
                s.where, f"adapter.{key}", str(value), "nothing", f"for {MEGATRON} only"
            )
    if s.parallel.tp > 1:
        hint = 'PEFT\'s adapters beside DTensors: framework = "automodel" has them'
        yield Mistake(
            s.where, "parallel.tp", str(s.parallel.tp), "1 with [adapter]", hint
        )
    if optimizer(s.training.optimizer).iterations:
        found = f'"{s.training.optimizer}"'
        hint = "orthogonal updates of adapters are not simulated"
        expected = "an elementwise optimizer with [adapter]"
        yield Mistake(s.where, "training.optimizer", found, expected, hint)


def _adapted_model(s: Job, model: ModelShape) -> Iterator[Mistake]:
    """Adapters beside projections of a transformer, and of experts that are modules of their own."""
    if not s.adapter.on:
        return
    found = f'"{s.adapter.kind}"'
    if model.kind != "transformer":
        expected = "a transformer"
        yield Mistake(s.where, "adapter.kind", found, expected, f"not a {model.kind}")
    elif s.pytorch.experts == "grouped" and {"fc1", "fc2"} & set(s.adapter.places):
        hint = (
            "experts in one weight have no layers that PEFT could put adapters beside"
        )
        expected = 'targets ["qkv", "proj"], or pytorch.experts = "loop"'
        found = ", ".join(s.adapter.targets)
        yield Mistake(s.where, "adapter.targets", found, expected, hint)


def refusals(s: Job) -> Iterator[Mistake]:
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
    if sharded and (p.fsdp_shards or p.ep) % p.ep:
        hint = "a copy of the parameters has all experts"
        found, expected = str(p.fsdp_shards), f"a multiple of ep = {p.ep}"
        yield Mistake(s.where, "parallel.fsdp_shards", found, expected, hint)


def caveats(s: Job, model: ModelSpec) -> Iterator[str]:
    """What rests on no measurement, and what a pipeline leaves out."""
    if s.adapter.on and s.parallel.dp * s.parallel.pp * s.parallel.cp > 1:
        yield "adapters beside weights of several GPUs follow PEFT's source: steps with them were measured on one"
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
    reads={
        "pytorch": ALL,
        "parallel": (
            "bucket_cap",
            "gradient_as_bucket_view",
            "offload",
            "offload_threads",
        ),
    },
    rules=(
        ("pytorch training parallel parallel.pp parallel.data_parallel", _trainer),
        ("parallel parallel.fsdp_shards parallel.dp parallel.cp", _shards),
        (
            "parallel.cp parallel.ep parallel.data_parallel pytorch training training.seq_len",
            _context,
        ),
        ("parallel parallel.data_parallel", _zero2),
        ("parallel pytorch training", _offload),
        ("pytorch training parallel.data_parallel", _formats),
        ("pytorch", _automodel),
        ("adapter training.optimizer parallel.tp", _adapters),
        ("training.packed pytorch.attention parallel.cp", _packed),
        ("pytorch training parallel.pp", _scaled),
        ("pytorch training parallel.tp parallel.data_parallel", _optimizer),
        ("parallel parallel.tp parallel.etp parallel.imbalance", _experts),
        ("parallel parallel.order parallel.ep", _order),
    ),
    model_rules=(
        ("model", _parts),
        ("adapter adapter.targets pytorch.experts model.kind", _adapted_model),
        ("training pytorch model", _wide),
        ("pytorch.modules model.kind", _modules),
        ("pytorch model.kind", _latent),
        ("pytorch training parallel.cp training.seq_len model", _window),
        ("pytorch.experts training.framework parallel.ep model.experts", _grouped),
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
