"""Scripts of MLPerf submissions as recipes: all that were published are understood, and what is not is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lab.formats.mlperf_scripts import FILES, apart
from prestep.sim.errors import InputError
from prestep.sim.spec.load import load_scenario
from prestep.sim.studies.search.scenario_file import text_beside
from tests.sample import together

SCRIPTS: dict[str, dict[str, Any]] = {
    name: entry
    for path in FILES
    for name, entry in json.loads(path.read_text(encoding="utf-8")).items()
}
#: A script that leaves out a size, which its job gives.
ASKED = "MINIBS: found null"
MEGATRON_8B = (
    *("export DGXNNODES=4", "export DGXNGPU=8", "export MODEL_SIZE=8b"),
    *("export TENSOR_MODEL_PARALLEL=4", "export PIPELINE_MODEL_PARALLEL=4"),
    *("export MINIBS=8", "export MICRO_BATCH_SIZE=1"),
)


def written(folder: Path, *lines: str) -> Path:
    """A script of those lines."""
    path = folder / "config_test.sh"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@together("name", SCRIPTS)
def test_every_script_becomes_a_scenario_that_is_read_again(
    name: str, tmp_path: Path
) -> None:
    """What it says is written as a scenario with the same settings; else its own mistake is named."""
    benchmark = name.rpartition("/")[2]
    folder = tmp_path / benchmark
    folder.mkdir()
    pairs = [pair for each in SCRIPTS[name]["env"].items() for pair in apart(*each)]
    lines = (f"export {key}={json.dumps(value)}" for key, value in pairs)
    script = written(folder, *lines)
    chosen = ("cluster.name=rail-h100", "recipe.lenient=true")
    try:
        scenario = load_scenario(script, chosen)
    except InputError as error:
        text = str(error)
        assert text.count("found") == 1 and ASKED in text, text
        return
    again = folder / "scenario.toml"
    again.write_text(text_beside(scenario, folder), encoding="utf-8")
    kept = load_scenario(again)
    for section in ("training", "parallel", "megatron", "nccl", "adapter", "model"):
        assert getattr(kept, section) == getattr(scenario, section)


def test_user_buffers_that_are_off_have_no_switches(tmp_path: Path) -> None:
    """Their switches are passed over where TP_COMM_OVERLAP is off, and named where it is on."""
    switches = ("export MC_TP_OVERLAP_AG=False", "export NVTE_UB_FP8_RS=1")
    off = written(tmp_path, *MEGATRON_8B, "export TP_COMM_OVERLAP=False", *switches)
    chosen = ("cluster.name=rail-h100",)
    assert not load_scenario(off, chosen).megatron.tp_comm_overlap
    on = written(tmp_path, *MEGATRON_8B, "export TP_COMM_OVERLAP=True", *switches)
    with pytest.raises(InputError, match="single user buffers"):
        load_scenario(on, chosen)


def test_a_reduce_scatter_by_strides_is_of_atomic_products(tmp_path: Path) -> None:
    """Transformer Engine asks for it beside atomic products alone."""
    lines = (
        *MEGATRON_8B,
        "export TP_COMM_OVERLAP=True",
        "export NVTE_RS_STRIDED_ATOMIC=2",
    )
    chosen = ("cluster.name=rail-h100",)
    assert load_scenario(written(tmp_path, *lines), chosen).megatron.tp_comm_overlap
    atomic = written(tmp_path, *lines, "export NVTE_UB_ATOMIC_GEMM_RS=1")
    with pytest.raises(InputError, match="atomic products"):
        load_scenario(atomic, chosen)


def test_a_late_head_and_channels_of_messages_are_taken_over(tmp_path: Path) -> None:
    """They were left out before; now they are keys of the scenario."""
    path = written(
        tmp_path,
        *MEGATRON_8B,
        "export DEFER_EMBEDDING_WGRAD_COMPUTE=True",
        "export WGRAD_DEFERRAL_LIMIT=5",
        "export NCCL_MIN_P2P_NCHANNELS=32;",
    )
    scenario = load_scenario(path, ("cluster.name=rail-h100",))
    assert scenario.megatron.defer_embedding_wgrad_compute
    assert scenario.megatron.wgrad_deferral_limit == 5
    assert scenario.nccl.min_p2p_nchannels == 32


@pytest.mark.parametrize("skip, gathers", [("True", False), ("False", True)])
def test_a_graph_that_skips_gathers_overlaps_none(
    skip: str, gathers: bool, tmp_path: Path
) -> None:
    """Wherever a script says so: what the step's graph leaves out does not run beside its passes."""
    lines = [
        "export OVERLAP_PARAM_GATHER=True",
        f"export SKIP_TRAIN_CG_PARAM_AG={skip}",
    ]
    for said in (lines, lines[::-1]):
        scenario = load_scenario(
            written(tmp_path, *MEGATRON_8B, *said), ("cluster.name=rail-h100",)
        )
        assert scenario.megatron.overlap_param_gather == gathers


