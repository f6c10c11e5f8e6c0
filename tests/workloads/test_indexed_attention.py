"""Latent attention to keys that an indexer chooses (DeepSeek-V3.2, GLM-5): parameters, laws of its cost, and refusals."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prestep.sim.analysis.prediction import Prediction
from prestep.sim.costs.kinds import work
from prestep.sim.errors import InputError
from prestep.sim.graph.opgraph import Chain, OpGraph
from prestep.sim.predict import predict
from prestep.sim.spec.load import parse_scenario
from prestep.workloads.arguments.megatron import sections_of
from prestep.workloads.job.model import Model
from prestep.workloads.models.counts import (
    active_parameters,
    attention_flops,
    attention_parameters,
    parameters_at,
    prediction_parameters,
    total_parameters,
)
from prestep.workloads.models.model import ModelSpec, load_model
from tests.executed import executed
from tests.workloads.test_compressed_attention import kernels, tables, units

SEQ = 4096
SMALL: dict[str, Any] = {
    "kind": "transformer",
    "hidden": 1024,
    "layers": 4,
    "heads": 64,
    "head_dim": 64,
    "v_head_dim": 64,
    "ffn": 512,
    "vocab": 4096,
    "q_lora_rank": 256,
    "kv_lora_rank": 128,
    "rope_head_dim": 32,
    "index_heads": 16,
    "index_head_dim": 64,
    "index_topk": 512,
}
SHARED = SMALL | {"index_pattern": "FFSS"}


def spec(**keys: Any) -> ModelSpec:
    return load_model(Model(**(SMALL | keys)))


def run(model: dict[str, Any] = SMALL, **more: Any) -> Prediction:
    said = tables(model, **more)
    said["megatron"].pop("use_fused_mhc")
    return predict(parse_scenario(said, "test"))


def refused(model: dict[str, Any] = SMALL, **more: Any) -> str:
    with pytest.raises(InputError) as caught:
        run(model, **more)
    return str(caught.value)


def flops(model: dict[str, Any], kind: str, layer: int = 0, **megatron: Any) -> float:
    """Of the kernels of a kind in a layer's forward pass."""
    unit = units(model, **megatron).layer(layer)
    each = kernels(unit.forward.uncut)
    return sum(work(kernel)[0] for kernel in each if kernel.kind == kind)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        # AutoModel counts no bias of a router (Megatron-Bridge 067f987d, model_verification_cards/glm5-2/card.yaml).
        ("glm-5.2", 743_377_000_704 + 75 * 256),
        # DeepSeek-V3's, and an indexer a layer: queries, keys, weights of heads, a layer norm.
        ("deepseek-v3.2", 671_026_419_200 + 61 * (1536 * 8192 + 7168 * 192 + 256)),
    ],
)
def test_parameters_are_those_of_the_checkpoint(name: str, count: int) -> None:
    assert total_parameters(load_model(Model(name=name))) == count


def test_a_further_layer_has_an_indexer_of_its_own() -> None:
    """Elements of all tensors of GLM-5.2 (the same card)."""
    m = load_model(Model(name="glm-5.2", mtp_layers=1))
    assert total_parameters(m) == 753_329_940_480


def test_sizes_are_as_printed() -> None:
    """GLM-5's model card: 744B parameters, 40B active, which leaves out the embedding."""
    m = load_model(Model(name="glm-5"))
    assert round(total_parameters(m) / 1e9) == 744
    assert (active_parameters(m) - m.vocab * m.hidden) / 1e9 == pytest.approx(40, abs=1)


@pytest.mark.parametrize("layer", range(5))
def test_a_unit_has_the_parameters_of_its_layer(layer: int) -> None:
    m, made = load_model(Model(**SHARED)), units(SHARED | {"mtp_layers": 1})
    further = layer == m.layers
    unit = made.further() if further else made.layer(layer)
    expected = prediction_parameters(m) if further else parameters_at(m, layer)
    assert sum(unit.parameters.values()) == expected


