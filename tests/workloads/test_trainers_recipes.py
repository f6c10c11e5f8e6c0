"""Laws of recipes that several files, or trainers on top of others, make up: imports, adapters, packs, layers that stand in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prestep.sim.errors import InputError
from prestep.sim.predict import step_time
from prestep.sim.spec.load import load_scenario
from prestep.workloads import recipes
from prestep.workloads.recipes._documents import beneath
from prestep.workloads.recipes._reading import Recipe

CLUSTER = "cluster.name=dgx-h100"
BASE = """
def base_config(length=4096):
    cfg = ConfigContainer(
        model=None,
        train=TrainingConfig(global_batch_size=32, micro_batch_size=2),
        ddp=DistributedDataParallelConfig(use_distributed_optimizer=True, overlap_grad_reduce=True),
        dataset=GPTDatasetConfig(seq_length=length),
        mixed_precision="bf16_mixed",
    )
    return cfg


def faster(cfg, way="te"):
    cfg.ddp.grad_reduce_in_fp32 = False
    cfg.model.cross_entropy_fusion_impl = way
    for name in ("cross_entropy_loss_fusion", "apply_rope_fusion"):
        setattr(cfg.model, name, True)
"""
RECIPE = """
from megatron.bridge import AutoBridge
from bridge.common import base_config as start, faster

def llama3_8b_pretrain_16gpu_h100_config():
    cfg = start(2048)
    cfg.model = AutoBridge.from_hf_pretrained("meta-llama/Meta-Llama-3-8B").to_megatron_provider()
    cfg.model.pipeline_model_parallel_size = 5
    cfg.train.micro_batch_size = 1
    faster(cfg)
    return cfg
