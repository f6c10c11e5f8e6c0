"""Hybrids: counts of published models, laws of their layers, what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prestep.sim.analysis.prediction import Prediction
from prestep.sim.errors import InputError
from prestep.sim.graph.opgraph import Chain
from prestep.sim.predict import predict
from prestep.sim.spec.load import parse_scenario
from prestep.workloads.job.model import Model
from prestep.workloads.models import hybrid
from prestep.workloads.models.counts import active_parameters, total_parameters
from prestep.workloads.models.model import ModelSpec, load_model
from tests.executed import executed
from tests.sample import together

SMALL: dict[str, Any] = {
    "kind": "transformer",
    "hidden": 1024,
    "heads": 8,
    "ffn": 4096,
    "vocab": 4096,
}
MAMBA = {"layer_pattern": "M-M*-M-", "mamba_heads": 32, "mamba_groups": 8}
LINEAR = {"linear_key_heads": 8, "linear_value_heads": 16}
DELTA = {"layer_pattern": "G-*-G-*-"} | LINEAR
KIMI = {"layer_pattern": "K-*-K-*-"} | LINEAR
ARGUMENTS = """torchrun pretrain_mamba.py --num-layers 52 --hidden-size 4096
--num-attention-heads 32 --group-query-attention --num-query-groups 8 --kv-channels 128
--ffn-hidden-size 21504 --vocab-size 131072 --squared-relu --disable-bias-linear
--hybrid-override-pattern M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-
--is-hybrid-model --mamba-num-heads 128 --mamba-head-dim 64 --mamba-state-dim 128
--mamba-num-groups 8 --normalization RMSNorm --position-embedding-type none
--untie-embeddings-and-output-weights --seq-length 8192 --micro-batch-size 1
--bf16
""".replace("\n", " ")
#: Parameters in billions as their makers print them, of the model and those that a token meets, and their last digit's
#: share: Kimi Linear's are those of its name, and 0.4 of its embeddings.
PUBLISHED = {
    "nemotron-h-8b": (8.10, 8.10, 0.01),
    "nemotron-h-56b": (56.3, 56.3, 0.01),
    "nemotron-3-nano-30b-a3b": (31.6, 3.58, 0.01),
    "nemotron-3-super-120b-a12b": (120.6, 12.7, 0.01),
    "qwen3-next-80b-a3b": (79.7, 3.87, 0.01),
    "kimi-linear-48b-a3b": (48, 3.5, 0.03),
}


def run(
    model: dict[str, Any],
    tp: int = 1,
    dp: int = 1,
    cluster: str = "dgx-h100",
    **more: Any,
) -> Prediction:
    """A step on hosts so fast that what the GPUs do decides."""
    tables = {
        "megatron": more.pop("megatron", {}),
        "cluster": {
            "name": cluster,
            "gpus": tp * dp * more.get("cp", 1),
            "host_factor": 0.01,
        },
        "model": SMALL | model,
        "training": {"framework": "megatron", "seq_len": 2048}
        | more.pop("training", {}),
        "parallel": {"tp": tp, "dp": dp, "sequence_parallel": tp > 1} | more,
    }
    return predict(parse_scenario(tables, "test"))


def spec(**keys: Any) -> ModelSpec:
    return load_model(Model(**(SMALL | keys)))


@pytest.mark.parametrize("name", PUBLISHED)
def test_counts_are_the_published_ones(name: str) -> None:
    model = load_model(Model(name=name))
    total, active, share = PUBLISHED[name]
    assert total_parameters(model) == pytest.approx(total * 1e9, rel=min(share, 0.03))
    assert active_parameters(model) == pytest.approx(active * 1e9, rel=share)


def test_a_pattern_of_attention_and_feed_forward_is_a_transformer() -> None:
    # On a GPU without a power budget, which pauses between parts would fill.
    whole = run({"layers": 3}, cluster="dgx-a100")
    parts = run({"layer_pattern": "*-*-*-"}, cluster="dgx-a100")
    # Each part begins with a launch, and nobody adds its gradient to the residual's.
    assert parts.step_time == pytest.approx(whole.step_time, rel=0.002)
    both = spec(layers=3), spec(layer_pattern="*-*-*-")
    assert total_parameters(both[0]) == total_parameters(both[1])


@pytest.mark.parametrize("model", [MAMBA, DELTA, KIMI, {"layer_pattern": "*-*-"}])
def test_gradients_of_every_kind_of_layer_travel_beside_the_backward_pass(
    model: dict[str, Any],
) -> None:
    """A bucket may be full within a layer, of which a scan marks no place; nothing is later than behind the pass."""
    behind, beside = (
        run(
            model,
            dp=2,
            data_parallel="zero1",
            megatron={"overlap_grad_reduce": overlap, "bucket_size": 1_000_000},
        )
        for overlap in (False, True)
    )
    assert beside.step_time <= behind.step_time


@pytest.mark.parametrize("key", ["mamba_state", "mamba_heads", "mamba_groups"])
def test_more_state_is_never_cheaper(key: str) -> None:
    sizes = {
        "mamba_state": (64, 128, 256),
        "mamba_heads": (16, 32, 64),
        "mamba_groups": (2, 4, 8),
    }[key]
    times = [run(MAMBA | {key: size}).step_time for size in sizes]
    assert times == sorted(times)


@pytest.mark.parametrize(
    "model",
    [MAMBA, LINEAR | {"layer_pattern": "G-G*-"}, LINEAR | {"layer_pattern": "K-K*-"}],
    ids=["mamba", "delta", "kimi"],
)
def test_tensor_parallelism_splits_what_a_rank_holds_and_does(
    model: dict[str, Any],
) -> None:
    alone, split = run(model), run(model, tp=4)
    assert split.breakdown["compute"] < alone.breakdown["compute"]
    assert split.breakdown["compute"] > alone.breakdown["compute"] / 5


def test_scans_with_states_by_the_element_take_longer() -> None:
    times = [
        run(LINEAR | {"layer_pattern": pattern}).step_time
        for pattern in ("GGGG", "KKKK")
    ]
    assert times[0] < times[1]


def test_further_predictions_stand_behind_a_hybrid() -> None:
    plain, further = run(MAMBA), run(MAMBA | {"mtp_layers": 1})
    assert further.step_time > plain.step_time


def test_an_expert_of_narrower_tokens_is_smaller() -> None:
    keys = {"layer_pattern": "*E*E", "experts": 8, "moe_ffn": 1024}
    wide, narrow = spec(**keys), spec(**keys, moe_latent=256)
    saved = 2 * 8 * 2 * 1024 * (1024 - 256) * 3 // 2 - 2 * 2 * 1024 * 256
    assert total_parameters(wide) - total_parameters(narrow) == saved


@together(
    ("keys", "found"),
    [
        ({"layer_pattern": "M-X"}, "layer_pattern"),
        ({"layer_pattern": "M-M-", "layers": 3, "mamba_heads": 32}, "layers"),
        ({"layer_pattern": "M-"}, "mamba_heads"),
        ({"layer_pattern": "G-"}, "linear_key_heads"),
        ({"layer_pattern": "*-", "mamba_heads": 32}, "mamba_heads"),
        ({"layer_pattern": "M-", "mamba_heads": 30, "mamba_groups": 8}, "mamba_heads"),
        ({"layer_pattern": "*E"}, "experts"),
        ({"layer_pattern": "G-", "linear_value_heads": 4}, "linear_key_heads"),
        ({"layer_pattern": "K-"}, "linear_key_heads"),
        ({"layers": 2, "mamba_state": 64}, "mamba_state"),
    ],
)
def test_a_pattern_that_does_not_fit_is_named(keys: dict[str, Any], found: str) -> None:
    with pytest.raises(InputError, match=f"model.{found}"):
        spec(**keys)


def test_groups_that_ranks_cannot_share_are_refused() -> None:
    with pytest.raises(InputError, match="mamba_groups"):
        run(MAMBA | {"mamba_groups": 2}, tp=4)


@pytest.mark.parametrize("groups", [8, 2, 1])
@pytest.mark.parametrize("cp", [2, 4])
def test_scans_of_parts_of_a_sequence_take_whole_sequences_of_some_heads(
    groups: int, cp: int
) -> None:
    """By hand: z, x, B, C and steps of a Mamba layer there, its result back; groups fewer than ranks are repeated."""
    model = SMALL | MAMBA | {"mamba_groups": groups, "layer_pattern": "M" * 4}
    tokens = 2048 // cp
    tables = {
        "cluster": {"name": "dgx-h100", "gpus": cp},
        "model": model,
        "training": {"framework": "megatron", "seq_len": 2048},
        "parallel": {"tp": 1, "cp": cp},
    }
    done = executed(parse_scenario(tables, "test"))
    layer = max(
        (
            chain
            for chain in done.lowered.graph.kernels
            if isinstance(chain, Chain) and chain.name == "layer forward"
        ),
        key=lambda chain: len(chain.graph.comms),
    )
    spec = done.model
    width = spec.mamba_heads * spec.mamba_head_dim
    keys = max(groups, cp) * spec.mamba_state
    sent = [width, width, keys, keys, spec.mamba_heads, width]
    moved = [comm.size for comm in layer.graph.comms if comm.axis == "cp"]
    there = [2.0 * tokens * count for count in sent]
    # A forward pass, or a backward pass behind it: the result's gradient there, the others' back.
    assert moved in (there, [*there, there[-1], *there[:-1]])
    shapes = {k.shape for k in layer.graph.kernels if k.kind == "mamba2_fwd"}
    whole = (1, 2048, max(1, groups // cp), spec.mamba_state)
    assert {shape[:4] for shape in shapes} == {whole}


@pytest.mark.parametrize("model", ["mamba", "delta"])
def test_more_ranks_for_a_sequence_are_faster(model: str) -> None:
    """Never by more than there are of them."""
    keys = MAMBA if model == "mamba" else DELTA
    one, two = (run(keys, cp=cp, training={"seq_len": 8192}) for cp in (1, 2))
    assert one.step_time / 2 < two.step_time < one.step_time


def test_scans_that_parts_of_a_sequence_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match="mamba_heads"):
        run(MAMBA | {"mamba_groups": 3, "mamba_heads": 24}, cp=2)
    with pytest.raises(InputError, match=r"parallel\.cp"):
        run(KIMI, cp=2)
    with pytest.raises(InputError, match=r"parallel\.cp"):
        run(DELTA, cp=2, training={"framework": "automodel"})


def test_every_letter_has_a_part() -> None:
    from prestep.workloads.megatron.modules import MIXERS, NAMES, SCOPES

    assert set(NAMES) == set(SCOPES) == set(hybrid.LETTERS)
    assert set(MIXERS) == set(hybrid.MIXERS)


def test_megatrons_arguments_are_the_named_model(tmp_path: Path) -> None:
    path = tmp_path / "pretrain.sh"
    path.write_text(ARGUMENTS, encoding="utf-8")
    read, named = (
        load_model(Model(**of))
        for of in ({"file": str(path)}, {"name": "nemotron-h-8b"})
    )
    assert replace(read, name=named.name) == named