@settings(max_examples=20, deadline=None)
@given(st.sampled_from([512, 2048, 4096]), st.integers(0, 3))
def test_a_choice_of_all_keys_is_dense_attention(seq: int, more: int) -> None:
    """Beyond the sequence's length, keys that may be chosen change nothing; scores of the indexer come on top."""
    none = dict.fromkeys(("index_heads", "index_head_dim", "index_topk"))
    sparse, dense = spec(index_topk=seq * 2**more), spec(**none)
    scores = sparse.layers * 2 * 16 * 64 * seq / 2
    both = attention_flops(dense, seq), attention_flops(sparse, seq) - scores
    assert both[0] == pytest.approx(both[1])


def layers_of(model: dict[str, Any] = SMALL, **more: Any) -> list[OpGraph]:
    """Graphs of the layers' passes of a scenario."""
    said = tables(model, **more)
    said["megatron"].pop("use_fused_mhc")
    kinds = executed(parse_scenario(said, "test")).lowered.graph.kernels
    return [
        kind.graph
        for kind in kinds
        if isinstance(kind, Chain) and "layer" in kind.name and not kind.tail
    ]


def test_the_core_grows_with_tokens_and_scores_with_their_square() -> None:
    """Four times the sequence: all products of attention four times, of the indexer 16 times."""

    def flops(kind: str, seq: int) -> float:
        graphs = layers_of(training={"seq_len": seq})
        each = (kernel for graph in graphs for kernel in graph.kernels)
        return sum(work(k)[0] for k in each if getattr(k, "kind", "") == kind)

    core, scores = (
        flops(kind, 65536) / flops(kind, 16384)
        for kind in ("sparse_attention_fwd", "index_scores")
    )
    assert core == pytest.approx(4, rel=0.02)
    assert scores == pytest.approx(16, rel=0.001)


def test_products_of_the_core_are_those_of_the_formula() -> None:
    """In the compressed state queries and keys are as wide as it and the rotated part, values as it alone."""
    m = spec()
    seen = m.index_topk - m.index_topk**2 / (2 * SEQ)
    expected = 2.0 * SEQ * m.heads * seen * (2 * m.kv_lora_rank + m.rope_head_dim)
    assert flops(SMALL, "sparse_attention_fwd") == pytest.approx(expected, rel=0.002)
    scored = 2.0 * SEQ * m.index_heads * m.index_head_dim * SEQ / 2
    assert flops(SMALL, "index_scores") == pytest.approx(scored, rel=0.001)


def test_layers_that_share_a_choice_score_nothing() -> None:
    assert flops(SHARED, "index_scores", 1) > 0 == flops(SHARED, "index_scores", 2)
    assert flops(SHARED, "sparse_attention_fwd", 1) == flops(
        SHARED, "sparse_attention_fwd", 2
    )
    assert run(SHARED).step_time < run().step_time


def test_a_loss_of_the_indexer_costs_its_gradients() -> None:
    """Three products of its weights, attention's own scores of chosen keys, and their gradients."""
    taught, idle = units(SMALL, dsa_indexer_loss_coeff=0.001), units(SMALL)

    def counts(which: str, made: Any) -> Counter[str]:
        graph = getattr(made.layer(0), which).uncut
        return Counter(k.kind for k in kernels(graph))

    forward = counts("forward", taught) - counts("forward", idle)
    assert forward["index_scores"] == 2 and forward["aten sort"] == 1
    backward = counts("backward", taught) - counts("backward", idle)
    assert sum(n for kind, n in backward.items() if kind.endswith("mm")) == 3


@pytest.mark.parametrize(("axis", "wider"), [("tp", 0), ("cp", 32)])
def test_ranks_gather_the_compressed_state(axis: str, wider: int) -> None:
    """All tokens' keys, and the indexer's of all parts, lie on every rank: bytes of the gathers are their widths'."""
    m, more = spec(), {axis: 2, "sequence_parallel": axis == "tp"}
    widths = [m.kv_lora_rank + wider]
    # Tensor-parallel ranks gather what the indexer's projections take, context-parallel ones its keys.
    widths += [m.hidden, m.q_lora_rank] if axis == "tp" else [m.index_head_dim]
    sizes = {
        comm.size
        for graph in layers_of(**more)
        for comm in graph.comms
        if comm.axis == axis and comm.op == "all_gather"
    }
    assert {2.0 * SEQ * width for width in widths} <= sizes