"""
SFT = """
model_name_or_path: meta-llama/Llama-3.2-1B
bf16: true
per_device_train_batch_size: 2
max_length: 1024
"""
LORA = (
    "use_peft: true\nlora_r: 32\nlora_target_modules: all-linear\nlora_dropout: 0.1\n"
)


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def read(path: Path) -> Recipe:
    return recipes.read(recipes.document_of(path))


def said(recipe: Recipe) -> dict[str, Any]:
    return {setting.key: setting.value for setting in recipe.settings.values()}


def test_functions_of_the_checkout_are_followed(tmp_path: Path) -> None:
    """What an imported function returns, and what one does to its argument, in order; nothing is assumed of them."""
    written(tmp_path, "bridge/common.py", BASE)
    recipe = read(written(tmp_path, "bridge/h100/llama.py", RECIPE))
    keys = said(recipe)
    assert (keys["training.global_batch"], keys["training.micro_batch"]) == (32, 1)
    assert (keys["training.seq_len"], keys["model.name"]) == (2048, "llama3-8b")
    assert keys["megatron.main_grads"] == "bf16"
    assert keys["megatron.cross_entropy_fusion"] and keys["parallel.pp"] == 5
    assert recipe.gpus == 16 and not recipe.unknown
    assert not any("base_config" in text for text in recipe.assumed)


def test_layers_that_do_not_divide_are_dealt_out(tmp_path: Path) -> None:
    """32 layers on 5 stages: trainers allow it, the first stages hold one more, and the recipe says so."""
    written(tmp_path, "bridge/common.py", BASE)
    recipe = read(written(tmp_path, "bridge/h100/llama.py", RECIPE))
    assert said(recipe)["parallel.uneven_stages"] is True
    assert any("32 layers on 5 stages" in text for text in recipe.assumed)


def test_what_cannot_be_followed_is_named(tmp_path: Path) -> None:
    """A function that is not there and changes the configuration, and a condition on it."""
    recipe = read(written(tmp_path, "llama.py", RECIPE))
    assert any("faster(cfg)" in text for text in recipe.unknown)
    text = RECIPE + "\n    if unheard_of():\n        pass\n"
    changed = text.replace("    return cfg\n", "", 1) + "    return cfg\n"
    recipe = read(written(tmp_path, "other.py", changed))
    assert any("if unheard_of()" in line for line in recipe.unknown)


def test_files_that_import_each_other_end(tmp_path: Path) -> None:
    """A circle of imports is a value that is not known."""
    written(tmp_path, "a.py", "from b import other_config\n")
    written(tmp_path, "b.py", "from a import other_config\n")
    text = "from megatron.bridge import x\nfrom a import other_config\ndef my_config():\n    cfg = other_config()\n    cfg.train.micro_batch_size = 4\n    return cfg\n"
    assert said(read(written(tmp_path, "c.py", text)))["training.micro_batch"] == 4


def test_adapters_of_hugging_face_are_a_section(tmp_path: Path) -> None:
    """PEFT's keys are [adapter] in PyTorch's own modules, and the step is shorter than that of all weights."""
    plain = load_scenario(written(tmp_path, "sft.yaml", SFT), [CLUSTER])
    lora = load_scenario(written(tmp_path, "lora.yaml", SFT + LORA), [CLUSTER])
    assert lora.training.framework == "pytorch-eager"
    assert (lora.adapter.rank, lora.adapter.dropout) == (32, 0.1)
    assert lora.adapter.places == ("qkv", "proj", "fc1", "fc2")
    assert step_time(lora) < step_time(plain)
    text = SFT + LORA + "torch_compile: true\n"
    compiled = load_scenario(written(tmp_path, "compiled.yaml", text), [CLUSTER])
    assert compiled.training.framework == "pytorch-compiled"
    assert compiled.adapter == lora.adapter
    assert step_time(compiled) < step_time(lora)


@pytest.mark.parametrize(("stage", "way"), [(3, "fsdp"), (2, "zero1"), (1, "zero1")])
def test_deepspeed_beside_adapters_is_pytorchs_way(
    tmp_path: Path, stage: int, way: str
) -> None:
    """Its file is found by its path from a folder above; frozen weights leave ZeRO-2 nothing beyond ZeRO-1."""
    written(
        tmp_path,
        "examples/deepspeed/z.json",
        f'{{"zero_optimization": {{"stage": {stage}}}, "train_micro_batch_size_per_gpu": "auto"}}',
    )
    text = SFT + LORA + "deepspeed: examples/deepspeed/z.json\n"
    recipe = read(written(tmp_path, "examples/train/lora.yaml", text))
    assert said(recipe)["parallel.data_parallel"] == way
    assert any("beside adapters" in text for text in recipe.assumed)


def test_a_file_is_looked_for_beside_and_above_alone(tmp_path: Path) -> None:
    """Never below another folder, by an absolute path, or by one that leads upwards."""
    file = written(tmp_path, "a/z.json", "{}")
    recipe = written(tmp_path, "a/b/c.yaml", "x: 1")
    assert beneath(recipe, "z.json") is None
    assert beneath(recipe, "a/z.json") == file
    assert beneath(recipe, "../z.json") is None
    assert beneath(written(tmp_path, "a/d.yaml", "x: 1"), str(file)) == file


@pytest.mark.parametrize("way", ["full_shard", "no_shard"])
def test_hybrids_are_blocks_of_pytorchs_own(tmp_path: Path, way: str) -> None:
    """Nothing stands in for them, sharded or replicated."""
    text = SFT.replace("meta-llama/Llama-3.2-1B", "nvidia/Nemotron-H-8B-Base-8K")
    path = written(tmp_path, "sft.yaml", text + f"fsdp: {way}\n")
    scenario = load_scenario(path, [CLUSTER])
    assert scenario.training.framework == "pytorch-eager"
    assert not any("stand for them" in note for note in scenario.notes)


@pytest.mark.parametrize(
    ("way", "chosen"), [("full_shard", "automodel"), ("no_shard", "megatron")]
)
def test_layers_that_pytorch_lacks_are_stood_in_for(
    tmp_path: Path, way: str, chosen: str
) -> None:
    """ALiBi under FSDP has Automodel's layers, a model that is replicated Megatron's; both are said."""
    text = SFT.replace("meta-llama/Llama-3.2-1B", "mosaicml/mpt-7b")
    path = written(tmp_path, "sft.yaml", text + f"fsdp: {way}\n")
    scenario = load_scenario(path, [CLUSTER])
    assert scenario.training.framework == chosen
    assert any("stand for them" in note for note in scenario.notes)


def test_packed_samples_ask_how_long_documents_are(tmp_path: Path) -> None:
    """Refused by name, unless the command line says it, or leaves it out."""
    path = written(
        tmp_path,
        "sft.yaml",
        SFT + "packing: true\nattn_implementation: flash_attention_2\n",
    )
    with pytest.raises(InputError, match=r"training\.packed"):
        load_scenario(path, [CLUSTER])
    short = load_scenario(path, [CLUSTER, "training.packed=128"])
    whole = load_scenario(path, [CLUSTER, "recipe.lenient=true"])
    assert short.training.packed == 128 and whole.training.packed is None
    assert any("packed samples" in note for note in whole.notes)
    assert not any("packed samples" in note for note in short.notes)
    assert step_time(short) < step_time(whole)


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("adapter: qlora\nbnb_4bit_quant_type: fp4", "load_in_4bit"),
        ("adapter: qlora\nload_in_8bit: true", "load_in_8bit"),
        ("load_in_4bit: true", "load_in_4bit"),
        ("cut_cross_entropy: true", "cut_cross_entropy"),
        ("rl: dpo", "rl"),
    ],
)
def test_what_axolotl_does_otherwise_is_named(
    tmp_path: Path, line: str, key: str
) -> None:
    text = "base_model: meta-llama/Llama-3.2-1B\nsequence_len: 512\nmicro_batch_size: 1\nbf16: auto\n"
    with pytest.raises(InputError, match=key):
        load_scenario(written(tmp_path, "a.yml", f"{text}{line}\n"), [CLUSTER])


@pytest.mark.parametrize(
    ("lines", "base"),
    [
        ("adapter: qlora", "nf4-double"),
        ("adapter: lora\nload_in_4bit: true", "nf4"),
        ("adapter: lora", "bf16"),
    ],
)
def test_axolotl_keeps_weights_in_four_bits(
    tmp_path: Path, lines: str, base: str
) -> None:
    """`adapter: qlora` quantizes scales too, as axolotl tells bitsandbytes."""
    text = "base_model: meta-llama/Llama-3.2-1B\nsequence_len: 512\nmicro_batch_size: 1\nbf16: auto\n"
    path = written(tmp_path, "a.yml", f"{text}{lines}\nlora_target_linear: true\n")
    assert load_scenario(path, [CLUSTER]).adapter.base == base


@pytest.mark.parametrize(("version", "offload"), [("2", "parameters"), ("1", "")])
def test_accelerate_offloads_under_fsdp2(
    tmp_path: Path, version: str, offload: str
) -> None:
    """`fsdp_offload_params` of accelerate's file; FSDP 1's is named."""
    text = f"{SFT}distributed_type: FSDP\nnum_processes: 8\nfsdp_config:\n  fsdp_version: {version}\n  fsdp_offload_params: true\n"
    path = written(tmp_path, "a.yaml", text)
    if offload:
        assert load_scenario(path, [CLUSTER]).parallel.offload == offload
    else:
        with pytest.raises(InputError, match="fsdp_offload_params"):
            load_scenario(path, [CLUSTER])


@pytest.mark.parametrize(
    ("config", "root"),
    [
        ("fsdp_version: 2", True),
        ("fsdp_version: 2\n  fsdp_reshard_after_forward: false", False),
        ("fsdp_version: 1", False),
    ],
)
def test_accelerate_frees_the_root_with_the_blocks(
    tmp_path: Path, config: str, root: bool
) -> None:
    """fsdp2_prepare_model gives one reshard_after_forward to every module; FSDP1 keeps its root whatever is said."""
    text = f"{SFT}distributed_type: FSDP\nnum_processes: 8\nfsdp_config:\n  {config}\n"
    p = load_scenario(written(tmp_path, "a.yaml", text), [CLUSTER]).parallel
    assert (p.root_groups, p.reshard_root) == ("one", root)


def test_llama_factory_checkpoints_where_nothing_is_said(tmp_path: Path) -> None:
    """Its defaults: adapters of rank 8 in all projections, checkpointing, 2048 tokens; each is said."""
    text = "stage: sft\ntemplate: llama3\nmodel_name_or_path: meta-llama/Llama-3.2-1B\nbf16: true\n"
    recipe = read(written(tmp_path, "lf.yaml", text))
    keys = said(recipe)
    assert keys["training.recompute"] == "full" and keys["adapter.rank"] == 8
    assert keys["training.seq_len"] == 2048
    assert any("checkpointing" in text for text in recipe.assumed)
    off = "disable_gradient_checkpointing: true\nfinetuning_type: full\n"
    keys = said(read(written(tmp_path, "lf.yaml", text + off)))
    assert "training.recompute" not in keys and "adapter.kind" not in keys


REGISTRY = """
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.trainer import Trainer
from . import model_registry

