"""Natural routing, which makes steps longer and is not simulated, widens their intervals above; adapters wait for the host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from prestep.sim.predict import predict
from prestep.sim.spec.load import load_scenario, parse_scenario

EXPERTS: dict[str, Any] = {
    "cluster": {"name": "dgx-h100", "gpus": 8},
    "model": {
        "kind": "transformer",
        "hidden": 1024,
        "layers": 2,
        "heads": 8,
        "ffn": 4096,
        "vocab": 8192,
        "experts": 8,
        "experts_per_token": 2,
        "moe_ffn": 1024,
    },
    "training": {"framework": "megatron", "seq_len": 1024},
    "parallel": {"dp": 8, "ep": 8, "data_parallel": "zero1"},
}
LORA: dict[str, Any] = {
    "cluster": {"name": "dgx-h100", "gpus": 1},
    "model": {
        "kind": "transformer",
        "hidden": 1024,
        "layers": 2,
        "heads": 8,
        "ffn": 4096,
        "vocab": 8192,
    },
    "training": {"framework": "megatron", "seq_len": 2048},
    "adapter": {"kind": "lora"},
}
SCRIPT = """torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 2 --hidden-size 1024 --num-attention-heads 8 \\
 --seq-length 1024 --position-embedding-type rope --vocab-size 8192 --micro-batch-size 1 --global-batch-size 8 --bf16 \\
 --num-experts 8 --moe-router-topk 2 --moe-ffn-hidden-size 1024 --expert-model-parallel-size 8 \\
 --moe-token-dispatcher-type alltoall --use-distributed-optimizer {more}
"""


def changed(base: dict[str, Any], section: str, **keys: Any) -> dict[str, Any]:
    return {**base, section: {**base.get(section, {}), **keys}}


def test_natural_routing_may_only_take_longer() -> None:
    """The step and the lower end stay; the upper end has 1.5 of it (1.00, 1.12 and 1.56 were published)."""
    plain = predict(parse_scenario(EXPERTS, "plain"))
    natural = predict(
        parse_scenario(changed(EXPERTS, "parallel", natural_routing=True), "natural")
    )
    assert natural.step_time == plain.step_time
    assert plain.uncertainty is not None and natural.uncertainty is not None
    assert natural.uncertainty.low == pytest.approx(plain.uncertainty.low)
    assert natural.uncertainty.high > max(
        1.5 * natural.step_time, plain.uncertainty.high
    )


def test_an_assumed_load_may_be_wrong_either_way() -> None:
    """The step stays; both ends move as far as natural routing does over balanced experts, which is no surer."""
    loads = {"imbalance": "gini 0.7"}
    said, assumed = (
        predict(parse_scenario(changed(EXPERTS, "parallel", **keys), "assumed"))
        for keys in (loads, loads | {"natural_routing": True})
    )
    assert assumed.step_time == said.step_time
    assert assumed.uncertainty is not None and said.uncertainty is not None
    below = said.step_time / assumed.uncertainty.low
    above = assumed.uncertainty.high / said.step_time
    assert min(below, above) > 1.5
    assert assumed.uncertainty.low < said.uncertainty.low
    assert assumed.uncertainty.high > said.uncertainty.high


def test_adapters_at_few_tokens_wait_for_the_host() -> None:
    """Their Python is simulated, so that no interval has to hold it; a published step took 1.90 times its kernels."""
    usual, quick = (
        predict(parse_scenario(changed(LORA, "cluster", host_factor=host), "lora"))
        for host in (1.0, 0.01)
    )
    assert usual.step_time > 1.9 * quick.step_time


@pytest.mark.parametrize(
    ("more", "natural"), [("", True), ("--moe-router-force-load-balancing", False)]
)
def test_a_recipe_says_whether_experts_are_balanced(
    more: str, natural: bool, tmp_path: Path
) -> None:
    """Without a key that forces it the reader is told, and the scenario has it."""
    path = tmp_path / "run.sh"
    path.write_text(SCRIPT.format(more=more))
    scenario = load_scenario(path, ("cluster.name=dgx-h100",))
    assert scenario.parallel.natural_routing is natural
    assert any("natural routing" in note for note in scenario.notes) is natural
    stated = load_scenario(path, ("cluster.name=dgx-h100", "parallel.imbalance=zipf"))
    assert not stated.parallel.natural_routing
