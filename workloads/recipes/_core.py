"""Configurations on Megatron-core, of Megatron-Bridge and NeMo: what their keys come to together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import get_args

from prestep.workloads.job.megatron import GraphedModule, RecomputedModule
from prestep.workloads.precision import precision
from prestep.workloads.recipes import _adapter, _models
from prestep.workloads.recipes._documents import Document
from prestep.workloads.recipes._reading import Recipe, shown
from prestep.workloads.recipes._rules import rules, written

RULES = Path(__file__).with_suffix(".toml")
#: Parts of a layer that selective recomputation names.
MODULES = tuple(part for part in get_args(RecomputedModule) if part != "core_attn")
GRAPHED = get_args(GraphedModule)
#: Keys that pack samples.
PACKING = (
    "packed_sequence_specs",
    "packed_sequence_size",
    "enable_offline_packing",
    "packed_sequence",
)
#: Recipes of fp8 -> how scales are found.
SCALING = {
    "delayed": "delayed",
    "tensorwise": "dynamic",
    "current": "dynamic",
    "mxfp8": "mx",
    "blockwise": "",
}


def read(draft: Recipe, document: Document) -> None:
    """Applies the rules, then what several keys decide; settings made before are defaults."""
    draft.set("training.framework", "megatron")
    draft.set("training.precision", "bf16")
    draft.read(document, rules(RULES))
    _precision(draft, document)
    _data_parallel(draft, document)
    _pipeline(draft, document)
    _recompute(draft, document)
    _graphs(draft, document)
    _grads(draft, document)
    plain_ends(draft, document)
    _packing(draft, document)
    if draft.get("megatron.moe_pad_to_capacity") is False:
        draft.drop("megatron.moe_pad_to_capacity")
    without_fp8(draft)
    settle_offload(draft)


def settle_offload(draft: Recipe) -> None:
    """An optimizer in the host's memory is a distributed one's, which is then aware of precisions, with all in fp32."""
    setting = draft.settings.get("parallel.offload")
    if setting is None or not draft.get("parallel.offload_fraction", 1.0):
        draft.drop("parallel.offload")
    elif draft.get("parallel.data_parallel") == "zero1":
        # It is one with all in fp32, as the offloaded one has to be.
        if draft.get("megatron.use_precision_aware_optimizer"):
            draft.drop("megatron.use_precision_aware_optimizer")
        draft.assume(
            "the optimizer in the host's memory follows Megatron's source (a guess: no such step was measured)"
        )
        return
    else:
        draft.drop("parallel.offload")
        what = "the optimizer in the host's memory without the distributed optimizer"
        draft.lose(setting.where, setting.said, "true", what)
    draft.drop("parallel.offload_fraction", "megatron.overlap_cpu_optimizer_d2h_h2d")


def settle_fuser(draft: Recipe) -> None:
    """The operation fuser is simulated of dense layers; of experts, megatron.moe_fused_mlp has their grouped kernel."""
    key = "megatron.use_transformer_engine_op_fuser"
    setting = draft.settings.get(key)
    if setting is None or not setting.value or not _adapter.model_of(draft).experts:
        return
    draft.drop(key)
    what = "experts as fused operations, without their grouped kernel (megatron.moe_fused_mlp)"
    if not draft.get("megatron.moe_fused_mlp"):
        draft.lose(setting.where, setting.said, "true", what)


#: Layers at the ends of a model that stay in 16 bits: a switch, and their numbers, each of which is one by default.
ENDS = (
    "first_last_layers_bf16",
    "num_layers_at_start_in_bf16",
    "num_layers_at_end_in_bf16",
)


def without_fp8(draft: Recipe) -> None:
    """Attention stays in 16 bits where layers do, whatever its own switch says."""
    stated = draft.get("training.precision")
    if stated is None or not precision(stated).quantized:  # None: it was refused
        draft.drop("megatron.fp8_dot_product_attention")
        draft.drop(*(f"megatron.{key}" for key in ENDS[1:]))


def plain_ends(
    draft: Recipe, document: Document, spelled: Callable[[str], str] = str
) -> None:
    """Layers at both ends whose products stay in 16 bits beside quantized ones; ``spelled``: how names are written."""
    said, on = document.ended(spelled(ENDS[0]))
    if not said or written(on) in OFF:
        return
    for name in ENDS[1:]:
        key = document.ended(spelled(name))[0] or said
        count = draft.typed(document, key, "whole", 1) if key != said else 1
        draft.set(f"megatron.{name}", count, key, document)


def _grads(draft: Recipe, document: Document) -> None:
    key, value = document.ended("grad_reduce_in_fp32")
    if key and not isinstance(value, bool):
        draft.wrong(document, key, shown(value), "true or false")
    elif key:
        draft.set("megatron.main_grads", "fp32" if value else "bf16", key, document)


def _precision(draft: Recipe, document: Document) -> None:
    """The number format by the name of a mixed precision, or by switches of fp8."""
    for key in ("mixed_precision", "trainer.plugins", "trainer.precision"):
        name = written(document.get(key, ""))
        where = document.place(key)
        if "fp8" in name:
            draft.set("training.precision", "fp8", key, where)
            scaling = next((s for word, s in _NAMED if word in name), "delayed")
            draft.set("megatron.fp8_scaling", scaling, key, where)
        elif "nvfp4" in name:
            draft.set("training.precision", "nvfp4", key, where)
        elif "fp16" in name or name == "16":
            draft.set("training.precision", "fp16", key, where)
    key, value = document.ended("fp4")
    if key and written(value) not in OFF:
        draft.set("training.precision", "nvfp4", key, document)
    key, value = document.ended("fp8")
    if key and written(value) not in OFF:
        draft.set("training.precision", "fp8", key, document)
    key, value = document.ended("fp8_recipe")
    if key and draft.get("training.precision") == "fp8":
        scaling = SCALING.get(written(value).rpartition(".")[2], "")
        if scaling:
            draft.set("megatron.fp8_scaling", scaling, key, document)
        else:
            draft.lose(document, key, shown(value), "scales for blocks of a tensor")


OFF = ("false", "none", "null", "", "empty", "0")
_NAMED = (
    ("current", "dynamic"),
    ("mxfp8", "mx"),
    ("subchannel", "delayed"),
    ("fp8_cs", "dynamic"),
    ("fp8_mx", "mx"),
)


def _packing(draft: Recipe, document: Document) -> None:
    """Samples of several documents, which attention tells apart: as long as those of the data set, if that is known."""
    name, corpus = document.ended("dataset_name")
    for key in document.entries:
        if key.rpartition(".")[2] not in PACKING:
            continue
        value = document.get(key)
        if value is None or written(value) in (*OFF, "-1", "0"):
            continue
        if corpus in _models.tables()["documents"]:
            _models.documents(draft, str(corpus), name, document)
        else:
            _models.packed(draft, key, document.place(key), shown(value))
    _, joined = document.ended("enable_in_batch_packing")
    if written(joined) == "true":
        # The padded microbatch is flattened (megatron/bridge/data/collators/sft.py).
        draft.assume("each sample of a microbatch is a document of one packed row")


def _data_parallel(draft: Recipe, document: Document) -> None:
    """The distributed optimizer, Megatron's FSDP, or plain reductions."""
    sharded, fully = document.ended("use_megatron_fsdp")
    if written(fully) == "true":
        key, strategy = document.ended("data_parallel_sharding_strategy")
        if written(strategy or "optim_grads_params") == "optim_grads_params":
            draft.set("parallel.data_parallel", "fsdp", sharded, document)
        else:
            draft.lose(
                document,
                key,
                shown(strategy),
                "shards of gradients or of the optimizer alone",
            )
        return
    key, value = document.ended("use_distributed_optimizer")
    if key:
        way = "zero1" if written(value) == "true" else "ddp"
        draft.set("parallel.data_parallel", way, key, document)
    if draft.get("parallel.data_parallel") != "zero1":
        draft.drop("megatron.overlap_param_gather")