def llama3_8b() -> Trainer.Config:
    return Trainer.Config(
        model_spec=model_registry("8B", attn_backend="sdpa"),
        training=TrainingConfig(@TRAINING@, steps=1000),
        parallelism=ParallelismConfig(tensor_parallel_degree=1),
        activation_checkpoint=@CHECKPOINT@.Config(),
        compile=CompileConfig(enable=True),
    )

def llama3_8b_float8() -> Trainer.Config:
    config = llama3_8b()
    config.model_spec = model_registry("8B", attn_backend="sdpa", converters=[Float8LinearConverter.Config(recipe_name="rowwise")])
    return config
"""
OLD = """
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 2
seq_len = 4096
[parallelism]
tensor_parallel_degree = 1
[activation_checkpoint]
mode = "@MODE@"
selective_ac_option = "op"
[compile]
enable = true
"""


@pytest.mark.parametrize(
    ("training", "checkpoint", "mode"),
    [
        ("local_batch_size=2, seq_len=4096", "FullAC", "full"),
        (
            "num_tokens_per_microbatch_per_dp_rank=2 * 4096, max_context_length=4096",
            "SelectiveAC",
            "selective",
        ),
    ],
)
def test_a_registry_says_what_the_toml_said(
    tmp_path: Path, training: str, checkpoint: str, mode: str
) -> None:
    """torchtitan's functions of 2026 are the scenario of the file that they replaced, but for its order of kernels."""
    text = REGISTRY.replace("@TRAINING@", training).replace("@CHECKPOINT@", checkpoint)
    path = written(tmp_path, "llama3/config_registry.py", text)
    new = load_scenario(path, [CLUSTER, "recipe.function=llama3_8b"])
    file = written(tmp_path, "old.toml", OLD.replace("@MODE@", mode))
    old = load_scenario(file, [CLUSTER])
    parts = ("model", "training", "parallel")
    assert [getattr(new, part) for part in parts] == [
        getattr(old, part) for part in parts
    ]
    assert (old.pytorch.attention, new.pytorch.attention) == ("flash2", "cudnn")
    assert new.pytorch == replace(old.pytorch, attention="cudnn")
    fast = load_scenario(path, [CLUSTER, "recipe.function=llama3_8b_float8"])
    assert fast.training.precision == "fp8"
    assert fast.pytorch.fp8_scaling == "rowwise"


