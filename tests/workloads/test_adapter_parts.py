"""Laws of adapters beside experts, latent attention, scans and multi-token prediction, in Megatron's layers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prestep.sim.errors import InputError
from prestep.sim.graph.opgraph import Chain
from prestep.sim.predict import predict, step_time
from prestep.sim.spec.load import Scenario, check_layout, parse_scenario
from prestep.workloads import recipes
from prestep.workloads.job.adapter import TARGETS
from prestep.workloads.lowered import Place, Site
from prestep.workloads.megatron.lower import lower
from prestep.workloads.models.model import load_model
from prestep.workloads.models.projections import projections_of
from tests.executed import Executed, executed, of_lowered
from tests.executed import step_time as time_of

BASE = {
    "kind": "transformer",
    "hidden": 1024,
    "layers": 4,
    "heads": 8,
    "kv_heads": 8,
    "ffn": 2816,
    "vocab": 32000,
}
EXPERTS = {**BASE, "experts": 8, "experts_per_token": 2, "moe_ffn": 1408}
LATENT = {
    **BASE,
    "head_dim": 128,
    "q_lora_rank": 384,
    "kv_lora_rank": 256,
    "rope_head_dim": 64,
    "v_head_dim": 128,
}
SCANS = {
    **{key: value for key, value in BASE.items() if key != "layers"},
    "layer_pattern": "M-*-M-*-",
    "mamba_heads": 32,
    "mamba_groups": 8,
}
FURTHER = {**BASE, "mtp_layers": 1}
RANK = 16
ALL = {"kind": "lora", "rank": RANK, "targets": ["all"]}


def scenario(
    adapter: Mapping[str, Any],
    model: Mapping[str, Any],
    parallel: Mapping[str, Any] | None = None,
    **training: Any,
) -> Scenario:
    parallel = parallel or {}
    gpus = math.prod(parallel.get(axis, 1) for axis in ("dp", "tp", "pp", "cp"))
    way = "ddp" if parallel.get("dp", 1) > 1 else "none"
    return parse_scenario(
        {
            "cluster": {"name": "dgx-h100", "gpus": gpus},
            "model": dict(model),
            "training": {
                "framework": "megatron",
                "seq_len": 1024,
                "global_batch": 8,
                **training,
            },
            "parallel": {"data_parallel": way, **parallel},
            "adapter": dict(adapter),
        },
        "test",
    )


def trained(done: Executed) -> float:
    """Parameters with a gradient in fp32, on the ranks that are simulated."""
    sizes = done.lowered.memory.values()
    return sum(memory.at_peak["gradients"] for memory in sizes) / 4


def shapes(model: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Inputs and outputs of the projections of latent attention and of experts' projections, by hand."""
    heads = model["heads"]
    return {
        "q_down": (1024, 384),
        "q_up": (384, heads * (128 + 64)),
        "kv_down": (1024, 256 + 64),
        "kv_up": (256, heads * (128 + 128)),
        "proj": (heads * 128, 1024),
        "fc1": (1024, 2 * 2816),
        "fc2": (2816, 1024),
    }


@settings(max_examples=8, deadline=None)
@given(st.sets(st.sampled_from(tuple(shapes(LATENT))), min_size=1))
def test_adapters_of_latent_attention_by_hand(targets: set[str]) -> None:
    done = executed(scenario({**ALL, "targets": sorted(targets)}, LATENT))
    each = sum(RANK * sum(shapes(LATENT)[target]) for target in targets)
    assert trained(done) == 4 * each


@pytest.mark.parametrize(("experts", "adapters"), [("shared", 1), ("each", 8)])
@pytest.mark.parametrize("rank", [None, 8])
def test_adapters_of_experts_by_hand(
    experts: str, adapters: int, rank: int | None
) -> None:
    chosen = {**ALL, "targets": ["fc1", "fc2"], "experts": experts}
    if rank is not None:
        chosen["expert_rank"] = rank
    done = executed(scenario(chosen, EXPERTS))
    each = (rank or RANK) * (1024 + 2 * 1408 + 1408 + 1024)
    assert trained(done) == 4 * adapters * each


def test_expert_parallel_ranks_sum_gradients_of_the_adapter_that_they_share() -> None:
    """A layer's matrices in 16 bits with every microbatch; adapters of single experts are nobody else's."""
    sent = {}
    for experts in ("frozen", "shared", "each"):
        layout = {"dp": 4, "ep": 4, "tp": 1}
        chosen = {**ALL, "targets": ["fc1", "fc2"], "experts": experts}
        if experts == "frozen":
            chosen["targets"] = ["proj"]
        graph = executed(scenario(chosen, EXPERTS, layout)).lowered.graph
        chains = [kernel for kernel in graph.kernels if isinstance(kernel, Chain)]
        layer = max(
            (chain for chain in chains if chain.name == "layer backward"),
            key=lambda chain: chain.times,
        )
        comms = [one for one in layer.graph.comms if one.axis == "ep"]
        sent[experts] = sum(one.size for one in comms if one.op == "all_reduce")
    each = RANK * (1024 + 2 * 1408 + 1408 + 1024)
    assert sent["shared"] == 2 * each
    assert sent["frozen"] == sent["each"] == 0


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("model", [EXPERTS, LATENT, SCANS, FURTHER])
def test_more_adapters_take_longer(model: dict[str, Any], tp: int) -> None:
    """And more memory than fewer; less than training every weight."""
    layout = {"tp": tp, "sequence_parallel": tp > 1}
    few = predict(scenario({**ALL, "targets": ["proj"]}, model, layout))
    every = predict(scenario(ALL, model, layout))
    assert few.step_time < every.step_time
    full = predict(scenario({}, model, layout))
    assert few.peak_memory[0].total < every.peak_memory[0].total
    assert every.peak_memory[0].total < full.peak_memory[0].total