#: A job of experts in the words of round 6.0.
EXPERTS = (
    *("export DGXNNODES=8", "export DGXNGPU=8", "export FP8=True"),
    *("export TENSOR_MODEL_PARALLEL=1", "export PIPELINE_MODEL_PARALLEL=2"),
    *("export EXPERT_PARALLEL=8", "export MINIBS=8", "export MICRO_BATCH_SIZE=1"),
    *("export MOE_TOKEN_DISPATCHER_TYPE=flex", "export SEQ_PARALLEL=False"),
)
ON_BLACKWELL = ("cluster.name=dgx-b200-superpod",)


def of_experts(folder: Path, *lines: str, size: str = "671b") -> Any:
    """The scenario of that job with further lines."""
    script = written(folder, f"export MODEL_SIZE={size}", *EXPERTS, *lines)
    return load_scenario(script, ON_BLACKWELL)


@together(
    ("folder", "name"),
    [
        ("deepseekv3_671b", "deepseek-v3"),
        ("gpt_oss_20b", "gpt-oss-20b"),
        ("llama31_405b", "llama3.1-405b"),
        ("llama31_8b", "llama3-8b"),
        ("llama2_70b_lora", "llama2-70b"),
    ],
)
def test_a_folder_says_the_model(folder: str, name: str, tmp_path: Path) -> None:
    """Scripts that export no MODEL_SIZE lie in a folder of the benchmark's name, at any depth."""
    place = tmp_path / folder / "implementations" / "nemo"
    place.mkdir(parents=True)
    lines = ("export DGXNNODES=2", "export DGXNGPU=8", "export MINIBS=1")
    scenario = load_scenario(written(place, *lines), ON_BLACKWELL)
    assert scenario.model.name == name
    assert (scenario.adapter.kind == "lora") == folder.endswith("lora")


def test_variables_of_adapters_say_the_benchmark_of_fine_tuning(tmp_path: Path) -> None:
    """Its scripts name no model; only they set variables of LoRA."""
    lines = ("export DGXNNODES=1", "export DGXNGPU=8", "export MINIBS=1")
    script = written(tmp_path, *lines, "export LORA_A2A=1")
    assert load_scenario(script, ON_BLACKWELL).adapter.kind == "lora"
    with pytest.raises(InputError, match="a model that is known here"):
        load_scenario(written(tmp_path, *lines), ON_BLACKWELL)


def test_a_file_of_primus_says_the_model(tmp_path: Path) -> None:
    """Its name begins with one; batch and degrees are those that the script exports for it."""
    lines = (
        *("export EXP=/code/conf/llama3.1_8B-pretrain-fp4.yaml", "export NNODES=2"),
        *("export PRIMUS_MICRO_BATCH_SIZE=2", "export PRIMUS_GLOBAL_BATCH_SIZE=64"),
        *("export MLLOG_TENSOR_PARALLELISM=2", "export GPUS_PER_NODE=8"),
        *("export FP4=true", "export FP4_RECIPE=mxfp4"),
    )
    scenario = load_scenario(written(tmp_path, *lines), ("cluster.name=rail-mi355x",))
    assert scenario.model.name == "llama3-8b"
    assert (scenario.parallel.tp, scenario.parallel.dp) == (2, 8)
    assert scenario.training.global_batch == 64
    assert scenario.training.precision == "nvfp4"


@together(
    ("lines", "captured"),
    [
        (("export CUDA_GRAPH_SCOPE=full_iteration",), ("full_iteration",)),
        (
            (
                "export MCORE_CUDA_GRAPH=1",
                'export CUDA_GRAPH_SCOPE="attn moe_router moe_preprocess"',
            ),
            ("attn", "moe_router", "moe_preprocess"),
        ),
        (("export FULL_CUDA_GRAPH=1", "export CUDA_GRAPH_IMPLEMENTATION=none"), ()),
        (("export MCORE_CUDA_GRAPH=1",), ("attn", "mlp")),
    ],
)
def test_graphs_are_of_the_parts_that_are_named(
    lines: tuple[str, ...], captured: tuple[str, ...], tmp_path: Path
) -> None:
    """A scope comes before the older switches, and no implementation means no graph."""
    scenario = of_experts(tmp_path, *lines)
    assert scenario.megatron.cuda_graph_scope == captured