BUILDER = """
from torchtitan.models.common import width
def _build_layers(*, n_layers, dim, n_heads, hidden_dim, head_dim=64): ...
def _small(attn_backend):
    dim = 256
    return Model.Config(dim=dim, vocab_size=2048, layers=_build_layers(n_layers=3, dim=dim, n_heads=4, hidden_dim=width(dim)),
        vision_encoder=_vision_encoder_config(dim=64, ffn_dim=256, num_layers=2))
configs = {"small": _small}
"""
WIDTH = "def width(dim, multiple=256):\n    inner = int(2 * 4 * dim / 3)\n    return multiple * ((inner + multiple - 1) // multiple)\n"


def test_a_model_that_the_checkout_writes_out(tmp_path: Path) -> None:
    """Sizes are a builder's arguments, worked out where they are computed; what sees is told of, with its size."""
    folder = tmp_path / "torchtitan/models"
    written(folder, "common/__init__.py", WIDTH)
    written(folder, "qwen3/__init__.py", BUILDER)
    text = REGISTRY.replace("@TRAINING@", "local_batch_size=2, seq_len=4096")
    text = text.replace("@CHECKPOINT@", "FullAC").replace('"8B"', '"small"')
    path = written(folder, "qwen3/config_registry.py", text)
    made = load_scenario(path, [CLUSTER, "recipe.function=llama3_8b"])
    m = made.model
    assert (m.layers, m.hidden, m.heads, m.head_dim) == (3, 256, 4, None)
    assert (m.ffn, m.vocab, m.qk_norm) == (768, 2048, True)
    weights = 2 * (4 * 64**2 + 2 * 64 * 256)
    assert any(f"{weights / 1e6:,.0f} million" in note for note in made.notes)


