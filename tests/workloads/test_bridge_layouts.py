"""Megatron-Bridge's recipes: layouts that functions work out, models by their classes, what stays open."""

from __future__ import annotations

from pathlib import Path

import pytest

from prestep.sim.errors import InputError
from prestep.sim.spec.load import load_scenario
from prestep.workloads import recipes
from prestep.workloads.models.counts import total_parameters
from prestep.workloads.models.model import load_model
from prestep.workloads.recipes._reading import Recipe

HEAD = """
from megatron.bridge import AutoBridge
from megatron.bridge.recipes.common import _pretrain_common

LAYERS = 61


def by_table(pp, vpp, predictions=1):
    last = ["mtp"] * predictions + ["loss"]
    layouts = {
        (1, 1): None,
        (4, 1): [["embedding"] + ["decoder"] * 16, ["decoder"] * 16, ["decoder"] * 16, ["decoder"] * 13 + last],
        (4, 2): [["embedding"] + ["decoder"] * 8] + [["decoder"] * 8] * 6 + [["decoder"] * 5 + last],
    }
    vpp = 1 if vpp is None else vpp
    if (pp, vpp) not in layouts:
        raise ValueError("no such layout")
    layout = layouts[(pp, vpp)]
    return list([list(stage) for stage in layout]) if layout is not None else layout


def by_arithmetic(model):
    stages = (model.pipeline_model_parallel_size or 1) * (model.virtual_pipeline_model_parallel_size or 1)
    each, more = divmod(LAYERS, stages)
    layout: list[list[str]] = []
    for stage in range(stages):
        parts: list[str] = []
        if stage == 0:
            parts.append("embedding")
        parts.extend(["decoder"] * (each + int(stage < more)))
        if stage == stages - 1:
            parts += ["mtp"] * max(0, getattr(model, "mtp_num_layers", 0))
            parts.append("loss")
        layout.append(parts)
    try:
        model.pipeline_model_parallel_layout = layout
    except ValueError:
        pass


def deepseek_v3_pretrain_config():
    cfg = _pretrain_common()
    cfg.model = AutoBridge.from_hf_pretrained("deepseek-ai/DeepSeek-V3").to_megatron_provider()
    cfg.model.pipeline_model_parallel_size = 4
    cfg.model.virtual_pipeline_model_parallel_size = VPP
    cfg.model.mtp_num_layers = 1
    LAYOUT
    return cfg
"""


def recipe(folder: Path, layout: str, vpp: int | None = None) -> Recipe:
    """A recipe with that statement about its layout."""
    path = folder / "bridge.py"
    path.write_text(HEAD.replace("LAYOUT", layout).replace("VPP", str(vpp)))
    return recipes.read(recipes.document_of(path))


def layout_of(read: Recipe) -> object:
    return {one.key: one.value for one in read.settings.values()}[
        "megatron.pipeline_layout"
    ]


@pytest.mark.parametrize("vpp", [None, 2])
def test_functions_say_the_layout(vpp: int | None, tmp_path: Path) -> None:
    """Stages as a person counts them: 61 layers, sixteen (eight) a stage, the last with what is left."""
    tables = {
        None: ("t" * 16, "t" * 16, "t" * 13),
        2: (*["t" * 8] * 6, "t" * 5),
    }
    expected = "E" + "|".join(("t" * (8 if vpp else 16), *tables[vpp])) + "mL"
    call = f"cfg.model.pipeline_model_parallel_layout = by_table(4, {vpp})"
    assert layout_of(recipe(tmp_path, call, vpp)) == expected


def test_arithmetic_says_the_layout(tmp_path: Path) -> None:
    """61 = 16 + 3 x 15: loops, lists that grow, and what a function sets on its argument."""
    expected = "|".join(["E" + "t" * 16, "t" * 15, "t" * 15, "t" * 15 + "mL"])
    assert layout_of(recipe(tmp_path, "by_arithmetic(cfg.model)")) == expected


@pytest.mark.parametrize(
    "statement",
    [
        "set_new_pipeline_model_parallel_layout(cfg.model)",
        "cfg.model.pipeline_model_parallel_layout = by_table(3, 1)",
        "if here():\n        cfg.model.context_parallel_size = 2",
    ],
)
def test_what_is_not_worked_out_is_refused(statement: str, tmp_path: Path) -> None:
    """A function that is not there, one that raises, a condition that nobody knows: no layout of ours stands for it."""
    with pytest.raises(InputError) as error:
        path = tmp_path / "bridge.py"
        path.write_text(HEAD.replace("LAYOUT", statement).replace("VPP", "None"))
        options = ("cluster.name=dgx-h100-superpod", "recipe.lenient=true")
        load_scenario(path, options)
    assert all("bridge.py" in one.where for one in error.value.mistakes)


