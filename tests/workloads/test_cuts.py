"""Layers of a Megatron pipeline's stages."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sim.spec import parse_scenario
from workloads.megatron.lower import _cuts


def counts(layers: int, stages: int, embedding: bool, loss: bool) -> list[int]:
    table = {
        "model": {"kind": "transformer", "layers": layers, "hidden": 64, "heads": 4, "ffn": 256, "vocab": 512},
        "training": {"seq_len": 16, "micro_batch": 1, "global_batch": stages, "framework": "megatron"},
        "parallel": {"pp": stages, "uneven_stages": True},
        "megatron": {"account_for_embedding": embedding, "account_for_loss": loss},
        "cluster": {"name": "jean-zay-a100"},
    }
    cuts = _cuts(parse_scenario(table, "test"), layers, stages)
    assert [i for cut in cuts for i in cut] == list(range(layers))
    return [len(cut) for cut in cuts]


def test_bloom() -> None:
    """BLOOM's 70 layers on 12 stages: 5 beside the embedding, 5 beside the head, 6 elsewhere."""
    assert counts(70, 12, True, True) == [5] + 10 * [6] + [5]


@given(st.integers(2, 8), st.integers(1, 6), st.booleans(), st.booleans())
def test_every_layer_is_in_one_stage(stages: int, each: int, embedding: bool, loss: bool) -> None:
    """Stages hold all layers in order; what counts as a layer takes the place of one."""
    made = counts(stages * (each + 1) - embedding - loss, stages, embedding, loss)
    assert made[0] == each + 1 - embedding and made[-1] == each + 1 - loss
