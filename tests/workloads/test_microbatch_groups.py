"""Interleaved stages whose groups of microbatches are wider than the pipeline (microbatch_group_size_per_vp_stage)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prestep.sim.analysis.prediction import Prediction
from prestep.sim.errors import InputError
from prestep.sim.predict import predict
from prestep.sim.spec.load import parse_scenario
from prestep.workloads.schedules.interleaved import actions, grouped

MODEL = {
    "kind": "transformer",
    "hidden": 1024,
    "layers": 8,
    "heads": 8,
    "ffn": 4096,
    "vocab": 8192,
}


@given(
    ranks=st.integers(2, 4),
    chunks=st.integers(1, 3),
    more=st.integers(0, 5),
    microbatches=st.integers(8, 16),
)
def test_every_microbatch_passes_every_stage_once(
    ranks: int, chunks: int, more: int, microbatches: int
) -> None:
    """Whatever the width, each rank runs all its stages on all microbatches, forward before backward."""
    width = min(ranks + more, microbatches)
    for rank in range(ranks):
        order = grouped(rank, ranks, microbatches, chunks, width)
        places = {
            (one.kind, one.stage, one.microbatch): at for at, one in enumerate(order)
        }
        stages = range(rank, ranks * chunks, ranks)
        wanted = {(k, s, m) for k in "FB" for s in stages for m in range(microbatches)}
        assert len(order) == len(places) and places.keys() == wanted
        assert all(places["F", s, m] < places["B", s, m] for _, s, m in wanted)


def test_a_group_as_wide_as_the_pipeline_changes_nothing() -> None:
    """Megatron's default is the number of ranks."""
    for rank in range(4):
        assert grouped(rank, 4, 16, 2, 4) == actions(rank, 4, 16, 2)


def test_warm_up_by_hand() -> None:
    """Rank r of p warms up 2 (p - r - 1) + (v - 1) g forwards, and one more begins the steady part."""
    kinds = "".join(one.kind for one in grouped(1, 2, 8, 2, 4))
    assert kinds.index("B") == 2 * (2 - 1 - 1) + (2 - 1) * 4 + 1


def job(**megatron: Any) -> dict[str, Any]:
    """Two ranks of two stages each, eight microbatches."""
    return {
        "cluster": {"name": "h200-host-4", "gpus": 2},
        "model": MODEL,
        "training": {
            "framework": "megatron",
            "seq_len": 512,
            "micro_batch": 1,
            "microbatches": 8,
        },
        "parallel": {"pp": 2, "vpp": 2, "schedule": "interleaved"},
        "megatron": megatron,
    }


def held(made: Prediction) -> float:
    """Bytes of activations on the rank with most."""
    return max(one.activations for one in made.peak_memory.values())


def test_a_wider_group_holds_more() -> None:
    """The default as a number is the default; a wider one warms up longer, so that more activations wait."""
    key = "microbatch_group_size_per_vp_stage"
    usual, same, wider = (
        predict(parse_scenario(job(**keys), "test"))
        for keys in ({}, {key: 2}, {key: 4})
    )
    assert same.step_time == usual.step_time
    assert held(wider) > held(usual)


@pytest.mark.parametrize(
    ("width", "said"), [(1, "from parallel.pp = 2"), (9, "to 8"), (7, "leaves 1")]
)
def test_groups_that_megatron_refuses(width: int, said: str) -> None:
    """A group, and what is left of the last one, keeps every rank busy."""
    with pytest.raises(InputError, match=said):
        parse_scenario(job(microbatch_group_size_per_vp_stage=width), "test")