def _pipeline(draft: Recipe, document: Document) -> None:
    names = ("virtual_pipeline_model_parallel_size", "virtual_pipeline_parallelism")
    key, value = document.ended(*names)
    if key and draft.get("parallel.pp", 1) > 1:
        chunks = draft.count(document, key, 1)
        if chunks > 1:
            draft.set("parallel.vpp", chunks, key, document)
            draft.set("parallel.schedule", "interleaved", key, document)
    elif key and value != 1:
        draft.assume(f"{key} = {value} without a pipeline: left out")


def _recompute(draft: Recipe, document: Document) -> None:
    key, value = document.ended(
        "recompute_granularity", "activations_checkpoint_granularity"
    )
    if not key:
        return
    where, way = document.place(key), written(value)
    if way == "full":
        draft.set("training.recompute", "full", key, where)
        method, how = document.ended(
            "recompute_method", "activations_checkpoint_method"
        )
        layers, _ = document.ended(
            "recompute_num_layers", "activations_checkpoint_num_layers"
        )
        if written(how) == "block" and layers:
            count = draft.count(document, layers, 1)
            draft.set("training.recompute", "none", method, where)
            draft.set("megatron.recompute_num_layers", count, layers, document)
    elif way == "selective":
        _selective(draft, document, key)
    else:
        draft.wrong(where, key, shown(value), '"full" or "selective"')


