"""Scripts and recipes that ask for fused operations, layers that run again, or what one machine alone has."""

from __future__ import annotations

from pathlib import Path

import pytest

from prestep.sim.errors import InputError
from prestep.sim.spec import openers
from prestep.sim.spec.load import load_scenario
from prestep.workloads.job.adapter import USUAL
from tests.workloads.recipe_examples import CLUSTER, EXAMPLES

FUSER = "use_transformer_engine_op_fuser"
ROUTER = "moe_router_fusion"
PRIMUS = EXAMPLES["primus"]
SCRIPT = (
    *("export DGXNNODES=1", "export DGXNGPU=8", "export MINIBS=2", "export TP=1"),
    *("export MICRO_BATCH_SIZE=1", "export MODEL_SIZE=8b"),
)


def script(folder: Path, *lines: str, lora: bool = False) -> Path:
    folder = folder / ("llama2_70b_lora" if lora else "llama31_8b")
    folder.mkdir(exist_ok=True)
    path = folder / "config_test.sh"
    head = [line for line in SCRIPT if not lora or "MODEL_SIZE" not in line]
    path.write_text("\n".join((*head, *lines)) + "\n", encoding="utf-8")
    return path


def test_a_script_says_which_layers_run_again(tmp_path: Path) -> None:
    """Granularity, method and number, as NeMo's configuration reads them; another word is named."""
    chosen = ("cluster.name=dgx-h100",)
    line = "export ACG=full && export ACM=block && export ACL=21"
    some = load_scenario(script(tmp_path, line, lora=True), chosen)
    assert some.megatron.recompute_num_layers == 21
    assert some.training.recompute == "none"
    whole = load_scenario(script(tmp_path, "export ACT_CKPT_GRANULARITY=full"), chosen)
    assert whole.training.recompute == "full"
    with pytest.raises(InputError, match="ACG"):
        load_scenario(script(tmp_path, "export ACG=odd"), chosen)


def test_switches_of_networks_do_not_matter_on_one_host(tmp_path: Path) -> None:
    """Sockets between hosts are not simulated; one host has no such."""
    chosen = ("cluster.name=dgx-h100",)
    lines = ("export NCCL_NET=Socket", "export NCCL_IB_DISABLE=1")
    assert load_scenario(script(tmp_path, *lines), chosen).parallel.dp == 8
    with pytest.raises(InputError, match="sockets between hosts"):
        load_scenario(script(tmp_path, *lines, "export DGXNNODES=2"), chosen)


def test_a_moved_clock_is_told_where_gpus_have_it(tmp_path: Path) -> None:
    """What it gains is not published, so the clock stays; AMD's scripts hand down a variable of NVIDIA's launchers."""
    chosen = ("cluster.name=dgx-h100",)

    def notes(*lines: str) -> str:
        path = script(tmp_path, "export VBOOST_VALUE=1", *lines)
        return " ".join(openers.completed(openers.opened(path), path, chosen).notes)

    assert "boost-slider" in notes()
    assert "boost-slider" not in notes("export USE_HIPBLASLT=1")


def primus(folder: Path, *lines: str) -> Path:
    """Primus's recipe of the format's example, with more overrides."""
    path = folder / "primus.yaml"
    more = "".join(f"      {line}\n" for line in lines)
    path.write_text(PRIMUS.text + more, encoding="utf-8")
    return path


def test_primus_switches_are_keys(tmp_path: Path) -> None:
    """A cache of transposed weights, and a fused router, which is Primus-Turbo's and off with it."""
    cache = primus(tmp_path, "no_fp8_weight_transpose_cache: true")
    made = load_scenario(cache, (CLUSTER,)).megatron
    assert not made.keep_fp8_weight_transpose_cache
    router = "moe_use_fused_router_with_aux_score: true"
    off = load_scenario(primus(tmp_path, router), (CLUSTER,))
    assert not off.megatron.moe_router_fusion
    on = load_scenario(
        primus(tmp_path, router, "enable_primus_turbo: true"), (CLUSTER,)
    )
    assert on.megatron.moe_router_fusion
    assert any("Primus-Turbo" in note for note in on.notes)


def test_targets_that_name_nothing_leave_the_usual_ones_and_say_so(
    tmp_path: Path,
) -> None:
    """An error names them; allowed, the scenario's default counts, and a note has it."""
    path = primus(tmp_path, "lora: {enabled: true, dim: 8, target_modules: [router]}")
    with pytest.raises(InputError, match="router"):
        load_scenario(path, (CLUSTER,))
    made = load_scenario(path, (CLUSTER, "recipe.lenient=true"))
    assert made.adapter.targets == USUAL
    said = f"adapters in {', '.join(USUAL)}: lora.target_modules names none"
    assert any(said in note for note in made.notes)


@pytest.mark.parametrize("model", ["Meta-Llama-3-8B", "Mixtral-8x7B-v0.1"])
def test_the_fuser_of_recipes_is_of_dense_layers(model: str, tmp_path: Path) -> None:
    """Megatron-Bridge's switch is taken over; beside experts it is named."""
    path = tmp_path / "bridge.py"
    more = "".join(f"    cfg.model.{name} = True\n" for name in (FUSER, ROUTER))
    text = EXAMPLES["megatron_bridge"].text.replace("Meta-Llama-3-8B", model)
    path.write_text(text.replace("    return cfg", f"{more}    return cfg"))
    made = load_scenario(path, (CLUSTER, "recipe.lenient=true"))
    assert made.model.name == ("llama3-8b" if "Llama" in model else "mixtral-8x7b")
    assert made.megatron.use_transformer_engine_op_fuser == ("Llama" in model)
    assert made.megatron.moe_router_fusion
    lost = any("grouped kernel" in note for note in made.notes)
    assert lost == ("Llama" not in model)


def test_fused_experts_of_recipes_are_read_as_those_of_scripts(tmp_path: Path) -> None:
    """Megatron-Bridge's recipes of MXFP8: what MLPerf's scripts of the same model are taken to do is done here too.

    Transformer Engine's variable makes the fuser's experts one grouped kernel; delayed gradients of weights, buffers
    of a rank's experts and pages for activations are assumed to cost nothing, and the reader is told so.
    """
    path = tmp_path / "bridge.py"
    variable = "NVTE_CUTEDSL_FUSED_GROUPED_MLP"
    lines = (
        f"cfg.model.{FUSER} = True",
        f'cfg.env_vars = {{"{variable}": 1, "NVTE_BWD_LAYERNORM_SM_MARGIN": 20}}',
        "cfg.comm_overlap.delay_wgrad_compute = True",
        "cfg.model.moe_expert_rank_capacity_factor = 1.5",
        "cfg.model.moe_paged_stash = True",
    )
    text = EXAMPLES["megatron_bridge"].text.replace("Meta-Llama-3-8B", "Mixtral-8x7B")
    more = "".join(f"    {line}\n" for line in lines)
    path.write_text(text.replace("    return cfg", f"{more}    return cfg"))
    made = load_scenario(path, (CLUSTER,))
    assert made.megatron.moe_fused_mlp
    assert not made.megatron.use_transformer_engine_op_fuser
    for name in ("delay_wgrad_compute", "capacity_factor", "paged_stash"):
        assert any(name in note for note in made.notes), name
    # Without the variable the fuser's experts have no such kernel.
    path.write_text(path.read_text().replace(f'"{variable}": 1', f'"{variable}": 0'))
    with pytest.raises(InputError, match="grouped kernel"):
        load_scenario(path, (CLUSTER,))
