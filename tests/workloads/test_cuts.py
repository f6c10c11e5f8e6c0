"""Layers of a Megatron pipeline's stages."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from prestep.sim.spec.load import Scenario, parse_scenario
from prestep.sim.spec.rules.layout import check_layout
from prestep.workloads.megatron.schedule import layers_by_stage
from prestep.workloads.models.model import load_model


def pipeline(
    layers: int,
    stages: int,
    embedding: bool,
    loss: bool,
    uneven: bool = False,
    chunks: int = 1,
) -> Scenario:
    table = {
        "model": {
            "kind": "transformer",
            "layers": layers,
            "hidden": 64,
            "heads": 4,
            "ffn": 256,
            "vocab": 512,
        },
        "training": {
            "seq_len": 16,
            "micro_batch": 1,
            "global_batch": stages,
            "framework": "megatron",
        },
        "parallel": {
            "pp": stages,
            "uneven_stages": uneven,
            "vpp": chunks,
            "schedule": "interleaved" if chunks > 1 else "1f1b",
        },
        "megatron": {"account_for_embedding": embedding, "account_for_loss": loss},
        "cluster": {"name": "jean-zay-a100"},
    }
    return parse_scenario(table, "test")


def counts(layers: int, stages: int, embedding: bool, loss: bool) -> list[int]:
    cuts = layers_by_stage(
        pipeline(layers, stages, embedding, loss, uneven=True), layers, stages
    )
    assert [i for cut in cuts for i in cut] == list(range(layers))
    return [len(cut) for cut in cuts]


def test_bloom() -> None:
    """BLOOM's 70 layers on 12 stages: 5 beside the embedding, 5 beside the head, 6 elsewhere."""
    assert counts(70, 12, True, True) == [5] + 10 * [6] + [5]


@given(st.integers(2, 8), st.integers(1, 6), st.booleans(), st.booleans())
def test_every_layer_is_in_one_stage(
    stages: int, each: int, embedding: bool, loss: bool
) -> None:
    """Stages hold all layers in order; what counts as a layer takes the place of one."""
    made = counts(stages * (each + 1) - embedding - loss, stages, embedding, loss)
    assert made[0] == each + 1 - embedding and made[-1] == each + 1 - loss


@given(
    st.integers(1, 30),
    st.sampled_from([2, 3, 4]),
    st.sampled_from([1, 2]),
    st.booleans(),
    st.booleans(),
)
def test_layers_fit_where_they_divide_with_what_counts_as_one(
    layers: int, ranks: int, chunks: int, embedding: bool, loss: bool
) -> None:
    """Layers with embedding and loss, where they count, divide by the stages: then, and only then, a cut is taken."""
    stages, counted = ranks * chunks, layers + embedding + loss
    s = pipeline(layers, ranks, embedding, loss, chunks=chunks)
    mistakes = check_layout(s, model=load_model(s.model))
    assert (not mistakes) == (counted % stages == 0)
    if not mistakes:
        sizes = [len(cut) for cut in layers_by_stage(s, layers, stages)]
        assert sum(sizes) == layers
        assert [
            n + (i == 0) * embedding + (i == stages - 1) * loss
            for i, n in enumerate(sizes)
        ] == [counted // stages] * stages


def test_llama3_405b_in_64_stages() -> None:
    """126 layers, embedding and loss: 128 by 64."""
    s = pipeline(126, 16, True, True, chunks=4)
    assert not check_layout(s, model=load_model(s.model))
    assert [len(cut) for cut in layers_by_stage(s, 126, 64)] == [1, *[2] * 62, 1]
