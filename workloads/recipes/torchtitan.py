"""torchtitan's TOML: FSDP2, tensor, context, pipeline and expert parallelism on plain PyTorch, compiled or not."""

from __future__ import annotations

from pathlib import Path

from prestep.workloads.recipes import (
    _adapter,
    _compiled,
    _pipeline,
    _titan_models,
    _titan_registry,
)
from prestep.workloads.recipes._documents import Document
from prestep.workloads.recipes._reading import Recipe, shown
from prestep.workloads.recipes._rules import rules, written

#: How people know such a recipe.
LOOKS = "TOML with [parallelism], or [model] with a flavor; Python with functions that return a Trainer.Config"
RULES = Path(__file__).with_suffix(".toml")
OWN = {"parallelism", "activation_checkpoint", "lr_scheduler", "metrics", "profiling"}
#: Its defaults (job_config.py), and what its launcher says to PyTorch (run_train.sh).
USUAL = {
    "pytorch.expandable_segments": True,
    "training.seq_len": 2048,
    "pytorch.reduce_dtype": "fp32",
    "pytorch.master_weights": True,
    "pytorch.clip_gradients": True,
}
ASYNC_TP = (
    "parallelism.enable_async_tensor_parallel",
    "experimental.enable_async_tensor_parallel",
)
#: Kernels that its own list puts first (models/attention.py, sdpa_backends): in the days of TOML files, and since its
#: recipes are Python (February 2026; models/common/attention.py, ScaledDotProductAttention).
TOML = (
    "flash2",
    "which torchtitan puts first (cuDNN's since December 2025 and on Blackwell: "
    'pytorch.attention = "cudnn")',
)
PYTHON = "cudnn", "which torchtitan puts first since December 2025"
FLEX = "flash2", "as which FlexAttention counts, torchtitan's where nothing is said"


def recognise(document: Document) -> bool:
    if document.kind != "toml":
        return _titan_registry.recognise(document)
    sections = document.sections()
    return "model.flavor" in document.entries or len(sections & OWN) > 1


def read(document: Document, beside: tuple[Document, ...] = ()) -> Recipe:
    """What the file says, over torchtitan's defaults (job_config.py)."""
    draft = Recipe("torchtitan", str(document.path))
    draft.set_all(USUAL)
    if document.kind == "python":
        document = _titan_registry.as_tables(draft, document)
    draft.read(document, rules(RULES))
    _titan_models.choose(draft, document)
    _sharding(draft, document)
    _kernels(draft, document)
    _pipeline.batch(draft, document, _local(document), "training.global_batch_size")
    _schedule(draft, document)
    _compiled.stand_in(draft)
    _compiled.sharded_experts(draft)
    _compiled.titan_layers(draft, _attention(document) == FLEX)
    _compiled.offload(draft, document, "training.enable_cpu_offload")
    _loss(draft, document)
    _accumulation(draft, document)
    _root(draft, document)
    if draft.get("parallel.tp", 1) > 1:
        key = "parallelism.enable_sequence_parallel"
        splits = draft.typed(document, key, "truth", True)
        draft.set("parallel.sequence_parallel", splits, key, document)
        draft.assume(
            "tensor parallelism splits the norms along the sequence, as torchtitan does"
        )
    _experts(draft, document)
    if any(key.startswith(_titan_registry.LORA) for key in document.entries):
        words = _adapter.words_of("torchtitan")
        _adapter.lora(draft, document, words, words.rank)
    return draft


def _loss(draft: Recipe, document: Document) -> None:
    """Cross entropy in fp32, compiled where it is; by parts of the vocabulary under tensor parallelism."""
    if draft.get("training.framework") not in _compiled.PLAIN:
        return
    parts = document.get("compile.components", ["model", "loss"])
    compiled = _compiles(document) and "loss" in parts
    tensor = draft.get("parallel.tp", 1) > 1
    if draft.get("training.precision") not in ("fp32", "tf32"):
        draft.set("pytorch.loss", "fused" if compiled and not tensor else "fp32")
    if tensor:
        key = "parallelism.disable_loss_parallel"
        whole = written(document.get(key)) == "true"
        choice = "gathered" if whole else "split"
        draft.set("pytorch.vocabulary", choice, key, document)