HYBRID = """
from megatron.bridge.models.hybrid.hybrid_provider import HybridModelProvider
from megatron.bridge.recipes.common import _pretrain_common


def nano_pretrain_config():
    cfg = _pretrain_common()
    cfg.model = HybridModelProvider(
        hybrid_layer_pattern="MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME", num_layers=52, hidden_size=2688,
        mamba_num_heads=64, kv_channels=128, mamba_state_dim=128, ffn_hidden_size=1856, num_attention_heads=32,
        mamba_head_dim=64, seq_length=8192, num_query_groups=2, num_moe_experts=128, moe_router_topk=6,
        moe_ffn_hidden_size=1856, moe_shared_expert_intermediate_size=3712, activation_func=squared_relu,
    )
    cfg.tokenizer.tokenizer_model = "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"
    MORE
    return cfg
"""


def parameters(folder: Path, more: str) -> float:
    """Billions of parameters of the hybrid with these lines."""
    path = folder / "hybrid.py"
    path.write_text(HYBRID.replace("MORE", more))
    scenario = load_scenario(path, ("cluster.name=dgx-h100",))
    return total_parameters(load_model(scenario.model)) / 1e9


def test_a_class_decides_what_a_recipe_leaves_open(tmp_path: Path) -> None:
    """Nemotron 3 Nano has 31.6B parameters by its model card: layers that are not gated, without biases."""
    assert round(parameters(tmp_path, "pass"), 1) == 31.6


def test_prediction_layers_that_run_again_count_once(tmp_path: Path) -> None:
    """Two passes of one layer (33B by the card of Nemotron 3.5 Lightning) are one layer's parameters."""
    mtp = 'cfg.model.mtp_num_layers = {}\n    cfg.model.mtp_hybrid_override_pattern = "*E"'
    shared = "\n    cfg.model.mtp_use_repeated_layer = True"
    one, two = (parameters(tmp_path, mtp.format(n)) for n in (1, 2))
    again = parameters(tmp_path, mtp.format(2) + shared)
    assert again == one < two
    assert two - one == pytest.approx(one - parameters(tmp_path, "pass"))
    assert round(again) == 33


def test_prediction_layers_of_another_kind_are_refused(tmp_path: Path) -> None:
    """Layers of Mamba among them are not simulated, and not left out."""
    more = 'cfg.model.mtp_num_layers = 1\n    cfg.model.mtp_hybrid_override_pattern = "M*E"'
    with pytest.raises(InputError, match="mtp_hybrid_override_pattern"):
        parameters(tmp_path, more)


def test_a_layout_of_nothing_is_no_layout(tmp_path: Path) -> None:
    """A function that returns None for one stage leaves the cut to Megatron."""
    path = tmp_path / "bridge.py"
    call = "cfg.model.pipeline_model_parallel_layout = by_table(1, 1)"
    path.write_text(HEAD.replace("LAYOUT", call).replace("VPP", "None"))
    path.write_text(path.read_text().replace("size = 4", "size = 1"))
    scenario = load_scenario(path, ("cluster.name=dgx-h100",))
    assert scenario.megatron.pipeline_layout is None


def test_a_name_that_a_file_imports_is_its_function(tmp_path: Path) -> None:
    """Old names of recipes are imports of new ones: `from .new import f as g`."""
    recipe(tmp_path, "pass")
    old = tmp_path / "old.py"
    renamed = "from .bridge import deepseek_v3_pretrain_config as old_config\n"
    old.write_text(f"import megatron.bridge\n{renamed}")
    chosen = ("cluster.name=dgx-h100-superpod", "recipe.function=old_config")
    made = load_scenario(old, (*chosen, "training.global_batch=128"))
    assert made.model.name == "deepseek-v3" and made.parallel.pp == 4


def test_ends_of_layers_with_two_parts(tmp_path: Path) -> None:
    """Megatron counts Qwen3-Next's 48 layers; linear attention and its experts are two letters of ours."""
    text = HEAD.replace("deepseek-ai/DeepSeek-V3", "Qwen/Qwen3-Next-80B-A3B-Instruct")
    ends = "cfg.model.num_layers_in_first_pipeline_stage = 9"
    path = tmp_path / "next.py"
    path.write_text(text.replace("LAYOUT", ends).replace("VPP", "None"))
    said = layout_of(recipes.read(recipes.document_of(path)))
    assert [part.count("t") for part in str(said).split("|")] == [18, 26, 26, 26]


@pytest.mark.parametrize("choice", ['{"lora", "dora"}', '["lora", "dora"]'])
def test_arguments_with_a_default_decide_a_branch(choice: str, tmp_path: Path) -> None:
    """`if isinstance(scheme, str) and scheme.lower() in {...}` of an argument that nobody gives."""
    more = f"if isinstance(scheme, str) and scheme.lower() in {choice}:\n        cfg.train.global_batch_size = 96"
    path = tmp_path / "bridge.py"
    text = HEAD.replace("LAYOUT", more).replace("VPP", "None")
    path.write_text(text.replace("config():", 'config(scheme: str = "LoRA"):'))
    read = recipes.read(recipes.document_of(path))
    assert read.settings["training.global_batch"].value == 96
