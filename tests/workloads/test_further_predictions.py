"""Multi-token prediction in PyTorch's own blocks, eager and compiled."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.formats.model_flops import flops_per_token
from prestep.sim.errors import InputError
from prestep.sim.predict import predict
from prestep.workloads.lowered import Lowered
from prestep.workloads.models.counts import total_parameters
from prestep.workloads.models.model import load_model
from tests.executed import executed
from tests.workloads.small import (
    EXPERTS,
    HIDDEN,
    LAYERS,
    SEQ,
    TRANSFORMER,
    communications,
    ops,
    scenario,
)
from tests.workloads.test_latent_blocks import DEEPSEEK, FRAMEWORKS, SAMPLES, step

BLOCK = 512  # bytes of which memory is given out
MODELS = (TRANSFORMER, EXPERTS, DEEPSEEK)


def ahead(model: dict[str, Any], further: int) -> dict[str, Any]:
    """The model with so many further predictions."""
    return model | ({"mtp_layers": further} if further else {})


def forward_flops(low: Lowered) -> float:
    """Of a rank's kernels in the forward pass."""
    found = [op.kernel for op in ops(low) if op.phase == "forward"]
    return sum((k.flops or 0.0 for k in found if k is not None), 0.0)


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from(FRAMEWORKS),
    st.sampled_from(MODELS),
    st.integers(1, 3),
    st.booleans(),
)
def test_parameters_and_flops_are_those_of_the_formula(
    framework: str, model: dict[str, Any], further: int, sharded: bool
) -> None:
    """A rank counts and computes what the model's figures say, which Megatron's layers have too."""
    said = {"dp": 2, "data_parallel": "fsdp"} if sharded else {}
    model = ahead(model, further)
    low = step(model, framework, **said)
    spec = load_model(scenario(model).model)
    assert low.parameters == total_parameters(spec)
    expected = flops_per_token(spec, SEQ) / 3 * SAMPLES * SEQ
    assert forward_flops(low) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_rank_holds_what_is_counted(framework: str) -> None:
    model = ahead(TRANSFORMER, 2)
    held = step(model, framework).memory[0].before["parameters"]
    least = 2 * total_parameters(load_model(scenario(model).model))
    assert least <= held < least + BLOCK * 16 * (LAYERS + 2)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_head_runs_again_for_every_further_prediction(framework: str) -> None:
    """Its product, and a loss; the next token's embedding is looked up again."""
    shape = (SAMPLES * SEQ, TRANSFORMER["vocab"], HIDDEN)
    for further in (0, 1, 2):
        low = step(ahead(TRANSFORMER, further), framework)
        found = [op.kernel for op in ops(low) if op.kernel is not None]
        assert [k.shape for k in found].count(shape) == 1 + further
        kinds = [k.kind for k in found]
        assert (
            kinds.count("aten _log_softmax")
            == kinds.count("aten embedding_dense_backward")
            == 1 + further
        )


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_fsdp_gathers_a_group_more_for_each(framework: str) -> None:
    """Its block is a group; its norms and projection are the root's."""
    counts = []
    for further in (0, 1, 2):
        low = step(ahead(TRANSFORMER, further), framework, dp=2, data_parallel="fsdp")
        found = communications(low)
        counts.append((found["dp all_gather"], found["dp reduce_scatter"]))
    more = {(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(counts)}
    assert more == {(2, 1)}


@settings(max_examples=10, deadline=None)
@given(
    st.sampled_from(FRAMEWORKS),
    st.sampled_from(MODELS),
    st.sampled_from(((1, 1), (2, 1), (1, 2))),
    st.sampled_from(("none", "full", "products")),
)
def test_folded_is_unfolded(
    framework: str, model: dict[str, Any], parts: tuple[int, int], recompute: str
) -> None:
    """A slow rank that is not slow simulates every rank by itself, and the step takes as long."""
    tp, pp = parts
    training: dict[str, Any] = {"framework": framework, "recompute": recompute}
    training |= {"microbatches": 2} if pp > 1 else {}
    layout = {"dp": 2, "tp": tp, "pp": pp, "sequence_parallel": tp > 1}
    folded = scenario(ahead(model, 1), training, data_parallel="fsdp", **layout)
    slow = type(folded.faults)(slow_rank=0, slow_factor=1.0)
    whole = predict(replace(folded, faults=slow))
    assert predict(folded).step_time == pytest.approx(whole.step_time, rel=1e-6)


@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble"])
def test_the_last_stage_of_a_pipeline_has_them(schedule: str) -> None:
    """Only its kernels grow, and the outputs that it keeps of all microbatches are as many."""
    said: dict[str, Any] = {"pp": 2, "schedule": schedule}
    lows = [
        executed(
            scenario(ahead(TRANSFORMER, n), {"microbatches": 2}, **said), 1
        ).lowered
        for n in (0, 1)
    ]
    first, last = ([len(ops(low, rank)) for low in lows] for rank in (0, 1))
    assert first[0] == first[1]
    assert last[0] < last[1]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_more_bandwidth_is_never_slower(framework: str) -> None:
    s = scenario(
        ahead(DEEPSEEK, 1), {"framework": framework}, dp=2, data_parallel="fsdp"
    )
    times = [
        predict(
            replace(s, cluster=replace(s.cluster, set={"nvlink.bandwidth": x}))
        ).step_time
        for x in ("1x", "2x", "4x")
    ]
    assert times == sorted(times, reverse=True)


def test_transformers_predicts_the_next_token_alone() -> None:
    """Its modules do not train further predictions."""
    model = TRANSFORMER | {"mtp_layers": 1}
    with pytest.raises(InputError, match="next token alone"):
        predict(scenario(model, pytorch={"modules": "transformers"}))