def _selective(draft: Recipe, document: Document, said: str) -> None:
    key, modules = document.ended("recompute_modules")
    names = modules if isinstance(modules, list) else ["core_attn"]
    run_again(
        draft, [str(name) for name in names], key or said, document.place(key or said)
    )


def run_again(draft: Recipe, names: Sequence[str], said: str, where: str) -> None:
    """Parts of a layer that selective recomputation names: attention's products, and modules."""
    whole = "selective" if "core_attn" in names else "none"
    draft.set("training.recompute", whole, said, where)
    strange = [name for name in names if name != "core_attn" and name not in MODULES]
    if strange:
        expected = f"parts {', '.join(MODULES)}"
        draft.lose(where, said, ", ".join(strange), expected, "those are kept")
    simulated = [name for name in names if name in MODULES]
    if simulated:
        draft.set("megatron.recompute_modules", simulated, said, where)


def _graphs(draft: Recipe, document: Document) -> None:
    """CUDA graphs of layers, or of the whole step: an implementation of its own since May 2026, a scope before."""
    key, how = document.ended("cuda_graph_impl")
    if key and written(how) in ("none", "null"):
        return
    if not key:
        key, how = document.ended("external_cuda_graph", "enable_cuda_graph")
        if written(how) != "true":
            return
    scope_key, scope = document.ended("cuda_graph_scope")
    if written(how) == "full_iteration":
        scope = how
    names = scope if isinstance(scope, list) and scope else [scope or "full"]
    made = ["attn", "mlp"] if names == ["full"] else [str(name) for name in names]
    if strange := [name for name in made if name not in GRAPHED]:
        draft.lose(
            document,
            scope_key or key,
            ", ".join(strange),
            f"graphs of {', '.join(GRAPHED)}",
        )
        return
    draft.set("megatron.cuda_graph_scope", made, scope_key or key, document)


def adapters(draft: Recipe, document: Document) -> None:
    """Adapters beside frozen weights."""
    for key in ("peft", "model.peft"):
        names = (key, f"{key}.peft_scheme", f"{key}._target_")
        said = next((name for name in names if document.get(name) is not None), key)
        value = document.get(said)
        scheme = _adapter.scheme_of(str(value) if value is not None else "none")
        if scheme == "lora":
            words = (
                _adapter.words_of("class")
                if key == "peft"
                else _adapter.words_of("launcher")
            )
            _adapter.lora(draft, document, words, said)
        elif scheme:
            draft.lose(document, said, shown(value), _adapter.LOST)
    settle_fuser(draft)