def _accumulation(draft: Recipe, document: Document) -> None:
    """Its loop over microbatches never says that gradients need no reduction yet (train.py)."""
    key = "training.global_batch_size"
    sharded = draft.get("parallel.data_parallel") == "fsdp"
    plain = draft.get("training.framework") in _compiled.PLAIN
    pipeline = draft.get("parallel.pp", 1) > 1
    if plain and sharded and not pipeline and (document.get(key) or -1) > 0:
        draft.set("pytorch.reduce_every_microbatch", True, key, document)


def _experts(draft: Recipe, document: Document) -> None:
    """Experts are whole on tensor-parallel ranks too, unless an older file splits them (today's has no such key)."""
    key = "parallelism.expert_tensor_parallel_degree"
    tp, ep = draft.get("parallel.tp", 1), draft.get("parallel.ep", 1)
    degree = draft.count(document, key, 1)
    if degree not in (1, tp):
        draft.lose(
            document, key, str(degree), "experts split over some tensor-parallel ranks"
        )
    elif tp > 1 and ep > 1 and degree == 1:
        draft.set("parallel.etp", 1, key, document)


def _local(document: Document) -> str:
    """The key of a rank's samples: its name changed in 2025."""
    old = "training.batch_size"
    return old if old in document.entries else "training.local_batch_size"


def _is_compiled(document: Document) -> bool:
    """Whether blocks are compiled; of components it may be the loss alone."""
    parts = document.get("compile.components", ["model", "loss"])
    return _compiles(document) and "model" in parts


def _compiles(document: Document) -> bool:
    """Whether something is compiled."""
    enabled = written(document.get("compile.enable")) == "true"
    return enabled or written(document.get("training.compile")) == "true"


def _kernels(draft: Recipe, document: Document) -> None:
    said = (
        "compile.enable" if "compile.enable" in document.entries else "training.compile"
    )
    draft.set("training.precision", _precision(draft, document))
    _recompute(draft, document)
    if draft.get("parallel.cp", 1) == 1:
        draft.drop("pytorch.rotate_method")
    compiled = _is_compiled(document)
    attention = _attention(document)
    _compiled.choose(draft, compiled, said, document.place(said), attention)
    for key in ASYNC_TP:
        if written(document.get(key)) == "true":
            _overlap(draft, document, key)


def _attention(document: Document) -> tuple[str, str]:
    """The kernel that torchtitan asks PyTorch for, and why."""
    backend = document.get(_titan_registry.ATTENTION)
    if backend is None:
        return TOML
    return PYTHON if backend == "sdpa" else FLEX


def _overlap(draft: Recipe, document: Document, key: str) -> None:
    """Products beside tensor parallelism's exchanges; a compiler puts them in, without which torchtitan stops."""
    if draft.get("training.framework") == "megatron":
        draft.set("megatron.tp_comm_overlap", True, key, document)
    elif draft.get("parallel.tp", 1) > 1:
        draft.set("pytorch.async_tensor_parallel", True, key, document)
        draft.assume(
            "async TP without compiled blocks, which torchtitan asks for: as if modules called its operators"
        )


def _precision(draft: Recipe, document: Document) -> str:
    """bf16 from FSDP's policy, unless a converter makes products in float8."""
    for key in ("training.mixed_precision_param", "training.dtype"):
        if written(document.get(key, "bfloat16")) not in ("bfloat16", "float32"):
            expected = '"bfloat16" or "float32"'
            draft.wrong(document, key, shown(document.get(key)), expected)
    converters = document.get("model.converters", [])
    names = converters.split(",") if isinstance(converters, str) else converters
    made = "bf16"
    for name in filter(None, (str(one).strip() for one in names)):
        if name in ("float8", "quantize.linear.float8", "quantize.dense.float8"):
            made = "fp8"
            _float8(draft, document)
        elif name == "nvfp4":
            made = "nvfp4"
        elif name in ("mx", "quantize.linear.mx", "quantize.dense.mx"):
            made = "fp8"
            _mx(draft, document, name)
        else:
            draft.lose(
                document, "model.converters", f'"{name}"', "products in another format"
            )
    if written(document.get("training.mixed_precision_param")) == "float32":
        return "fp32" if made == "bf16" else made
    return made