def test_a_model_of_pictures_is_refused_in_one_line(tmp_path: Path) -> None:
    """torchtitan's flux has a section [inference] of its own, which makes it no scenario."""
    text = "[model]\nname = 'flux'\nflavor = 'flux-debug'\n[inference]\nprompts_path = 'a'\n[parallelism]\n[job]\na = 1\n"
    with pytest.raises(InputError, match="diffusion transformer") as error:
        load_scenario(written(tmp_path, "flux.toml", text), [CLUSTER])
    assert len(error.value.mistakes) == 1


def test_texts_are_joined_and_repeated(tmp_path: Path) -> None:
    """A layout that is put together of parts is the one that they make."""
    text = REGISTRY.replace("@TRAINING@", "local_batch_size=2, seq_len=4096")
    text = text.replace("@CHECKPOINT@", "FullAC").replace(
        '"8B"', '"-".join(["8" + "B"] * 1)'
    )
    path = written(tmp_path, "llama3/config_registry.py", text)
    made = load_scenario(path, [CLUSTER, "recipe.function=llama3_8b"])
    assert made.model.name == "llama3-8b"


def test_a_controller_of_reinforcement_learning_is_one_line(tmp_path: Path) -> None:
    """What is no step of training is refused at once, without its keys."""
    text = "from torchtitan import x\ndef a_config():\n    return Controller.Config(steps=1, tensor_parallel_degree=2)\n"
    path = written(tmp_path, "rl/config_registry.py", text)
    with pytest.raises(InputError, match="reinforcement learning") as error:
        load_scenario(path, [CLUSTER])
    assert len(error.value.mistakes) == 1


PACKED = """
        dataloader=GrainDataLoader.Config(
            dataset=@WAY@PackingConfig(dataset=SingleDatasetConfig(source=Source.Config(path="@PLACE@"))),
        ),
"""


@pytest.mark.parametrize(
    ("place", "attention", "documents"),
    [
        ("allenai/c4", "flex", 427),
        ("allenai/c4", "sdpa", None),
        ("my/corpus", "sdpa", None),
        ("my/corpus", "flex", "packed"),
    ],
)
def test_documents_of_a_corpus_that_is_known(
    tmp_path: Path, place: str, attention: str, documents: int | str | None
) -> None:
    """A mask tells documents apart, whose mean length is the corpus's (156e9 / 365e6 of C4); else the reader is asked."""
    assert round(156e9 / 365e6) == 427
    data = PACKED.replace("@WAY@", "ConcatThenSplit").replace("@PLACE@", place)
    text = REGISTRY.replace("@TRAINING@", "local_batch_size=1, seq_len=4096")
    text = text.replace("@CHECKPOINT@", "FullAC").replace('"sdpa"', f'"{attention}"')
    text = text.replace("        compile=", f"{data}        compile=", 1)
    path = written(tmp_path, "llama3/config_registry.py", text)
    chosen = [CLUSTER, "recipe.function=llama3_8b"]
    if documents == "packed":
        with pytest.raises(InputError, match=r"training\.packed"):
            load_scenario(path, chosen)
    else:
        assert load_scenario(path, chosen).training.packed == documents


