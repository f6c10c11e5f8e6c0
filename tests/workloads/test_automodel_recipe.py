"""A recipe of NeMo Automodel with Transformer Engine, a pipeline and experts is the scenario written by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from prestep.sim.errors import InputError
from prestep.sim.predict import step_time
from prestep.sim.spec.load import load_scenario, parse_scenario
from tests.sample import together

RECIPE = """
recipe: BenchmarkingRecipeForNextTokenPrediction
benchmark:
  num_nodes: 2
step_scheduler:
  global_batch_size: 64
  local_batch_size: 8
model:
  config:
    pretrained_model_name_or_path: deepseek-ai/DeepSeek-V2-Lite
    num_hidden_layers: 8
  backend:
    attn: te
    linear: te
    rms_norm: te
    rope_fusion: false
    dispatcher: deepep
    fake_balanced_gate: true
distributed:
  strategy: fsdp2
  tp_size: 1
  cp_size: 1
  pp_size: 4
  ep_size: 4
  activation_checkpointing: true
  pipeline:
    pp_schedule: interleaved1f1b
    pp_microbatch_size: 1
    layers_per_stage: 1
    round_virtual_stages_to_pp_multiple: down
dataset:
  seq_len: 2048
loss_fn:
  _target_: nemo_automodel.components.loss.masked_ce.MaskedCrossEntropy
  fp32_upcast: false
optimizer:
  _target_: torch.optim.Adam
"""
BY_HAND = {
    "cluster": {"name": "dgx-h100-superpod", "hosts": 2, "gpus": 16},
    "model": {"name": "deepseek-v2-lite", "layers": 8},
    "training": {
        "framework": "automodel",
        "seq_len": 2048,
        "micro_batch": 1,
        "global_batch": 64,
        "microbatches": 8,
        "grad_accumulation": 2,
        "recompute": "full",
        "optimizer": "adam",
    },
    "parallel": {
        "dp": 4,
        "pp": 4,
        "ep": 4,
        "vpp": 2,
        "schedule": "interleaved",
        "data_parallel": "fsdp",
        "reshard_after_forward": False,
        "routing": "consecutive",
    },
    "pytorch": {
        "reduce_dtype": "fp32",
        "experts_reduce_dtype": "bf16",
        "fused_optimizer": False,
    },
    "megatron": {
        "moe_token_dispatcher": "flex",
        "moe_shared_expert_overlap": True,
        "cross_entropy_fusion_impl": "torch",
        "rope_fusion": False,
    },
}


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE, encoding="utf-8")
    return path


def test_a_recipe_is_the_scenario_by_hand(recipe: Path) -> None:
    """The same step, on as many hosts as the recipe was written for."""
    read = load_scenario(recipe, ["cluster.name=dgx-h100"])
    hand = parse_scenario(BY_HAND, "hand")
    for section in ("training", "parallel", "pytorch", "megatron", "model"):
        assert getattr(read, section) == getattr(hand, section)
    assert step_time(read) == step_time(hand)


@together(
    ("found", "instead", "key", "value"),
    [
        ("rope_fusion: false", "rope_fusion: true", "megatron.rope_fusion", True),
        ("attn: te", "attn: flex", "megatron.attention", "flash2"),
        (
            "fp32_upcast: false",
            "fp32_upcast: true",
            "megatron.cross_entropy_fusion_impl",
            "torch-fp32",
        ),
        (
            "torch.optim.Adam",
            "transformer_engine.pytorch.optimizers.FusedAdam",
            "pytorch.wide_moments",
            True,
        ),
        ("Benchmarking", "TrainFinetune", "pytorch.clip_gradients", True),
        ("fake_balanced_gate: true", "fake_balanced_gate: false", "parallel.routing", "any"),
        ("global_batch_size: 64", "global_batch_size: 32", "training.grad_accumulation", 1),
        ("num_hidden_layers: 8", "num_hidden_layers: 11", "parallel.vpp", 2),
    ],
)  # fmt: skip
def test_a_line_changes_its_key(
    recipe: Path, found: str, instead: str, key: str, value: object
) -> None:
    text = RECIPE.replace(found, instead)
    assert text != RECIPE
    recipe.write_text(text, encoding="utf-8")
    read = load_scenario(recipe, ["cluster.name=dgx-h100"])
    section, name = key.split(".")
    assert getattr(getattr(read, section), name) == value


def test_jobs_of_tests_decide_nothing(recipe: Path) -> None:
    """`ci:` is for Automodel's continuous integration, and a mock data set's batch for the data set."""
    plain = load_scenario(recipe, ["cluster.name=dgx-h100"])
    more = RECIPE.replace("  seq_len: 2048", "  seq_len: 2048\n  batch_size: 4")
    recipe.write_text(f"{more}ci:\n  nodes: 9\n  ep_size: 2\n", encoding="utf-8")
    assert load_scenario(recipe, ["cluster.name=dgx-h100"]) == plain


PEFT = """peft:
  _target_: nemo_automodel.components._peft.lora.PeftConfig