def test_a_part_that_nobody_captures_is_refused(tmp_path: Path) -> None:
    """Another scope changes what the host launches."""
    with pytest.raises(InputError, match="CUDA_GRAPH_SCOPE"):
        of_experts(tmp_path, "export CUDA_GRAPH_SCOPE=half_a_layer")


def test_scales_of_eight_bits_without_a_recipe(tmp_path: Path) -> None:
    """A switch that only MXFP8 has says them; a recipe comes first."""
    gathered = "export REUSE_GRAD_BUF_FOR_MXFP8_PARAM_AG=True"
    assert of_experts(tmp_path, gathered).megatron.fp8_scaling == "mx"
    stated = "export FP8_RECIPE=tensorwise"
    assert of_experts(tmp_path, gathered, stated).megatron.fp8_scaling == "dynamic"
    assert of_experts(tmp_path).megatron.fp8_scaling == "delayed"


def test_switches_of_experts_are_keys_of_the_scenario(tmp_path: Path) -> None:
    """Dispatcher, its SMs, the fused grouped products and the head in 8 bits."""
    megatron = of_experts(
        tmp_path,
        "export MOE_FLEX_DISPATCHER_BACKEND=hybridep",
        "export MOE_HYBRIDEP_NUM_SMS=32",
        "export NVTE_CUTEDSL_FUSED_GROUPED_MLP=1",
        "export USE_TE_OPS=True",
        "export FP8_OUTPUT_PROJ=True",
        "export OVERLAP_MOE_EXPERT_PARALLEL_COMM=False",
    ).megatron
    assert megatron.moe_flex_dispatcher_backend == "hybridep"
    assert megatron.moe_hybridep_num_sms == 32
    assert megatron.moe_fused_mlp and not megatron.use_transformer_engine_op_fuser
    assert megatron.fp8_output_proj


def test_experts_as_operations_without_their_grouped_kernel_are_refused(
    tmp_path: Path,
) -> None:
    """The fuser of operations alone is not simulated of experts."""
    with pytest.raises(InputError, match="USE_TE_OPS"):
        of_experts(tmp_path, "export USE_TE_OPS=True")


def test_what_a_script_takes_away_is_not_said(tmp_path: Path) -> None:
    """`unset` removes what files before it exported, and what they would put into others."""
    lines = (*MEGATRON_8B, "export TP_COMM_OVERLAP=True", "unset TP_COMM_OVERLAP")
    scenario = load_scenario(written(tmp_path, *lines), ("cluster.name=rail-h100",))
    assert not scenario.megatron.tp_comm_overlap


def test_several_instances_of_an_optimizer_are_refused(tmp_path: Path) -> None:
    """One is what is simulated; more would shard and gather otherwise."""
    assert of_experts(tmp_path, "export NUM_DISTOPT_INSTANCES=1")
    with pytest.raises(InputError, match="NUM_DISTOPT_INSTANCES"):
        of_experts(tmp_path, "export NUM_DISTOPT_INSTANCES=2")


def test_layers_at_both_ends_stay_in_sixteen_bits(tmp_path: Path) -> None:
    """The switch means one of each, or as many as are said; without it nothing stays."""
    on = "export FIRST_LAST_LAYERS_BF16=True"
    some = of_experts(tmp_path, on, "export NUM_LAYERS_AT_END_IN_BF16=3").megatron
    ends = some.num_layers_at_start_in_bf16, some.num_layers_at_end_in_bf16
    assert ends == (1, 3)
    assert of_experts(tmp_path).megatron.num_layers_at_end_in_bf16 == 0


def test_activations_in_a_hosts_memory_are_refused(tmp_path: Path) -> None:
    """They take time on the way; a switch that is off says nothing."""
    assert of_experts(tmp_path, "export FINE_GRAINED_ACTIVATION_OFFLOADING=False")
    with pytest.raises(InputError, match="host's memory"):
        of_experts(tmp_path, "export FINE_GRAINED_ACTIVATION_OFFLOADING=True")


@pytest.mark.parametrize("handed", [True, False])
def test_a_file_of_communicators_counts_where_the_program_hands_it_on(
    handed: bool, tmp_path: Path
) -> None:
    """That of round 5.0 reads the variable into its configuration, and communicators are made without it."""
    argument = "nccl_communicator_config_path=path" if handed else ""
    program = tmp_path / "pretrain.py"
    program.write_text(f"MegatronStrategy({argument})\n", encoding="utf-8")
    path = "/workspace/llm/conf/nccl/custom_communicator_cta.yaml"
    script = written(tmp_path, *MEGATRON_8B, f"export NCCL_CFG_PATH={path}")
    nccl = load_scenario(script, ("cluster.name=rail-h100",)).nccl
    assert nccl.of("cp").max_ctas == (1 if handed else None)