def test_primus_adapters_are_no_unknown_keys(tmp_path: Path) -> None:
    """lora.* of a trainer's overrides are [adapter]; a model's file is found in the checkout."""
    text = """
modules:
  sft_trainer:
    framework: megatron
    model: small.yaml
    overrides:
      seq_length: 1024
      micro_batch_size: 1
      global_batch_size: 8
      lora:
        enabled: true
        dim: 16
        target_modules: [linear_qkv, linear_proj]
"""
    sizes = "num_layers: 4\nhidden_size: 1024\nnum_attention_heads: 8\nmax_position_embeddings: 1024\n"
    written(tmp_path, "primus/configs/models/megatron/small.yaml", sizes)
    path = written(tmp_path, "examples/megatron/a.yaml", text)
    scenario = load_scenario(path, [CLUSTER])
    assert scenario.adapter.rank == 16 and scenario.adapter.places == ("qkv", "proj")
    assert scenario.model.layers == 4


def test_parts_that_run_again_are_those_that_are_named(tmp_path: Path) -> None:
    """Without core_attn among them attention's products are kept; a part that nobody knows is named."""
    text = "torchrun pretrain_gpt.py --num-layers 4 --hidden-size 1024 --num-attention-heads 8 --seq-length 1024 --max-position-embeddings 1024 --bf16 --recompute-granularity selective --recompute-modules "
    keys = said(read(written(tmp_path, "a.sh", text + "mlp layernorm\n")))
    assert keys["megatron.recompute_modules"] == ["mlp", "layernorm"]
    assert keys["training.recompute"] == "none"
    keys = said(read(written(tmp_path, "a.sh", text + "core_attn mlp\n")))
    assert keys["training.recompute"] == "selective"
    recipe = read(written(tmp_path, "a.sh", text + "new_part\n"))
    assert any("new_part" in one.found for one in recipe.lost)


def test_a_pattern_says_how_many_layers_there_are(tmp_path: Path) -> None:
    """Megatron's hybrids need no --num-layers."""
    text = "torchrun pretrain_hybrid.py --hidden-size 1024 --num-attention-heads 8 --seq-length 1024 --position-embedding-type none --bf16 --hybrid-layer-pattern M-M*|M-M- \n"
    keys = said(read(written(tmp_path, "h.sh", text)))
    assert keys["model.layer_pattern"] == "M-M*M-M-" and keys["model.layers"] == 8


@pytest.mark.parametrize(("words", "every"), [("2", 2), ("[0,1]*4", 2), ("1", 1)])
def test_experts_in_every_second_layer(tmp_path: Path, words: str, every: int) -> None:
    """A number, or a list that repeats itself, is model.moe_every."""
    text = f"torchrun pretrain_gpt.py --num-layers 8 --hidden-size 1024 --num-attention-heads 8 --seq-length 1024 --max-position-embeddings 1024 --bf16 --num-experts 8 --moe-layer-freq {words}\n"
    keys = said(read(written(tmp_path, "m.sh", text)))
    assert keys.get("model.moe_every", 1) == every


def test_sizes_of_scans_need_scans(tmp_path: Path) -> None:
    """Defaults of Mamba-2 that a file inherits say nothing of a model without it; a hybrid has heads of its own."""
    text = "torchrun pretrain_gpt.py --num-layers 4 --hidden-size 1024 --num-attention-heads 8 --seq-length 1024 --max-position-embeddings 1024 --bf16 --mamba-state-dim 128 "
    assert "model.mamba_state" not in said(read(written(tmp_path, "m.sh", text)))
    recipe = read(written(tmp_path, "m.sh", text + "--hybrid-layer-pattern M-M-\n"))
    assert said(recipe)["model.mamba_heads"] == 2 * 1024 // 64
    assert any("heads of Mamba-2" in text for text in recipe.assumed)


def test_experts_under_fsdp_are_automodels(tmp_path: Path) -> None:
    """torchtitan's compiled blocks with experts, which Megatron's own engine does not shard."""
    text = OLD.replace("@MODE@", "none").replace('"llama3"', '"qwen3"')
    path = written(tmp_path, "moe.toml", text.replace('"8B"', '"30B-A3B"'))
    scenario = load_scenario(path, [CLUSTER])
    assert scenario.training.framework == "automodel"
    assert scenario.pytorch.reduce_dtype == "fp32"