@pytest.mark.parametrize("model", [EXPERTS, LATENT, SCANS, FURTHER])
def test_no_frozen_weight_has_a_gradient(model: dict[str, Any]) -> None:
    graph = executed(scenario(ALL, model)).lowered.graph
    weights = {
        (kernel.kind, kernel.shape)
        for chain in graph.kernels
        if isinstance(chain, Chain)
        for kernel in chain.graph.kernels
        if kernel.layout == "tn" and RANK not in kernel.shape
    }
    assert not weights


@pytest.mark.parametrize("experts", ["shared", "each"])
def test_folded_is_unfolded(experts: str) -> None:
    layout = {"dp": 4, "ep": 2, "tp": 2, "sequence_parallel": True}
    done = executed(scenario({**ALL, "experts": experts}, EXPERTS, layout))
    site = Site(place=Place(8, blocking=False))
    lowered = lower(done.scenario, done.model, site, apart=True)
    assert len(lowered.graph.programs) > len(done.lowered.graph.programs)
    every = of_lowered(done, lowered)
    assert time_of(done) == pytest.approx(time_of(every), rel=1e-9)


@pytest.mark.parametrize("way", ["fsdp", "zero1"])
def test_experts_that_are_sharded_have_adapters(way: str) -> None:
    layout = {"dp": 4, "ep": 2, "tp": 1, "data_parallel": way}
    frozen, shared = (
        step_time(scenario({**ALL, "experts": experts}, EXPERTS, layout))
        for experts in ("frozen", "shared")
    )
    assert frozen < shared


def test_automodels_experts_share_no_adapter() -> None:
    layout = {"dp": 2, "ep": 2, "data_parallel": "fsdp"}
    times = {}
    for experts in ("frozen", "each"):
        chosen = {**ALL, "experts": experts}
        one = scenario(chosen, EXPERTS, layout, framework="automodel")
        times[experts] = step_time(one)
    assert times["frozen"] < times["each"]
    one = scenario(ALL, EXPERTS, layout, framework="automodel")
    wrong = check_layout(one, model=load_model(one.model, "test"))
    assert [mistake.key for mistake in wrong] == ["adapter.experts"]


@pytest.mark.parametrize("framework", ["megatron", "automodel"])
def test_frozen_experts_are_gathered_among_the_ranks_that_have_them(
    framework: str,
) -> None:
    """What a layer gathers of experts and of the rest is what it gathers where all is trained."""
    layout = {"dp": 8, "ep": 2, "tp": 1, "data_parallel": "fsdp"}
    gathered, held = {}, {}
    for kind in ("none", "lora"):
        adapter = {**ALL, "kind": kind, "targets": ["proj"]}
        one = scenario(adapter, EXPERTS, layout, framework=framework, global_batch=8)
        done = executed(one)
        sizes: dict[str, float] = {}
        for comm in done.lowered.graph.comms:
            if comm.op == "all_gather":
                sizes[comm.axis] = sizes.get(comm.axis, 0.0) + comm.size
        gathered[kind] = sizes
        held[kind] = done.lowered.memory[0].at_peak["parameters"]
    thin = 1.005  # adapters themselves
    for axis in ("dp", "edp"):
        trained, frozen = gathered["none"][axis], gathered["lora"][axis]
        assert trained <= frozen < thin * trained or trained == frozen
    if framework == "automodel":  # Megatron's lie with the optimizer's fp32 copy
        assert held["lora"] <= thin * held["none"]


def test_experts_of_copies_of_shards() -> None:
    """Copies of the dense layers' shards add all-reduces; experts that are spread stay sharded over all that have them."""
    layout = {"dp": 8, "ep": 2, "tp": 1, "data_parallel": "fsdp"}
    ops = {}
    for shards in (8, 4):
        asked = {**layout, "fsdp_shards": shards}
        one = scenario({}, EXPERTS, asked, framework="automodel")
        comms = executed(one).lowered.graph.comms
        ops[shards] = {
            axis: {comm.op for comm in comms if comm.axis == axis}
            for axis in {comm.axis for comm in comms}
        }
    assert ops[8]["edp"] == ops[4]["edp"]
    assert "all_reduce" in {op for kinds in ops[4].values() for op in kinds}
    assert "replicas" in ops[4]
    assert "replicas" not in ops[8]


