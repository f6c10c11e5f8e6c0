"""Compressed attention, residual streams and hashed experts of DeepSeek-V4 in Megatron's layers: laws and refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.formats.model_flops import layer_flops
from prestep.sim.analysis.prediction import Prediction
from prestep.sim.costs.kinds import work
from prestep.sim.errors import InputError
from prestep.sim.graph.kernel import Kernel
from prestep.sim.graph.opgraph import KERNEL
from prestep.sim.predict import predict
from prestep.sim.rl import pools as rl_pools
from prestep.sim.serving.pools import pools_of
from prestep.sim.spec.load import parse_scenario
from prestep.workloads.arguments.megatron import given_in, translated
from prestep.workloads.host_costs import host_costs
from prestep.workloads.lowered import Place
from prestep.workloads.megatron.shard import spread_of
from prestep.workloads.megatron.sparse_attention import BLOCK
from prestep.workloads.megatron.units import Unit, Units
from prestep.workloads.models import compressed
from prestep.workloads.models.counts import (
    parameters_at,
    prediction_parameters,
    total_parameters,
)
from prestep.workloads.models.model import ModelSpec, load_model
from prestep.workloads.parallel.folding import Grid
from prestep.workloads.parallel.groups import Groups
from prestep.workloads.torch.recorder import Shared
from prestep.workloads.torch.tape import Tape
from tests.sample import together

SEQ = 4096
SMALL: dict[str, Any] = {
    "kind": "transformer",
    "hidden": 1024,
    "layers": 4,
    "heads": 16,
    "kv_heads": 1,
    "head_dim": 512,
    "ffn": 512,
    "vocab": 4096,
    "q_lora_rank": 256,
    "compress_ratios": [0, 4, 128, 4],
    "o_groups": 4,
    "o_lora_rank": 256,
    "index_topk": 256,
    "streams": 4,
    "experts": 8,
    "experts_per_token": 2,
    "shared_experts": 1,
    "mtp_layers": 1,
}
#: Another model by leaving out what only experts have.
DENSE = {k: v for k, v in SMALL.items() if "experts" not in k}


def tables(
    model: dict[str, Any],
    training: dict[str, Any] | None = None,
    megatron: dict[str, Any] | None = None,
    **parallel: Any,
) -> dict[str, Any]:
    """A scenario on hosts so fast that what the GPUs do decides."""
    gpus = parallel.get("dp", 1) * parallel.get("pp", 1) * parallel.get("tp", 1)
    gpus *= parallel.get("cp", 1)
    return {
        "cluster": {"name": "dgx-h100", "gpus": gpus, "host_factor": 0.01},
        "model": model,
        "training": {"framework": "megatron", "seq_len": SEQ, **(training or {})},
        "parallel": parallel,
        "megatron": {"use_fused_mhc": True, **(megatron or {})},
    }


def run(model: dict[str, Any], **more: Any) -> Prediction:
    return predict(parse_scenario(tables(model, **more), "test"))


def refused(said: dict[str, Any]) -> str:
    with pytest.raises(InputError) as caught:
        predict(parse_scenario(said, "test"))
    return str(caught.value)


def spec(**keys: Any) -> ModelSpec:
    s = parse_scenario(tables(SMALL | keys), "test")
    return load_model(s.model)


def units(model: dict[str, Any] = SMALL, **megatron: Any) -> Units:
    s = parse_scenario(tables(model, megatron=megatron), "test")
    groups = Groups(Grid(1, 1, 1, cp=1, ep=1, etp=1), Place(8, False))
    m, costs = load_model(s.model), host_costs("megatron")
    spread = spread_of(groups, s, m) if m.experts else None
    tp = groups.of("tp", 0)
    return Units(s, m, tp, None, lambda: Tape(0, Shared(), costs), spread)


def kernels(graph: Any) -> list[Kernel]:
    program = graph.programs[0]
    return [graph.kernels[k] for k in program.payload[program.kind == KERNEL]]


#: Kernels of products.
PRODUCTS = ("aten mm", "aten _grouped_mm", "aten bmm", "sparse_attention_fwd")


def forward_flops(unit: Unit, kinds: tuple[str, ...] = PRODUCTS) -> float:
    return sum(work(k)[0] for k in kernels(unit.forward.uncut) if k.kind in kinds)


@together("layer", range(5))
@together("streams", [1, 2, 4])
def test_a_unit_has_the_parameters_of_its_layer(layer: int, streams: int) -> None:
    """Of every ratio, and of multi-token prediction."""
    m, made = spec(streams=streams), units(SMALL | {"streams": streams})
    further = layer == m.layers
    unit = made.further() if further else made.layer(layer)
    expected = prediction_parameters(m) if further else parameters_at(m, layer)
    assert sum(unit.parameters.values()) == expected


@pytest.mark.parametrize("name", ["deepseek-v4-flash", "deepseek-v4-pro"])
def test_ranks_hold_the_models_parameters(name: str) -> None:
    model = {"name": name, "layers": 4, "mtp_layers": 1, "experts": 16}
    ratios = {"compress_ratios": [0, 4, 128, 4], "streams": 4}
    result = run(model | ratios, dp=2, ep=2, data_parallel="zero1")
    s = parse_scenario(tables(model | ratios), "test")
    assert result.scenario["parameters"] == total_parameters(load_model(s.model))


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 3), st.sampled_from([64, 128, 512]), st.sampled_from([64, 512]))
def test_products_are_those_of_the_formula(layer: int, window: int, topk: int) -> None:
    """With one stream; lists of keys that have no lengths are read to their end, in whole blocks."""
    changes = {"streams": 1, "window": window, "index_topk": topk}
    m, unit = spec(**changes), units(SMALL | changes).layer(layer)
    ratio, expected = m.ratio_of(layer), layer_flops(m, layer, SEQ)
    if ratio == compressed.INDEXED:
        # The kernel that scores is apart: it also says what should have been chosen.
        expected -= m.index_heads * m.index_head_dim * SEQ / ratio
    else:
        listed = -(-(m.window + (SEQ // ratio if ratio else 0)) // BLOCK) * BLOCK
        more = listed - compressed.keys(m, ratio, SEQ)
        expected += 4.0 * m.heads * m.head_dim * more
    assert forward_flops(unit) / SEQ == pytest.approx(expected, rel=0.002)


def test_keys_are_those_of_their_lists() -> None:
    """The mean over a sequence, counted query by query."""
    m = spec()
    for ratio in compressed.RATIOS:
        seen = 0
        for query in range(1, SEQ + 1):
            seen += min(m.window, query)
            before = query // ratio if ratio else 0
            seen += min(before, m.index_topk) if ratio == 4 else before
        assert compressed.keys(m, ratio, SEQ) == pytest.approx(seen / SEQ, rel=0.02)


@pytest.mark.parametrize("key", ["index_topk", "index_heads", "window", "streams"])
def test_more_is_never_cheaper(key: str) -> None:
    sizes = {
        "index_topk": (128, 256, 512),
        "index_heads": (16, 32, 64),
        "window": (128, 256, 512),
        "streams": (1, 2, 4),
    }[key]
    times = [run(DENSE | {key: size}).step_time for size in sizes]
    assert times == sorted(times) and times[0] < times[-1]


def test_long_sequences_cost_little_more_a_token() -> None:
    """Attention over all keys would take 16 times as long a token; chosen ones take as long, and few others come."""
    model = DENSE | {"compress_ratios": [0, 4, 128, 0], "streams": 1}
    short, long = (
        run(model, training={"seq_len": seq}).step_time / seq for seq in (4096, 65536)
    )
    assert long < 2 * short


def test_streams_are_kept_and_travel() -> None:
    """Each stream is kept for backward before both parts of a layer, and goes from layer to layer and stage to stage."""
    size = SEQ * DENSE["hidden"] * 2
    one, four = (units(DENSE | {"streams": n}).layer(0).stash for n in (1, 4))
    assert four - one > 2 * 3 * size
    inner = [units(DENSE | {"streams": n}).inner for n in (1, 4)]
    assert inner[1][-1] == 4 * inner[0][-1]


def test_a_stream_alone_is_a_residual() -> None:
    """One stream has no connection."""
    names = set(units(SMALL | {"streams": 1}).layer(0).parameters)
    assert not {name for name in names if "mhc" in name or "mapping" in name}


def test_gradients_of_consumers_are_added_by_one_kernel() -> None:
    """Each of both connections reads three gradients and writes their sum."""
    unit = units(DENSE).layer(0)
    whole = (SEQ * DENSE["hidden"] * DENSE["streams"],)
    over = [k for k in kernels(unit.backward.uncut) if k.shape == whole]
    assert [k.bytes for k in over].count(4 * 2 * whole[0]) == 2
    assert not [k for k in over if k.kind == "aten add"]


def test_fused_connections_move_less() -> None:
    moved = {
        fused: sum(
            work(k)[1]
            for which in ("forward", "backward")
            for k in kernels(
                getattr(units(DENSE, use_fused_mhc=fused).layer(0), which).uncut
            )
        )
        for fused in (True, False)
    }
    assert moved[True] < moved[False]


def test_training_an_indexer_costs_its_gradients() -> None:
    """Products of its weights, which backward otherwise has none of; layers without one are as they were."""
    trained, idle = units(DENSE, dsa_indexer_loss_coeff=0.01), units(DENSE)

    def gradients(made: Units, layer: int) -> int:
        back = kernels(made.layer(layer).backward.uncut)
        return sum(k.is_product for k in back)

    # Queries' projection, both of the compressor, the weights of heads: none wants its input's gradient.
    assert gradients(trained, 1) == gradients(idle, 1) + 4
    for layer in (0, 2):
        assert gradients(trained, layer) == gradients(idle, layer)


def test_what_is_made_again_is_not_kept() -> None:
    plain = units(DENSE).layer(2)
    again = units(DENSE, recompute_modules=["mla_up_proj"]).layer(2)
    queries = SEQ * DENSE["heads"] * DENSE["head_dim"] * 2
    # Queries before and after their norm.
    assert again.stash <= plain.stash - 2 * queries
    assert forward_flops(again) == forward_flops(plain)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("parallel.tp", {"tp": 2, "sequence_parallel": True}, "all heads"),
    ("parallel.cp", {"cp": 2}, "packed documents"),
    ("training.packed", {"training": {"packed": 512}}, "not simulated"),
    ("training.recompute", {"training": {"recompute": "selective"}}, "its core"),
    ("megatron.attention", {"megatron": {"attention": "unfused"}}, "sparse kernels"),
    (
        "megatron.recompute_modules",
        {"megatron": {"recompute_modules": ["core_attn"]}},
        "its core",
    ),
]


@pytest.mark.parametrize(
    ("key", "changes", "why"), REFUSED, ids=[r[0] for r in REFUSED]
)
def test_what_megatron_refuses(key: str, changes: dict[str, Any], why: str) -> None:
    told = refused(tables(DENSE, **changes))
    assert key in told and why in told


def test_hashed_experts_are_on_the_first_stage() -> None:
    model = SMALL | {"hash_layers": 3, "mtp_layers": 0}
    assert "model.hash_layers" in refused(
        tables(model, pp=2, training={"microbatches": 2})
    )
    assert (
        run(model | {"hash_layers": 2}, pp=2, training={"microbatches": 2}).step_time
        > 0
    )
    beside = {"overlap_moe_expert_parallel_comm": True}
    told = refused(tables(model, dp=2, ep=2, megatron=beside))
    assert "moe_n_hash_layers" in told


@pytest.mark.parametrize(
    "framework",
    ["pytorch-eager", "pytorch-compiled", "automodel", "deepspeed", "deepspeed-eager"],
)
def test_other_frameworks_say_who_has_such_layers(framework: str) -> None:
    said = tables(DENSE, training={"framework": framework})
    said["megatron"] = {}
    told = refused(said)
    assert "model.compress_ratios" in told and '"megatron"' in told


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"compress_ratios": [0, 4, 8, 4]}, "model.compress_ratios"),
    ({"compress_ratios": [0, 4]}, "model.compress_ratios"),
    ({"q_lora_rank": None}, "model.q_lora_rank"),
    ({"kv_heads": 2}, "model.kv_heads"),
    ({"o_groups": 3}, "model.heads"),
    ({"kv_lora_rank": 64}, "model.kv_lora_rank"),
    ({"compress_ratios": None, "q_lora_rank": None}, "model.o_groups"),
    ({"hash_layers": 9}, "model.hash_layers"),
]


@together(("changes", "key"), WRONG)
def test_keys_that_do_not_fit(changes: dict[str, Any], key: str) -> None:
    model = {k: v for k, v in (SMALL | changes).items() if v is not None}
    assert key in refused(tables(model))


def test_layers_that_run_again_are_slower_and_keep_less() -> None:
    plain, again = run(DENSE), run(DENSE, training={"recompute": "full"})
    assert again.step_time > plain.step_time
    most = [max(m.activations for m in r.peak_memory.values()) for r in (plain, again)]
    assert most[1] < most[0]


FLASH: dict[str, Any] = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "model_type": "deepseek_v4",
    "vocab_size": 129280,
    "hidden_size": 4096,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 43,
    "num_hash_layers": 3,
    "num_attention_heads": 64,
    "num_key_value_heads": 1,
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "q_lora_rank": 1024,
    "o_lora_rank": 1024,
    "o_groups": 8,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 6,
    "num_nextn_predict_layers": 1,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "swiglu_limit": 10.0,
    "sliding_window": 128,
    "compress_ratios": [0, 0, 4, *[128, 4] * 20, 0],
    "compress_rope_theta": 160000,
    "index_n_heads": 64,
    "index_head_dim": 128,
    "index_topk": 512,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "tie_word_embeddings": False,
}


def read(tmp_path: Path, config: dict[str, Any]) -> ModelSpec:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    return load_model(parse_scenario(tables({"file": str(path)}), "test").model)


def test_a_config_is_the_named_model(tmp_path: Path) -> None:
    """Its further layer is read as well, whose ratio is 0."""
    said = read(tmp_path, FLASH)
    m = load_model(
        parse_scenario(
            tables({"name": "deepseek-v4-flash", "mtp_layers": 1}), "test"
        ).model
    )
    assert total_parameters(said) == total_parameters(m)
    assert [said.ratio_of(i) for i in range(44)] == [m.ratio_of(i) for i in range(44)]
    for key in ("hash_layers", "streams", "index_topk", "window", "clamped"):
        assert getattr(said, key) == getattr(m, key)


def test_layers_may_be_named_by_their_kind(tmp_path: Path) -> None:
    """As transformers writes them."""
    kinds = {0: "sliding_attention", 4: "compressed_sparse_attention"}
    kinds[128] = "heavily_compressed_attention"
    ratios = FLASH["compress_ratios"][:43]
    native = {k: v for k, v in FLASH.items() if k != "compress_ratios"}
    native |= {"layer_types": [kinds[r] for r in ratios]}
    native["mlp_layer_types"] = ["hash_moe"] * 3 + ["moe"] * 40
    del native["num_hash_layers"]
    said = read(tmp_path, native)
    assert list(said.compress_ratios) == ratios and said.hash_layers == 3


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"engram_layer_ids": [1]}, "engram_layer_ids"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"compress_ratios": [2] * 43}, "compress_ratios"),
        ({"hidden_size": None}, "hidden_size"),
    ],
    ids=str,
)
def test_what_a_config_says_and_nobody_reads_is_named(
    tmp_path: Path, changes: dict[str, Any], key: str
) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, FLASH | changes)
    assert key in str(caught.value)


ARGUMENTS = """torchrun pretrain_gpt.py --num-layers 43 --hidden-size 4096 --num-attention-heads 64
--kv-channels 512 --swiglu --disable-bias-linear --normalization RMSNorm --vocab-size 129280
--untie-embeddings-and-output-weights --position-embedding-type rope --multi-latent-attention
--q-lora-rank 1024 --qk-pos-emb-head-dim 64 --v-head-dim 512 --qk-layernorm --o-groups 8 --o-lora-rank 1024
--experimental-attention-variant dsv4_hybrid --csa-window-size 128
--csa-compress-ratios ([0,0,4]+[128,4]*20+[0]) --csa-compress-rotary-base 40000
--dsa-indexer-n-heads 64 --dsa-indexer-head-dim 128 --dsa-indexer-topk 512
--dsa-indexer-loss-coeff 1e-2 --dsa-indexer-use-sparse-loss --num-experts 256 --moe-n-hash-layers 3
--moe-ffn-hidden-size 2048 --moe-shared-expert-intermediate-size 2048 --moe-router-topk 6
--moe-router-enable-expert-bias --activation-func-clamp-value 10.0 --enable-hyper-connections
--num-residual-streams 4 --mhc-sinkhorn-iterations 20 --use-fused-mhc --mtp-num-layers 1
--seq-length 4096 --micro-batch-size 1 --bf16
""".replace("\n", " ")


def test_arguments_of_megatron_are_the_named_model(tmp_path: Path) -> None:
    """Those of its example (moe_recipes/deepseek_v4_flash)."""
    path = tmp_path / "flash.txt"
    path.write_text(ARGUMENTS)
    said = load_model(parse_scenario(tables({"file": str(path)}), "test").model)
    named = {"name": "deepseek-v4-flash", "mtp_layers": 1}
    m = load_model(parse_scenario(tables(named), "test").model)
    assert total_parameters(said) == total_parameters(m)
    assert [said.ratio_of(i) for i in range(44)] == [m.ratio_of(i) for i in range(44)]
    made = translated(given_in(ARGUMENTS, str(path)), str(path)).sections["megatron"]
    assert made["use_fused_mhc"] and made["dsa_indexer_loss_coeff"] == 0.01


@pytest.mark.parametrize(
    ("said", "instead", "told"),
    [
        ("dsv4_hybrid", "gated_delta_net", "dsv4_hybrid"),
        ("--dsa-indexer-use-sparse-loss", "", "all keys"),
        ("([0,0,4]+[128,4]*20+[0])", "none", "csa-compress-ratios"),
    ],
)
def test_arguments_that_are_not_simulated(said: str, instead: str, told: str) -> None:
    made = translated(given_in(ARGUMENTS.replace(said, instead), "a.sh"), "a.sh")
    assert told in " ".join(map(str, made.mistakes))


def test_nobody_generates_from_compressed_keys() -> None:
    """Neither a server nor the rollouts of reinforcement learning."""
    said = tables(DENSE, dp=8)
    with pytest.raises(InputError, match="compressed keys"):
        rl_pools.pools_of(parse_scenario(said | {"rl": {"prompts": 8}}, "test"))
    served = {key: said[key] for key in ("cluster", "model")}
    served["inference"] = {"prefill_gpus": 4, "decode_gpus": 4, "prompt": 128}
    with pytest.raises(InputError, match="compressed keys"):
        pools_of(parse_scenario(served, "test"))
