"""Recipes of experts say what balances their routers; where nothing does, tokens spread as measured without help."""

from __future__ import annotations

from pathlib import Path

import pytest

from prestep.sim.errors import InputError
from prestep.sim.spec.load import load_scenario
from prestep.sim.spec.sections import Scenario

SCRIPT = (
    *("export DGXNNODES=2", "export DGXNGPU=4", "export MINIBS=1"),
    *("export EXPERT_PARALLEL=4", "export MICRO_BATCH_SIZE=1"),
)
BRIDGE = """
from megatron.bridge import AutoBridge
from megatron.bridge.recipes.common import _pretrain_common, _sft_common


def {function}():
    cfg = {begin}()
    cfg.model = AutoBridge.from_hf_pretrained("{model}").to_megatron_provider(load_weights=False)
    cfg.model.expert_model_parallel_size = 4
    cfg.model.seq_length = 4096
{more}    return cfg
"""


def submitted(folder: Path, size: str, *more: str) -> Scenario:
    """A script of a submission with those further lines."""
    path = folder / "config_x.sh"
    lines = (*SCRIPT, f"export MODEL_SIZE={size}", *more)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return load_scenario(path, ("cluster.name=gb300-nvl72",))


def bridged(folder: Path, model: str, *more: str, task: str = "pretrain") -> Scenario:
    """A recipe of Megatron-Bridge with those further statements."""
    path = folder / "recipe.py"
    lines = "".join(f"    cfg.model.{one}\n" for one in more)
    begin = "_pretrain_common" if task == "pretrain" else "_sft_common"
    text = BRIDGE.format(
        function=f"x_{task}_config", begin=begin, model=model, more=lines
    )
    path.write_text(text, encoding="utf-8")
    return load_scenario(path, ("cluster.name=dgx-h100",))


@pytest.mark.parametrize(
    ("more", "load"),
    [
        ((), "unbalanced"),
        (("export MOE_ROUTER_LOAD_BALANCING_TYPE=none",), "unbalanced"),
        (("export MOE_ROUTER_LOAD_BALANCING_TYPE=aux_loss",), "uniform"),
        (("export MOE_ROUTER_FORCE_LOAD_BALANCING=True",), "uniform"),
    ],
)
def test_a_submission_whose_benchmark_balances_nothing(
    more: tuple[str, ...], load: str, tmp_path: Path
) -> None:
    """gpt_oss.yaml of the round has no loss for routers; a variable of the script takes its place."""
    assert submitted(tmp_path, "20b", *more).parallel.imbalance == load


def test_submissions_have_the_benchmarks_vocabulary(tmp_path: Path) -> None:
    """pretrain.py of the round sets 128,256 entries, and not the 201,088 of the released model."""
    assert submitted(tmp_path, "20b").model.vocab == 128_256


def test_a_model_without_experts_has_no_router(tmp_path: Path) -> None:
    """A dense benchmark may say what would balance its router."""
    more = ("export EXPERT_PARALLEL=1", "export MOE_ROUTER_LOAD_BALANCING_TYPE=none")
    dense = submitted(tmp_path, "8b", *more)
    assert dense.parallel.imbalance == "uniform"


@pytest.mark.parametrize(
    ("model", "more", "load"),
    [
        ("openai/gpt-oss-20b", (), "unbalanced"),
        ("openai/gpt-oss-20b", ("moe_router_force_load_balancing = True",), "uniform"),
        ("Qwen/Qwen3-30B-A3B", (), "uniform"),
        (
            "Qwen/Qwen3-30B-A3B",
            ('moe_router_load_balancing_type = "none"',),
            "unbalanced",
        ),
        (
            "Qwen/Qwen3-30B-A3B",
            (
                'moe_router_load_balancing_type = "none"',
                "moe_router_enable_expert_bias = True",
            ),
            "uniform",
        ),
    ],
)
def test_a_bridge_that_balances_nothing(
    model: str, more: tuple[str, ...], load: str, tmp_path: Path
) -> None:
    """gpt_oss_bridge.py takes the loss away; a bias of experts balances without one."""
    made = bridged(tmp_path, model, *more)
    assert made.parallel.imbalance == load
    # Nobody knows that router itself, so that the interval has what an assumed load may be wrong by.
    assert made.parallel.natural_routing or "force" in str(more)


@pytest.mark.parametrize(
    ("steps", "more", "load"),
    [
        (100, (), "unbalanced"),
        (100_000, (), "uniform"),
        (100, ("moe_aux_loss_coeff = 0.001",), "uniform"),
        (100, ("moe_router_bias_update_rate = 0.01",), "uniform"),
    ],
)
def test_a_bias_needs_time_to_balance(
    steps: int, more: tuple[str, ...], load: str, tmp_path: Path
) -> None:
    """glm5_bridge.py has no coefficient of a loss, and a bias that moves 0.001 a step: scores lie between 0 and 1."""
    keys = ("expert_model_parallel_size = 8", *more)
    first = f"seq_length = 4096\n    cfg.train.train_iters = {steps}"
    made = bridged(tmp_path, "zai-org/GLM-5.2", first, *keys)
    assert made.parallel.imbalance == load