REFUSED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("q_lora_rank", SMALL | {"q_lora_rank": None}, {}),
    ("index_pattern", SMALL | {"index_pattern": "FF"}, {}),
    ("index_pattern", SMALL | {"index_pattern": "SFFF"}, {}),
    ("window", SMALL | {"window": 128}, {}),
    ("parallel.pp", SHARED, {"pp": 2, "training": {"microbatches": 2}}),
    ("megatron.attention", SMALL, {"megatron": {"attention": "unfused"}}),
    ("training.recompute", SMALL, {"training": {"recompute": "selective"}}),
    ("model.index_topk", SMALL, {"training": {"framework": "automodel"}}),
    ("parallel.cp", SMALL, {"training": {"framework": "pytorch-eager"}, "cp": 2}),
]


@pytest.mark.parametrize(("key", "model", "more"), REFUSED)
def test_what_does_not_fit_is_refused(
    key: str, model: dict[str, Any], more: dict[str, Any]
) -> None:
    given = {k: v for k, v in model.items() if v is not None}
    assert key in refused(given, **more)


CONFIG: dict[str, Any] = {
    "model_type": "glm_moe_dsa",
    "vocab_size": 154880,
    "hidden_size": 6144,
    "intermediate_size": 12288,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 78,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "head_dim": 64,
    "n_shared_experts": 1,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "q_lora_rank": 2048,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 192,
    "v_head_dim": 256,
    "index_n_heads": 32,
    "index_head_dim": 128,
    "index_topk": 2048,
}
KINDS = ["full"] * 3 + (["shared"] * 3 + ["full"]) * 18 + ["shared"] * 3
SCHEDULES: list[dict[str, Any]] = [
    {"index_topk_freq": 4, "index_skip_topk_offset": 3},
    {"indexer_types": KINDS},
    {"index_topk_pattern": "".join(kind[0].upper() for kind in KINDS)},
]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_config_is_the_named_model(tmp_path: Path, schedule: dict[str, Any]) -> None:
    """Whichever way it says which layers share a choice."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG | schedule))
    read, named = (
        load_model(Model(**given))
        for given in ({"file": str(path)}, {"name": "glm-5.2"})
    )
    assert read.index_pattern == named.index_pattern
    assert total_parameters(read) == total_parameters(named)
    assert attention_parameters(read, 3) == attention_parameters(named, 3)


ARGUMENTS = """
--num-layers 8 --hidden-size 1024 --num-attention-heads 64 --ffn-hidden-size 512 --vocab-size 4096 --swiglu
--multi-latent-attention --q-lora-rank 256 --kv-lora-rank 128 --qk-head-dim 64 --qk-pos-emb-head-dim 32 --v-head-dim 64
--experimental-attention-variant dsa --dsa-indexer-n-heads 16 --dsa-indexer-head-dim 64 --dsa-indexer-topk 512
--dsa-indexer-topk-freq 4 --dsa-indexer-skip-topk-offset 3 --dsa-kernel-backend cudnn
--seq-length 4096 --micro-batch-size 1 --global-batch-size 8
"""


def test_megatrons_arguments_say_the_same() -> None:
    """Which layers share a choice; kernels that write all scores out are refused, as is a loss over all keys."""
    model = sections_of(ARGUMENTS, "args")["model"]
    assert model["index_pattern"] == "FFFSSSFS"
    assert [model[key] for key in ("index_heads", "index_topk")] == [16, 512]
    for wrong in ("", "--dsa-kernel-backend cudnn --dsa-indexer-loss-coeff 0.01"):
        changed = ARGUMENTS.replace("--dsa-kernel-backend cudnn", wrong)
        with pytest.raises(InputError, match="dsa-"):
            sections_of(changed, "args")


@pytest.mark.parametrize("packed", [None, 512])
def test_packed_samples_say_what_is_compiled_anew(packed: int | None) -> None:
    said = run(training={"packed": packed} if packed else {})
    assert any("compiled anew" in text for text in said.warnings) is bool(packed)