def test_a_target_that_the_model_does_not_have_is_passed_over_and_said() -> None:
    usual = predict(scenario({**ALL, "targets": ["proj"]}, LATENT))
    more = predict(scenario({**ALL, "targets": ["qkv", "proj"]}, LATENT))
    assert more.step_time == usual.step_time
    assert any("no adapters in qkv" in line for line in more.warnings)
    assert not any("no adapters" in line for line in usual.warnings)


def test_something_is_trained() -> None:
    one = scenario({**ALL, "targets": ["fc1"], "experts": "frozen"}, EXPERTS)
    with pytest.raises(InputError, match=r"adapter\.experts.*nothing would be trained"):
        step_time(one)
    shared = {**EXPERTS, "shared_experts": 1}
    assert trained(executed(scenario({**one_of("fc1")}, shared))) > 0


def one_of(target: str) -> dict[str, Any]:
    """Adapters beside one projection, and none beside experts."""
    return {**ALL, "targets": [target], "experts": "frozen"}


BRIDGE = """
from megatron.bridge.peft.lora import LoRA
def qwen3_30b_a3b_peft_config():
    cfg = _peft_common()
    cfg.model = AutoBridge.from_hf_pretrained("Qwen/Qwen3-30B-A3B").to_megatron_provider(load_weights=False)
    cfg.train.global_batch_size = 32
    cfg.train.micro_batch_size = 1
    cfg.dataset.seq_length = 4096
    cfg.model.seq_length = 4096
    cfg.model.expert_model_parallel_size = 8
    cfg.peft = LoRA(dim=32, {more})
    return cfg
"""


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("alpha=32", {"experts": "shared", "targets": ["qkv", "proj", "fc1", "fc2"]}),
        ("share_expert_adapters=False", {"experts": "each"}),
        ("normalize_moe_lora=True", {"expert_rank": 4}),
        ('target_modules=["linear_qkv"]', {"targets": ["qkv"]}),
    ],
)
def test_recipes_say_adapters_of_experts(
    tmp_path: Path, more: str, expected: dict[str, Any]
) -> None:
    path = tmp_path / "bridge.py"
    path.write_text(BRIDGE.replace("{more}", more))
    recipe = recipes.read(recipes.document_of(path))
    keys = {setting.key: setting.value for setting in recipe.settings.values()}
    assert {f"adapter.{k}": v for k, v in expected.items()}.items() <= keys.items()
    assert not [m for m in recipe.lost if "peft" in str(m)]


TRAINER = """model_name_or_path: deepseek-ai/DeepSeek-V2-Lite
use_peft: true
lora_r: 8
lora_target_modules: {targets}
bf16: true
per_device_train_batch_size: 2
max_seq_length: 2048
"""


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        ("q_proj,v_proj", ["q_up"]),
        ("kv_a_proj_with_mqa,kv_b_proj,o_proj", ["kv_down", "kv_up", "proj"]),
        ("q_a_proj", None),  # its queries are not compressed: nothing would be trained
    ],
)
def test_trainers_say_adapters_of_latent_attention(
    tmp_path: Path, targets: str, expected: list[str] | None
) -> None:
    path = tmp_path / "x_sft.yaml"
    path.write_text(TRAINER.format(targets=targets))
    recipe = recipes.read(recipes.document_of(path))
    keys = {setting.key: setting.value for setting in recipe.settings.values()}
    assert keys.get("adapter.targets") == expected
    assert bool(recipe.lost) == (expected is None)


@settings(max_examples=8, deadline=None)
@given(
    st.sets(st.sampled_from(("q_down", "q_up", "kv_down", "kv_up", "proj")), min_size=1)
)
def test_the_same_of_pytorchs_own_modules(targets: set[str]) -> None:
    """As many trained parameters as in Megatron's layers; "qkv" stands for all but the output's."""
    counted = []
    for framework in ("megatron", "pytorch-eager"):
        chosen = {**ALL, "targets": sorted(targets)}
        done = executed(scenario(chosen, LATENT, framework=framework))
        each = 4 if framework == "megatron" else 2  # bytes of a gradient
        sizes = done.lowered.memory.values()
        counted.append(sum(m.at_peak["gradients"] for m in sizes) / each)
    assert counted[0] == counted[1]


@pytest.mark.parametrize("model", [BASE, EXPERTS, LATENT, SCANS, FURTHER])
def test_every_projection_can_have_an_adapter(model: dict[str, Any]) -> None:
    """Those named of a model train something, each; the others are refused alone."""
    spec = load_model(scenario({}, model).model, "test")
    here = projections_of(spec)
    for target in TARGETS:
        one = scenario({**ALL, "targets": [target]}, model)
        if target in here:
            assert trained(executed(one)) > 0
        else:
            with pytest.raises(InputError, match=r"adapter\.targets"):
                step_time(one)