def test_delayed_gradients_of_experts_are_told(tmp_path: Path) -> None:
    """They run before their tokens go back here, as delay_wgrad_compute's do."""
    more = "overlap_dispatch_backward_with_experts_wgrad = True"
    made = bridged(tmp_path, "Qwen/Qwen3-30B-A3B", "seq_length = 4096", more)
    assert any("weight gradients of experts" in note for note in made.notes)


def test_a_router_that_was_trained_stays_open(tmp_path: Path) -> None:
    """Fine-tuning begins with a finished router, of whose balance the recipe says nothing."""
    tuned = bridged(tmp_path, "openai/gpt-oss-20b", task="sft")
    assert tuned.parallel.imbalance == "uniform" and tuned.parallel.natural_routing


@pytest.mark.parametrize(
    ("lines", "parts"),
    [
        (('impl = "transformer_engine"', 'scope = ["mamba"]'), ("mamba",)),
        (('impl = "full_iteration"', "scope = []"), ("full_iteration",)),
        (('impl = "transformer_engine"', "scope = []"), ("attn", "mlp")),
        (('impl = "none"', "scope = []"), ()),
    ],
)
def test_graphs_of_layers_and_of_whole_steps(
    lines: tuple[str, ...], parts: tuple[str, ...], tmp_path: Path
) -> None:
    """Megatron captures Mamba's layers by a name of their own, whole layers by none, and a whole step by an implementation."""
    graphs = [f"cuda_graph_{line}" for line in lines]
    more = "expert_model_parallel_size = 1"
    made = bridged(tmp_path, "Qwen/Qwen3-8B", *graphs, more)
    assert made.megatron.cuda_graph_scope == parts


@pytest.mark.parametrize(
    ("call", "parts"),
    [
        ('set_cuda_graph_modules(cfg.model, ["attn", "mlp"])', ("attn", "mlp")),
        ("set_full_iteration_cuda_graph(cfg.model)", ("full_iteration",)),
    ],
)
def test_graphs_by_bridges_helpers(
    call: str, parts: tuple[str, ...], tmp_path: Path
) -> None:
    """What a helper sets depends on the Megatron that it finds, what it captures does not."""
    impl = 'cuda_graph_impl = "transformer_engine"'
    made = bridged(
        tmp_path,
        "Qwen/Qwen3-8B",
        f"{impl}\n    {call}",
        "expert_model_parallel_size = 1",
    )
    assert made.megatron.cuda_graph_scope == parts


@pytest.mark.parametrize(("corpus", "documents"), [("squad", 226), ("tulu3", 380)])
def test_documents_of_a_known_data_set_are_as_long_as_its_mean(
    corpus: str, documents: int, tmp_path: Path
) -> None:
    """Of Megatron-Bridge's packed samples; of another data set the reader is asked."""
    said = f"cfg.dataset = Data(hf_dataset=Source(dataset_name='{corpus}'), packed_sequence_size=4096)"
    more = f"seq_length = 4096\n    {said}"
    made = bridged(tmp_path, "Qwen/Qwen3-30B-A3B", more, task="sft")
    assert made.training.packed == documents
    with pytest.raises(InputError, match=r"training\.packed"):
        bridged(
            tmp_path, "Qwen/Qwen3-30B-A3B", more.replace(corpus, "mine"), task="sft"
        )


def test_samples_of_a_microbatch_in_one_row_are_documents(tmp_path: Path) -> None:
    """Packing in the batch flattens samples that are padded: attention sees what it sees of them apart."""
    said = "seq_length = 4096\n    cfg.dataset.enable_in_batch_packing = True"
    joined = bridged(tmp_path, "Qwen/Qwen3-30B-A3B", said, task="sft")
    apart = bridged(
        tmp_path, "Qwen/Qwen3-30B-A3B", said.replace("True", "False"), task="sft"
    )
    assert joined.training == apart.training


@pytest.mark.parametrize("level", [0, 2])
def test_memory_that_is_given_back_is_told(level: int, tmp_path: Path) -> None:
    """A step that empties the allocator's cache takes memory again, which is not simulated."""
    said = f"seq_length = 4096\n    cfg.train.empty_unused_memory_level = {level}"
    made = bridged(tmp_path, "Qwen/Qwen3-30B-A3B", said)
    assert any("given back" in note for note in made.notes) is bool(level)


@pytest.mark.parametrize("on", [True, False])
def test_deterministic_kernels_are_read(on: bool, tmp_path: Path) -> None:
    """With the ring that Megatron-Bridge asks NCCL for."""
    more = f"deterministic_mode = {on}\n    cfg.env_vars.NCCL_ALGO = 'Ring'"
    made = bridged(tmp_path, "Qwen/Qwen3-30B-A3B", "seq_length = 4096", more)
    assert made.training.deterministic is on
    assert made.nccl.algo == "ring"


def test_experts_of_bridges_providers_are_not_split(tmp_path: Path) -> None:
    """A provider takes its own degree for that of experts as it is made, before a recipe splits its layers."""
    split = "sequence_parallel = True\n    cfg.model.tensor_model_parallel_size = 2\n"
    ways = f"{split}    cfg.model.expert_model_parallel_size = 8"
    assert bridged(tmp_path, "Qwen/Qwen3-30B-A3B", ways).parallel.etp == 1
    fewer = ways.replace("= 8", "= 4")
    said = f"{fewer}\n    cfg.model.expert_tensor_parallel_size = 2"
    assert bridged(tmp_path, "Qwen/Qwen3-30B-A3B", said).parallel.etp == 2