def _float8(draft: Recipe, document: Document) -> None:
    """Scales of float8 and whether FSDP gathers in it: keys of Megatron's layers, or what `_compiled` makes of them."""
    for prefix in ("float8", "quantize.linear.float8", "quantize.dense.float8"):
        recipe = document.get(f"{prefix}.recipe_name")
        gather = f"{prefix}.enable_fsdp_float8_all_gather"
        if recipe == "rowwise":
            where = document.place(f"{prefix}.recipe_name")
            draft.set("megatron.fp8_scaling", "rowwise", f"{prefix}.recipe_name", where)
        elif recipe == "rowwise_with_gw_hp":
            where = document.place(f"{prefix}.recipe_name")
            draft.lose(
                where, f"{prefix}.recipe_name", recipe, "weight gradients in bf16"
            )
        if written(document.get(gather)) == "true":
            draft.set("megatron.fp8_param_gather", True, gather, document)
    if not draft.get("megatron.fp8_scaling"):
        draft.set("megatron.fp8_scaling", "dynamic")


def _mx(draft: Recipe, document: Document, converter: str) -> None:
    """MXFP8 by the kernels of cuBLAS; anything else of torchao's MX formats is lost."""
    draft.set("megatron.fp8_scaling", "mx", "model.converters", document)
    key = f"{converter}.recipe_name"
    recipe = written(document.get(key, "mxfp8_cublas"))
    if recipe not in ("mxfp8_cublas", "mxfp8_cublas_rceil"):
        draft.lose(document, key, recipe, "MXFP8 by cuBLAS")


def _recompute(draft: Recipe, document: Document) -> None:
    mode = written(document.get("activation_checkpoint.mode", "selective"))
    option = written(document.get("activation_checkpoint.selective_ac_option", "2"))
    key = "activation_checkpoint.mode"
    if mode in ("none", "full"):
        draft.set("training.recompute", mode, key, document)
    elif mode == "selective" and option in ("op", "2"):
        way = "products" if option == "op" else "alternate"
        draft.set("training.recompute", way, key, document)
    elif mode == "selective" and option == "1":
        draft.set("training.recompute", "full", key, document)
    else:
        draft.lose(document, key, f"{mode} {option}", "other layers than every second")


def _sharding(draft: Recipe, document: Document) -> None:
    """FSDP2 over all replicas, over some of them (HSDP), or DDP."""
    replicate = draft.count(document, "parallelism.data_parallel_replicate_degree", 1)
    key = "parallelism.data_parallel_shard_degree"
    shard = draft.typed(document, key, "whole", -1)
    cp = draft.get("parallel.cp", 1)
    if shard == 1:
        way = "ddp" if replicate > 1 else "none"
        draft.set("parallel.data_parallel", "fsdp" if cp > 1 else way, key, document)
        draft.replicas = replicate
    else:
        draft.set("parallel.data_parallel", "fsdp", key, document)
        if shard > 1:
            draft.replicas = replicate * shard
        if replicate > 1 and shard > 1:
            draft.set("parallel.fsdp_shards", shard * cp, key, document)
        elif replicate > 1:
            said = "parallelism.data_parallel_replicate_degree"
            what = f"say {key} as a number: shards of the rest are not known here"
            draft.wrong(document, said, replicate, what)
    _reshard(draft, document)


def _reshard(draft: Recipe, document: Document) -> None:
    key = _reshard_key(document)
    policy, pipeline = document.get(key, "default"), draft.get("parallel.pp", 1) > 1
    # By default a pipeline keeps parameters gathered, since every microbatch would gather them again.
    if policy == "never" or (policy == "default" and pipeline):
        draft.set("parallel.reshard_after_forward", False, key, document)
    elif policy == "always":
        draft.set("parallel.reshard_after_forward", True, key, document)


def _root(draft: Recipe, document: Document) -> None:
    """The embedding apart from the last norm and the head, which stay unless all are freed (apply_fsdp)."""
    if not _compiled.has_fsdp2_root(draft) or draft.get("model.mtp_layers"):
        return
    draft.set("parallel.root_groups", "split")
    key = _reshard_key(document)
    if document.get(key, "default") == "always":
        draft.set("parallel.reshard_root", True, key, document)


def _reshard_key(document: Document) -> str:
    """The key of the policy: its section changed in 2025."""
    new, old = (
        f"{section}.fsdp_reshard_after_forward"
        for section in ("parallelism", "training")
    )
    return old if old in document.entries else new


def _schedule(draft: Recipe, document: Document) -> None:
    key = "parallelism.pipeline_parallel_schedule"
    stages = "parallelism.pipeline_parallel_layers_per_stage"
    _pipeline.schedule(draft, document, key, stages)