"""
DENSE = (
    RECIPE.replace("deepseek-ai/DeepSeek-V2-Lite", "meta-llama/Llama-3.2-1B")
    .replace("ep_size: 4", "ep_size: 1")
    .replace("    fake_balanced_gate: true\n    dispatcher: deepep\n", "")
)
ALL = ["qkv", "proj", "fc1", "fc2"]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("", {"rank": 8, "dropout": 0.0, "targets": ALL}),
        ('  target_modules: "*_proj"\n  dim: 16\n', {"rank": 16, "targets": ALL}),
        ("  match_all_linear: true\n  dropout: 0.1\n", {"dropout": 0.1, "targets": ALL}),
        ('  target_modules: ["*.q_proj", "*.o_proj"]\n', {"targets": ["qkv", "proj"]}),
    ],
)  # fmt: skip
def test_peft_is_the_adapter(
    recipe: Path, lines: str, expected: dict[str, object]
) -> None:
    """What PeftConfig takes where it is told nothing; patterns of modules; the scenario is one that is simulated."""
    recipe.write_text(DENSE + PEFT + lines, encoding="utf-8")
    read = load_scenario(recipe, ["cluster.name=dgx-h100"])
    assert read.adapter.on
    for name, value in expected.items():
        found = getattr(read.adapter, name)
        assert (list(found) if isinstance(found, tuple) else found) == value


@pytest.mark.parametrize(
    ("lines", "key"),
    [
        ("  use_dora: true\n", "peft.use_dora"),
        ('  exclude_modules: ["*.new_part"]\n', "peft.exclude_modules"),
        ('  target_modules: ["*.lm_head"]\n', "peft.target_modules"),
    ],
)
def test_what_adapters_cannot_be_is_said_by_its_key(
    recipe: Path, lines: str, key: str
) -> None:
    recipe.write_text(DENSE + PEFT + lines, encoding="utf-8")
    with pytest.raises(InputError, match=key):
        load_scenario(recipe, ["cluster.name=dgx-h100"])


def test_adapters_beside_layers_of_pytorch_are_pefts(recipe: Path) -> None:
    plain = DENSE.replace("linear: te", "linear: torch")
    recipe.write_text(plain + PEFT, encoding="utf-8")
    scenario = load_scenario(recipe, ["cluster.name=dgx-h100"])
    assert scenario.training.framework == "pytorch-eager"
    assert scenario.adapter.on and scenario.adapter.rank


def test_adapters_beside_compiled_layers_are_read(recipe: Path) -> None:
    plain = DENSE.replace("linear: te", "linear: torch").replace(
        "pp_size: 4", "pp_size: 1"
    )
    recipe.write_text(plain + PEFT + "compile:\n  enabled: true\n", encoding="utf-8")
    scenario = load_scenario(
        recipe, ["cluster.name=dgx-h100", "training.global_batch=128"]
    )
    assert scenario.training.framework == "pytorch-compiled"
    assert list(scenario.adapter.places) == ALL


@pytest.mark.parametrize("name", ["zai-org/GLM-5.2", "deepseek-ai/DeepSeek-V3.2"])
def test_keys_that_an_indexer_chooses_are_told(recipe: Path, name: str) -> None:
    """Automodel's own layers of sparse attention are refused in one line that says whose there are."""
    text = recipe.read_text().replace("deepseek-ai/DeepSeek-V2-Lite", name)
    recipe.write_text(text)
    with pytest.raises(InputError, match="indexer") as error:
        step_time(load_scenario(recipe, ["cluster.name=dgx-h100-superpod"]))
    assert len(error.value.mistakes) == 1


def test_modules_that_are_excluded_have_no_adapter(recipe: Path) -> None:
    """exclude_modules takes targets back."""
    recipe.write_text(DENSE + PEFT + "  exclude_modules: ['*.o_proj']\n")
    made = load_scenario(recipe, ["cluster.name=dgx-h100"])
    assert list(made.adapter.targets) == [one for one in ALL if one != "proj"]


DENSE = """
step_scheduler:
  global_batch_size: 8
  local_batch_size: 1
model:
  pretrained_model_name_or_path: meta-llama/Llama-3.1-8B
  backend:
    attn: te
    linear: te
    rms_norm: te
distributed:
  strategy: fsdp2
  enable_fsdp2_prefetch: {on}
  fsdp2_backward_prefetch_depth: 3
dataset:
  seq_len: 2048
"""


@pytest.mark.parametrize(("on", "depths"), [("true", (1, 3)), ("false", (0, 1))])
def test_layers_are_gathered_ahead_where_a_recipe_says_so(
    tmp_path: Path, on: str, depths: tuple[int, int]
) -> None:
    """One ahead forward, as FSDP2Config has it, and so many backward as it says; else FSDP2's own order."""
    path = tmp_path / "dense.yaml"
    path.write_text(DENSE.format(on=on), encoding="utf-8")
    choices = load_scenario(path, ["cluster.name=dgx-h100"]).pytorch
    assert (choices.forward_prefetch, choices.backward_prefetch) == depths
